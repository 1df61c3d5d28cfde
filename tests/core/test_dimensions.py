"""Exposed communication by parallel dimension: it sums to the split by operation, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Group, Trace
from hypothesis import given
from hypothesis import strategies as st

from tracelens import dimensions, exposed_wait, waiting
from tracelens.collectives import Roles
from tracelens.dimensions import DIMENSIONS, _apportioned
from tracelens.model.result import Breakdown
from tracelens.operations import CODE, OPERATIONS
from tracelens.operations_table import OperationsTable, build
from tracelens.run import Run, assemble

TP, DP = Group((0, 1), "1", "mesh_tp"), Group((0, 2), "2", "mesh_dp")
OTHER_TP, OTHER_DP = Group((2, 3), "3", "mesh_tp"), Group((1, 3), "4", "mesh_dp")


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=6, max_size=6))
def test_parts_are_whole_and_close_the_sum(total: int, weights: list[int]) -> None:
    parts = _apportioned(total, np.array(weights))
    assert parts.sum() == total
    assert (parts >= 0).all()
    if sum(weights):
        exact = [total * weight / sum(weights) for weight in weights]
        assert all(abs(part - one) < 1 for part, one in zip(parts, exact, strict=True))
    else:
        assert parts[-1] == total


def run_of(*, ranks: range = range(4)) -> Run:
    """Four ranks in a square: each all-reduces 300 us with its row, 200 us with its column."""
    traces = []
    for rank in ranks:
        rows, columns = (TP, DP) if rank == 0 else (TP, OTHER_DP) if rank == 1 else (OTHER_TP, DP)
        if rank == 3:
            rows, columns = OTHER_TP, OTHER_DP
        late = 100 if rank % 2 else 0  # the second of a row keeps the first waiting
        trace = Trace(rank=rank, world=4, groups=(rows, columns)).step(1, 0, 2000)
        trace.kernel("gemm", 100, 50)
        trace.all_reduce(200 + late, 300 - late, group=rows, seq=1)
        trace.all_reduce(600, 200, group=columns, seq=2)
        trace.kernel("gemm", 900, 50)
        traces.append(trace.reduce())
    return assemble(traces)


def found(run: Run, rank: int = 0) -> np.ndarray:
    table = build(run)
    roles = Roles(
        {group.index: group.role for group in table.groups},
        {group.index: "high" for group in table.groups},
    )
    waits = waiting.observe(run, table)
    cuts = exposed_wait.cuts_of(run, table, waits)
    of_rows = exposed_wait.by_cycle(run, dimensions.of_rows(table, roles))
    counted = run.counted[rank]
    sums = dimensions.sums(counted, cuts[counted.rank], of_rows[counted.rank])
    [only] = sums.values()
    return only


def by_dimension(found: np.ndarray) -> dict[str, int]:
    totals = found.sum(axis=0)
    return {name: int(time) for name, time in zip(DIMENSIONS, totals, strict=True) if time}


def test_one_operation_on_two_groups_is_told_apart() -> None:
    transfer, unsplit = found(run_of())
    assert by_dimension(transfer) == {"tp": 200_000, "dp": 200_000}
    assert by_dimension(unsplit) == {}
    assert transfer[CODE["all_reduce"]].sum() == transfer.sum()


def test_of_one_rank_alone_the_exposed_time_stays_whole() -> None:
    transfer, unsplit = found(run_of(ranks=range(1)))
    assert by_dimension(transfer) == {}
    assert by_dimension(unsplit) == {"tp": 300_000, "dp": 200_000}


def breakdown(transfer: dict[str, int] | None, unsplit: dict[str, int]) -> Breakdown:
    return Breakdown(0, 0, transfer, None, unsplit, None, 0, None, None, 0)


def test_the_breakdowns_own_numbers_are_what_is_split() -> None:
    """Rounding and later passes may move a number a little: the shares follow it."""
    sums = np.zeros((2, len(OPERATIONS), len(DIMENSIONS)), np.int64)
    sums[0, CODE["all_reduce"]] = [100, 300, 0, 0, 0, 0]
    sums[0, CODE["all_gather"]] = [50, 0, 0, 0, 0, 0]
    sums[1, CODE["send"]] = [0, 0, 7, 0, 0, 0]
    got = dimensions.split(
        breakdown({"all_reduce": 201, "all_gather": 25}, {"send": 4, "broadcast": 3}), sums
    )
    assert got is not None
    assert got.transfer_by_dimension_ns == {"dp": 50 + 25, "tp": 151}
    assert got.exposed_unsplit_by_dimension_ns == {"pp": 4, "other": 3}


def test_a_kernel_that_sends_and_receives_is_for_what_its_messages_are_for() -> None:
    sums = np.zeros((2, len(OPERATIONS), len(DIMENSIONS)), np.int64)
    sums[0, CODE["recv"]] = [0, 0, 3, 0, 1, 0]
    got = dimensions.split(breakdown({"send_recv": 40}, {"send_recv": 8}), sums)
    assert got is not None
    assert got.transfer_by_dimension_ns == {"pp": 30, "cp": 10}
    assert got.exposed_unsplit_by_dimension_ns == {"pp": 6, "cp": 2}


def test_what_is_not_known_stays_unknown() -> None:
    sums = np.zeros((2, len(OPERATIONS), len(DIMENSIONS)), np.int64)
    got = dimensions.split(breakdown(None, {}), sums)
    assert got is not None
    assert (got.transfer_by_dimension_ns, got.exposed_unsplit_by_dimension_ns) == (None, {})
    assert dimensions.split(None, sums) is None
    out = breakdown(None, {"send": 4})
    assert dimensions.split(out, None) == out


@pytest.mark.parametrize(
    ("role", "op", "dimension"),
    [
        ("shard", "all_gather", "dp"), ("replicate", "all_reduce", "dp"),
        ("edp", "all_reduce", "dp"), ("etp", "all_reduce", "tp"), ("embedding", "all_reduce", "pp"),
        ("ep", "all_to_all", "ep"), ("cp", "send", "cp"), ("pp", "send", "pp"),
        ("dp", "send", "pp"), ("unknown", "recv", "pp"), ("unknown", "all_reduce", "other"),
    ],
)  # fmt: skip
def test_dimensions_of_roles(role: str, op: str, dimension: str) -> None:
    table = build(run_of(ranks=range(1)))
    frame = table.frame.assign(op=CODE[op])
    changed = OperationsTable(frame, table.groups, table.complete_steps, table.mean_steps)
    roles = Roles({group.index: role for group in table.groups}, {})
    codes = dimensions.of_rows(changed, roles)
    assert {DIMENSIONS[code] for code in codes} == {dimension}


@pytest.mark.parametrize(
    ("ops", "dimension"), [(["send_recv"] * 2, "dp"), (["send_recv", "send"], "pp")]
)
def test_a_kernel_known_by_its_name_shows_no_stages(ops: list[str], dimension: str) -> None:
    """All-to-alls run as SendRecv kernels too; beside messages it is one of them."""
    table = build(run_of(ranks=range(1)))
    named = ["name" if op == "send_recv" else "record" for op in ops]
    frame = table.frame.assign(op=[CODE[op] for op in ops], source=named)
    changed = OperationsTable(frame, table.groups, table.complete_steps, table.mean_steps)
    codes = dimensions.of_rows(changed, Roles({g.index: "dp" for g in table.groups}, {}))
    assert DIMENSIONS[codes[0]] == dimension


def test_without_operations_there_is_nothing() -> None:
    table = build(assemble([Trace().step(1, 0, 1000).kernel("gemm", 100, 50).reduce()]))
    assert dimensions.of_rows(table, Roles({}, {})).tolist() == []

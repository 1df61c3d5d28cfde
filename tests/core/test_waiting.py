"""Who waited in collectives, how long, and for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from builders import Group, Schema, Trace
from calls import EPOCH_NS, Call, instance, table_of

import tracelens
from tracelens import operations_table, waiting
from tracelens.model.trace import NONE
from tracelens.operations import BROADCAST
from tracelens.reporting.collectives import collective_rows, collectives_section
from tracelens.run import Run, assemble

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.model.result import Breakdown, CollectiveResult
    from tracelens.reduced import RankReduction
    from tracelens.waiting import Waiting

US, MS = 1000, 10**6
NO_RUN = Run([], None, [], [], [])  # no host says that clocks are one


def observed(calls: Sequence[Call]) -> Waiting:
    return waiting.observe(NO_RUN, table_of(calls))


class TestOneInstance:
    def test_wait_and_lateness(self) -> None:
        seen = observed(instance([0, 30, 100]))
        assert seen.wait_ns.tolist() == [100, 70, 0]
        assert seen.late_ns.tolist() == [0, 30, 100]
        assert (seen.members.tolist(), seen.incomplete) == ([3], 0)
        assert seen.rows.tolist() == [0, 1, 2]

    def test_the_cut_is_on_the_own_clock(self) -> None:
        early, late = instance([0, 40])
        skewed = replace(late, start=late.start + 5000, end=late.end + 5000)
        seen = observed([early, skewed])
        assert seen.clocks.offset_ns == {0: 0, 1: 5000}
        assert seen.wait_ns.tolist() == [40, 0]
        assert (seen.cut - EPOCH_NS).tolist() == [40, 5040]

    def test_a_member_cannot_wait_longer_than_its_call_takes(self) -> None:
        """A broadcast's root may be gone before the last one arrives."""
        calls = [
            *instance([0, 0], at=1000),
            Call(0, 0, 20, BROADCAST),
            Call(1, 50, 70, BROADCAST),
        ]
        assert observed(calls).wait_ns.tolist() == [0, 0, 20, 0]

    def test_members_without_a_trace_are_counted(self) -> None:
        calls = [
            *instance([0, 30], group=(0, 1, 2)),
            *instance([0, 30], at=500, group=(0, 1)),
            *instance([0, 30], at=900, group=(0, 1, 2)),
        ]
        seen = observed(calls)
        assert seen.incomplete == 2
        assert seen.wait_ns.tolist() == [30, 0] * 3

    def test_a_call_of_one_rank_is_unknown(self) -> None:
        seen = observed([*instance([0, 30]), Call(0, 200, 900, elements=5)])
        assert seen.wait_ns.tolist() == [30, 0, NONE]
        assert seen.late_ns.tolist() == [0, 30, NONE]
        assert seen.cut[2] == NONE

    def test_nothing_matched(self) -> None:
        seen = observed([Call(0, 0, 10), Call(0, 20, 30)])
        assert seen.wait_ns.tolist() == [NONE, NONE]
        assert (seen.members.tolist(), seen.incomplete) == ([], 0)

    def test_a_broadcast_to_ranks_on_other_clocks_is_not_measured_across_them(self) -> None:
        """Nothing aligns the two pairs, so times compare within a pair only."""
        hour = 3600 * 10**9
        everyone = (0, 1, 2, 3, 4)
        pairs = [*instance([0, 5], group=(0, 1)), *instance([0, 5], at=hour, group=(2, 3))]
        starts = (100, 130, hour + 100, hour + 107, 900)
        sent = [Call(r, s, s + 50, BROADCAST, group=everyone) for r, s in enumerate(starts)]
        seen = observed([*pairs, *sent])
        assert seen.clocks.component == {0: 0, 1: 0, 2: 2, 3: 2}
        assert seen.wait_ns.tolist() == [5, 0, 5, 0, 30, 0, 7, 0, NONE]
        assert seen.late_ns.tolist() == [0, 5, 0, 5, 0, 30, 0, 7, NONE]

    def test_a_rank_alone_on_its_clock_does_not_wait(self) -> None:
        sent = [Call(r, 50 * r, 200, BROADCAST, group=(0, 1, 2)) for r in range(3)]
        pairs = [*instance([0, 5], at=1000, group=(0, 1)), *instance([0, 5], group=(2, 3))]
        seen = observed([*pairs, *sent])
        assert sorted(seen.clocks.offset_ns) == [0, 1, 2, 3]
        assert seen.wait_ns.tolist()[4:] == [50, 0, NONE]


def test_lateness_is_the_mean_of_each_ranks_calls_in_a_step() -> None:
    calls = [
        *instance([0, 30], step=4),
        *instance([10, 0], at=500, step=4),
        *instance([0, 8], at=900, step=5),
        *instance([70, 0], at=1300, step=-1),
    ]
    table = table_of([*calls, Call(0, 2000, 2001, elements=3, step=6)])
    late = waiting.lateness(table, waiting.observe(NO_RUN, table))
    assert late is not None
    assert (late.ranks, late.steps) == ([0, 1], [4, 5])
    assert late.late_ns == [[5, 0], [15, 8]]


def test_lateness_of_nothing() -> None:
    table = table_of([Call(0, 0, 10)])
    assert waiting.lateness(table, waiting.observe(NO_RUN, table)) is None


# through files -----------------------------------------------------------------------------------


def gloo_rank(rank: int, start: int, host: str | None) -> RankReduction:
    trace = Trace(rank=rank, keys={} if host is None else {"host_name": host})
    trace.step(1, 0, 3000)
    for at in (0, 1000, 2000):
        # Thread scheduling: rank 1's ranges end 70 us late.
        end = at + 800 + 70 * rank
        trace.gloo("allreduce_", at + start, end - at - start, [[[9]]], annotated="all_reduce")
    return trace.reduce()


@pytest.mark.parametrize(
    ("hosts", "offset"), [(("a", "a"), 0), (("a", "b"), 70 * US), ((None, None), 70 * US)]
)
def test_ranks_on_one_host_read_one_clock(
    hosts: tuple[str | None, str | None], offset: int
) -> None:
    run = assemble([gloo_rank(0, 200, hosts[0]), gloo_rank(1, 500, hosts[1])])
    seen = waiting.observe(run, operations_table.build(run))
    assert seen.clocks.offset_ns == {0: 0, 1: offset}
    assert seen.clocks.component == {0: 0, 1: 0}
    assert seen.wait_ns.tolist() == [300 * US - offset] * 3 + [0] * 3
    assert len(seen.clocks.residual_ns) == (0 if offset == 0 else 3)


def test_devices_on_one_host_are_aligned() -> None:
    """Device times pass through each driver's own calibration."""
    files = []
    for rank in (0, 1):
        trace = Trace(rank=rank, keys={"host_name": "a"}).step(1, 0, 900)
        files.append(trace.all_reduce(100, 50 + 20 * rank, seq=1).reduce())
    run = assemble(files)
    clocks = waiting.observe(run, operations_table.build(run)).clocks
    assert clocks.offset_ns == {0: 0, 1: 20 * US}


WORK = (300, 320, 300, 500)  # microseconds of compute before each all-reduce: rank 3 is slow
SKEW = (0, 2_500_000, -1_750_000, 13)  # of each rank's clock, in microseconds
BASE_SHIFT_NS = (0, 86_400 * 10**9, -777_000, 5_000)
GROUP = Group((0, 1, 2, 3))


def skewed_rank(rank: int, schema: Schema) -> Trace:
    """Return four steps of 1 ms as the rank's clock tells them.

    True times of step k: work from 100, all-reduce until 700, all-gather from 760 (rank 1: 780)
    until 860, hidden behind compute until 800.
    """
    shift = BASE_SHIFT_NS[rank]
    base = Trace().base_ns + shift
    trace = Trace(rank=rank, world=4, base_ns=base, groups=(GROUP,), schema=schema)
    for step in range(1, 5):
        at = 1000 * step + SKEW[rank] - shift // 1000
        seqs = {"seq": 2 * step} if schema.torch == "2.12" else {}
        trace.step(step, at, 1000).kernel("gemm", at + 100, WORK[rank])
        trace.all_reduce(at + 100 + WORK[rank], 600 - WORK[rank], **seqs)
        trace.kernel("gemm", at + 710, 90)
        late = 20 if rank == 1 else 0
        trace.all_gather(at + 760 + late, 100 - late, 256, **seqs)
    return trace


@pytest.fixture(scope="module", params=["2.5", "2.12"])
def analysis(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tracelens.Analysis:
    folder: Path = tmp_path_factory.mktemp("skewed")
    for rank in range(4):
        skewed_rank(rank, Schema(torch=request.param)).write(folder / f"rank{rank}.json")
    return tracelens.analyze(folder)


def breakdown_of(analysis: tracelens.Analysis, rank: int) -> Breakdown:
    [device] = analysis.ranks[rank].devices
    assert device.breakdown is not None
    return device.breakdown


class TestThroughFiles:
    def test_offsets(self, analysis: tracelens.Analysis) -> None:
        assert [r.clock_offset_ns for r in analysis.ranks] == [skew * US for skew in SKEW]
        [said] = [n.message for n in analysis.notices if n.code == "clocks-aligned"]
        assert "offsets up to 2500000.0 us" in said
        assert "within 0.0 us (median)" in said
        assert not {n.code for n in analysis.notices} & {"wait-unknown", "wait-lower-bound"}

    def test_wait_and_transfer_of_collectives(self, analysis: tracelens.Analysis) -> None:
        rows: dict[str, CollectiveResult] = {c.op: c for c in analysis.collectives}
        reduced, gathered = rows["all_reduce"], rows["all_gather"]
        assert reduced.wait_ns == 4 * (200 + 180 + 200 + 0) * US // 4
        assert reduced.transfer_ns == 4 * 100 * US
        assert gathered.wait_ns == 4 * (20 + 0 + 20 + 20) * US // 4
        assert gathered.transfer_ns == 4 * 80 * US
        size = (1 << 20) * 2  # bf16
        assert reduced.algbw_gbps == pytest.approx(size / (100 * US))
        assert reduced.busbw_gbps == pytest.approx(size / (100 * US) * 2 * 3 / 4)

    @pytest.mark.parametrize(("rank", "wait"), [(0, 200), (1, 180), (2, 200), (3, 0)])
    def test_breakdown(self, analysis: tracelens.Analysis, rank: int, wait: int) -> None:
        got = breakdown_of(analysis, rank)
        assert got.wait_ns == wait * US  # the all-gather's waiting is hidden
        assert got.transfer_by_op_ns == {"all_reduce": 100 * US, "all_gather": 60 * US}
        assert got.exposed_unsplit_by_op_ns == {}
        assert got.compute_ns == (WORK[rank] + 90) * US

    @pytest.mark.parametrize("rank", range(4))
    def test_breakdown_sums_to_the_window(self, analysis: tracelens.Analysis, rank: int) -> None:
        got = breakdown_of(analysis, rank)
        assert got.window_ns == MS
        transfer = sum((got.transfer_by_op_ns or {}).values())
        exposed = transfer + (got.wait_ns or 0) + sum(got.exposed_unsplit_by_op_ns.values())
        idle = (got.idle_host_ns or 0) + (got.idle_dependency_ns or 0) + got.idle_unknown_ns
        whole = got.compute_ns + exposed + got.exposed_copy_ns + idle + (got.bubble_ns or 0)
        assert whole == got.window_ns

    def test_stragglers(self, analysis: tracelens.Analysis) -> None:
        [slow] = analysis.stragglers
        assert (slow.rank, slow.mean_late_ns, slow.late_in_pct) == (3, 200 * US, 50)
        assert slow.wait_caused_ns == 4 * 580 * US
        assert slow.share_of_wait_pct == pytest.approx(100 * 580 / 640)

    def test_lateness(self, analysis: tracelens.Analysis) -> None:
        late = analysis.lateness
        assert late is not None
        assert (late.ranks, late.steps) == ([0, 1, 2, 3], [1, 2, 3, 4])
        assert late.late_ns == [[0] * 4, [20 * US] * 4, [0] * 4, [100 * US] * 4]


def test_a_rank_that_is_missing_makes_waiting_a_lower_bound(tmp_path: Path) -> None:
    for rank in range(3):
        skewed_rank(rank, Schema()).write(tmp_path / f"rank{rank}.json")
    result = tracelens.analyze(tmp_path)
    assert "wait-lower-bound" not in {n.code for n in result.notices}
    [said] = [n for n in result.notices if n.code == "members-missing"]
    assert (said.count, said.level) == (8, "warning")
    assert {row.whole for row in collective_rows(result)} == {False}
    table = collectives_section(result).blocks[0].table
    assert table is not None
    bandwidths = [row[-2].text for row in table.rows]
    assert all(text.startswith("≥ ") for text in bandwidths)
    # Without rank 3, the last to enter the all-reduce is rank 1.
    assert breakdown_of(result, 0).wait_ns == 20 * US


def test_one_rank_alone_knows_no_waiting(tmp_path: Path) -> None:
    skewed_rank(0, Schema()).write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    assert "wait-unknown" in {n.code for n in result.notices}
    assert all(c.wait_ns is None and c.transfer_ns is None for c in result.collectives)
    got = breakdown_of(result, 0)
    assert (got.wait_ns, got.transfer_by_op_ns) == (None, None)
    assert got.exposed_unsplit_by_op_ns == {"all_reduce": 300 * US, "all_gather": 60 * US}
    assert (result.ranks[0].clock_offset_ns, result.lateness, result.stragglers) == (None, None, [])


def test_sets_of_ranks_that_nothing_links(tmp_path: Path) -> None:
    for rank in range(4):
        group = Group((0, 1) if rank < 2 else (2, 3), str(rank // 2), "tp")
        trace = Trace(rank=rank, world=4, groups=(group,)).step(1, 0, 900)
        trace.all_reduce(100 + 50 * (rank % 2), 100 - 50 * (rank % 2), group=group, seq=1)
        trace.write(tmp_path / f"rank{rank}.json")
    result = tracelens.analyze(tmp_path)
    [said] = [n for n in result.notices if n.code == "clocks-apart"]
    assert said.count == 2
    assert [c.wait_ns for c in result.collectives] == [25 * US, 25 * US]


def test_a_match_in_which_one_left_before_another_entered_is_dropped() -> None:
    """Calls of one size that do not belong together: nobody's waiting, and it is counted."""
    good = [c for step in range(1, 5) for c in instance([0, 10, 20], step * 100 * MS, step=step)]
    members = (0, 1, 2)
    wrong = [
        Call(0, 900 * MS, 900 * MS + 100, group=members, step=9),
        Call(1, 905 * MS, 905 * MS + 100, group=members, step=9),
        Call(2, 905 * MS, 905 * MS + 100, group=members, step=9),
    ]
    seen = observed([*good, *wrong])
    assert seen.implausible == 1
    assert (seen.wait_ns[-3:] == NONE).all()
    assert (seen.wait_ns[:-3] != NONE).all()
    assert observed(good).implausible == 0


def test_a_rank_without_an_earlier_cycle_matches_the_later_one() -> None:
    both = Trace(rank=0, world=2)
    late = Trace(rank=1, world=2)
    for trace in (both, late):
        trace.step(11, 5000, 100).all_reduce(5010, 20, 64, launch=5005)
    first = Trace(rank=0, world=2)
    first.step(1, 0, 100).all_reduce(10, 20, 64, launch=5)
    run = assemble([first.reduce(), both.reduce(), late.reduce()])
    seen = waiting.observe(run, operations_table.build(run))
    assert (seen.wait_ns != NONE).sum() == 2
    assert set(seen.clocks.offset_ns.values()) == {0}

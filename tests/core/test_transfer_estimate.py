"""Transfer and bandwidth from the calls of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from builders import Group, Schema, Trace

import tracelens
from tracelens.model.trace import NONE
from tracelens.transfer_estimate import estimate

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import CollectiveResult

US = 1000


def rows(times: list[int], message: int = 2000, wire: int = 1000) -> pd.DataFrame:
    return pd.DataFrame({"time_ns": times, "message_bytes": message, "wire_bytes": wire})


def test_the_fastest_of_equal_calls_stands_for_all() -> None:
    times = [*range(1000, 1100), 90_000]
    found = estimate(rows(times))
    assert found is not None
    assert found.transfer_ns == 101 * 1005
    assert found.busbw_gbps == pytest.approx(1000 / 1005)


def test_sizes_are_judged_apart() -> None:
    calls = pd.concat([rows([100, 900, 900, 900, 900]), rows([50, 60, 60, 60, 60], 8, 4)])
    found = estimate(calls)
    assert found is not None
    assert found.transfer_ns == 5 * 100 + 5 * 50
    assert found.busbw_gbps == pytest.approx((5 * 1000 + 5 * 4) / 750)


def test_four_calls_are_too_few() -> None:
    assert estimate(rows([100] * 4)) is None


@pytest.mark.parametrize(("odd", "known"), [(50, True), (60, False)])
def test_calls_of_rare_sizes_may_take_a_twentieth_of_the_time(odd: int, known: bool) -> None:
    found = estimate(pd.concat([rows([200] * 5), rows([odd], 16, 8)]))
    assert (found is not None) is known
    if found is not None:
        assert found.transfer_ns == 1000


def test_unknown_sizes_and_times_tell_nothing() -> None:
    assert estimate(rows([100] * 9, message=NONE, wire=NONE)) is None
    assert estimate(rows([0] * 9)) is None


def test_calls_that_put_nothing_on_the_wire_have_no_bandwidth() -> None:
    found = estimate(rows([100] * 5, message=8, wire=0))
    assert found is not None
    assert (found.transfer_ns, found.busbw_gbps) == (500, None)


# through files -----------------------------------------------------------------------------------


def trace(rank: int, late: list[int], group: Group | None = None) -> Trace:
    """Return all-reduces of 80 us that wait `late[i]` microseconds before."""
    made = Trace(rank=rank, world=2, schema=Schema(torch="2.5"))
    for step, waited in enumerate(late):
        at = 1000 * step
        made.step(step, at, 1000)
        made.all_reduce(at + 300 - waited, 80 + waited, 1 << 20, group=group)
    return made


def only_row(folder: Path) -> tuple[tracelens.Analysis, CollectiveResult]:
    analysis = tracelens.analyze(folder)
    [row] = analysis.collectives
    return analysis, row


def test_a_lone_rank_shows_an_estimate_beside_its_time(tmp_path: Path) -> None:
    late = [90, 60, 0, 30, 120, 20, 0]
    trace(0, late).write(tmp_path / "rank0.json")
    analysis, row = only_row(tmp_path)
    assert row.transfer_estimate_ns == 7 * 80 * US
    assert row.time_ns == (7 * 80 + sum(late)) * US
    assert (row.wait_ns, row.transfer_ns, row.busbw_gbps, row.matched_calls) == (
        None, None, None, {},
    )  # fmt: skip
    assert row.busbw_estimate_gbps == pytest.approx((1 << 21) / (80 * US))
    [metric] = [m for m in analysis.summary.metrics if m.name == "transfer_estimate_ns"]
    assert metric.value == pytest.approx(80 * US, rel=0.01)
    # Nothing is taken off: the exposed time is whole.
    [device] = analysis.ranks[0].devices
    assert device.breakdown is not None
    assert device.breakdown.transfer_by_op_ns is None
    exposed = device.breakdown.exposed_unsplit_by_op_ns["all_reduce"]
    assert exposed == pytest.approx((80 + np.mean(late)) * US, rel=0.001)


def test_two_ranks_know_better(tmp_path: Path) -> None:
    trace(0, [90, 60, 0, 30, 120, 20, 0]).write(tmp_path / "rank0.json")
    trace(1, [0] * 7).write(tmp_path / "rank1.json")
    analysis, row = only_row(tmp_path)
    assert (row.transfer_estimate_ns, row.busbw_estimate_gbps) == (None, None)
    assert row.transfer_ns == 7 * 80 * US
    assert row.matched_calls == {"high": 7}
    assert "transfer_estimate_ns" not in {m.name for m in analysis.summary.metrics}


def test_two_ranks_of_different_groups_are_alone_both(tmp_path: Path) -> None:
    for rank, members in ((0, (0, 2)), (1, (1, 3))):
        made = trace(rank, [0, 5, 10, 15, 20], Group(members, str(rank), "tp"))
        made.world = 4
        made.groups = (Group(members, str(rank), "tp"),)
        made.write(tmp_path / f"rank{rank}.json")
    analysis = tracelens.analyze(tmp_path)
    assert [c.transfer_estimate_ns for c in analysis.collectives] == [400 * US] * 2
    assert "wait-unknown" in {notice.code for notice in analysis.notices}
    assert (analysis.stragglers, analysis.lateness) == ([], None)

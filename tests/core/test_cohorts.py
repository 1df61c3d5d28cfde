"""Ranks of different runs in one folder: told apart, named, and never matched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import EPOCH_US, Group, Schema, Trace

import tracelens
from tracelens.cohorts import GROUPS, TIME, WORLD, sort_into_runs
from tracelens.run import assemble

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracelens.reduced import RankReduction
    from tracelens.run import RankRun

SECOND_NS = 10**9


def recorded(
    rank: int,
    *,
    at_ns: int = 0,
    world: int = 4,
    host: str | None = None,
    groups: tuple[Group, ...] | None = None,
    first_step: int = 1,
) -> RankReduction:
    """Return a second of a rank: ten steps with an all-reduce of all ranks in each."""
    keys = {} if host is None else {"host_name": host}
    base = EPOCH_US * 1000 + at_ns
    trace = Trace(rank, world, Schema(torch="2.5"), base, groups=groups, keys=keys)
    for step in range(10):
        at = 100_000 * step
        trace.step(first_step + step, at, 100_000).all_reduce(at + 5000, 80_000)
    return trace.reduce()


def ranks_of(files: Iterable[RankReduction]) -> list[RankRun]:
    return assemble(list(files)).counted


def test_one_run() -> None:
    assert sort_into_runs(ranks_of(recorded(r) for r in range(4))) == ([{0, 1, 2, 3}], set())


def test_another_world_size() -> None:
    files = [recorded(0), recorded(1), recorded(2), recorded(3, world=8)]
    assert sort_into_runs(ranks_of(files)) == ([{0, 1, 2}, {3}], {WORLD})


def test_the_largest_run_comes_first() -> None:
    files = [recorded(0, world=8), recorded(1), recorded(2)]
    assert sort_into_runs(ranks_of(files)) == ([{1, 2}, {0}], {WORLD})


def test_an_hour_later() -> None:
    later = 3600 * SECOND_NS
    files = [recorded(0), recorded(1), recorded(2, at_ns=later), recorded(3, at_ns=later)]
    assert sort_into_runs(ranks_of(files)) == ([{0, 1}, {2, 3}], {TIME})


@pytest.mark.parametrize(
    ("hosts", "later", "apart"),
    [
        (("a", "a"), 5, True),  # the same steps on one clock, five seconds apart
        (("a", "a"), 0, False),
        (("a", "b"), 5, False),  # clocks of two hosts may well be
        ((None, None), 5, False),
    ],
)
def test_one_host_has_one_clock(
    hosts: tuple[str | None, str | None], later: int, apart: bool
) -> None:
    first = recorded(0, world=2, host=hosts[0])
    second = recorded(1, world=2, host=hosts[1], at_ns=later * SECOND_NS)
    runs, reasons = sort_into_runs(ranks_of([first, second]))
    assert (len(runs), reasons) == ((2, {TIME}) if apart else (1, set()))


def test_other_steps_of_one_host_may_be_of_one_run() -> None:
    """A rank whose first cycle is lost is of the same run all the same."""
    first = recorded(0, world=2, host="a")
    second = recorded(1, world=2, host="a", at_ns=60 * SECOND_NS, first_step=101)
    assert sort_into_runs(ranks_of([first, second])) == ([{0, 1}], set())


def test_a_group_of_both_that_lists_other_ranks() -> None:
    world = Group((0, 1, 2, 3))
    tp2 = {r: Group((r // 2 * 2, r // 2 * 2 + 1), str(1 + r // 2), "tp") for r in range(4)}
    tp4 = Group((0, 1, 2, 3), "1", "tp")
    files = [recorded(r, groups=(world, tp2[r])) for r in (0, 2, 3)]
    files.append(recorded(1, groups=(world, tp4)))
    assert sort_into_runs(ranks_of(files)) == ([{0, 2, 3}, {1}], {GROUPS})


def test_equal_names_of_groups_that_share_no_rank_contradict_nothing() -> None:
    world = Group((0, 1, 2, 3))
    pairs = {r: Group((r // 2 * 2, r // 2 * 2 + 1), "1", "tp") for r in range(4)}
    files = [recorded(r, groups=(world, pairs[r])) for r in range(4)]
    assert sort_into_runs(ranks_of(files)) == ([{0, 1, 2, 3}], set())


# through files -----------------------------------------------------------------------------------


def written(folder: Path, rank: int, pace: float = 1.0, **options: object) -> None:
    """Write a rank of 40 steps; `pace` is that of its run's steps."""
    trace = Trace(rank=rank, world=4, schema=Schema(torch="2.5"), **options)  # type: ignore[arg-type]
    for step in range(40):
        at = round(100_000 * step * pace + 700 * (step * 7919 % 13) * (pace != 1))
        late = 300 * (rank % 2)
        trace.step(step, at, 90_000).kernel("gemm", at + 100, 900 + late)
        trace.all_reduce(at + 1000 + late, 500 - late)
    trace.write(folder / f"rank{rank}.json")


def notices(analysis: tracelens.Analysis) -> dict[str, str]:
    return {notice.code: notice.message for notice in analysis.notices}


def test_ranks_of_two_runs_are_said_and_not_matched_with_each_other(tmp_path: Path) -> None:
    for rank in range(4):
        written(tmp_path, rank, base_ns=EPOCH_US * 1000 + rank // 2 * 20 * SECOND_NS,
                keys={"host_name": "a"})  # fmt: skip
    analysis = tracelens.analyze(tmp_path)
    said = notices(analysis)["mixed-runs"]
    assert "ranks 2-3 cannot be of one run with ranks 0-1" in said
    assert "recorded at another time" in said
    [row] = analysis.collectives
    assert row.matched_calls == {"high": 40}
    # Each pair waits 300 us a step for its second rank, and nobody for the other pair.
    assert row.wait_ns == 40 * 150_000


def test_an_hour_apart_is_said_once(tmp_path: Path) -> None:
    for rank in range(4):
        written(tmp_path, rank, base_ns=EPOCH_US * 1000 + rank // 2 * 3600 * SECOND_NS)
    analysis = tracelens.analyze(tmp_path)
    assert "different-times" in notices(analysis)
    assert "mixed-runs" not in notices(analysis)
    [row] = analysis.collectives
    assert row.wait_ns == 40 * 150_000


def test_a_clock_without_a_date_is_no_other_time(tmp_path: Path) -> None:
    """Nothing shows when it was recorded: neither that it ran with the others nor that not."""
    for rank in range(4):
        written(tmp_path, rank)
    text = (tmp_path / "rank3.json").read_text()
    (tmp_path / "rank3.json").write_text(text.replace('"baseTimeNanoseconds"', '"baseTime"'))
    (tmp_path / "events.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    analysis = tracelens.analyze(tmp_path)
    said = notices(analysis)
    assert not {"different-times", "mixed-runs"} & set(said)
    assert "whether rank 3 ran with ranks 0-2, 4" in said["clock-undated"]
    [row] = analysis.collectives
    assert row.matched_calls == {"high": 30}


def test_ends_that_agree_with_nobodys(tmp_path: Path) -> None:
    """Nothing else tells: the same world, steps, sizes and minute, but not the same pace."""
    for rank in range(3):
        written(tmp_path, rank)
    written(tmp_path, 3, pace=1.04)
    analysis = tracelens.analyze(tmp_path)
    said = notices(analysis)["mixed-runs"]
    assert "rank 3 cannot be of one run with ranks 0-2" in said
    assert "end at other times" in said
    [row] = analysis.collectives
    assert row.matched_calls == {"high": 30}  # of four ranks, one matches nothing
    assert [rank.clock_offset_ns is None for rank in analysis.ranks] == [False] * 3 + [True]


def test_two_ranks_of_two_runs(tmp_path: Path) -> None:
    written(tmp_path, 0)
    written(tmp_path, 1, pace=1.04)
    analysis = tracelens.analyze(tmp_path)
    assert {"mixed-runs", "wait-unknown"} <= notices(analysis).keys()
    assert all(c.wait_ns is None for c in analysis.collectives)
    assert (analysis.stragglers, analysis.lateness) == ([], None)


def test_another_layout(tmp_path: Path) -> None:
    """Ranks 0 and 1 of a dp 4 run, ranks 2 and 3 of a tp 2 x dp 2 run."""
    world = Group((0, 1, 2, 3))
    for rank in range(4):
        groups = (world,) if rank < 2 else (world, Group((2, 3), "1", "tp"))
        written(tmp_path, rank, pace=1.0 if rank < 2 else 1.07, groups=groups)
    analysis = tracelens.analyze(tmp_path)
    [row] = analysis.collectives
    assert "mixed-runs" in notices(analysis)
    assert row.matched_calls.get("high", 0) <= 20

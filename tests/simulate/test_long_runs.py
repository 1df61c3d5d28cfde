"""Runs of seconds, whose clocks run apart: common times, waiting and transfer stay true.

Compute is a hundred times slower than on a real device, so a few events last long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simulated import Simulated, keys, members, simulated

from tracelens.model.trace import NONE
from tracelens.simulate import Layout, Machine, Model, Options

if TYPE_CHECKING:
    from collections.abc import Iterator

US, SECOND = 1000, 10**9
MODEL = Model(layers=4, hidden=2048, vocabulary=8192, sequence=1024)


def options(layout: Layout, **more: Any) -> Options:
    machine = Machine(tflops=2.0, skew_ns=300_000 * US, drift_ppm=20, slow={1: 1.25})
    return Options(layout, MODEL, machine, steps=6, drop_edges=30, **more)


RUNS = {
    "ddp": options(Layout(dp=4), micro_batches=2, torch="2.4"),
    "fsdp": options(Layout(dp=4), strategy="zero3"),
    "3d": options(
        Layout(dp=2, tp=2, pp=2), schedule="1f1b", micro_batches=4, sequence_parallel=True,
        strategy="distributed-optimizer", torch="2.4",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(RUNS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return simulated(RUNS[request.param], tmp_path_factory.mktemp("long"))


def matched(run: Simulated) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    known = members(run)
    for place, key in enumerate(keys(run)):
        if key is not None and run.waiting.wait_ns[place] != NONE:
            yield place, *known[key]


def test_it_lasts_seconds_and_drift_is_found_on_every_rank(run: Simulated) -> None:
    times = run.table.frame["start_ns"].to_numpy()
    assert np.ptp(times[times != NONE]) > 2 * SECOND
    assert all(rank.clock_drift_ppm is not None for rank in run.analysis.ranks)
    first, *others = (rank.clock for rank in run.whole.ranks)
    for rank, clock in zip(run.analysis.ranks[1:], others, strict=True):
        assert rank.clock_drift_ppm == pytest.approx(clock.drift_ppm - first.drift_ppm, abs=0.5)


def test_common_times_are_right_within_two_microseconds_all_along(run: Simulated) -> None:
    """The line is the first rank's clock, which drifts itself: its own times say how."""
    rank = run.table.frame["rank"].to_numpy(np.int64)
    shown = run.table.frame["start_ns"].to_numpy(np.int64)
    rows = [(place, member["start_ns"]) for place, _, member in matched(run)]
    places, true = np.array([place for place, _ in rows]), np.array([at for _, at in rows])
    common = run.waiting.clocks.common(rank[places], shown[places])
    own = rank[places] == 0
    base = common.min()
    rate, level = np.polyfit((true[own] - true[0]) / 1e9, (common - base - true)[own], 1)
    error = common - base - true - (rate * (true - true[0]) / 1e9 + level)
    assert np.abs(error).max() < 2 * US


def test_wait_and_transfer_are_right_within_one_percent(run: Simulated) -> None:
    frame = run.table.frame
    length = (frame["end_ns"] - frame["start_ns"]).to_numpy()
    checked = 0
    complete = run.waiting.members == [
        run.table.groups[group].size
        for group in frame["group"].to_numpy()[run.waiting.rows[run.waiting.first]]
    ]
    whole = set(run.waiting.rows[np.repeat(complete, run.waiting.members)].tolist())
    for place, _, member in matched(run):
        if place in whole:
            checked += 1
            wait = int(run.waiting.wait_ns[place])
            transfer = int(length[place]) - wait
            assert wait == pytest.approx(member["wait_ns"], rel=0.01, abs=2 * US)
            assert transfer == pytest.approx(member["transfer_ns"], rel=0.01, abs=2 * US)
    assert checked > 100


def test_the_slow_rank_is_late_step_after_step(run: Simulated) -> None:
    [slow] = run.analysis.stragglers
    assert (slow.rank, slow.cause, slow.persistent) == (1, "compute", True)
    assert slow.late_steps == slow.steps == 6

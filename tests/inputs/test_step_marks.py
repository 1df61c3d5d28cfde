"""Traces without steps, with steps of one number, cut ones, and steps that some ranks lack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import Trace
from command import run
from standard_run import (
    BYTES,
    STEP,
    add_step,
    codes,
    holds,
    is_standard,
    rank,
    rank_of,
    said,
    write_ranks,
)

import tracelens

if TYPE_CHECKING:
    from pathlib import Path


def without_marks(number: int, steps: int = 2) -> Trace:
    trace = rank(number, steps=steps)
    trace.events = [text for text in trace.events if "ProfilerStep" not in text]
    return trace


def test_no_steps_are_one_window(tmp_path: Path) -> None:
    for number in (0, 1):
        without_marks(number).write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        (device,) = one.devices
        assert device.steps == []
        assert (device.mean_step, device.breakdown) == (None, None)
        two = {name: 2 * value for name, value in STEP.items()}
        # From the first kernel of the first step to the last one of the second.
        holds(device.total, **two | {"window_ns": 1_800_000, "idle_ns": 200_000})
    (row,) = result.collectives
    assert (row.message_bytes, row.calls) == (2 * 2 * BYTES, 2)
    assert (row.bytes_per_step.message, row.calls_per_step) == (None, None)
    assert "the whole trace is one window" in said(result, "no-steps")
    assert "No complete step" in result.summary.verdict
    assert result.run.steps == []


def test_one_rank_without_marks(tmp_path: Path) -> None:
    """Its total stands; means and bytes per step are those of the ranks with steps."""
    write_ranks(tmp_path)
    without_marks(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    holds(rank_of(result, 0).devices[0].mean_step)
    (device,) = rank_of(result, 1).devices
    assert (device.steps, device.mean_step) == ([], None)
    assert device.total.compute_ns == 1_400_000
    assert "none" in said(result, "steps-differ")


@pytest.mark.parametrize("together", [True, False])
def test_the_same_number_twice_is_two_steps(together: bool, tmp_path: Path) -> None:
    """The profiler was set up anew: in one file, or in the next."""
    for number in (0, 1):
        if together:
            add_step(rank(number, steps=1), 10, 1000).write(tmp_path / f"rank{number}.json")
        else:
            for cycle in (0, 1):
                made = rank(number, steps=1, at=5000 * cycle)
                made.write(tmp_path / f"rank{number}_{cycle}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        (device,) = one.devices
        assert [step.step for step in device.steps] == [10, 10]
        assert len({step.occurrence for step in device.steps}) == (2 if together else 1)
        assert device.mean_step is not None
        assert device.mean_step.compute_ns == 700_000
        assert device.total.compute_ns == 1_400_000
    assert result.run.ranks_duplicated == []
    (row,) = result.collectives
    assert (row.calls, row.bytes_per_step.message) == (2, 2 * BYTES)
    assert "steps-differ" not in codes(result)


def test_a_gap_between_the_numbers(tmp_path: Path) -> None:
    for number in (0, 1):
        made = rank(number)
        add_step(made, 20, 5000).write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        first, second, third = one.devices[0].steps
        holds(first.partition)
        assert [step.period_ns for step in (first, second, third)] == [1_000_000] * 3
        assert second.partition.compute_ns == third.partition.compute_ns == 700_000


@pytest.mark.parametrize("name", ["a day long", "half a step too long", "too early"])
def test_a_step_mark_that_reaches_into_the_next(name: str, tmp_path: Path) -> None:
    """It swallows no step: both are shown with what they launched, and are not complete."""
    write_ranks(tmp_path, steps=3)
    made = without_marks(1, steps=3)
    early = 400 if name == "too early" else 0
    length = {"a day long": 86_400_000_000, "half a step too long": 1500}.get(name, 1000)
    made.step(10, 0, length).step(11, 1000 - early, 1000).step(12, 2000, 1000)
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    steps = rank_of(result, 1).devices[0].steps
    assert [(step.step, step.complete) for step in steps] == [(10, False), (11, False), (12, True)]
    assert sum(step.partition.compute_ns for step in steps) == 2_100_000
    if not early:
        for step in steps:
            holds(step.partition)
    assert "2 step marks without a usable duration (step 10, 11)" in said(result, "unended-steps")
    holds(rank_of(result, 0).devices[0].mean_step)
    assert "steps-differ" not in codes(result)
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


def test_a_last_step_mark_of_a_day(tmp_path: Path) -> None:
    """It ends with the trace, and is not complete: a day of idle time is nobody's."""
    write_ranks(tmp_path)
    made = without_marks(1)
    made.step(10, 0, 1000).step(11, 1000, 86_400_000_000).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    first, second = rank_of(result, 1).devices[0].steps
    holds(first.partition)
    assert (first.complete, second.complete) == (True, False)
    assert second.partition.window_ns < 1_000_000
    assert second.partition.compute_ns == 700_000
    assert "1 step mark without a usable duration (step 11)" in said(result, "unended-steps")


def test_a_step_mark_that_is_missing(tmp_path: Path) -> None:
    """Its work counts to the step before, which is shown and is in no mean."""
    write_ranks(tmp_path, steps=4)
    made = rank(1, steps=4)
    made.events = [text for text in made.events if "ProfilerStep#11" not in text]
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    steps = rank_of(result, 1).devices[0].steps
    assert [(s.step, s.complete) for s in steps] == [(10, False), (12, True), (13, True)]
    holds(rank_of(result, 1).devices[0].mean_step)
    assert "in 1 place" in said(result, "unmarked-steps")
    assert "behind step 10" in said(result, "unmarked-steps")
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


@pytest.mark.parametrize("kind", ["without a time", "hours later", "a second later"])
@pytest.mark.parametrize(("call", "whole"), [(4, False), (5, True)])
def test_a_launch_whose_time_is_unknown(kind: str, call: int, whole: bool, tmp_path: Path) -> None:
    """Its kernel is in the step it runs in, unless it may be the first one of the next."""
    write_ranks(tmp_path, steps=4)
    made = rank(1, steps=4)
    place = [at for at, text in enumerate(made.events) if "cuda_runtime" in text][call]
    event = json.loads(made.events[place])
    at = event.pop("ts")
    if kind != "without a time":
        event["ts"] = at + (3 * 3600 * 10**6 if kind == "hours later" else 10**6)
    made.events[place] = json.dumps(event)
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    steps = rank_of(result, 1).devices[0].steps
    assert [step.complete for step in steps] == [whole, whole, True, True]
    for step in steps:
        if step.complete:
            holds(step.partition)
    holds(rank_of(result, 1).devices[0].mean_step)
    assert "1 host event without a usable time (1 call)" in said(result, "untimed-host-events")


def test_numbers_that_jump_without_time_between_lose_nothing(tmp_path: Path) -> None:
    for number in (0, 1):
        made = without_marks(number, steps=3)
        made.step(10, 0, 1000).step(20, 1000, 1000).step(30, 2000, 1000)
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    assert not codes(result) & {"unmarked-steps", "incomplete-steps"}


def test_step_marks_that_overlap_by_rounding(tmp_path: Path) -> None:
    """A tool that wrote times with fewer digits: nothing is lost."""
    write_ranks(tmp_path, steps=3)
    made = without_marks(1, steps=3)
    made.step(10, 0, "1000.1").step(11, 1000, "1000.1").step(12, 2000, 1000).write(
        tmp_path / "rank1.json"
    )
    is_standard(tracelens.analyze(tmp_path), steps=3)


def test_steps_that_differ_between_ranks(tmp_path: Path) -> None:
    rank(0, steps=3).write(tmp_path / "rank0.json")
    rank(1, steps=2).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert "10, 11; 10, 11, 12" in said(result, "steps-differ")
    for one in result.ranks:
        holds(one.devices[0].mean_step)


def test_one_step_and_collectives_behind_it(tmp_path: Path) -> None:
    """They are of no step, and cost nothing of the step's."""
    for number in (0, 1):
        made = rank(number, steps=1)
        made.all_reduce(1600, 100).kernel("gemm", 1800, 100).write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        (step,) = one.devices[0].steps
        holds(step.partition, window_ns=900_000, idle_ns=100_000)  # a lone step has no lag
        assert one.devices[0].total.compute_ns == 800_000
        assert one.devices[0].total.comm_ns == 400_000
    (row,) = result.collectives
    assert (row.calls, row.bytes_per_step.message) == (2, 2 * BYTES)


# records that were dropped -----------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 5])
def test_launches_whose_record_was_dropped(lost: int, tmp_path: Path) -> None:
    """The profiler's buffer was full: sums of that step are lower bounds."""
    write_ranks(tmp_path)
    made = rank(1)
    for index in range(lost):
        made.call("cudaLaunchKernel", 1300 + 10 * index, correlation=9000 + index)
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    first, second = rank_of(result, 1).devices[0].steps
    assert (first.complete, second.complete) == (True, False)
    assert second.partition.launches_without_record == lost
    holds(second.partition)
    plural = "es" if lost > 1 else ""
    assert f"{lost} launch{plural} without a device record" in said(result, "lost-device-records")
    assert "sums of rank 1 are lower bounds" in said(result, "lost-device-records")
    assert result.run.ranks_partial == [1]
    assert not rank_of(result, 1).in_means
    (row,) = result.collectives
    assert row.bytes_per_step.message == 2 * BYTES
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


def test_collectives_whose_record_was_dropped(tmp_path: Path) -> None:
    """The host's record of the call is there: its bytes count, its time is unknown."""
    write_ranks(tmp_path)
    made = rank(1)
    args = made.comm_args("allreduce", 1 << 20, 1 << 20)
    made.record("allreduce", 1300, args=args).call("cudaLaunchKernel", 1305, correlation=9000)
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert "1 launch without a device record" in said(result, "lost-device-records")
    assert "1 recorded collective without device time" in said(result, "no-device-time")
    assert [step.complete for step in rank_of(result, 1).devices[0].steps] == [True, False]


def test_a_gap_without_launches_is_idle_and_no_loss(tmp_path: Path) -> None:
    for number in (0, 1):
        made = Trace(rank=number, pid=4000 + number)
        add_step(made, 10, 0)
        add_step(made, 11, 5000)
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        first, second = one.devices[0].steps
        holds(first.partition, window_ns=5_000_000, idle_ns=4_200_000)
        holds(second.partition)
        assert not one.partial
    assert "lost-device-records" not in codes(result)


def test_metadata_that_speaks_of_dropped_records(tmp_path: Path) -> None:
    """What Kineto's own events say of lost buffers changes no number by itself."""
    write_ranks(tmp_path)
    made = rank(1)
    made.event("overhead", "Activity Buffer Request", 100, 500, pid=-1)
    made.event("overhead", "CUPTI Buffer Overflow", 600, 500, pid=-1)
    made.raw('{"ph": "i", "s": "g", "name": "Record Window End", "ts": 2000, "pid": "", "tid": ""}')
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        holds(one.devices[0].mean_step)

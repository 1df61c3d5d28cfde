"""Steps: which ranges mark them, which step launched an event, and how device time is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import SPAN, DeviceEvent, device_events

from tracelens.model.trace import MARKS, NONE, frame
from tracelens.steps import (
    AFTER,
    BEFORE,
    StepMarks,
    between_steps,
    device_windows,
    find,
    host_windows,
    launching_step,
    periods,
)


def marks_table(*rows: tuple[str, int, int]):  # type: ignore[no-untyped-def]
    names, starts, ends = zip(*rows, strict=True) if rows else ((), (), ())
    data = {
        "name": list(names),
        "start": list(starts),
        "end": list(ends),
        "thread": [1] * len(rows),
    }
    return frame(MARKS, data)  # type: ignore[arg-type]


def step_marks(*ranges: tuple[int, int]) -> StepMarks:
    numbers = list(range(10, 10 + len(ranges)))
    start = np.array([low for low, _ in ranges], np.int64)
    end = np.array([high for _, high in ranges], np.int64)
    return StepMarks(numbers, [0] * len(ranges), start, end, "ProfilerStep")


def ints(*values: int | None):  # type: ignore[no-untyped-def]
    return np.array([NONE if value is None else value for value in values], np.int64)


class TestFind:
    def test_profiler_steps_win_over_other_ranges(self) -> None:
        found = find(marks_table(("iteration 1", 0, 9), ("ProfilerStep#7", 1, 8), ("step 2", 2, 3)))
        assert (found.number, found.source) == ([7], "ProfilerStep")

    def test_marks_come_in_time_order(self) -> None:
        found = find(marks_table(("ProfilerStep#8", 10, 20), ("ProfilerStep#7", 0, 10)))
        assert found.number == [7, 8]
        assert found.start.tolist() == [0, 10]
        assert found.end.tolist() == [10, 20]

    def test_the_same_number_twice_is_two_occurrences(self) -> None:
        found = find(marks_table(("ProfilerStep#7", 0, 9), ("ProfilerStep#7", 10, 20)))
        assert (found.number, found.occurrence) == ([7, 7], [0, 1])

    def test_a_mark_inside_its_twin_is_dropped(self) -> None:
        found = find(marks_table(("ProfilerStep#7", 0, 9), ("ProfilerStep#7", 1, 8)))
        assert len(found) == 1

    def test_a_mark_without_length_is_no_step(self) -> None:
        assert len(find(marks_table(("ProfilerStep#7", 5, 5)))) == 0

    @pytest.mark.parametrize(
        "name",
        ["iteration 12", "Iteration_12", "step 12", "step=12", "train_step 12", "iter: 12",
         "global_step 12", "training step #12", "batch 12"],
    )  # fmt: skip
    def test_numbered_ranges(self, name: str) -> None:
        found = find(marks_table((name, 0, 9)))
        assert (found.number, found.source) == ([12], "range")

    @pytest.mark.parametrize(
        "name", ["## train_step ##", "train_step", "[pl][profile]run_training_batch", "iteration"]
    )
    def test_repeating_ranges_are_counted(self, name: str) -> None:
        found = find(marks_table((name, 0, 9), (name, 9, 18)))
        assert (found.number, found.source) == ([0, 1], "range")

    def test_one_unnumbered_range_is_no_step(self) -> None:
        assert find(marks_table(("train_step", 0, 9))).source is None

    @pytest.mark.parametrize(
        "name", ["Optimizer.step#SGD.step", "forward", "my step 3 of 9", "lr_scheduler step"]
    )
    def test_other_ranges_are_no_steps(self, name: str) -> None:
        assert len(find(marks_table((name, 0, 9), (name, 10, 19)))) == 0

    def test_a_users_pattern_wins(self) -> None:
        table = marks_table(("ProfilerStep#1", 0, 30), ("mini 4", 0, 9), ("mini 5", 10, 19))
        found = find(table, r"mini (\d+)")
        assert (found.number, found.source) == ([4, 5], "pattern")
        assert find(table, "mini").number == [0, 1]

    def test_no_marks(self) -> None:
        found = find(marks_table())
        assert (len(found), found.source) == (0, None)


def test_a_number_beyond_all_numbers() -> None:
    """Such a step is one of its place, as one without a number is."""
    found = find(marks_table(("ProfilerStep#5", 0, 10), (f"ProfilerStep#{'9' * 5_000}", 10, 20)))
    assert found.number == [5, 1]


class TestLaunchingStep:
    marks = step_marks((100, 200), (250, 300))

    @pytest.mark.parametrize(
        ("launch", "step"),
        [(99, BEFORE), (100, 0), (199, 0), (220, 0), (249, 0), (250, 1), (299, 1), (300, AFTER),
         (None, BEFORE)],
    )  # fmt: skip
    def test_boundaries(self, launch: int | None, step: int) -> None:
        assert launching_step(self.marks, ints(launch)).tolist() == [step]


class TestDeviceWindows:
    def test_a_window_runs_from_first_event_to_the_next_steps_first_event(self) -> None:
        marks = step_marks((0, 100), (100, 200), (200, 300))
        got = device_windows(
            marks, ints(30, 80, 140, 250), ints(60, 120, 170, 270), ints(5, 50, 110, 210)
        )
        assert got.low.tolist() == [30, 140, 250]
        assert got.high[:2].tolist() == [140, 250]
        assert got.step_of.tolist() == [0, 0, 1, 2]

    def test_the_last_window_holds_its_last_event(self) -> None:
        got = device_windows(step_marks((0, 100)), ints(30, 150), ints(60, 400), ints(5, 90))
        assert (got.low.tolist(), got.high.tolist()) == ([30], [400])

    def test_the_last_window_ends_with_the_host_plus_the_lag(self) -> None:
        marks = step_marks((0, 100), (100, 200))
        got = device_windows(marks, ints(30, 130), ints(60, 160), ints(5, 105))
        assert got.high.tolist() == [130, 230]  # the device began 30 after the host

    def test_a_lone_step_ends_with_the_host(self) -> None:
        got = device_windows(step_marks((0, 100)), ints(30), ints(60), ints(5))
        assert got.high.tolist() == [100]
        got = device_windows(step_marks((0, 100)), ints(30), ints(160), ints(5))
        assert got.high.tolist() == [160]

    def test_a_late_event_of_an_earlier_step_stays_with_its_launch(self) -> None:
        marks = step_marks((0, 100), (100, 200))
        got = device_windows(marks, ints(10, 110, 150), ints(20, 120, 190), ints(1, 101, 90))
        assert got.step_of.tolist() == [0, 1, 0]  # runs in the window of 1, was launched by 0

    def test_unlinked_before_the_first_linked_event_is_before_the_first_step(self) -> None:
        got = device_windows(
            step_marks((0, 100)), ints(5, 30, 60), ints(9, 40, 70), ints(None, 2, None)
        )
        assert got.step_of.tolist() == [BEFORE, 0, 0]
        assert got.low.tolist() == [30]

    def test_unlinked_before_the_first_linked_event_of_its_stream(self) -> None:
        """A stream runs in order of launches; another one may be in the first step already."""
        got = device_windows(
            step_marks((0, 100)),
            ints(30, 40, 60, 80),
            ints(35, 50, 70, 90),
            ints(2, None, 20, None),
            ints(7, 20, 20, 20),
        )
        assert got.step_of.tolist() == [0, BEFORE, 0, 0]

    def test_unlinked_on_a_stream_without_any_link_goes_by_the_device(self) -> None:
        got = device_windows(
            step_marks((0, 100)), ints(30, 40), ints(35, 50), ints(2, None), ints(7, 20)
        )
        assert got.step_of.tolist() == [0, 0]

    def test_unlinked_between_belongs_to_the_window_it_starts_in(self) -> None:
        marks = step_marks((0, 100), (100, 200))
        got = device_windows(
            marks, ints(30, 50, 130, 135), ints(40, 60, 134, 139), ints(2, None, 101, None)
        )
        assert got.step_of.tolist() == [0, 0, 1, 1]

    def test_unlinked_after_the_last_window_is_after(self) -> None:
        got = device_windows(step_marks((0, 100)), ints(30, 500), ints(40, 510), ints(2, None))
        assert got.step_of.tolist() == [0, AFTER]

    def test_launched_before_the_first_mark(self) -> None:
        got = device_windows(step_marks((100, 200)), ints(90, 130), ints(125, 140), ints(50, 110))
        assert got.step_of.tolist() == [BEFORE, 0]
        assert got.low.tolist() == [130]  # its tail is no part of step 1

    def test_launched_after_the_last_mark_runs_outside(self) -> None:
        got = device_windows(step_marks((0, 100)), ints(30, 150), ints(40, 160), ints(2, 120))
        assert got.step_of.tolist() == [0, AFTER]
        assert got.high.tolist() == [100]

    def test_a_step_that_launched_nothing_has_an_empty_window(self) -> None:
        marks = step_marks((0, 100), (100, 200), (200, 300))
        got = device_windows(marks, ints(30, 230), ints(40, 240), ints(2, 203))
        assert got.low.tolist() == [30, 230, 230]
        assert got.high.tolist() == [230, 230, 330]

    def test_the_last_step_launched_nothing(self) -> None:
        marks = step_marks((0, 100), (100, 200))
        got = device_windows(marks, ints(30), ints(40), ints(2))
        assert got.low.tolist() == [30, 40]
        assert got.high.tolist() == [40, 40]

    def test_work_between_two_marks_belongs_to_the_earlier_step(self) -> None:
        marks = step_marks((0, 100), (500, 600))
        got = device_windows(marks, ints(30, 310, 530), ints(90, 390, 590), ints(2, 300, 502))
        assert got.step_of.tolist() == [0, 0, 1]
        assert got.low.tolist() == [30, 530]


@given(device_events(min_size=1), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_windows_lie_side_by_side(events: list[DeviceEvent], lengths: list[int]) -> None:
    edges = np.concatenate(([0], np.cumsum(lengths)))
    marks = step_marks(*zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    start = ints(*(event.start for event in events))
    end = start + ints(*(event.duration for event in events))
    got = device_windows(marks, start, end, ints(*(event.launch for event in events)))
    assert (got.high >= got.low).all()
    assert (got.low[1:] == got.high[:-1]).all()
    for event, step in zip(events, got.step_of, strict=True):
        if step >= 0 and event.launch is not None:
            assert got.low[step] <= event.start  # no event begins before its step
        if step == len(marks) - 1 and event.launch is not None:
            assert got.high[-1] >= event.start + event.duration  # no tail is lost


@given(st.integers(2, 5), st.integers(1, 30), st.integers(0, 40))
def test_a_steady_run_gives_every_step_its_period(steps: int, period: int, lag: int) -> None:
    marks = step_marks(*((k * period, (k + 1) * period) for k in range(steps)))
    launch = marks.start.copy()
    got = device_windows(marks, launch + lag, launch + lag + 1, launch)
    assert (got.high - got.low).tolist() == [period] * steps
    assert got.low.tolist() == (marks.start + lag).tolist()


def test_on_a_cpu_the_window_is_the_mark() -> None:
    marks = step_marks((0, 100), (120, SPAN + 200))
    got = host_windows(marks, ints(10, 110, 130), ints(None, 90, 119))
    assert got.low.tolist() == [0, 120]
    assert got.high.tolist() == [100, SPAN + 200]
    assert got.step_of.tolist() == [0, 0, 0]


def test_periods_run_to_the_next_step_however_far_it_is() -> None:
    marks = step_marks((0, 100), (130, 230), (900, 1000))
    assert periods(marks).tolist() == [130, 770, 100]


def test_a_step_whose_number_does_not_follow_ends_the_row() -> None:
    marks = step_marks((0, 100), (130, 230), (900, 1000))
    cycles = StepMarks([1, 2, 7], [0, 0, 0], marks.start, marks.end, "ProfilerStep")
    assert periods(cycles).tolist() == [130, 100, 100]


def test_periods_of_no_steps() -> None:
    assert periods(step_marks()).tolist() == []


@given(st.lists(st.tuples(st.integers(-2, 3), st.booleans()), max_size=12))
def test_events_that_may_be_of_either_step(events: list[tuple[int, bool]]) -> None:
    """Against a walk over the events: the nearest ones that say what launched them decide."""
    step_of = np.array([step for step, _ in events], np.int64)
    launch = ints(*(0 if linked else None for _, linked in events))
    expected: set[int] = set()
    for place, (step, linked) in enumerate(events):
        before = next((s for s, known in events[:place][::-1] if known), -1)
        after = next((s for s, known in events[place:] if known), -1)
        if not linked and step >= 0 and before != after and min(before, after) >= 0:
            expected |= {before, after}
    assert between_steps(step_of, launch) == expected

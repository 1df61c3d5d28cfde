"""Causes of idle time against a twin that walks single nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Trace
from hypothesis import given
from hypothesis import strategies as st
from strategies import DeviceEvent, device_events, sorted_by_start, windows

from tracelens.attribution import Timeline, unions
from tracelens.idle import IdleCauses, idle_causes
from tracelens.model.trace import NONE


def timeline_of(events: list[DeviceEvent]) -> Timeline:
    start = np.array([event.start for event in events], np.int64)
    return Timeline(
        start=start,
        end=start + np.array([event.duration for event in events], np.int64),
        event_class=np.array([event.event_class for event in events], np.int8),
        event_op=np.full(len(events), 0, np.int8),
        is_kernel=np.ones(len(events), bool),
    )


def twin(events: list[DeviceEvent], returned: list[int], low: int, high: int) -> IdleCauses:
    """Look at each idle nanosecond: which event ends its gap, and when did the gap begin?"""
    busy = {t for e in events for t in range(e.start, e.start + e.duration)}
    host = dependency = 0
    for now in range(low, high):
        if now in busy:
            continue
        end = now
        while end < high and end not in busy:
            end += 1
        ending = [i for i, e in enumerate(events) if e.start >= end]
        if not ending or returned[ending[0]] == NONE:
            continue
        began = max((t + 1 for t in busy if t < now), default=low)
        if returned[ending[0]] > began:
            host += 1
        else:
            dependency += 1
    return IdleCauses(host, dependency)


@given(device_events(), windows(), st.data())
def test_every_idle_nanosecond_has_the_cause_of_its_gap(
    events: list[DeviceEvent], window: tuple[int, int], data: st.DataObject
) -> None:
    events = sorted_by_start(events)
    times = st.one_of(st.just(NONE), st.integers(-5, 80))
    returned = data.draw(st.lists(times, min_size=len(events), max_size=len(events)))
    timeline = timeline_of(events)
    got = idle_causes(timeline, unions(timeline), np.array(returned, np.int64), *window)
    assert got == twin(events, returned, *window)


def step_of(trace: Trace) -> IdleCauses:
    (device,) = trace.reduce().devices
    causes = device.steps[0].idle
    assert causes is not None
    return causes


def test_a_kernel_launched_late_makes_the_device_wait_for_the_host() -> None:
    trace = Trace().step(1, 0, 1000)
    trace.kernel("a", 100, 100, launch=10).kernel("b", 400, 600, launch=395)
    assert step_of(trace).host_ns == 200_000


def test_a_kernel_launched_early_waits_for_other_work() -> None:
    trace = Trace().step(1, 0, 1000)
    trace.kernel("a", 100, 100, launch=10).kernel("b", 400, 600, launch=20)
    assert step_of(trace) == IdleCauses(0, 200_000)


def test_a_kernel_without_a_launch_leaves_the_cause_open() -> None:
    trace = Trace().step(1, 0, 1000)
    trace.kernel("a", 100, 100, launch=10).kernel("b", 400, 600, launch=None)
    assert step_of(trace) == IdleCauses(0, 0)


@pytest.mark.parametrize("launch", [10, 199])
def test_a_call_that_returns_after_the_gap_began_is_the_hosts(launch: int) -> None:
    trace = Trace().step(1, 0, 1000)
    trace.kernel("a", 100, 100, launch=5).kernel("b", 400, 600, launch=launch)
    # The builder's calls last a few microseconds: 199 us and those are past 200 us.
    expected = IdleCauses(200_000, 0) if launch == 199 else IdleCauses(0, 200_000)
    assert step_of(trace) == expected

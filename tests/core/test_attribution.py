"""The partition against a twin that marks single nanoseconds; sums must close exactly."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import SPAN, DeviceEvent, Spans, device_events, mask, windows

from tracelens.attribution import Timeline, combine, exposed_per_event, partition, unions
from tracelens.communication import COMMUNICATION, COMPUTE, COPY
from tracelens.model.result import Partition
from tracelens.model.trace import NONE
from tracelens.operations import CODE, OPERATIONS, RECV, SEND, SEND_RECV

if TYPE_CHECKING:
    from tracelens.intervals import Ints


def timeline_of(events: list[DeviceEvent]) -> Timeline:
    start = np.array([event.start for event in events], np.int64)
    classes = np.array([event.event_class for event in events], np.int8)
    ops = [event.op if event.event_class == COMMUNICATION else -1 for event in events]
    return Timeline(
        start=start,
        end=start + np.array([event.duration for event in events], np.int64),
        event_class=classes,
        event_op=np.array(ops, np.int8),
        is_kernel=classes != COPY,
    )


def mask_of(events: list[DeviceEvent], low: int, high: int, which: int, op: int | None = None):  # type: ignore[no-untyped-def]
    chosen = [e for e in events if e.event_class == which and op in (None, e.op)]
    start = np.array([event.start for event in chosen], np.int64)
    length = np.array([event.duration for event in chosen], np.int64)
    return mask(Spans(start, start + length), low, high)


def cut(events: list[DeviceEvent], low: int, high: int) -> Partition:
    timeline = timeline_of(events)
    return partition(timeline, unions(timeline), low, high)


@given(device_events(), windows())
def test_partition_marks_the_same_nanoseconds(
    events: list[DeviceEvent], window: tuple[int, int]
) -> None:
    compute, comm, copy = (mask_of(events, *window, c) for c in (COMPUTE, COMMUNICATION, COPY))
    got = cut(events, *window)
    assert got.window_ns == window[1] - window[0]
    assert got.compute_ns == compute.sum()
    assert got.comm_ns == comm.sum()
    assert got.overlapped_comm_ns == (comm & compute).sum()
    assert got.exposed_comm_ns == (comm & ~compute).sum()
    assert got.copy_ns == copy.sum()
    assert got.exposed_copy_ns == (copy & ~compute & ~comm).sum()
    assert got.busy_ns == (copy | compute | comm).sum()
    assert got.idle_ns == (~copy & ~compute & ~comm).sum()


def assert_closed(part: Partition) -> None:
    whole = part.compute_ns + part.exposed_comm_ns + part.exposed_copy_ns + part.idle_ns
    assert whole == part.window_ns
    assert part.busy_ns == part.window_ns - part.idle_ns
    assert part.overlapped_comm_ns + part.exposed_comm_ns == part.comm_ns
    assert sum(part.exposed_by_op_ns.values()) == part.exposed_comm_ns
    assert min(part.exposed_by_op_ns.values(), default=0) >= 0


@given(device_events(), windows())
def test_partition_closes(events: list[DeviceEvent], window: tuple[int, int]) -> None:
    assert_closed(cut(events, *window))


@given(device_events(), st.lists(st.integers(0, SPAN), min_size=2, max_size=6).map(sorted))
def test_windows_side_by_side_add_up(events: list[DeviceEvent], edges: list[int]) -> None:
    whole = cut(events, edges[0], edges[-1])
    parts = [cut(events, low, high) for low, high in itertools.pairwise(edges)]
    for name in (
        "window_ns",
        "compute_ns",
        "comm_ns",
        "exposed_comm_ns",
        "exposed_copy_ns",
        "idle_ns",
    ):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)


@given(device_events(), windows())
def test_time_by_operation(events: list[DeviceEvent], window: tuple[int, int]) -> None:
    got = cut(events, *window)
    for code in range(4):
        expected = mask_of(events, *window, COMMUNICATION, code).sum()
        assert got.comm_by_op_ns.get(OPERATIONS[code], 0) == expected
    assert set(got.exposed_by_op_ns) <= set(got.comm_by_op_ns)


@given(device_events(), windows(), st.sampled_from([RECV, SEND_RECV]))
def test_exposed_instants_belong_to_the_first_started(
    events: list[DeviceEvent], window: tuple[int, int], message: str
) -> None:
    """Messages come after collectives, however early they started."""
    codes = {1: CODE[message], 2: CODE[SEND]}
    events = [event._replace(op=codes.get(event.op, event.op)) for event in events]
    timeline = timeline_of(events)
    compute = mask_of(events, 0, SPAN, COMPUTE)
    comms = [event for event in events if event.event_class == COMMUNICATION]
    expected = [0] * len(comms)
    for at in range(max(window[0], 0), min(window[1], SPAN)):
        running = [i for i, e in enumerate(comms) if e.start <= at < e.start + e.duration]
        running.sort(key=lambda i: comms[i].op in (CODE[SEND], CODE[message]))
        if running and not compute[at]:
            expected[running[0]] += 1
    assert exposed_per_event(unions(timeline), *window).tolist() == expected


def test_two_collectives_in_flight_by_hand() -> None:
    events = [
        DeviceEvent(0, 10, COMMUNICATION, 0, None),
        DeviceEvent(4, 16, COMMUNICATION, 1, None),
        DeviceEvent(6, 4, COMPUTE, -1, None),
        DeviceEvent(12, 30, COPY, -1, None),
    ]
    got = cut(events, 0, 50)
    assert got.comm_by_op_ns == {"all_reduce": 10, "reduce_scatter": 16}
    assert got.exposed_by_op_ns == {"all_reduce": 6, "reduce_scatter": 10}
    assert (got.compute_ns, got.exposed_copy_ns, got.idle_ns) == (4, 22, 8)
    assert (got.kernels, got.copies) == (3, 1)
    assert got.overlap_pct == pytest.approx(100 * 4 / 20)


def test_no_communication_has_no_overlap() -> None:
    assert cut([DeviceEvent(0, 5, COMPUTE, -1, None)], 0, 10).overlap_pct is None
    assert cut([], 3, 3).exposed_comm_pct is None


@given(st.lists(st.tuples(device_events(), windows()), min_size=1, max_size=5), st.integers(1, 7))
def test_means_close_too(
    cuts: list[tuple[list[DeviceEvent], tuple[int, int]]], divisor: int
) -> None:
    parts = [cut(events, *window) for events, window in cuts]
    mean = combine(parts, divisor)
    assert mean is not None
    assert_closed(mean)
    for field in dataclasses.fields(Partition):
        if field.name.endswith("_op_ns") or field.name == "copied_bytes":
            continue
        exact = sum(getattr(part, field.name) for part in parts) / divisor
        assert abs(getattr(mean, field.name) - exact) <= 2  # four rounded parts


def test_bytes_of_copies_are_unknown_if_one_is() -> None:
    which = np.array([COPY, COPY, COMPUTE], np.int8)
    none, some = np.full(3, -1, np.int8), np.array([100, 20, NONE])
    start, end = np.array([0, 5, 20]), np.array([2, 9, 30])

    def cut_with(copied: Ints | None, low: int, high: int) -> Partition:
        line = Timeline(start, end, which, none, which == COMPUTE, copied)
        return partition(line, unions(line), low, high)

    whole, last = cut_with(some, 0, 30), cut_with(some, 4, 30)
    assert (whole.copied_bytes, last.copied_bytes) == (120, 20)
    assert cut_with(some, 10, 30).copied_bytes == 0
    assert cut_with(np.array([100, NONE, NONE]), 0, 30).copied_bytes is None
    assert cut_with(None, 0, 30).copied_bytes is None
    for parts, mean in (([whole, last], 70), ([whole, cut_with(None, 0, 30)], None)):
        combined = combine(parts, 2)
        assert combined is not None
        assert combined.copied_bytes == mean


def test_nothing_to_combine() -> None:
    assert combine([]) is None


def test_rounded_parts_never_fall_below_nothing() -> None:
    """Four operations of one nanosecond over two steps: each rounds up to one, the total is two."""
    ops = dict.fromkeys(("all_gather", "all_reduce", "broadcast", "reduce_scatter"), 1)
    step = Partition(9, 4, 0, 4, 0, 4, 0, 0, 5, dict(ops), dict(ops), 4, 0, 0)
    nothing = Partition(5, 0, 0, 0, 0, 0, 0, 0, 5, {}, {}, 0, 0, 0)
    mean = combine([step, nothing], 2)
    assert mean is not None
    assert sum(mean.exposed_by_op_ns.values()) == mean.exposed_comm_ns == 2
    assert min(mean.exposed_by_op_ns.values()) >= 0

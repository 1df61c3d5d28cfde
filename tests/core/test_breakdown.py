"""The refined mean step: exclusive classes that sum to the window, to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.attribution import combine
from tracelens.breakdown import of_mean_step
from tracelens.idle import IdleCauses
from tracelens.model.result import Breakdown, Partition
from tracelens.operations import ALL_GATHER, ALL_REDUCE, CODE, OPERATIONS, RECV
from tracelens.pipeline.bubble import BubbleTime

if TYPE_CHECKING:
    from tracelens.intervals import Ints

times = st.integers(0, 50)


def partition_of(compute: int, copy: int, idle: int, exposed: dict[str, int]) -> Partition:
    comm = sum(exposed.values())
    busy = compute + comm + copy
    return Partition(
        window_ns=busy + idle,
        busy_ns=busy,
        compute_ns=compute,
        comm_ns=comm,
        overlapped_comm_ns=0,
        exposed_comm_ns=comm,
        copy_ns=copy,
        exposed_copy_ns=copy,
        idle_ns=idle,
        comm_by_op_ns=exposed,
        exposed_by_op_ns=exposed,
        kernels=0,
        copies=0,
        launches_without_record=0,
    )


few = st.dictionaries(st.sampled_from(OPERATIONS[:3]), st.integers(1, 50))
many = st.dictionaries(st.sampled_from(OPERATIONS[:4]), st.integers(10, 50))
exposures = few | many
partitions = st.builds(partition_of, times, times, times, exposures)


idle_times = st.lists(st.builds(IdleCauses, times, times), max_size=3)
bubbles = st.builds(
    lambda waiting, dependency: BubbleTime(np.array(waiting, np.int64), dependency),
    st.lists(times, min_size=len(OPERATIONS), max_size=len(OPERATIONS)),
    times,
)


def split_of(waited: dict[str, int], matched: dict[str, int]) -> Ints:
    split = np.zeros(2 * len(OPERATIONS), np.int64)
    for part, first in ((waited, 0), (matched, len(OPERATIONS))):
        for op, time in part.items():
            split[first + CODE[op]] = time
    return split


def assert_closed(got: Breakdown) -> None:
    transfer, unsplit = got.transfer_by_op_ns or {}, got.exposed_unsplit_by_op_ns
    parts = [
        got.compute_ns,
        got.wait_ns or 0,
        got.bubble_ns or 0,
        got.exposed_copy_ns,
        got.idle_host_ns or 0,
        got.idle_dependency_ns or 0,
        got.idle_unknown_ns,
        *transfer.values(),
        *unsplit.values(),
    ]
    assert sum(parts) == got.window_ns
    assert min(parts) >= 0
    assert 0 not in [*transfer.values(), *unsplit.values()]


@st.composite
def _splits(draw: st.DrawFn, most: dict[str, int]) -> Ints:
    """Draw how much of each operation's exposed time was matched, and how much of that waiting."""
    matched = {op: draw(st.integers(0, total)) for op, total in most.items()}
    return split_of({op: draw(st.integers(0, m)) for op, m in matched.items()}, matched)


@given(st.lists(partitions, min_size=1, max_size=6), st.data(), st.booleans())
def test_the_parts_sum_to_the_window(
    steps: list[Partition], data: st.DataObject, known: bool
) -> None:
    mean = combine(steps, len(steps))
    assert mean is not None
    most = {op: sum(s.exposed_by_op_ns.get(op, 0) for s in steps) for op in OPERATIONS}
    split = data.draw(_splits(most)) if known else None
    bubble = data.draw(st.none() | bubbles)
    got = of_mean_step(mean, len(steps), split, data.draw(idle_times), bubble)
    assert got is not None
    assert got.window_ns == mean.window_ns
    assert (got.bubble_ns is None) == (bubble is None)
    assert_closed(got)


@given(partitions, st.integers(1, 5), st.lists(st.integers(0, 300), min_size=26, max_size=26))
def test_they_sum_whatever_the_split_says(mean: Partition, steps: int, split: list[int]) -> None:
    got = of_mean_step(mean, steps, np.array(split, np.int64))
    assert got is not None
    assert_closed(got)


def test_the_bubble_takes_waiting_and_idle_time_from_their_classes() -> None:
    mean = combine([partition_of(10, 0, 60, {RECV: 50, ALL_REDUCE: 20})], 1)
    waiting = split_of({RECV: 40, ALL_REDUCE: 5}, {})[: len(OPERATIONS)]
    waiting[CODE[ALL_REDUCE]] = 0
    split = split_of({RECV: 45, ALL_REDUCE: 5}, {RECV: 50, ALL_REDUCE: 20})
    got = of_mean_step(mean, 1, split, [IdleCauses(20, 35)], BubbleTime(waiting, 30))
    assert got is not None
    assert (got.bubble_ns, got.wait_ns) == (40 + 30, 5 + 5)
    assert got.transfer_by_op_ns == {RECV: 5, ALL_REDUCE: 15}
    assert (got.idle_host_ns, got.idle_dependency_ns, got.idle_unknown_ns) == (20, 5, 5)
    assert_closed(got)


def test_a_bubble_without_causes_of_idle_time_is_waiting_alone() -> None:
    """On a CPU run nobody knows why nothing ran."""
    mean = combine([partition_of(10, 0, 60, {RECV: 50})], 1)
    waiting = split_of({RECV: 50}, {})[: len(OPERATIONS)]
    got = of_mean_step(mean, 1, split_of({RECV: 50}, {RECV: 50}), (), BubbleTime(waiting, 30))
    assert got is not None
    assert (got.bubble_ns, got.wait_ns, got.idle_unknown_ns) == (50, 0, 60)


@given(st.lists(partitions, min_size=1, max_size=7), st.data())
def test_rounding_never_shows_as_unsplit(steps: list[Partition], data: st.DataObject) -> None:
    """All calls are matched, so nothing is left over, although every number is rounded."""
    mean = combine(steps, len(steps))
    assert mean is not None
    matched = {op: sum(s.exposed_by_op_ns.get(op, 0) for s in steps) for op in OPERATIONS}
    waited = {op: data.draw(st.integers(0, total)) for op, total in matched.items()}
    got = of_mean_step(mean, len(steps), split_of(waited, matched))
    assert got is not None
    assert got.exposed_unsplit_by_op_ns == {} or mean.exposed_comm_ns == 0
    exact = sum(waited.values()) / len(steps)
    assert abs((got.wait_ns or 0) - exact) <= len(OPERATIONS)


@pytest.mark.parametrize(
    ("exposed", "steps"),
    [({ALL_REDUCE: 1}, 2), (dict.fromkeys(OPERATIONS[:4], 10), 7)],
    ids=["half a nanosecond", "the largest closes the sum"],
)
def test_rounding_by_hand(exposed: dict[str, int], steps: int) -> None:
    whole = partition_of(0, 0, 0, exposed)
    mean = combine([whole, *([partition_of(0, 0, 0, {})] * (steps - 1))], steps)
    got = of_mean_step(mean, steps, split_of({}, exposed))
    assert got is not None
    assert got.exposed_unsplit_by_op_ns == {}
    assert sum((got.transfer_by_op_ns or {}).values()) == got.window_ns > 0


@given(partitions, st.integers(1, 5))
def test_without_a_split_nothing_is_claimed(mean: Partition, steps: int) -> None:
    """An operation of a single nanosecond is not lost, either."""
    for split in (None, split_of({}, {})):
        got = of_mean_step(mean, steps, split)
        assert got is not None
        assert (got.wait_ns, got.transfer_by_op_ns) == (None, None)
        assert got.exposed_unsplit_by_op_ns == mean.exposed_by_op_ns


def test_by_hand() -> None:
    """Two steps: half of the all-gathers' time was matched."""
    mean = partition_of(100, 20, 30, {ALL_REDUCE: 60, ALL_GATHER: 40})
    split = split_of({ALL_REDUCE: 90, ALL_GATHER: 10}, {ALL_REDUCE: 120, ALL_GATHER: 40})
    got = of_mean_step(mean, 2, split)
    assert got is not None
    assert got.wait_ns == 45 + 5
    assert got.transfer_by_op_ns == {ALL_REDUCE: 15, ALL_GATHER: 15}
    assert got.exposed_unsplit_by_op_ns == {ALL_GATHER: 20}
    assert (got.window_ns, got.compute_ns, got.exposed_copy_ns) == (250, 100, 20)
    assert (got.idle_host_ns, got.idle_dependency_ns, got.idle_unknown_ns) == (None, None, 30)
    assert got.bubble_ns is None


def test_all_waiting_leaves_no_transfer() -> None:
    mean = partition_of(0, 0, 0, {ALL_REDUCE: 60})
    got = of_mean_step(mean, 1, split_of({ALL_REDUCE: 60}, {ALL_REDUCE: 60}))
    assert got is not None
    assert (got.wait_ns, got.transfer_by_op_ns, got.exposed_unsplit_by_op_ns) == (60, {}, {})


def test_no_waiting_is_0_and_not_unknown() -> None:
    mean = partition_of(0, 0, 0, {ALL_REDUCE: 60})
    got = of_mean_step(mean, 1, split_of({}, {ALL_REDUCE: 60}))
    assert got is not None
    assert (got.wait_ns, got.transfer_by_op_ns) == (0, {ALL_REDUCE: 60})


def test_no_steps() -> None:
    assert of_mean_step(None, 0, None) is None

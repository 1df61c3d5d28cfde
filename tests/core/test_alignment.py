"""Clocks of ranks on one time line, from the ends of their collectives."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from calls import EPOCH_NS, Call, table_of
from hypothesis import given
from hypothesis import strategies as st

from tracelens.alignment import Clocks, align
from tracelens.matching import match
from tracelens.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECOND, US = 10**9, 1000


def aligned(calls: Sequence[Call]) -> Clocks:
    table = table_of(calls)
    return align(table.frame, match(table))


def calls_ending(
    at: int, offsets: dict[int, int], jitter: Callable[[], int] = lambda: 0, op: str = ALL_REDUCE
) -> list[Call]:
    """Return one collective that ends at a true time, as each member's clock tells it."""
    ends = {rank: at + offset + jitter() for rank, offset in offsets.items()}
    group = tuple(offsets)
    return [Call(rank, end - 50 * US, end, op, group=group) for rank, end in ends.items()]


def run_of(
    groups: Sequence[tuple[int, ...]],
    offsets: Sequence[int],
    jitter: Callable[[], int] = lambda: 0,
    count: int = 41,
) -> list[Call]:
    return [
        call
        for group, number in itertools.product(groups, range(count))
        for call in calls_ending(number * 10**6, {r: offsets[r] for r in group}, jitter)
    ]


def assert_recovered(clocks: Clocks, offsets: Sequence[int], within: int = 2 * US) -> None:
    assert sorted(clocks.offset_ns) == list(range(len(offsets)))
    assert clocks.offset_ns[0] == 0
    for rank, offset in enumerate(offsets):
        assert abs(clocks.offset_ns[rank] - (offset - offsets[0])) <= within


any_offsets = st.lists(st.integers(-3 * SECOND, 3 * SECOND), min_size=2, max_size=8)
seeds = st.integers(0, 2**32 - 1)


def microseconds(seed: int, sigma: float = 1.0) -> Callable[[], int]:
    random = np.random.default_rng(seed)
    return lambda: round(random.normal(0, sigma * US))


@given(any_offsets, seeds)
def test_offsets_of_seconds_under_jitter_of_microseconds(offsets: list[int], seed: int) -> None:
    everyone = tuple(range(len(offsets)))
    clocks = aligned(run_of([everyone], offsets, microseconds(seed)))
    assert_recovered(clocks, offsets)
    assert set(clocks.component.values()) == {0}
    assert len(clocks.residual_ns) == 41
    assert np.median(clocks.residual_ns) < 6 * US


@given(any_offsets)
def test_without_jitter_they_are_exact(offsets: list[int]) -> None:
    """At epoch nanoseconds a double steps by 256; differences must not lose those."""
    clocks = aligned(run_of([tuple(range(len(offsets)))], offsets, count=3))
    assert_recovered(clocks, offsets, within=0)
    assert clocks.residual_ns.tolist() == [0, 0, 0]


def test_one_nanosecond_at_the_epoch() -> None:
    assert EPOCH_NS > 2**53
    clocks = aligned(run_of([(0, 1)], [0, 1], count=1))
    assert clocks.offset_ns == {0: 0, 1: 1}


@given(st.integers(2, 4), st.integers(2, 4), st.data(), seeds)
def test_ranks_that_share_no_group_are_linked_through_others(
    tp: int, dp: int, data: st.DataObject, seed: int
) -> None:
    grid = np.arange(tp * dp).reshape(dp, tp)
    groups = [tuple(row) for row in [*grid.tolist(), *grid.T.tolist()]]
    offset = st.integers(-SECOND, SECOND)
    offsets = data.draw(st.lists(offset, min_size=tp * dp, max_size=tp * dp))
    clocks = aligned(run_of(groups, offsets, microseconds(seed, 0.7)))
    assert_recovered(clocks, offsets)
    assert set(clocks.component.values()) == {0}


def test_links_that_disagree_share_the_error() -> None:
    """Rank 3 ends 40 us late beside rank 1 and on time beside rank 2: no link takes it all."""
    calls = run_of([(0, 1), (0, 2), (2, 3)], [0] * 4)
    calls += run_of([(1, 3)], [0, 0, 0, 40 * US])
    assert aligned(calls).residual_ns.max() <= 15 * US


def test_a_chain_of_pairs() -> None:
    offsets = [0, 5 * SECOND, -7, 300, 12 * US]
    clocks = aligned(run_of([(0, 1), (1, 2), (2, 3), (3, 4)], offsets))
    assert_recovered(clocks, offsets, within=0)


@given(seeds)
def test_sets_that_nothing_links_stay_apart(seed: int) -> None:
    """The first rank of each set keeps its own clock."""
    offsets = [4 * SECOND, 9 * SECOND, -SECOND, 77 * US, 5, SECOND]
    first = {0: 0, 2: 0, 1: 1, 3: 1, 4: 1, 5: 1}
    clocks = aligned(run_of([(0, 2), (1, 3, 4, 5)], offsets, microseconds(seed)))
    assert clocks.component == first
    assert (clocks.offset_ns[0], clocks.offset_ns[1]) == (0, 0)
    for rank, known in first.items():
        assert abs(clocks.offset_ns[rank] - (offsets[rank] - offsets[known])) <= 2 * US


@pytest.mark.parametrize("op", [BROADCAST, REDUCE, GATHER, SCATTER, UNKNOWN])
def test_ends_that_say_little_are_not_used(op: str) -> None:
    assert aligned(calls_ending(0, {0: 0, 1: 90 * US}, op=op)).offset_ns == {}
    good = calls_ending(10**6, {0: 0, 1: 5 * US})
    both = aligned([*calls_ending(0, {0: 0, 1: 90 * US}, op=op), *good])
    assert both.offset_ns == {0: 0, 1: 5 * US}
    assert len(both.residual_ns) == 1


@pytest.mark.parametrize("op", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER])
def test_ends_that_are_used(op: str) -> None:
    assert aligned(calls_ending(0, {0: 0, 1: 7}, op=op)).offset_ns == {0: 0, 1: 7}


def test_one_rank_has_no_clock_to_compare() -> None:
    clocks = aligned([Call(0, 0, 50), Call(0, 60, 90)])
    assert (clocks.offset_ns, clocks.component, len(clocks.residual_ns)) == ({}, {}, 0)


def test_a_rank_without_a_matched_call_has_no_offset() -> None:
    calls = [*calls_ending(0, {0: 0, 1: 7}), Call(2, 0, 50, group=(2, 3))]
    assert sorted(aligned(calls).offset_ns) == [0, 1]


def test_early_arrivals_do_not_matter() -> None:
    """Rank 1 waits ten milliseconds in every call; its clock is right all the same."""
    calls = []
    for at in range(10**8, 2 * 10**8, 2 * 10**7):
        calls += [Call(0, at - 50 * US, at), Call(1, at - 10**7, at + 300)]
    assert aligned(calls).offset_ns == {0: 0, 1: 300}


def test_a_minority_of_odd_ends_does_not_matter() -> None:
    calls = run_of([(0, 1, 2)], [0, 300, -400], count=21)
    odd = [c if c.rank != 1 or c.end % (3 * 10**6) > 300 else late(c) for c in calls]
    clocks = aligned(odd)
    assert clocks.offset_ns == {0: 0, 1: 300, 2: -400}
    assert sorted(set(clocks.residual_ns.tolist())) == [0, 900 * US]


def late(call: Call) -> Call:
    return Call(call.rank, call.start, call.end + 900 * US, group=call.group)


def test_the_residual_is_the_spread_of_ends_after_alignment() -> None:
    calls = [
        *calls_ending(0, {0: 0, 1: 100}),
        *calls_ending(10**6, {0: 0, 1: 100}),
        *calls_ending(2 * 10**6, {0: 0, 1: 108}),
    ]
    assert aligned(calls).residual_ns.tolist() == [0, 0, 8]

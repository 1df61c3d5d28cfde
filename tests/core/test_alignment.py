"""Clocks of ranks on one time line, from the ends of their collectives."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from calls import EPOCH_NS, Call, table_of
from hypothesis import given
from hypothesis import strategies as st

from tracelens.alignment import align
from tracelens.matching import match
from tracelens.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    CODE,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.clocks import Clocks

SECOND, US = 10**9, 1000


def aligned(calls: Sequence[Call]) -> Clocks:
    table = table_of(calls)
    return align(table.frame, match(table).instance)


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


# drift -------------------------------------------------------------------------------------------


def drifting(
    offsets: Sequence[int],
    ppm: Sequence[float],
    groups: Sequence[tuple[int, ...]],
    *,
    seconds: float = 4,
    count: int = 200,
    seed: int = 0,
    sigma: float = 2.0,
) -> tuple[list[Call], list[int]]:
    """Return calls on clocks that run apart, and the true end of each."""
    random = np.random.default_rng(seed)
    calls, true = [], []
    for group in groups:
        for at in np.sort(random.uniform(0, seconds * SECOND, count)).tolist():
            for rank in group:
                end = round(at + random.normal(0, sigma * US))
                shown = end + offsets[rank] + round(end * ppm[rank] / 1e6)
                calls.append(Call(rank, shown - 50 * US, shown, group=group))
                true.append(end)
    return calls, true


def worst(calls: Sequence[Call], true: Sequence[int], clocks: Clocks) -> float:
    """Return the largest difference between true and common time, in microseconds.

    The common line is the first rank's clock, which runs as it likes: only differences count.
    """
    rank = np.array([call.rank for call in calls])
    shown = np.array([call.end + EPOCH_NS for call in calls])
    common = clocks.common(rank, shown) - EPOCH_NS
    first = rank == 0
    rate, level = np.polyfit(common[first] / 1e9, (common - np.array(true))[first].astype(float), 1)
    error = common - np.array(true) - (rate * common / 1e9 + level)
    by_rank = [abs(float(np.median(error[rank == r]))) for r in np.unique(rank)]
    ends = [
        abs(float(np.median(error[(rank == r) & edge])))
        for r in np.unique(rank)
        for edge in (common < np.percentile(common, 10), common > np.percentile(common, 90))
    ]
    return max(by_rank + ends) / US


class TestDrift:
    @given(st.integers(0, 2**32 - 1))
    def test_skew_of_hundreds_of_milliseconds_and_drift_of_20_ppm(self, seed: int) -> None:
        """Two microseconds all along, from the first call to the last: tp 2 x dp 3."""
        random = np.random.default_rng(seed)
        offsets = random.integers(-(3 * 10**8), 3 * 10**8, 6).tolist()
        ppm = random.uniform(-20, 20, 6).tolist()
        groups = [(0, 1), (2, 3), (4, 5), (0, 2, 4), (1, 3, 5)]
        calls, true = drifting(offsets, ppm, groups, seed=seed, sigma=1.0)
        clocks = aligned(calls)
        assert worst(calls, true, clocks) < 2
        for rank in range(1, 6):
            assert abs(clocks.drift_ppm[rank] - (ppm[rank] - ppm[0])) < 0.7
        middle = clocks.origin_ns[0] - EPOCH_NS - offsets[0]
        for rank in range(1, 6):
            ahead = offsets[rank] - offsets[0] + middle * (ppm[rank] - ppm[0]) / 1e6
            assert abs(clocks.offset_ns[rank] - ahead) < 2 * US

    def test_own_times_come_back(self) -> None:
        calls, _ = drifting([0, 10**8, -(10**8)], [0, 15, -20], [(0, 1, 2)])
        clocks = aligned(calls)
        rank = np.array([call.rank for call in calls])
        shown = np.array([call.end + EPOCH_NS for call in calls])
        assert np.abs(clocks.own(rank, clocks.common(rank, shown)) - shown).max() <= 1

    def test_one_clock_of_eight(self) -> None:
        ppm = [0.0] * 8
        ppm[5] = 12
        clocks = aligned(drifting([0] * 8, ppm, [tuple(range(8))])[0])
        assert clocks.drift_ppm[5] == pytest.approx(12, abs=0.5)
        others = [clocks.drift_ppm[rank] for rank in range(8) if rank != 5]
        assert max(map(abs, others)) < 0.5

    def test_disturbed_ends_turn_no_clock(self) -> None:
        """A tenth of the calls, all of them late ones, end 900 us late on rank 1."""
        calls, true = drifting([0, 0, 0], [0, 18, -7], [(0, 1, 2)], count=300)
        odd = [
            late(c) if c.rank == 1 and t > 3.5 * SECOND and i % 2 else c
            for i, (c, t) in enumerate(zip(calls, true, strict=True))
        ]
        clocks = aligned(odd)
        assert clocks.drift_ppm[1] == pytest.approx(18, abs=1)
        assert clocks.drift_ppm[2] == pytest.approx(-7, abs=1)

    @pytest.mark.parametrize(
        ("seconds", "count", "why"),
        [(4, 20, "few calls"), (0.02, 200, "a short time"), (4, 200, "no drift")],
    )
    def test_none_is_claimed_of(self, seconds: float, count: int, why: str) -> None:
        ppm = [0, 0] if why == "no drift" else [0, 20]
        calls, _ = drifting([0, 10**8], ppm, [(0, 1)], seconds=seconds, count=count)
        assert aligned(calls).drift_ppm == {}

    def test_no_clock_runs_a_tenth_of_a_percent_fast(self) -> None:
        calls, _ = drifting([0, 0], [0, 1000], [(0, 1)])
        assert aligned(calls).drift_ppm == {}

    def test_a_rank_with_few_calls_has_an_offset_only(self) -> None:
        calls, _ = drifting([0, 0, 0], [0, 20, -20], [(0, 1)])
        more, _ = drifting([0, 0, 9 * US], [0, 20, 0], [(0, 2)], count=5)
        clocks = aligned([*calls, *more])
        assert sorted(clocks.drift_ppm) == [0, 1]
        assert sorted(clocks.offset_ns) == [0, 1, 2]


def test_residuals_of_the_ranks() -> None:
    """Rank 2's ends scatter ten times as much as the others'."""
    random = np.random.default_rng(5)
    calls = []
    for number in range(200):
        for rank in range(3):
            end = number * 10**6 + round(random.normal(0, (20 if rank == 2 else 2) * US))
            calls.append(Call(rank, end - 50 * US, end, group=(0, 1, 2)))
    clocks = aligned(calls)
    assert clocks.rank_median_ns[2] > 4 * clocks.rank_median_ns[0]
    assert clocks.rank_residual_ns[2] == pytest.approx(1.96 * 20 * US, rel=0.25)
    assert clocks.rank_residual_ns[0] < 6 * US


def test_memory_grows_with_calls() -> None:
    """256 ranks in groups of 4, 64,000 instances: a table of both would take 131 MB."""
    import tracemalloc

    count, ranks, size = 1000, 256, 4
    rank = np.tile(np.arange(ranks), count)
    number = np.repeat(np.arange(count), ranks)
    random = np.random.default_rng(1)
    end = EPOCH_NS + number * 10**6 + 1000 * rank + random.integers(0, 2 * US, len(rank))
    group = rank // size
    frame = pd.DataFrame({"rank": rank, "group": group, "op": CODE[ALL_REDUCE], "end_ns": end})
    tracemalloc.start()
    try:
        clocks = align(frame, number * (ranks // size) + group)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(clocks.residual_ns) == count * ranks // size
    assert peak < 64 * 2**20

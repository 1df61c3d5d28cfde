"""Lists of calls lined up by order and by time."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.sequences import Calls, by_order, by_time, find_lead

US = 1000
kinds = st.lists(st.integers(0, 3), max_size=12)


def longest(first: list[int], second: list[int]) -> int:
    """Return the length of the longest common subsequence, from the textbook's table."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, kind in enumerate(first):
        for j, other in enumerate(second):
            same = table[i][j] + 1 if kind == other else 0
            table[i + 1][j + 1] = max(same, table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(kinds, kinds, st.booleans())
def test_order_pairs_as_many_calls_as_can_be(
    first: list[int], second: list[int], from_end: bool
) -> None:
    found = by_order(first, second, from_end=from_end)
    pairs = list(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert len(pairs) == longest(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    assert all(a < b and c < d for (a, c), (b, d) in itertools.pairwise(pairs))


@given(kinds, kinds)
def test_sure_pairs_do_not_depend_on_the_end_one_begins_with(
    first: list[int], second: list[int]
) -> None:
    def sure(from_end: bool) -> set[tuple[int, int]]:
        found = by_order(first, second, from_end=from_end)
        pairs = zip(found.first.tolist(), found.second.tolist(), strict=True)
        return {pair for pair, certain in zip(pairs, found.sure, strict=True) if certain}

    assert sure(from_end=False) == sure(from_end=True)


def test_of_equal_calls_the_first_or_the_last() -> None:
    front, back = (by_order([8] * 5, [8] * 3, from_end=end) for end in (False, True))
    assert (front.first.tolist(), front.second.tolist()) == ([0, 1, 2], [0, 1, 2])
    assert (back.first.tolist(), back.second.tolist()) == ([2, 3, 4], [0, 1, 2])
    assert not front.sure.any()


def test_nothing_to_pair() -> None:
    found = by_order([], [1, 2], from_end=False)
    assert (len(found.first), len(found.second), len(found.sure)) == (0, 0, 0)


def calls(ends: list[int], kind: int = 1, reach: int = 1000 * US) -> Calls:
    count = len(ends)
    return Calls(np.full(count, kind), np.array(ends, np.int64), np.full(count, reach))


def irregular(count: int, seed: int = 1) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(t) for t in np.cumsum(random.integers(300 * US, 3000 * US, count))]


@given(st.integers(-(10**12), 10**12), st.integers(0, 20))
def test_the_lead_of_a_clock(lead: int, lacking: int) -> None:
    ends = irregular(40)
    second = calls([end + lead for place, end in enumerate(ends) if place != lacking])
    assert find_lead(calls(ends), second) == lead


def test_equal_distances_have_no_lead() -> None:
    steady = [500 * US * i for i in range(50)]
    assert find_lead(calls(steady), calls(steady[1:])) is None


def test_two_votes_are_too_few() -> None:
    ends = irregular(2)
    assert find_lead(calls(ends), calls(ends)) is None


def test_kinds_in_common_or_none() -> None:
    ends = irregular(20)
    assert find_lead(calls(ends, kind=1), calls(ends, kind=2)) is None
    found = by_time(calls(ends, kind=1), calls(ends, kind=2), lead=0)
    assert found is not None
    assert len(found.first) == 0


def test_a_known_lead_needs_no_votes() -> None:
    found = by_time(calls([1000 * US, 5000 * US]), calls([5010 * US]), lead=0)
    assert found is not None
    assert (found.first.tolist(), found.second.tolist()) == ([1], [0])
    assert found.sure.all()


def test_ends_beyond_reach_are_no_pair() -> None:
    first, second = calls([0, 10_000 * US]), calls([1_001 * US, 10_002 * US])
    found = by_time(first, second, lead=0)
    assert found is not None
    assert (found.first.tolist(), found.second.tolist()) == ([1], [1])


def test_calls_that_follow_each_other_too_closely_are_not_told_apart() -> None:
    ends = [10 * US * i for i in range(30)]
    assert by_time(calls(ends), calls(ends[1:]), lead=0) is None

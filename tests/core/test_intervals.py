"""Every operation on intervals against a twin that marks single nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import SPAN, Spans, mask, spans, windows

from tracelens.intervals import (
    EMPTY,
    Intervals,
    clip,
    covered,
    first_started,
    intersect,
    subtract,
    union,
    union_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints


def union_of_spans(some: Spans) -> Intervals:
    return union(some.start, some.end)


def as_mask(intervals: Intervals) -> NDArray[np.bool_]:
    return mask(Spans(intervals.start, intervals.end))


def assert_canonical(intervals: Intervals) -> None:
    """Not empty, ascending, and neither touching nor overlapping."""
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()


@given(spans())
def test_union_marks_the_same_nanoseconds(some: Spans) -> None:
    merged = union_of_spans(some)
    assert_canonical(merged)
    assert np.array_equal(as_mask(merged), mask(some))
    assert merged.length == mask(some).sum()


@given(spans(), spans(), spans())
def test_union_of_several(first: Spans, second: Spans, third: Spans) -> None:
    merged = union_of(union_of_spans(first), union_of_spans(second), union_of_spans(third))
    assert_canonical(merged)
    assert np.array_equal(as_mask(merged), mask(first) | mask(second) | mask(third))


@given(spans(), spans())
def test_intersect(first: Spans, second: Spans) -> None:
    shared = intersect(union_of_spans(first), union_of_spans(second))
    assert (shared.end > shared.start).all()
    assert np.array_equal(as_mask(shared), mask(first) & mask(second))
    assert shared.length == (mask(first) & mask(second)).sum()


@given(spans(), spans())
def test_subtract(first: Spans, second: Spans) -> None:
    rest = subtract(union_of_spans(first), union_of_spans(second))
    assert np.array_equal(as_mask(rest), mask(first) & ~mask(second))
    assert rest.length == (mask(first) & ~mask(second)).sum()


@given(spans(), windows())
def test_clip(some: Spans, window: tuple[int, int]) -> None:
    cut = clip(union_of_spans(some), *window)
    assert_canonical(cut)
    inside = np.zeros(SPAN, bool)
    inside[max(window[0], 0) : max(window[1], 0)] = True
    assert np.array_equal(as_mask(cut), mask(some) & inside)


@given(spans(), st.lists(windows(), max_size=8))
def test_covered_measures_each_query(some: Spans, queries: list[tuple[int, int]]) -> None:
    start = np.array([low for low, _ in queries], np.int64)
    end = np.array([high for _, high in queries], np.int64)
    measured = covered(union_of_spans(some), start, end)
    expected = [int(mask(some, low, high).sum()) for low, high in queries]
    assert measured.tolist() == expected


def first_owners(some: Spans) -> list[int | None]:
    """Say for each nanosecond which of the spans covering it started first (the earlier row)."""
    order = sorted(range(len(some.start)), key=lambda row: (some.start[row], row))
    return [
        next((row for row in order if some.start[row] <= at < some.end[row]), None)
        for at in range(SPAN)
    ]


def owners_of_shares(start: Ints, end: Ints) -> list[int | None]:
    owners: list[int | None] = [None] * SPAN
    for row in range(len(start)):
        for at in range(start[row], end[row]):
            assert owners[at] is None, "shares overlap"
            owners[at] = row
    return owners


@given(spans())
def test_first_started_gives_each_instant_to_the_first(some: Spans) -> None:
    share_start, share_end = first_started(some.start, some.end)
    assert (share_end >= share_start).all()
    assert owners_of_shares(share_start, share_end) == first_owners(some)


def test_touching_intervals_become_one() -> None:
    merged = union(np.array([5, 0]), np.array([9, 5]))
    assert (merged.start.tolist(), merged.end.tolist()) == ([0], [9])


def test_epoch_nanoseconds_stay_exact() -> None:
    base = 1_767_225_600_123_456_789  # a double would step by 256 ns here
    merged = union(np.array([base, base + 3]), np.array([base + 1, base + 4]))
    assert merged.length == 2
    other = union(np.array([base]), np.array([base + 1]))
    assert subtract(merged, other).start.tolist() == [base + 3]
    assert covered(merged, np.array([base]), np.array([base + 4])).tolist() == [2]


def test_empty_operands() -> None:
    some = union(np.array([1]), np.array([4]))
    assert intersect(EMPTY, some).length == intersect(some, EMPTY).length == 0
    assert subtract(EMPTY, some).length == 0
    assert subtract(some, EMPTY) == some
    assert union_of().length == 0

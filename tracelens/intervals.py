"""Sets of half-open integer intervals [start, end), as pairs of sorted numpy arrays.

Every function is vectorised and exact; the property tests hold each against a brute-force twin.
Inputs are int64 arrays of one length; an interval with end <= start is empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Intervals(NamedTuple):
    """A union of disjoint, non-touching intervals in ascending order."""

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        """Total length."""
        return int((self.end - self.start).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """Merge any intervals into their union; touching ones become one."""
    keep = end > start
    if not keep.any():
        return EMPTY
    start, end = start[keep], end[keep]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return Intervals(start[first], reach[last])


def union_of(*parts: Intervals) -> Intervals:
    """Merge several unions."""
    return union(
        np.concatenate([part.start for part in parts]) if parts else EMPTY.start,
        np.concatenate([part.end for part in parts]) if parts else EMPTY.end,
    )


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """Cut a union to the window [low, high)."""
    start = np.clip(intervals.start, low, high)
    end = np.clip(intervals.end, low, high)
    keep = end > start
    return Intervals(start[keep], end[keep])


def subtract(intervals: Intervals, other: Intervals) -> Intervals:
    """Return the part of a union that lies outside another."""
    if not len(intervals.start) or not len(other.start):
        return intervals
    low = min(intervals.start[0], other.start[0]) - 1
    high = max(intervals.end[-1], other.end[-1]) + 1
    gaps = Intervals(np.append(low, other.end), np.append(other.start, high))
    return intersect(intervals, gaps)


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Return what two unions share."""
    _, start, end = pieces(first.start, first.end, second)
    return Intervals(start, end)


def gaps(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return what a union leaves free of [low, high)."""
    whole = Intervals(np.array([low]), np.array([high]))
    return subtract(whole, intervals) if high > low else EMPTY


def pieces(start: Ints, end: Ints, union_of_others: Intervals) -> tuple[Ints, Ints, Ints]:
    """Cut intervals by a union: return the row and the bounds of each piece inside it.

    Args:
        start: Starts of any intervals; they may overlap and come in any order.
        end: Their ends.
        union_of_others: The union to cut by.
    """
    # For every interval, the run of members of the union that reach into it.
    low = np.searchsorted(union_of_others.end, start, side="right")
    high = np.searchsorted(union_of_others.start, end, side="left")
    counts = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    partner = low[which] + offsets
    piece_start = np.maximum(start[which], union_of_others.start[partner])
    piece_end = np.minimum(end[which], union_of_others.end[partner])
    return which, piece_start, piece_end


def covered(intervals: Intervals, start: Ints, end: Ints) -> Ints:
    """Measure how much of each query [start, end) a union covers."""
    measure = np.concatenate(([0], np.cumsum(intervals.end - intervals.start)))
    share: Ints = _before(intervals, measure, end) - _before(intervals, measure, start)
    return np.maximum(share, 0)


def _before(intervals: Intervals, measure: Ints, at: Ints) -> Ints:
    """Measure the part of a union left of each instant."""
    if not len(intervals.start):
        return np.zeros(len(at), np.int64)
    index = np.searchsorted(intervals.start, at, side="right")
    last = np.maximum(index - 1, 0)
    overshoot = np.maximum(intervals.end[last] - at, 0)
    return measure[index] - np.where(index > 0, overshoot, 0)


def first_started(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Split overlapping intervals so that each instant belongs to the one that started first.

    Returns:
        For each input interval (in its own order) the start and end of its share; the shares are
        disjoint and together cover the union. Ties go to the earlier row.
    """
    order = np.argsort(start, kind="stable")
    ordered_start, ordered_end = start[order], np.maximum(start, end)[order]
    reach = np.maximum.accumulate(ordered_end) if len(order) else ordered_end
    share_start = ordered_start.copy()
    share_start[1:] = np.maximum(ordered_start[1:], reach[:-1])
    share_end = np.maximum(ordered_end, share_start)
    result_start, result_end = np.empty_like(start), np.empty_like(end)
    result_start[order], result_end[order] = share_start, share_end
    return result_start, result_end

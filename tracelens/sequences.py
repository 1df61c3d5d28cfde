"""Line up the calls of two ranks, of which either may lack some: by their times, or by order.

Times decide where one collective's ends fall closer together than two calls of one kind follow each
other. Order decides what they leave open: the longest common subsequence of kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.samples import Places

    Bools = NDArray[np.bool_]

_WIDTHS_NS = (30_000, 150_000, 750_000)
"""Within what ends of one collective fall: microseconds, or more under drift."""
_MOST_VOTES = 200
_MOST_DIFFERENCES = 400_000
_FEWEST_VOTES = 3
_RIVAL = 0.8
"""A lead is not certain if another one has this share of its votes."""
_TIMES_TYPICAL = 10
_LEAST_REACH = 0.05
_TIMES_NEARER = 3
_DOUBT_NS = 20_000
_MOSTLY = 0.8
_MOST_CELLS = 400_000_000
"""Beyond it, lists of 20,000 calls each, the common subsequence takes seconds and 50 MB."""


class Calls(NamedTuple):
    """Calls of one rank in order of time.

    Attributes:
        kind: Equal for calls of one operation, type and size.
        end: When each ended, in nanoseconds.
        reach: How far from it the same call can end on another rank.
    """

    kind: Ints
    end: Ints
    reach: Ints


class Pairs(NamedTuple):
    """Places of calls that belong together; `sure` where no other call would do as well."""

    first: Places
    second: Places
    sure: Bools


def by_time(
    first: Calls, second: Calls, lead: int | None = None, spread: float | None = None
) -> Pairs | None:
    """Pair the calls whose ends fall together; None if times do not tell which ones those are.

    Args:
        first: The calls of one rank.
        second: Those of another one.
        lead: How far the second one's clock is ahead, if it is known.
        spread: How far apart ends of one call usually are, if most of these may be of other calls;
            else it is what most pairs show.
    """
    if lead is not None:
        shown = second.end - lead
    elif (found := find_lead(first, second)) is not None:
        pairs, misfit, _ = _nearest(first, second, second.end - found)
        shown = second.end - found - _drifted(second.end, pairs.second, misfit)
    else:
        return None
    pairs, misfit, rival = _nearest(first, second, shown)
    distance = np.abs(misfit)
    if spread is None:
        spread = float(np.median(distance)) if len(distance) else 0.0
    reach = second.reach[pairs.second]
    kept = distance <= np.clip(_TIMES_TYPICAL * spread, _LEAST_REACH * reach, reach)
    sure = rival[kept] > _TIMES_NEARER * distance[kept] + _DOUBT_NS
    if sure.sum() < _MOSTLY * len(sure):
        return None
    return Pairs(pairs.first[kept], pairs.second[kept], sure)


def find_lead(first: Calls, second: Calls) -> int | None:
    """Return how far the second clock is ahead; None if several answers fit about as well.

    Every pair of calls of one kind votes for the difference of its ends. The pairs that belong
    together all vote alike, the others by how the calls of one rank follow each other.
    """
    votes = max(_FEWEST_VOTES, min(_MOST_VOTES, _MOST_DIFFERENCES // max(len(first.end), 1)))
    chosen = np.flatnonzero(np.isin(second.kind, first.kind))
    chosen = chosen[:: -(-len(chosen) // votes) or 1]
    if len(chosen) < _FEWEST_VOTES:
        return None
    order = np.argsort(first.kind, kind="stable")
    kinds = first.kind[order]
    low = np.searchsorted(kinds, second.kind[chosen], side="left")
    count = np.searchsorted(kinds, second.kind[chosen], side="right") - low
    which = np.repeat(np.arange(len(chosen)), count)
    partner = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + low[which]
    differences = np.sort(second.end[chosen][which] - first.end[order][partner])
    for width in _WIDTHS_NS:
        support = np.searchsorted(differences, differences + width, side="right")
        support -= np.arange(len(differences))
        best = int(support.argmax())
        winner = differences[best : best + support[best]]
        apart = np.abs(differences - winner[0]) > width
        rival = int(support[apart].max(initial=0))
        if support[best] >= max(_FEWEST_VOTES, len(chosen) / 2) and rival < _RIVAL * support[best]:
            return int(np.median(winner))
    return None


def _nearest(first: Calls, second: Calls, shown: Ints) -> tuple[Pairs, Ints, Ints]:
    """Pair calls of one kind that are each other's nearest; times of both on one clock.

    Returns:
        The pairs, by how much each misses, and how far the next call of the first rank is that the
        second one's might have been instead.
    """
    count = len(first.end)
    kind, end = np.concatenate((first.kind, second.kind)), np.concatenate((first.end, shown))
    order = np.lexsort((end, kind))
    kind, end, is_first = kind[order], end[order], order < count
    places = np.arange(len(order))
    nearest, _ = _neighbours(kind, end, places, is_first)
    back, rival = _neighbours(kind, end, places, ~is_first)
    found = np.flatnonzero(is_first & (nearest >= 0))
    found = found[back[nearest[found]] == found]
    partner = nearest[found]
    pairs = Pairs(order[found], order[partner] - count, np.ones(len(found), bool))
    return pairs, end[partner] - end[found], rival[partner]


def _neighbours(kind: Ints, end: Ints, places: Places, mine: Bools) -> tuple[Places, Ints]:
    """Return for each of mine the nearest of the others of its kind, and how far the next one is.

    Args:
        kind: Kinds, ascending.
        end: Times, ascending within a kind.
        places: 0, 1, 2 ...
        mine: Which ones to answer for.
    """
    far = np.iinfo(np.int64).max
    before = np.maximum.accumulate(np.where(mine, -1, places))
    after = np.minimum.accumulate(np.where(mine, len(places), places)[::-1])[::-1]
    gaps = []
    for other in (before, after):
        inside = np.clip(other, 0, len(places) - 1)
        known = (other >= 0) & (other < len(places)) & (kind[inside] == kind)
        gaps.append(np.where(known, np.abs(end[inside] - end), far))
    nearest = np.where(gaps[0] <= gaps[1], before, after)
    nearest = np.where(np.minimum(*gaps) < far, nearest, -1)
    return nearest, np.maximum(*gaps)


def _drifted(end: Ints, paired: Places, misfit: Ints) -> Ints:
    """Return by how much all ends are off if the pairs' misfits lie on a line."""
    if not len(paired):
        return np.zeros(len(end), np.int64)
    order = np.argsort(end[paired], kind="stable")
    third = len(order) // 3
    if not third:
        return np.full(len(end), round(float(np.median(misfit))), np.int64)
    parts = [order[:third], order[third:-third], order[-third:]]
    at = [float(np.median(end[paired[part]] - end[0])) for part in parts if len(part)]
    off = [float(np.median(misfit[part])) for part in parts if len(part)]
    slope = (off[-1] - off[0]) / (at[-1] - at[0]) if at[-1] > at[0] else 0.0
    level = float(np.median(misfit - slope * (end[paired] - end[0])))
    line: Ints = np.rint(level + slope * (end - end[0])).astype(np.int64)
    return line


# by order ----------------------------------------------------------------------------------------


def by_order(first: Sequence[int], second: Sequence[int], *, from_end: bool) -> Pairs:
    """Pair the most calls in one order; of equal ones the first, or the last.

    A pair is sure if the first and the last way to pair the most calls agree on it.
    """
    early = _common_subsequence(first, second)
    late = {
        (len(first) - 1 - i, len(second) - 1 - j)
        for i, j in _common_subsequence(first[::-1], second[::-1])
    }
    chosen = sorted(late) if from_end else early
    other = set(early) if from_end else late
    places = np.array(chosen, np.intp).reshape(-1, 2)
    sure = np.array([pair in other for pair in chosen], bool)
    return Pairs(places[:, 0], places[:, 1], sure)


def _common_subsequence(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Return a longest common subsequence as pairs of places, the early ones of equal calls.

    Bit-parallel (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004): a row of the table
    is one integer, whose zeros are the columns at which the length grows.
    """
    head = 0
    while head < min(len(first), len(second)) and first[head] == second[head]:
        head += 1
    start = [(i, i) for i in range(head)]
    first, second = first[head:], second[head:]
    if len(first) * len(second) > _MOST_CELLS:
        return start
    where: dict[int, int] = {}
    for i, kind in enumerate(first):
        where[kind] = where.get(kind, 0) | 1 << i
    row = whole = (1 << len(first)) - 1
    rows = []
    for kind in second:
        hits = row & where.get(kind, 0)
        row = ((row + hits) | (row - hits)) & whole
        rows.append(row)
    pairs, i, j = [], len(first), len(second)
    while i and j:
        if rows[j - 1] >> (i - 1) & 1:
            i -= 1
            continue
        j -= 1
        if not j or rows[j - 1] >> (i - 1) & 1:
            i -= 1
            pairs.append((head + i, head + j))
    return start + pairs[::-1]

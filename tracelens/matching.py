"""Match the instances of a collective across ranks, and say how sure each match is.

Calls are matched per group (its rank list, never its name). Where the trace numbers calls (torch
2.12) the numbers decide. Else the order within each step does, if all ranks called the same things;
a rank that lacks calls, and traces without steps, are lined up by the times of ends, or by order
where these do not tell.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracelens import operations
from tracelens.alignment import ENDING_TOGETHER, align
from tracelens.clocks import Clocks
from tracelens.model.trace import NONE
from tracelens.operations import CODE
from tracelens.sequences import Calls, Pairs, by_order, by_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.model.result import Confidence
    from tracelens.operations_table import OperationsTable
    from tracelens.samples import Places

UNMATCHED = -1
CONFIDENCES: tuple[Confidence, ...] = ("exact", "high", "medium", "low")
"""By number; by order in a step, all sizes equal; by times; or by order alone."""
_EXACT, _HIGH, _MEDIUM, LOW = range(4)
# Messages have two ends of their own, and an unknown kernel may be a message.
NOT_COLLECTIVE = [*operations.POINT_TO_POINT, CODE[operations.UNKNOWN]]
_REACH_NS = 1_000_000
_LOOSE_REACH_NS = 20_000_000
"""The root of a broadcast may leave that much before the others."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Which rows are one collective.

    Attributes:
        instance: Per row, equal numbers for one collective, `UNMATCHED` for rows no other rank's
            row belongs to.
        confidence: Per row, how sure its instance is: a place in `CONFIDENCES`.
    """

    instance: Ints
    confidence: NDArray[np.int8]


def match(
    table: OperationsTable,
    runs: Mapping[int, int] | None = None,
    clocks: Clocks | None = None,
) -> Matching:
    """Number the instances.

    Args:
        table: The operations of all ranks.
        runs: Per rank the run it belongs to; ranks of different runs never match.
        clocks: The ranks' clocks, where they are known beforehand.
    """
    frame, rows = _collectives(table, runs or {})
    matcher = _Matcher(len(table.frame), frame, rows, clocks)
    numbered = _numbers(frame)
    matcher.by_number(numbered)
    matcher.by_sequence(numbered < 0)
    return matcher.result()


def _collectives(table: OperationsTable, runs: Mapping[int, int]) -> tuple[pd.DataFrame, Places]:
    """Return the timed collectives of known groups with the `kind` and `family` of each.

    A family is a group in a run: what can match at all. An all-to-all's sizes may differ from rank
    to rank, so they tell nothing.
    """
    frame = table.frame
    known = [group.index for group in table.groups if group.is_one]
    wanted = (frame["start"].to_numpy(np.int64) != NONE) & frame["group"].isin(known).to_numpy()
    wanted &= ~frame["op"].isin(NOT_COLLECTIVE).to_numpy()
    rows = np.flatnonzero(wanted)
    part = frame.iloc[rows].reset_index(drop=True)
    uneven = (part["op"] == CODE[operations.ALL_TO_ALL]).to_numpy()
    # Where no type is recorded, bytes compare as well.
    sizes = part["elements"].where(part["elements"] != NONE, part["buffer_bytes"])
    elements = np.where(uneven, NONE, sizes.to_numpy(np.int64))
    run = part["rank"].map(runs).fillna(0).astype(np.int64) if runs else 0
    part = part.assign(elements=elements, run=run)
    kind = part.groupby(["op", "dtype", "elements"], sort=False).ngroup()
    part = part.assign(kind=kind, family=part.groupby(["group", "run"], sort=True).ngroup())
    several = part.groupby("family")["rank"].transform("nunique").to_numpy() > 1
    return part[several].reset_index(drop=True), rows[several]


def _numbers(frame: pd.DataFrame) -> Ints:
    """Return the same number for the calls of one instance, or -1 where the trace numbers none.

    Numbers count if every call of the family has one and no rank uses one twice. `Comms Id` tells
    groups of one rank list apart, which count on their own.
    """
    result = np.full(len(frame), -1)
    for column in ("comms_id", "seq"):
        if not len(frame):
            break
        key = ["family", "kind", column]
        bad = (frame[column].to_numpy(np.int64) == NONE) | frame.duplicated([*key, "rank"])
        usable = ~bad.groupby(frame["family"]).transform("any").to_numpy() & (result < 0)
        number = frame.groupby(key, sort=True).ngroup().to_numpy() + result.max() + 1
        result = np.where(usable, number, result)
    return result


class _List(NamedTuple):
    """Calls of one rank in one step of a family, in order: places in the ordered frame."""

    rank: int
    places: Places


class _Pending(NamedTuple):
    """A list that is not equal to its reference, or that no step bounds."""

    block: int
    reference: _List
    own: _List
    in_step: bool
    equal: bool


class _Matcher:
    def __init__(
        self, count: int, frame: pd.DataFrame, rows: Places, clocks: Clocks | None
    ) -> None:
        keys = ("start", "rank", "step_number", "cycle_key", "family")
        self.order = np.lexsort([frame[name].to_numpy(np.int64) for name in keys])
        self.frame = frame.iloc[self.order].reset_index(drop=True)
        self.rows, self.count = rows[self.order], count
        self.kind, self.rank, self.step, self.end, elements = (
            self.frame[name].to_numpy(np.int64)
            for name in ("kind", "rank", "step_number", "end_ns", "elements")
        )
        self.sized = elements != NONE
        # A host backend's ranges end when a thread gets a core.
        tight = self.frame["op"].isin(ENDING_TOGETHER).to_numpy() & (clocks is None)
        self.reach = np.where(tight, _REACH_NS, _LOOSE_REACH_NS)
        self.given, self.clocks = clocks, clocks or Clocks()
        self.instance = np.full(len(self.frame), UNMATCHED)
        self.confidence = np.full(len(self.frame), _EXACT, np.int8)
        self.following = 0

    def by_number(self, number: Ints) -> None:
        self.instance = number[self.order]
        self.following = int(self.instance.max(initial=UNMATCHED)) + 1

    def by_sequence(self, unnumbered: NDArray[np.bool_]) -> None:
        """Match lists that are equal in a step as they are, the others by times or by order."""
        blocks = list(self._blocks(np.flatnonzero(unnumbered[self.order])))
        pending = [one for block in enumerate(blocks) for one in self._equal(*block)]
        touched = {one.block for one in pending}
        for _ in range(2):  # what times tell without clocks gives clocks, and those tell more
            if pending:
                self._align()
                pending = [one for one in pending if not self._by_time(one)]
        for one in pending:
            self._by_order(one)
        lacking = [free for block in sorted(touched) if (free := self._free(blocks[block]))]
        if lacking:
            self._align()
            spread = self._spread()
        for lists in lacking:
            self._left_over(lists, spread)

    def _blocks(self, places: Places) -> Iterator[list[_List]]:
        """Yield the ranks' lists of each step of each family."""
        if not len(places):
            return
        keys = [self.frame[n].to_numpy(np.int64) for n in ("family", "cycle_key", "step_number")]
        new_block = np.any([np.diff(key[places], prepend=NONE) != 0 for key in keys], axis=0)
        new_list = new_block | (np.diff(self.rank[places], prepend=NONE) != 0)
        first = np.flatnonzero(new_list)
        lists = [_List(int(self.rank[part[0]]), part) for part in np.split(places, first[1:])]
        bounds = np.flatnonzero(new_block[first])
        for low, high in itertools.pairwise([*bounds.tolist(), len(lists)]):
            yield lists[low:high]

    def _equal(self, block: int, lists: list[_List]) -> Iterator[_Pending]:
        """Match the lists that are the most usual one; yield those that are left.

        The usual list, and of equally usual ones the longest, is the reference for all.
        """
        if len(lists) < 2:
            return
        texts = [self.kind[one.places].tobytes() for one in lists]
        usual = Counter(texts)
        chosen = max(texts, key=lambda text: (usual[text], len(text)))
        reference = lists[texts.index(chosen)]
        in_step = bool(self.step[reference.places[0]] >= 0)
        self._number(reference)
        sure = np.where(self.sized[reference.places], _HIGH, _MEDIUM)
        for one, text in zip(lists, texts, strict=True):
            if one is reference:
                continue
            if in_step and text == chosen:
                self._join(reference.places, one.places, sure)
            else:
                yield _Pending(block, reference, one, in_step, text == chosen)

    def _number(self, reference: _List) -> None:
        count = len(reference.places)
        self.instance[reference.places] = np.arange(count) + self.following
        self.following += count

    def _join(self, reference: Places, own: Places, confidence: NDArray[np.integer]) -> None:
        self.instance[own] = self.instance[reference]
        self.confidence[own] = confidence

    def _align(self) -> None:
        if self.given is None:
            self.clocks = align(self.frame, self._shared())

    def _by_time(self, one: _Pending, spread: float | None = None) -> bool:
        """Match a list by the times of its ends; tell whether they say enough."""
        pairs = self._timed(one.reference, one.own, spread)
        if pairs is None or (one.in_step and 2 * len(pairs.first) < len(one.own.places)):
            return False
        reference, own = one.reference.places[pairs.first], one.own.places[pairs.second]
        known = one.equal and len(own) == len(one.own.places)
        sure = np.where(self.sized[own] & known, _HIGH, _MEDIUM)
        self._join(reference, own, np.where(pairs.sure, sure, LOW))
        return True

    def _timed(self, reference: _List, own: _List, spread: float | None) -> Pairs | None:
        """Pair two lists by time; on common clocks, if both are known, their ends coincide."""
        sets = {self.clocks.component.get(one.rank) for one in (reference, own)}
        known = len(sets) == 1 and None not in sets
        first, second = (self._calls(one.places, common=known) for one in (reference, own))
        return by_time(first, second, 0 if known else None, spread)

    def _calls(self, places: Places, *, common: bool) -> Calls:
        end = self.end[places]
        if common:
            end = self.clocks.common(self.rank[places], end)
        return Calls(self.kind[places], end, self.reach[places])

    def _by_order(self, one: _Pending) -> None:
        reference, own = one.reference.places, one.own.places
        first, second = self.kind[reference].tolist(), self.kind[own].tolist()
        pairs = by_order(first, second, from_end=not one.in_step)
        medium = pairs.sure & self.sized[own[pairs.second]] & one.in_step
        confidence = np.where(medium, _MEDIUM, LOW)
        self._join(reference[pairs.first], own[pairs.second], confidence)

    def _free(self, lists: list[_List]) -> list[_List]:
        """Return the calls without an instance, longest list first; none if only one rank has."""
        free = [_List(one.rank, one.places[self.instance[one.places] < 0]) for one in lists]
        some = sorted((one for one in free if len(one.places)), key=lambda one: -len(one.places))
        return some if len(some) > 1 else []

    def _spread(self) -> float:
        """Return how far apart the ends of a matched call are on common clocks: the median."""
        shared = self._shared()
        known = np.isin(self.rank, list(self.clocks.component))
        places = np.flatnonzero((shared >= 0) & known)
        end = self.clocks.common(self.rank[places], self.end[places])
        by_call = pd.Series(end).groupby(shared[places])
        apart = by_call.max() - by_call.min()
        return float(apart.median()) if len(apart) else 0.0

    def _left_over(self, lists: list[_List], spread: float) -> None:
        """Match among themselves, by time, the calls that the reference lacks.

        Most of them may have no partner, so their own distances do not say how near one is.
        """
        while lists:
            reference, *others = lists
            self._number(reference)
            for own in others:
                self._by_time(_Pending(0, reference, own, in_step=False, equal=False), spread)
            lists = self._free(others)

    def _shared(self) -> Ints:
        """Return the instances that have two members."""
        members = np.bincount(self.instance[self.instance >= 0])
        shared = self.instance >= 0
        shared[shared] = members[self.instance[shared]] > 1
        return np.where(shared, self.instance, UNMATCHED)

    def result(self) -> Matching:
        """Return the matches of all rows; an instance is as sure as its least sure member."""
        shared = self._shared()
        matched = shared >= 0
        _, number = np.unique(shared[matched], return_inverse=True)
        worst = np.zeros(number.max(initial=-1) + 1, np.int8)
        np.maximum.at(worst, number, self.confidence[matched])
        instance, confidence = np.full(self.count, UNMATCHED), np.full(self.count, LOW, np.int8)
        instance[self.rows[matched]] = number
        confidence[self.rows[matched]] = worst[number]
        return Matching(instance, confidence)

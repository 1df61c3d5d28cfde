"""Charge waiting to the rank that caused it, not to one that was held up itself.

Lateness travels. A slow rank holds up its tensor-parallel peer, which then comes late to its own
data-parallel group; the stages of a pipeline end a step one after the other, however fast they are.
So what a rank did since its group last met is split: exposed communication elsewhere (most of it
waiting for others) excuses it, the rest is its own doing (docs/attribution.md).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.run import RankRun, Run
    from tracelens.waiting import Waiting


def charge(run: Run, table: OperationsTable, waiting: Waiting) -> dict[int, dict[int, int]]:
    """Return, per group and rank, the waiting of others that its own doing caused.

    Args:
        run: All ranks.
        table: Their operations.
        waiting: The matched instances and who waited how long.
    """
    rows = np.flatnonzero(waiting.wait_ns != NONE)
    if not len(rows):
        return {}
    members = _Members(run, table, waiting, rows)
    charged: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for places in members.instances():
        arrived = members.start[places]
        last = places[np.argmax(arrived)]
        waited = members.start[last] - arrived
        more = members.own[last] - members.own[places]
        ns = int(np.clip(np.minimum(waited, more), 0, None).sum())
        if ns and (arrived == members.start[last]).sum() == 1:
            charged[int(members.group[last])][int(members.rank[last])] += ns
    return {group: dict(ranks) for group, ranks in charged.items()}


class _Members:
    """The rows of matched instances: when each arrived, and how long it was busy by itself.

    Attributes:
        rank: The rank of each row.
        group: Its group.
        start: Its arrival, on the common time line.
        own: Its time since the group's last meeting, without exposed communication.
    """

    def __init__(
        self, run: Run, table: OperationsTable, waiting: Waiting, rows: NDArray[np.intp]
    ) -> None:
        frame = table.frame
        columns = ("rank", "group", "cycle", "start_ns", "end_ns")
        self.rank, self.group, self._cycle, start, end = (
            frame[name].to_numpy(np.int64)[rows] for name in columns
        )
        offsets = waiting.clocks.offset_ns
        offset = np.array([offsets[int(rank)] for rank in self.rank], np.int64)
        self.start, self._end = start - offset, end - offset
        self._instance = waiting.instance[rows]
        exposed = {
            rank.rank: _exposed(rank, offsets[rank.rank])
            for rank in run.counted
            if rank.rank in offsets
        }
        before = self._met_before(run, offsets)
        self.own = self.start - before
        for rank, pieces in exposed.items():
            mine = self.rank == rank
            self.own[mine] -= pieces.until(self.start[mine]) - pieces.until(before[mine])

    def instances(self) -> list[NDArray[np.intp]]:
        """Return the places of each instance's rows."""
        order = np.argsort(self._instance, kind="stable")
        bounds = np.flatnonzero(np.diff(self._instance[order])) + 1
        return np.split(order, bounds)

    def _met_before(self, run: Run, offsets: dict[int, int]) -> Ints:
        """Return when each row's rank left its group's instance before; else the recording's start.

        A group's first instance counts from when all its ranks were recorded.
        """
        order = np.lexsort((self.start, self._cycle, self.rank, self.group))
        keys = np.stack((self.group, self.rank, self._cycle))[:, order]
        first = np.append(True, (np.diff(keys) != 0).any(axis=0))
        before = np.empty(len(order), np.int64)
        before[order] = np.append(0, self._end[order][:-1])
        begun = {
            (rank.rank, number): cycle.first_ns - offsets[rank.rank]
            for rank in run.counted
            if rank.rank in offsets
            for number, cycle in enumerate(rank.cycles)
        }
        firsts = order[first]
        start = np.array([begun[int(self.rank[i]), int(self._cycle[i])] for i in firsts], np.int64)
        for group in np.unique(self.group[firsts]):
            same = self.group[firsts] == group
            start[same] = start[same].max()
        before[firsts] = np.minimum(start, self.start[firsts])
        return before


class _Exposed(NamedTuple):
    """A rank's exposed communication, ascending, with its running sum."""

    start: Ints
    end: Ints
    sum: Ints

    def until(self, at: Ints) -> Ints:
        """Return the exposed time before each instant."""
        place = np.searchsorted(self.start, at, side="right")
        before = self.sum[place]
        inside = np.maximum(place - 1, 0)
        cut = np.where(place > 0, np.maximum(self.end[inside] - at, 0), 0) if len(self.end) else 0
        return np.asarray(before - cut, np.int64)


def _exposed(rank: RankRun, offset: int) -> _Exposed:
    """Return the exposed pieces of a rank's first device on the common time line."""
    starts, ends = [], []
    for cycle in rank.cycles:
        mine = (cycle.exposed["device"] == 0).to_numpy()
        base = cycle.info.base_ns - offset
        starts.append(cycle.exposed["start"].to_numpy(np.int64)[mine] + base)
        ends.append(cycle.exposed["end"].to_numpy(np.int64)[mine] + base)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    return _Exposed(start, end, np.append(0, np.cumsum(end - start)))

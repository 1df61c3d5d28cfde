"""Name the ranks the others wait for, by what they did themselves.

Whoever enters a collective last makes the others wait. But it may be late only because it waited
for somebody else just before, in another group. So the waiting is charged to the last rank as far
as its own pace explains it, and handed on to those it waited for itself otherwise
(docs/attribution.md, "Who is to blame").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.result import Straggler
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.clocks import Clocks
    from tracelens.exposed_wait import Losses
    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.samples import Floats, Places
    from tracelens.waiting import Waiting

    Bools = NDArray[np.bool_]

_SHARE_OF_A_STRAGGLER = 0.3
"""A rank that causes more than this share of a group's waiting is a straggler (docs/findings.md).

"Last in more than half of the calls" would name nobody on real runs where one rank causes 86 % of
the waiting in few, long waits.
"""
_TIMES_FAIR = 1.6
"""In small groups a fair share is large already (half, of two): a straggler exceeds it."""
_MATTERS = 0.03
"""Keeping each other rank below this share of the recorded time is jitter, and nobody's fault."""
_MOST_HANDS = 32
_ALL_HANDED_ON = 1e-3
_PERSISTENT = 0.5
"""Late in more than this share of the steps is a trait of the rank or its data, less an event."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Whose fault the waiting is; arrays have an entry per instance.

    Attributes:
        group: The group of the instance.
        step: A number for its step, negative outside steps.
        members: How many members it has here.
        latest: The rank that entered last.
        late_ns: How long after the first one it did.
        tied: Two members entered last in the same nanosecond: nobody is to blame.
        waited_ns: Waiting of all members.
        own_ns: The part of it that the last rank's own pace explains.
        charged_ns: That, with what others handed on to it.
        taken_part: Per rank its number of instances.
    """

    group: Ints
    step: Ints
    members: Places
    latest: Ints
    late_ns: Ints
    tied: Bools
    waited_ns: Ints
    own_ns: Ints
    charged_ns: Floats
    taken_part: dict[int, int]


def blame(table: OperationsTable, waiting: Waiting, losses: Losses) -> Blame:
    """Charge each instance's waiting to the rank whose own pace caused it.

    Args:
        table: The operations of all ranks.
        waiting: Who waited, and how long.
        losses: What each call cost its rank.
    """
    frame, rows, first = table.frame, waiting.rows, waiting.first
    rank, group, step = (
        frame[name].to_numpy(np.int64) for name in ("rank", "group", "step_number")
    )
    last = first + waiting.members - 1
    late = waiting.late_ns[rows]
    tied = late[last] == late[last - 1]
    wait = waiting.wait_ns[rows]
    pace = _Pace(table, waiting, losses)
    excess = np.repeat(pace.lost[last], waiting.members) - pace.lost
    inherited = np.clip(excess, 0, wait)
    waited, own = (
        np.where(tied, 0, np.add.reduceat(part, first)) if len(first) else np.empty(0, np.int64)
        for part in (wait, wait - inherited)
    )
    ranks, count = np.unique(rank[rows], return_counts=True)
    return Blame(
        group=group[rows[first]],
        step=step[rows[first]],
        members=waiting.members,
        latest=rank[rows[last]],
        late_ns=late[last],
        tied=tied,
        waited_ns=waited,
        own_ns=own,
        charged_ns=pace.handed_on(waited, own),
        taken_part={int(r): int(n) for r, n in zip(ranks, count, strict=True)},
    )


class _Pace:
    """What each matched call's rank lost to others since it was last in step with its group.

    Attributes:
        lost: Per entry of `waiting.rows`.
    """

    def __init__(self, table: OperationsTable, waiting: Waiting, losses: Losses) -> None:
        self.rows, self.first, self.members = waiting.rows, waiting.first, waiting.members
        frame = table.frame
        rank, cycle, start = (frame[n].to_numpy(np.int64) for n in ("rank", "cycle", "start_ns"))
        # The calls of all ranks and cycles, one line behind the other.
        order = np.lexsort((start, cycle, rank))
        order = order[start[order] != NONE]
        self.lost_in_order = losses.lost_ns[order]
        before = np.append(0, np.cumsum(self.lost_in_order))
        place = np.zeros(len(rank), np.intp)
        place[order] = np.arange(len(order))
        self.place = place[self.rows]
        change = np.diff(rank[order], prepend=NONE) != 0
        change |= np.diff(cycle[order], prepend=NONE) != 0
        line, after = np.cumsum(change), np.maximum(start[order] - losses.begun_ns[order], 0)
        self.since = self._begun(waiting.clocks, rank, losses.begun_ns, line, after)
        self._meet(table, rank, losses.held)
        self.lost = before[self.place] - before[self.since]

    def _begun(
        self, clocks: Clocks, rank: Ints, begun_ns: Ints, line: Places, after: Ints
    ) -> Places:
        """Return from which call on all members of an instance were recorded."""
        if not len(self.rows):
            return self.rows
        rank, begun = rank[self.rows], begun_ns[self.rows]
        latest = np.maximum.reduceat(clocks.common(rank, begun), self.first)
        wanted = clocks.own(rank, np.repeat(latest, self.members)) - begun
        length = int(after.max()) + 1
        at = line[self.place] * length + np.clip(wanted, 0, length)
        found: Places = np.minimum(np.searchsorted(line * length + after, at), self.place)
        return found

    def _meet(self, table: OperationsTable, rank: Ints, held: Bools) -> None:
        """Let the count begin where a rank was last in step with all of its group.

        That is after a call of the group, or of one that holds all its members, whose end held
        every one of them up. A call that ends while they compute leaves them as far apart as they
        were.
        """
        if not len(self.rows):
            return
        group, member = table.frame["group"].to_numpy(np.int64)[self.rows], rank[self.rows]
        in_step = np.repeat(np.logical_and.reduceat(held[self.rows], self.first), self.members)
        order = np.lexsort((self.place, member, group))
        change = (np.diff(group[order]) != 0) | (np.diff(member[order]) != 0)
        parts = {
            (int(group[part[0]]), int(member[part[0]])): part
            for part in np.split(order, np.flatnonzero(change) + 1)
        }
        met = {key: self.place[part[in_step[part]]] for key, part in parts.items()}
        around = _around(table)
        for (own, number), part in parts.items():
            places = [met[h, number] for h in around[own] if (h, number) in met]
            after = np.append(0, np.sort(np.concatenate(places)) + 1)
            latest = after[np.searchsorted(after, self.place[part], side="right") - 1]
            self.since[part] = np.maximum(self.since[part], latest)

    def handed_on(self, waited: Ints, own: Ints) -> Floats:
        """Return what each instance's last rank is charged with in the end.

        What its own pace does not explain goes back to the calls in which it lost the time, in
        proportion, and so to those who were last there. Time lost in calls nobody can be blamed
        for, such as messages, ends with nobody.
        """
        last = self.first + self.members - 1
        share = np.divide(own, waited, out=np.ones(len(own)), where=waited > 0)
        which = np.repeat(np.arange(len(self.first)), self.members)
        charged, left = np.zeros(len(own)), waited.astype(np.float64)
        for _ in range(_MOST_HANDS):
            charged += left * share
            passed = left * (1 - share)
            if passed.sum() <= _ALL_HANDED_ON * waited.sum():
                break
            rate = np.divide(passed, self.lost[last], out=np.zeros(len(own)), where=passed > 0)
            steps = np.zeros(len(self.lost_in_order) + 1)
            np.add.at(steps, self.since[last], rate)
            np.subtract.at(steps, self.place[last], rate)
            density = np.cumsum(steps)[self.place]
            given = np.clip(density, 0, None) * self.lost_in_order[self.place]
            left = np.where(waited > 0, np.bincount(which, given, len(own)), 0.0)
        return charged


def _around(table: OperationsTable) -> dict[int, list[int]]:
    """Return for each group those that hold all its ranks, itself included."""
    of_rank: dict[int, list[int]] = {}
    members = {group.index: set(group.ranks or ()) for group in table.groups}
    for index, ranks in members.items():
        for rank in ranks:
            of_rank.setdefault(rank, []).append(index)
    return {
        index: [h for h in of_rank[min(ranks)] if ranks <= members[h]] if ranks else [index]
        for index, ranks in members.items()
    }


def stragglers(blamed: Blame, recorded_ns: int) -> list[Straggler]:
    """Name the ranks the others wait for, the most costly first.

    Args:
        blamed: Whose fault the waiting is.
        recorded_ns: Recorded time of one rank; waiting far below it is jitter.
    """
    groups: dict[int, list[int]] = {}
    for group in np.unique(blamed.group).tolist():
        for rank in _late_in(blamed, blamed.group == group, recorded_ns):
            groups.setdefault(rank, []).append(group)
    total = int(blamed.waited_ns.sum())
    found = [_straggler(blamed, rank, where, total, recorded_ns) for rank, where in groups.items()]
    return sorted(found, key=lambda one: (-one.wait_caused_ns, one.rank))


def _late_in(blamed: Blame, chosen: Bools, recorded_ns: float) -> list[int]:
    """Return the ranks whose own pace makes the others of one group wait in some instances."""
    members = int(blamed.members[chosen].max())
    limit = max(_SHARE_OF_A_STRAGGLER, _TIMES_FAIR / members) * blamed.waited_ns[chosen].sum()
    jitter = _MATTERS * recorded_ns * (members - 1)
    ranks, which = np.unique(blamed.latest[chosen], return_inverse=True)
    own = np.bincount(which, blamed.own_ns[chosen])
    return [int(rank) for rank in ranks[own > max(limit, jitter)]]


def _straggler(
    blamed: Blame, rank: int, groups: list[int], total: int, recorded_ns: int
) -> Straggler:
    latest = (blamed.latest == rank) & ~blamed.tied
    caused = round(float(blamed.charged_ns[latest].sum()))
    late, steps = _late_steps(blamed, rank, groups, recorded_ns)
    return Straggler(
        rank=rank,
        late_in_pct=100 * int(latest.sum()) / blamed.taken_part[rank],
        mean_late_ns=round(float(blamed.late_ns[latest].mean())),
        wait_caused_ns=caused,
        share_of_wait_pct=100 * caused / total,
        groups=[f"g{group}" for group in groups],
        late_steps=late if steps else None,
        steps=steps or None,
        persistent=late > _PERSISTENT * steps if steps > 1 else None,
    )


def _late_steps(blamed: Blame, rank: int, groups: list[int], recorded_ns: int) -> tuple[int, int]:
    """Count the steps in which the rank is a straggler by the same measure, and all of them."""
    steps = np.unique(blamed.step[np.isin(blamed.group, groups) & (blamed.step >= 0)])
    late = 0
    for step in steps:
        inside = [(blamed.group == group) & (blamed.step == step) for group in groups]
        late += any(
            rank in _late_in(blamed, one, recorded_ns / len(steps)) for one in inside if one.any()
        )
    return late, len(steps)

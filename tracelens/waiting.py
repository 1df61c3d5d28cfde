"""Split a collective's time into waiting for its last member and transferring.

With clocks aligned, the members of an instance wait until the last one arrives; what follows is
transfer. With one rank's trace neither is known. If members have no trace, the last arrival may be
one of theirs, so waiting is a lower bound.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.alignment import ENDING_TOGETHER, Clocks, align
from tracelens.matching import UNMATCHED, match
from tracelens.model.result import Lateness, Straggler
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.run import RankRun, Run

_SHARE_OF_A_STRAGGLER = 0.3
"""A rank that causes more than this share of a group's waiting is a straggler (docs/findings.md).

"Last in more than half of the calls" would name nobody on real runs where one rank causes 86 % of
the waiting in few, long waits.
"""
_TIMES_FAIR = 1.6
"""In small groups a fair share is large already (half, of two): a straggler exceeds it."""
_CLOCK_ERROR_NS = 1_000_000
_MATTERS = 0.03
"""Keeping each other rank below this share of the recorded time is jitter, and nobody's fault."""


@dataclass(slots=True)
class Waiting:
    """What matching the ranks showed.

    Attributes:
        clocks: Offsets and residuals.
        instance: The instance of each row of the operations frame, `UNMATCHED` if none.
        wait_ns: Per row, the part before the last member arrived; `NONE` for unmatched rows.
        cut: Per row, on the rank's own clock, when the last member arrived.
        late_ns: Per row, how long after the first member this one arrived; `NONE` if unmatched.
        incomplete: Instances in which members had no trace.
        implausible: Instances left out because a member left before another entered.
        times_are_the_devices: False for a CPU run, whose times depend on who gets a core.
        caused: Per group and rank, the waiting of others in instances it was the last to enter.
        members: Per group, the ranks that took part.
        latest_in: Per rank, the instances it was the last to enter.
        late_as_last: Per rank, how long after the first member it entered those, in all.
        taken_part_in: Per rank, its matched instances.
    """

    clocks: Clocks
    instance: Ints
    wait_ns: Ints
    cut: Ints
    late_ns: Ints
    incomplete: int = 0
    implausible: int = 0
    times_are_the_devices: bool = True
    caused: dict[int, dict[int, int]] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)
    latest_in: dict[int, int] = field(default_factory=dict)
    late_as_last: dict[int, int] = field(default_factory=dict)
    taken_part_in: dict[int, int] = field(default_factory=dict)


def observe(run: Run, table: OperationsTable) -> Waiting:
    """Match all ranks' collectives and measure who waited, and for whom."""
    instance = match(table)
    clocks = _one_clock(run, table) or align(table.frame, instance)
    result = _Measure(table, instance, clocks).result()
    kinds = {cycle.info.device_kind for rank in run.counted for cycle in rank.cycles}
    result.times_are_the_devices = kinds != {"cpu"}
    return result


def _one_clock(run: Run, table: OperationsTable) -> Clocks | None:
    """Return zero offsets for a CPU run on one host: its ranks read the same clock.

    A host backend's ranges end when a thread gets a core, so their ends would only add noise.
    """
    infos = [cycle.info for rank in run.counted for cycle in rank.cycles]
    hosts = {info.host for info in infos}
    if {info.device_kind for info in infos} != {"cpu"} or len(hosts) > 1 or None in hosts:
        return None
    ranks = sorted(set(table.frame["rank"]))
    return Clocks(dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0))


class _Measure:
    def __init__(self, table: OperationsTable, instance: Ints, clocks: Clocks) -> None:
        self.table, self.instance, self.clocks = table, instance, clocks
        frame = table.frame
        self.rank = frame["rank"].to_numpy(np.int64)
        self.start, self.end = (frame[n].to_numpy(np.int64) for n in ("start_ns", "end_ns"))

    def result(self) -> Waiting:
        count = len(self.instance)
        none = np.full(count, NONE)
        result = Waiting(self.clocks, self.instance, none, none.copy(), none.copy())
        aligned = np.isin(self.rank, list(self.clocks.offset_ns))
        rows, which = self._comparable(np.flatnonzero((self.instance != UNMATCHED) & aligned))
        if not len(rows):
            return result
        plausible = self._plausible(rows, which)
        result.implausible = len(np.unique(which[~plausible]))
        rows = rows[plausible]
        _, which = np.unique(which[plausible], return_inverse=True)
        if not len(rows):
            return result
        offsets = self._offsets(rows)
        start, end = self.start[rows] - offsets, self.end[rows] - offsets
        first = np.full(which.max() + 1, np.iinfo(np.int64).max)
        last = np.full(which.max() + 1, np.iinfo(np.int64).min)
        np.minimum.at(first, which, start)
        np.maximum.at(last, which, start)
        result.wait_ns[rows] = np.maximum(np.minimum(last[which], end) - start, 0)
        result.cut[rows] = last[which] + offsets
        result.late_ns[rows] = start - first[which]
        self._blame(result, rows, which, start)
        return result

    def _offsets(self, rows: Ints) -> Ints:
        return np.array([self.clocks.offset_ns[int(rank)] for rank in self.rank[rows]], np.int64)

    def _plausible(self, rows: Ints, which: Ints) -> NDArray[np.bool_]:
        """Tell which rows can belong together: nobody leaves before the last one has entered.

        A broadcast's root may, and clocks are good to a fraction of a millisecond only.
        """
        offsets = self._offsets(rows)
        ended = np.full(which.max() + 1, np.iinfo(np.int64).max)
        entered = np.full(which.max() + 1, np.iinfo(np.int64).min)
        np.minimum.at(ended, which, self.end[rows] - offsets)
        np.maximum.at(entered, which, self.start[rows] - offsets)
        together = self.table.frame["op"].isin(ENDING_TOGETHER).to_numpy()[rows]
        wrong = ended + _CLOCK_ERROR_NS < entered
        return ~(wrong[which] & together)

    def _comparable(self, rows: Ints) -> tuple[Ints, Ints]:
        """Keep the rows of instances with two members on one time line; number the instances."""
        lines = np.array([self.clocks.component[int(rank)] for rank in self.rank[rows]], np.int64)
        keys = self.instance[rows] * len(self.clocks.component) + lines
        _, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        shared = count[which] > 1
        return rows[shared], which[shared]

    def _blame(self, result: Waiting, rows: Ints, which: Ints, start: Ints) -> None:
        """Charge each instance's waiting to its last member; ties are nobody's."""
        order = np.lexsort((start, which))
        bounds = np.flatnonzero(np.diff(which[order], prepend=-1, append=-1))
        groups = self.table.frame["group"].to_numpy(np.int64)
        caused: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for low, high in itertools.pairwise(bounds):
            members = rows[order[low:high]]
            group = int(groups[members[0]])
            size = self.table.groups[group].size
            result.members[group] = max(result.members.get(group, 0), int(high - low))
            result.incomplete += int(size is not None and high - low < size)
            for rank in self.rank[members]:
                result.taken_part_in[int(rank)] = result.taken_part_in.get(int(rank), 0) + 1
            times = start[order[low:high]]
            if times[-1] == times[-2]:
                continue
            latest = int(self.rank[members[-1]])
            waited = int(result.wait_ns[members].sum())
            caused[group][latest] += waited
            result.latest_in[latest] = result.latest_in.get(latest, 0) + 1
            lateness = int(times[-1] - times[0])
            result.late_as_last[latest] = result.late_as_last.get(latest, 0) + lateness
        result.caused = {group: dict(ranks) for group, ranks in caused.items()}


def stragglers(
    waiting: Waiting, recorded_ns: int, charged: dict[int, dict[int, int]] | None = None
) -> list[Straggler]:
    """Name the ranks the others wait for, the most costly first.

    Args:
        waiting: What matching showed.
        recorded_ns: Recorded time of one rank; waiting far below it is jitter.
        charged: Per group and rank the waiting it caused by its own doing (`blame.charge`), which
            decides; None: all the waiting for it.
    """
    blamed: dict[int, int] = {}
    for group, ranks in waiting.caused.items():
        members = waiting.members[group]
        limit = _limit(members) * sum(ranks.values())
        jitter = _MATTERS * recorded_ns * (members - 1)
        own = ranks if charged is None else charged.get(group, {})
        for rank, caused in ranks.items():
            if own.get(rank, 0) > max(limit, jitter):
                blamed[rank] = blamed.get(rank, 0) + caused
    total = sum(caused for ranks in waiting.caused.values() for caused in ranks.values())
    return [
        Straggler(
            rank=rank,
            late_in_pct=100 * waiting.latest_in[rank] / waiting.taken_part_in[rank],
            mean_late_ns=round(waiting.late_as_last[rank] / waiting.latest_in[rank]),
            wait_caused_ns=caused,
            share_of_wait_pct=100 * caused / total,
        )
        for rank, caused in sorted(blamed.items(), key=lambda item: (-item[1], item[0]))
    ]


def _limit(members: int) -> float:
    return max(_SHARE_OF_A_STRAGGLER, _TIMES_FAIR / members)


def lateness(table: OperationsTable, waiting: Waiting) -> Lateness | None:
    """Return the mean lateness of each rank in the collectives of each step."""
    frame = table.frame
    known = (waiting.late_ns != NONE) & (frame["step_number"].to_numpy(np.int64) >= 0)
    if not known.any():
        return None
    part = frame.loc[known, ["rank", "step_number"]].assign(late=waiting.late_ns[known])
    means = part.groupby(["rank", "step_number"])["late"].mean().unstack()
    late = [[None if np.isnan(v) else round(v) for v in row] for row in means.to_numpy()]
    return Lateness([int(r) for r in means.index], [int(s) for s in means.columns], late)


def exposed_wait(rank: RankRun, cuts: dict[tuple[int, int], int]) -> dict[tuple[int, int], Ints]:
    """Return, per step of each device in the mean, exposed waiting by operation.

    Args:
        rank: The rank.
        cuts: Per (cycle, row) when the last member arrived, on the rank's own clock without base.

    Returns:
        Keys (process, device); values are sums over the steps of the mean, indexed by operation
        code, followed by the exposed time of matched operations in the same order.
    """
    sums: dict[tuple[int, int], Ints] = {}
    for number, cycle in enumerate(rank.cycles):
        pieces = cycle.exposed
        rows = pieces["row"].to_numpy(np.int64)
        cut = np.array([cuts.get((number, int(row)), NONE) for row in rows], np.int64)
        matched = cut != NONE
        codes = cycle.operations["op"].to_numpy(np.int64)[rows]
        for place, device in enumerate(cycle.devices):
            mine = matched & (pieces["device"].to_numpy(np.int64) == place)
            start, end = (pieces[n].to_numpy(np.int64)[mine] for n in ("start", "end"))
            total = sums.setdefault(
                (device.process, device.device), np.zeros(2 * len(OPERATIONS), np.int64)
            )
            for index, step in enumerate(device.steps):
                if not rank.in_mean.get((number, index), False) or not step.complete:
                    continue
                low, high = np.clip(start, step.low, step.high), np.clip(end, step.low, step.high)
                waited = np.clip(np.minimum(high, cut[mine]) - low, 0, None)
                np.add.at(total, codes[mine], waited)
                np.add.at(total, codes[mine] + len(OPERATIONS), high - low)
    return sums


def cuts_of(frame: pd.DataFrame, waiting: Waiting, rank: int) -> dict[tuple[int, int], int]:
    """Return per (cycle, row in the cycle) when the last member arrived; base times taken off."""
    mine = np.flatnonzero((frame["rank"].to_numpy() == rank) & (waiting.cut != NONE))
    base = frame["start_ns"].to_numpy(np.int64) - frame["start"].to_numpy(np.int64)
    cycles, rows = frame["cycle"].to_numpy(np.int64), frame["row"].to_numpy(np.int64)
    return {(int(cycles[i]), int(rows[i])): int(waiting.cut[i] - base[i]) for i in mine}

"""Split a collective's time into waiting for its last member and transferring.

With clocks aligned, the members of an instance wait until the last one arrives; what follows is
transfer. With one rank's trace neither is known. If members have no trace, the last arrival may be
one of theirs, so waiting is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens import messages
from tracelens.alignment import ENDING_TOGETHER
from tracelens.joining import is_cpu_run, join
from tracelens.matching import UNMATCHED
from tracelens.model.result import Lateness
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.clocks import Clocks
    from tracelens.intervals import Ints
    from tracelens.joining import Joined
    from tracelens.operations_table import OperationsTable
    from tracelens.run import Run
    from tracelens.samples import Places

_CLOCK_ERROR_NS = 1_000_000


@dataclass(slots=True)
class Waiting:
    """What matching the ranks showed.

    Attributes:
        joined: Which rows are one collective, and the ranks' clocks.
        wait_ns: Per row, the part before the last member arrived; `NONE` for unmatched rows.
        cut: Per row, on the rank's own clock, when the last member arrived.
        late_ns: Per row, how long after the first member this one arrived; `NONE` if unmatched.
        rows: The rows that have these numbers, by instance and within it by arrival.
        first: Where each instance begins in `rows`.
        incomplete: Instances in which members had no trace.
        implausible: Instances left out because a member left before another entered.
        times_are_the_devices: False for a CPU run, whose times depend on who gets a core.
    """

    joined: Joined
    wait_ns: Ints
    cut: Ints
    late_ns: Ints
    rows: Places = field(default_factory=lambda: np.empty(0, np.intp))
    first: Places = field(default_factory=lambda: np.empty(0, np.intp))
    incomplete: int = 0
    implausible: int = 0
    times_are_the_devices: bool = True

    @property
    def clocks(self) -> Clocks:
        """The ranks' clocks."""
        return self.joined.clocks

    @property
    def instance(self) -> Ints:
        """The instance of each row of the operations frame, negative if none."""
        return self.joined.matching.instance

    @property
    def members(self) -> Places:
        """How many members each instance has here."""
        return np.diff(np.append(self.first, len(self.rows)))


def observe(run: Run, table: OperationsTable) -> Waiting:
    """Match all ranks' collectives and measure who waited."""
    joined = join(run, table)
    result = _Measure(table, joined).result()
    result.times_are_the_devices = not is_cpu_run(run)
    messages.add_waiting(table, joined.partner, result)
    return result


class _Measure:
    def __init__(self, table: OperationsTable, joined: Joined) -> None:
        self.table, self.joined = table, joined
        frame = table.frame
        self.rank = frame["rank"].to_numpy(np.int64)
        self.together = frame["op"].isin(ENDING_TOGETHER).to_numpy()

    def result(self) -> Waiting:
        none = np.full(len(self.rank), NONE)
        result = Waiting(self.joined, none, none.copy(), none.copy())
        rows, which = self._comparable()
        if not len(rows):
            return result
        start, end = self._common(rows, "start_ns"), self._common(rows, "end_ns")
        plausible = self._plausible(rows, which, start, end)
        result.implausible = len(np.unique(which[~plausible]))
        rows, start, end = rows[plausible], start[plausible], end[plausible]
        _, which = np.unique(which[plausible], return_inverse=True)
        if not len(rows):
            return result
        order = np.lexsort((start, which))
        rows, which, start, end = rows[order], which[order], start[order], end[order]
        first = np.flatnonzero(np.diff(which, prepend=-1))
        last = np.append(first[1:], len(rows)) - 1
        arrived = start[last][which]
        result.rows, result.first = rows, first
        # Where the last one arrived is common; what is measured from there is the rank's own time.
        result.cut[rows] = self.joined.clocks.own(self.rank[rows], arrived)
        result.wait_ns[rows] = self._waited(rows, result.cut[rows])
        result.late_ns[rows] = start - start[first][which]
        result.incomplete = self._incomplete(result)
        return result

    def _common(self, rows: Places, name: str) -> Ints:
        times = self.table.frame[name].to_numpy(np.int64)[rows]
        return self.joined.clocks.common(self.rank[rows], times)

    def _waited(self, rows: Places, cut: Ints) -> Ints:
        """Return the part of each call before the cut, all of it on the rank's own clock."""
        frame = self.table.frame
        start, end = (frame[name].to_numpy(np.int64)[rows] for name in ("start_ns", "end_ns"))
        waited: Ints = np.clip(cut, start, end) - start
        return waited

    def _comparable(self) -> tuple[Places, Places]:
        """Return the rows of instances with two members on one time line, and their instances."""
        clocks, instance = self.joined.clocks, self.joined.matching.instance
        known = np.isin(self.rank, list(clocks.offset_ns))
        rows = np.flatnonzero((instance != UNMATCHED) & known)
        ranks, of = np.unique(self.rank[rows], return_inverse=True)
        lines = np.array([clocks.component[int(rank)] for rank in ranks], np.int64)
        keys = instance[rows] * (lines.max(initial=0) + 1) + lines[of] if len(rows) else rows
        _, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        shared = count[which] > 1
        return rows[shared], which[shared]

    def _plausible(self, rows: Places, which: Places, start: Ints, end: Ints) -> NDArray[np.bool_]:
        """Tell which rows can belong together: nobody leaves before the last one has entered.

        A broadcast's root may, and clocks are good to a fraction of a millisecond only.
        """
        ended = np.full(which.max() + 1, np.iinfo(np.int64).max)
        entered = np.full(which.max() + 1, np.iinfo(np.int64).min)
        np.minimum.at(ended, which, end)
        np.maximum.at(entered, which, start)
        wrong = ended + _CLOCK_ERROR_NS < entered
        return ~(wrong[which] & self.together[rows])

    def _incomplete(self, result: Waiting) -> int:
        """Count the instances that lack members of their group."""
        group = self.table.frame["group"].to_numpy(np.int64)[result.rows[result.first]]
        sizes = np.array([one.size or 0 for one in self.table.groups], np.int64)
        return int((result.members < sizes[group]).sum())


def lacks_ranks(table: OperationsTable, waits: Waiting) -> bool:
    """Tell whether some members of a group with matched collectives have no trace at all."""
    matched = set(table.frame["group"].to_numpy(np.int64)[waits.rows[waits.first]].tolist())
    return any(
        rank not in table.complete_steps
        for group in table.groups
        if group.index in matched
        for rank in group.ranks or ()
    )


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

"""Exposed communication of each rank, by what it means to a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.intervals import EMPTY, Intervals, clip, intersect, union
from tracelens.model.trace import NONE
from tracelens.operations import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.run import RankRun
    from tracelens.waiting import Waiting

_MODEL_PARALLEL = ("tp", "ep", "cp")
_DATA_PARALLEL = ("dp", "edp", "shard", "replicate")


class Exposure(NamedTuple):
    """Exposed intervals of one rank and cycle on the device of its pipeline; own clock, no base.

    Attributes:
        model: Tensor, expert and context parallel communication: work of a stage.
        data: Data-parallel communication.
        transfer: Messages between stages once both ends were there.
        unsplit: Messages that could not be matched.
        waiting: Messages, and collectives that span stages, before the last member was there:
            starts, ends, and codes of operations.
    """

    model: Intervals = EMPTY
    data: Intervals = EMPTY
    transfer: Intervals = EMPTY
    unsplit: Intervals = EMPTY
    waiting: tuple[Ints, Ints, Ints] = (EMPTY.start, EMPTY.start, EMPTY.start)


class Exposures:
    """Looks exposed communication up, cycle by cycle."""

    def __init__(
        self,
        table: OperationsTable,
        roles: dict[int, str],
        waits: Waiting,
        spanning: Collection[int] = (),
    ) -> None:
        frame = table.frame
        self._spans = frame["group"].isin(list(spanning)).to_numpy()
        self._places = frame.groupby(["rank", "cycle"], sort=False).indices
        self._row = frame["row"].to_numpy(np.int64)
        self._start, self._end = (frame[n].to_numpy(np.int64) for n in ("start", "end"))
        self._base = (frame["start_ns"] - frame["start"]).to_numpy(np.int64)
        self._cut = waits.cut
        self._op = frame["op"].to_numpy(np.int64)
        role = np.array([roles[int(group)] for group in frame["group"]], object)
        self._model = np.isin(role, _MODEL_PARALLEL)
        self._data = np.isin(role, _DATA_PARALLEL)
        self._message = np.isin(self._op, MESSAGES) & ~self._model & ~self._data

    def of(self, rank: RankRun, cycle: int, device: int) -> Exposure:
        """Return the exposed communication of a rank's cycle on one device."""
        pieces = rank.cycles[cycle].exposed
        pieces = pieces[pieces["device"].to_numpy(np.int64) == device]
        if (rank.rank, cycle) not in self._places or not len(pieces):
            return Exposure()
        places = np.asarray(self._places[rank.rank, cycle], np.intp)
        at = np.empty(int(self._row[places].max()) + 1, np.int64)
        at[self._row[places]] = places
        names = ("row", "op", "start", "end")
        row, op, start, end = (pieces[name].to_numpy(np.int64) for name in names)
        where = at[row]
        message, spans = self._message[where], self._spans[where]
        cut = np.where(self._cut[where] == NONE, NONE, self._cut[where] - self._base[where])
        known = cut != NONE
        split = message & known
        until = np.clip(cut, start, end)
        waited = (message | spans) & known & (until > start)
        return Exposure(
            # Any exposed instant with such an operation in flight, whoever it is charged to.
            model=intersect(self._in_flight(places), union(start, end)),
            data=_chosen(start, end, self._data[where]),
            transfer=_chosen(np.where(split, until, end), end, split),
            unsplit=_chosen(start, end, message & ~split),
            waiting=(start[waited], until[waited], op[waited]),
        )

    def _in_flight(self, places: NDArray[np.intp]) -> Intervals:
        """Return when model-parallel communication of a cycle ran, exposed or not."""
        mine = places[self._model[places] & (self._start[places] != NONE)]
        return union(self._start[mine], self._end[mine])


def _chosen(start: Ints, end: Ints, which: NDArray[np.bool_]) -> Intervals:
    return union(start[which], end[which])


def length_in(intervals: Intervals, low: int, high: int) -> int:
    """Measure what lies in a window."""
    return clip(intervals, low, high).length

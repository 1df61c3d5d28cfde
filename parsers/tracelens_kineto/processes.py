"""Tell apart the processes whose events stand in one trace.

A profiler records its own process only. Several in one trace are the work of a tool that merged
files, or of processes that wrote to one name. A device event names its device, not its process, and
ids of launches repeat between processes. What says whose it is, strongest first: a label that the
merging tool put before every process id, the place in the file where processes follow one another,
an id that one process alone has, a device that one process alone uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens_kineto.categories import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints

Process = int | str | None
_HOST = ("call", "operator", "mark")


def normal(process: Process) -> Process:
    """Return a process id as a number where it is one, "4012" is 4012, and a blank one as None."""
    if not isinstance(process, str):
        return process
    if process.isdecimal() and len(process) < 19:
        return int(process)
    return process if process.strip() else None


def label(process: Process) -> str:
    """Return what a merging tool put before a process id: "[TP00]" of "[TP00] 4012"."""
    head, _, tail = process.rpartition(" ") if isinstance(process, str) else ("", "", "")
    return head if tail.lstrip("-").isdecimal() else ""


@dataclass
class Neighbours:
    """Whose host events stand before a device event in the file.

    `runs` counts how often the process changes: few times, if one follows the other.
    """

    processes: Sequence[Process]
    runs: int = 0
    _last: Process = None
    _hints: dict[int, Hint] = field(default_factory=dict)
    _places: dict[Process, int] = field(init=False)
    _labels: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._places = {process: place for place, process in enumerate(self.processes)}
        self._labels = {label(process): place for process, place in self._places.items()}
        self._labels.pop("", None)

    def see(self, batch: Sequence[Any]) -> None:
        """Remember for each device event of a batch what is known of its process."""
        for event in batch:
            bucket = BUCKETS.get(event.cat) if event.ph == "X" else None
            if bucket in _HOST:
                process = normal(event.pid)
                self.runs += process != self._last
                self._last = process
            elif bucket is not None:
                place = self._places.get(self._last, -1)
                self._hints[id(event)] = Hint(self._labels.get(label(event.pid), -1), place)

    def of(self, event: Any) -> Hint:
        """Return what is known of an event that was seen and is alive."""
        return self._hints.get(id(event), Hint(-1, -1))

    @property
    def follow_one_another(self) -> bool:
        """Tell whether places in the file say whose an event is."""
        return self.runs <= 2 * len(self.processes)


class Hint(NamedTuple):
    """The place in the list of processes a device event's label and neighbours name, or -1."""

    label: int
    neighbour: int


@dataclass(frozen=True)
class Owners:
    """Which process each device event belongs to, as a place in the list of processes.

    `guessed` counts the events that could be of several processes.
    """

    place: NDArray[np.intp]
    guessed: int


def owners(
    launches: list[Ints],
    device: Ints,
    hints: NDArray[np.intp],
    missing: int,
    *,
    in_order: bool,
) -> Owners:
    """Decide which process each device event belongs to.

    Args:
        launches: For each process, when it launched each event, or `missing`.
        device: The device of each event.
        hints: What the file says of each event: `Hint`s as rows.
        missing: The value of an unknown launch.
        in_order: Neighbours in the file can be trusted.
    """
    linked = np.array([launch != missing for launch in launches])
    place = hints[:, 0].copy()
    if in_order:
        place = np.where(place < 0, hints[:, 1], place)
    alone = linked.sum(axis=0) == 1
    place = np.where((place < 0) & alone, linked.argmax(axis=0), place)
    guessed = 0
    for one in np.unique(device[place < 0]):
        mine = device == one
        users, unclear = np.unique(place[mine & (place >= 0)]), mine & (place < 0)
        if len(users) == 1:
            place[unclear] = users[0]
        else:
            place[unclear] = _nearest(launches, linked, unclear)
            guessed += int(unclear.sum())
    return Owners(place, guessed)


def _nearest(
    launches: list[Ints], linked: NDArray[np.bool_], unclear: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Take the process with the latest launch: it is nearest to the event."""
    times = np.where(linked, np.array(launches), np.iinfo(np.int64).min)[:, unclear]
    nearest: NDArray[np.intp] = times.argmax(axis=0)
    return nearest

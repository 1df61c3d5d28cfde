"""Runtime and driver calls of one process, and which of them launched each device event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.host_names import call_kind
from tracelens.model.trace import NONE
from tracelens_nsight.identifiers import process_of
from tracelens_nsight.strings import Strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_nsight.export import Export
    from tracelens_nsight.tables import Tables

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


@dataclass(slots=True)
class Calls:
    """Calls in the order of the file; `name` is a place in `names`, `kind` one in `kinds`."""

    start: Ints
    end: Ints
    thread: Ints
    correlation: Ints
    name: Ints
    names: list[str]
    kind: Ints
    kinds: list[str]

    def __len__(self) -> int:
        return len(self.start)


def read(export: Export, process: int) -> Calls:
    """Read the calls of a process."""
    columns = ["start", "end", "globalTid", "correlationId", "nameId"]
    ints = export.of(process, RUNTIME, "globalTid", columns).integers
    name, names = export.strings.coded(ints["nameId"])
    kinds = ["launch", "sync", "memory", "other", "untimed"]
    kind_of = np.array([kinds.index(call_kind(name)) for name in names] or [0], np.int64)
    start, end = ints["start"], ints["end"]
    calls = Calls(
        start=start,
        end=np.where(end == NONE, start, np.maximum(end, start)),
        thread=ints["globalTid"] - process,
        correlation=ints["correlationId"],
        name=name,
        names=names,
        kind=kind_of[name] if len(name) else np.empty(0, np.int64),
        kinds=kinds,
    )
    _unlaunch_captured(calls)
    return calls


def processes(tables: Tables) -> list[int]:
    """Return the globalPids that made calls."""
    return [int(one) for one in np.unique(process_of(tables.distinct(RUNTIME, "globalTid")))]


def launching_processes(tables: Tables) -> list[int]:
    """Return the globalPids that launched work on a device."""
    ids, threads = tables.pairs(RUNTIME, "nameId", "globalTid")
    launched = np.array([call_kind(name) == "launch" for name in Strings(tables).of(ids)], bool)
    return [int(one) for one in np.unique(process_of(threads[launched]))]


def _unlaunch_captured(calls: Calls) -> None:
    """Call launches inside a stream capture something else: they only build a graph."""
    begins = [i for i, name in enumerate(calls.names) if "StreamBeginCapture" in name]
    ends = [i for i, name in enumerate(calls.names) if "StreamEndCapture" in name]
    if not begins:
        return
    for thread in np.unique(calls.thread[np.isin(calls.name, begins)]):
        mine = np.flatnonzero(calls.thread == thread)
        mine = mine[np.argsort(calls.start[mine], kind="stable")]
        change = np.isin(calls.name[mine], begins).astype(int) - np.isin(calls.name[mine], ends)
        opened = np.cumsum(change)
        inside = mine[opened > 0]
        launches = inside[calls.kind[inside] == calls.kinds.index("launch")]
        calls.kind[launches] = calls.kinds.index("other")


def launching(calls: Calls, correlation: Ints) -> NDArray[np.int64]:
    """Return the row of the call that launched each event, -1 if none is recorded.

    Nested calls (a wrapper and the runtime function in it) share a correlation id: the outermost
    is the launch.
    """
    rows = np.flatnonzero((calls.correlation != NONE) & (calls.correlation != 0))
    order = rows[np.argsort(calls.correlation[rows], kind="stable")]
    keys = calls.correlation[order]
    if (keys[1:] == keys[:-1]).any():
        order = rows[np.lexsort((-calls.end[rows], calls.start[rows], calls.correlation[rows]))]
        first = np.diff(calls.correlation[order], prepend=NONE) != 0
        order, keys = order[first], calls.correlation[order[first]]
    if not len(keys):
        return np.full(len(correlation), -1)
    at = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
    return np.where(keys[at] == correlation, order[at], -1)

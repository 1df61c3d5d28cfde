"""Kernels, copies, memsets and opaque graph launches of one process."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens import durations
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_nsight.export import Export
    from tracelens_nsight.strings import Strings
    from tracelens_nsight.tables import Rows, Tables

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)

KINDS = ("kernel", "copy", "memset")
OPAQUE_GRAPH = "CUDA graph (contents unknown)"
"""A graph launch recorded as one row: its kernels are not known, busy it was."""

_TIMES = ("start", "end")
_GRID = ("gridX", "gridY", "gridZ")
_PLACE = ("deviceId", "streamId", "correlationId")
# ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, spelt as Kineto does (CuptiActivity.cpp).
_COPIES = {
    0: "Unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD (unified memory)", 12: "DtoH (unified memory)",
    13: "DtoD (unified memory)",
}  # fmt: skip
_MEMORIES = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static",
    6: "Managed Static",
}  # fmt: skip
_FAR = 1 << 62  # ns: 146 years; what lies beyond is no time, and sums of it would not fit 64 bits
BETWEEN_DEVICES = (8, 10)
"""Copy kinds that NCCL's copy-engine collectives use."""


@dataclass(slots=True)
class DeviceRows:
    """The device events of one process by start; `name` is a place in `names`.

    Attributes:
        untimed: Events without a usable time, by device; they are in no row.
        odd: How many events were `impossible` (one of the untimed: it never ends), `clipped` (cut
            where the next one of their stream starts) or `nameless` (a kernel of which nothing
            says what it is; in no row).
        left_out: Correlations of what is in no row.
    """

    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    name: Ints
    kind: NDArray[np.int8]
    copy_bytes: Ints
    copy_kind: Ints
    graph: Ints
    grid: Ints
    names: list[str]
    untimed: Counter[int] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    left_out: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start)


def read(export: Export, process: int) -> DeviceRows:
    """Read the device events of a process."""
    parts = [reader(export, process) for reader in (_kernels, _copies, _memsets, _graphs)]
    return _by_start(_together(parts))


def settle(rows: DeviceRows, last_host_ns: int) -> DeviceRows:
    """Leave out events that never end, and cut those that run far through a later one."""
    columns = ("device", "stream", "start", "end", "graph")
    table = pd.DataFrame({name: getattr(rows, name) for name in columns}, copy=False)
    endless = durations.endless(table, last_host_ns)
    cut, clipped = durations.clip(table, endless)
    rows.end, rows.odd["clipped"] = cut["end"].to_numpy(), clipped
    if not endless.any():
        return rows
    untimed = rows.untimed + Counter(rows.device[endless].tolist())
    left_out = rows.left_out + rows.correlation[endless].tolist()
    kept = {name: getattr(rows, name)[~endless] for name in (*_COLUMNS, "name")}
    rows.odd["impossible"] = int(endless.sum())
    return replace(rows, **kept, untimed=untimed, left_out=left_out)


def processes(tables: Tables) -> list[int]:
    """Return the globalPids that have device events."""
    found = [tables.distinct(table, "globalPid") for table in TABLES]
    return [int(one) for one in np.unique(np.concatenate(found))]


def name_processes(tables: Tables) -> bool:
    """Tell whether all device events say of which process they are."""
    return all("globalPid" in tables.columns[t] for t in TABLES if tables.count(t))


def ordinals(tables: Tables) -> dict[int, set[int]]:
    """Return the CUDA ordinals of the devices each process works on; it may see more."""
    found: dict[int, set[int]] = defaultdict(set)
    for table in TABLES:
        members, devices = tables.pairs(table, "globalPid", "deviceId")
        for process, ordinal in zip(members.tolist(), devices.tolist(), strict=True):
            found[process].add(ordinal)
    return found


def _kernels(export: Export, process: int) -> DeviceRows:
    columns = [*_TIMES, *_PLACE, "demangledName", "shortName", "graphId", "graphNodeId", *_GRID]
    rows = export.of(process, KERNEL, "globalPid", columns)
    ints = rows.integers
    name, names = _names(ints["demangledName"], ints["shortName"], export.strings)
    graph = np.where(ints["graphId"] == NONE, ints["graphNodeId"], ints["graphId"])
    named = np.array([bool(text) for text in names] or [True])[name]
    return _rows(
        rows,
        0,
        name,
        names or [""],
        named,
        graph=np.where(graph == 0, NONE, graph),
        grid=_grids(ints),
    )


def _names(full: Ints, short: Ints, strings: Strings) -> tuple[Ints, list[str]]:
    """Return the kernels' names: the full ones, the short ones where those are missing."""
    name, names = strings.coded(np.where(full == NONE, short, full))
    if all(names):
        return name, names
    nameless = np.array([not text for text in names])[name]
    return strings.coded(np.where(nameless, short, full))


def _grids(ints: dict[str, Ints]) -> Ints:
    """Pack the blocks of a grid in one number: y and z have 16 bits (CUDA's limits)."""
    x, y, z = (ints[axis] for axis in _GRID)
    return np.where(x == NONE, NONE, (x << 32) | (y << 16) | z)


def _copies(export: Export, process: int) -> DeviceRows:
    columns = [*_TIMES, *_PLACE, "bytes", "copyKind", "srcKind", "dstKind"]
    rows = export.of(process, MEMCPY, "globalPid", columns)
    ints = rows.integers
    which = np.column_stack([ints["copyKind"], ints["srcKind"], ints["dstKind"]])
    distinct, name = np.unique(which, axis=0, return_inverse=True)
    names = [_copy_name(*one) for one in distinct.tolist()]
    return _rows(
        rows,
        1,
        name.reshape(-1).astype(np.int64),
        names or [""],
        copy_bytes=ints["bytes"],
        copy_kind=ints["copyKind"],
    )


def _copy_name(kind: int, source: int, target: int) -> str:
    what = _COPIES.get(kind, "Unknown")
    ends = (_MEMORIES.get(source, "Unknown"), _MEMORIES.get(target, "Unknown"))
    return f"Memcpy {what}" if source == NONE else f"Memcpy {what} ({ends[0]} -> {ends[1]})"


def _memsets(export: Export, process: int) -> DeviceRows:
    columns = [*_TIMES, *_PLACE, "bytes", "memKind"]
    rows = export.of(process, MEMSET, "globalPid", columns)
    distinct, name = np.unique(rows.integers["memKind"], return_inverse=True)
    names = [f"Memset ({_MEMORIES.get(int(kind), 'Unknown')})" for kind in distinct]
    return _rows(rows, 2, name.astype(np.int64), names or [""], copy_bytes=rows.integers["bytes"])


def _graphs(export: Export, process: int) -> DeviceRows:
    columns = [*_TIMES, *_PLACE, "graphId"]
    rows = export.of(process, GRAPH, "globalPid", columns)
    name = np.zeros(len(rows), np.int64)
    return _rows(rows, 0, name, [OPAQUE_GRAPH], graph=rows.integers["graphId"])


def _rows(
    rows: Rows,
    kind: int,
    name: Ints,
    names: list[str],
    named: NDArray[np.bool_] | None = None,
    **more: Ints,
) -> DeviceRows:
    """Build device rows; those without a usable time or a name are only counted."""
    ints = rows.integers
    start, end = ints["start"], ints["end"]
    # A kernel of length 0 is one CUPTI gave no times for; a copy can be that short.
    least = 1 if kind == 0 else 0
    timed = (start > -_FAR) & (end < _FAR) & (start < end + 1 - least)
    timed &= (start != 0) | (end != 0)
    named = np.ones(len(rows), bool) if named is None else named
    usable = timed & named
    columns = {
        "start": start,
        "end": end,
        "device": np.where(ints["deviceId"] == NONE, 0, ints["deviceId"]),
        "stream": np.where(ints["streamId"] == NONE, 0, ints["streamId"]),
        "correlation": ints["correlationId"],
        "name": name,
    }
    none = np.full(len(rows), NONE)
    columns |= {key: more.get(key, none) for key in ("copy_bytes", "copy_kind", "graph", "grid")}
    kept = {key: values[usable] for key, values in columns.items()}
    kinds = np.full(int(usable.sum()), kind, np.int8)
    return DeviceRows(
        **kept,
        kind=kinds,
        names=names,
        untimed=Counter(columns["device"][named & ~timed].tolist()),
        odd=Counter(nameless=int((~named).sum())),
        left_out=columns["correlation"][~usable].tolist(),
    )


_COLUMNS = (
    "start",
    "end",
    "device",
    "stream",
    "correlation",
    "kind",
    "copy_bytes",
    "copy_kind",
    "graph",
    "grid",
)


def _together(parts: Sequence[DeviceRows]) -> DeviceRows:
    names: list[str] = []
    codes = []
    for part in parts:
        codes.append(part.name + len(names))
        names += part.names
    joined = {key: np.concatenate([getattr(part, key) for part in parts]) for key in _COLUMNS}
    untimed: Counter[int] = Counter()
    odd: Counter[str] = Counter()
    for part in parts:
        untimed += part.untimed
        odd += part.odd
    return DeviceRows(
        **joined,
        name=np.concatenate(codes),
        names=names,
        untimed=untimed,
        odd=odd,
        left_out=[one for part in parts for one in part.left_out],
    )


def _by_start(rows: DeviceRows) -> DeviceRows:
    order = np.argsort(rows.start, kind="stable")
    for key in (*_COLUMNS, "name"):
        setattr(rows, key, getattr(rows, key)[order])
    return rows

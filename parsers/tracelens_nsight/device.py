"""Kernels, copies, memsets and opaque graph launches of one process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_nsight.export import Export
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
BETWEEN_DEVICES = (8, 10)
"""Copy kinds that NCCL's copy-engine collectives use."""


@dataclass(slots=True)
class DeviceRows:
    """The device events of one process by start; `name` is a place in `names`."""

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
    untimed_correlations: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start)


def read(export: Export, process: int) -> DeviceRows:
    """Read the device events of a process."""
    parts = [reader(export, process) for reader in (_kernels, _copies, _memsets, _graphs)]
    return _by_start(_together([part for part in parts if len(part)] or parts[:1]))


def processes(tables: Tables) -> list[int]:
    """Return the globalPids that have device events."""
    found = [tables.distinct(table, "globalPid") for table in TABLES]
    return [int(one) for one in np.unique(np.concatenate(found))]


def _kernels(export: Export, process: int) -> DeviceRows:
    columns = [*_TIMES, *_PLACE, "demangledName", "shortName", "graphId", "graphNodeId", *_GRID]
    rows = export.of(process, KERNEL, "globalPid", columns)
    ints = rows.integers
    ids = np.where(ints["demangledName"] == NONE, ints["shortName"], ints["demangledName"])
    name, names = export.strings.coded(ids)
    graph = np.where(ints["graphId"] == NONE, ints["graphNodeId"], ints["graphId"])
    return _rows(
        rows, 0, name, names or [""], graph=np.where(graph == 0, NONE, graph), grid=_grids(ints)
    )


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


def _rows(rows: Rows, kind: int, name: Ints, names: list[str], **more: Ints) -> DeviceRows:
    """Build device rows; those without a usable time are only counted."""
    ints = rows.integers
    start, end = ints["start"], ints["end"]
    # A kernel of length 0 is one CUPTI gave no times for; a copy can be that short.
    least = 1 if kind == 0 else 0
    timed = (start != NONE) & (end != NONE) & (end - start >= least)
    timed &= (start != 0) | (end != 0)
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
    kept = {key: values[timed] for key, values in columns.items()}
    kinds = np.full(int(timed.sum()), kind, np.int8)
    lost = ~timed
    return DeviceRows(
        **kept,
        kind=kinds,
        names=names,
        untimed=Counter(columns["device"][lost].tolist()),
        untimed_correlations=columns["correlation"][lost].tolist(),
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
    for part in parts:
        untimed += part.untimed
    return DeviceRows(
        **joined,
        name=np.concatenate(codes),
        names=names,
        untimed=untimed,
        untimed_correlations=[one for part in parts for one in part.untimed_correlations],
    )


def _by_start(rows: DeviceRows) -> DeviceRows:
    order = np.argsort(rows.start, kind="stable")
    for key in (*_COLUMNS, "name"):
        setattr(rows, key, getattr(rows, key)[order])
    return rows

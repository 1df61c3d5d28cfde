"""What a parser delivers: `RankTrace`, the evidence of one rank (and one profiler cycle).

Four tables of integer nanoseconds relative to `RankInfo.base_ns`, plus facts. A parser reports what
the file says (names, arguments, links); what a kernel *is* the core decides, once, for every format
(`tracelens.communication`). Missing integers are `NONE`, missing strings empty: pandas' nullable
columns cost more memory than the tables themselves.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tracelens.model.facts import FileFacts, ProcessGroup, RankInfo

__all__ = [
    "COMMUNICATIONS",
    "COUNTERS",
    "DEVICE_EVENTS",
    "HOST_CALLS",
    "MARKS",
    "NONE",
    "OPERATORS",
    "FileFacts",
    "ProcessGroup",
    "RankInfo",
    "RankTrace",
    "frame",
]

NONE = int(np.iinfo(np.int64).min)
"""A missing integer: no launch, no correlation, no element count."""

INT = "int64"
NAME = "category"
TEXT = "object"

DEVICE_EVENTS = {
    "process": INT,
    "device": INT,
    "stream": INT,
    "start": INT,
    "end": INT,
    "name": NAME,
    "kind": NAME,  # kernel | copy | memset
    "correlation": INT,
    "external_id": INT,
    "launch": INT,  # host time at which the launching call began
    "launch_end": INT,  # ... and at which it returned
    "launch_thread": INT,
    "copy_bytes": INT,
    "graph": INT,  # CUDA graph id, NONE outside graphs
    "grid": NAME,  # thread blocks of a kernel: with its name, what tells equal calls; "" if unknown
}

COMMUNICATIONS = {
    "source": NAME,  # args, payload: of the kernel | record (_param_comms) | annotation | operator
    "name": NAME,  # as recorded: allreduce, nccl:all_reduce, c10d::allreduce_ ...
    "event": INT,  # row in device_events that carries it (args, payload), else NONE
    "start": INT,
    "end": INT,
    "thread": INT,
    "external_id": INT,
    "group_name": TEXT,
    "group_description": TEXT,
    "group_ranks": TEXT,  # as recorded: "[0, 1, 2, 3]", maybe cut
    "group_size": INT,
    "dtype": TEXT,  # as recorded: BFloat16, c10::BFloat16, float ...
    "in_elems": INT,
    "out_elems": INT,
    "buffer_bytes": INT,  # of the full buffer, where bytes and no elements are recorded
    "part_bytes": INT,  # ... or of one member's part of it
    "in_splits": TEXT,
    "out_splits": TEXT,
    "root": INT,  # group rank of root or peer (the args' "Rank")
    "peer": INT,  # global rank of the peer (send/recv)
    "seq": INT,
    "comms_id": INT,  # equal on all members of one operation, and on nothing else
    "tensors": INT,  # how many tensors one list operation carries
    "dimensions": INT,  # of the (first) tensor: a flat bucket has one, an activation more
}

MARKS = {"name": NAME, "start": INT, "end": INT, "thread": INT}

HOST_CALLS = {
    "name": NAME,
    "kind": NAME,  # launch | sync | memory | autograd | optimizer | dataloader | wait | other
    "start": INT,
    "end": INT,
    "thread": INT,
    "correlation": INT,
    "external_id": INT,
    "elements": INT,  # elements an optimizer kernel touches, from its shapes
}

OPERATORS = {"thread": INT, "start": INT, "end": INT}

COUNTERS = {
    "name": NAME,
    "unit": NAME,  # B | % (of the peak)
    "device": INT,  # of the process; NONE if it counts for the whole machine
    "start": INT,
    "end": INT,
    "value": INT,
}
"""What hardware counted from `start` to `end`: "IB: Bytes sent" of a network card, or in the mean
"NVLink TX Requests User Data" of a device."""


def frame(columns: dict[str, str], data: dict[str, object] | None = None) -> pd.DataFrame:
    """Build a table with exactly these columns and dtypes.

    Args:
        columns: Column name to dtype, one of the schemas above.
        data: Arrays of one length; columns left out are filled with `NONE` or "".
    """
    given = data or {}
    rows = max((len(values) for values in given.values()), default=0)  # type: ignore[arg-type]
    return pd.DataFrame(
        {name: _column(given.get(name), kind, rows) for name, kind in columns.items()},
        index=pd.RangeIndex(rows),
        copy=False,
    )


def _column(values: object, kind: str, rows: int) -> object:
    if kind == INT:
        return np.full(rows, NONE) if values is None else np.asarray(values, dtype=np.int64)
    if kind == TEXT:
        return pd.Series(values if values is not None else [""] * rows, dtype=object)
    if isinstance(values, pd.Categorical):
        return values
    return pd.Categorical([""] * rows if values is None else values)  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The evidence of one rank and cycle.

    Attributes:
        info: Facts.
        device_events: `DEVICE_EVENTS`, sorted by start; only events with usable times.
        communications: `COMMUNICATIONS`, one row per recorded operation.
        marks: `MARKS`, named host ranges.
        host_calls: `HOST_CALLS`, runtime calls and the operators worth keeping.
        operators: `OPERATORS`, per thread the union of operator time (collectives left out).
        counters: `COUNTERS`; those of the whole machine one rank of a file has.
    """

    info: RankInfo
    device_events: pd.DataFrame = field(default_factory=lambda: frame(DEVICE_EVENTS))
    communications: pd.DataFrame = field(default_factory=lambda: frame(COMMUNICATIONS))
    marks: pd.DataFrame = field(default_factory=lambda: frame(MARKS))
    host_calls: pd.DataFrame = field(default_factory=lambda: frame(HOST_CALLS))
    operators: pd.DataFrame = field(default_factory=lambda: frame(OPERATORS))
    counters: pd.DataFrame = field(default_factory=lambda: frame(COUNTERS))

    def with_info(self, **changes: object) -> RankTrace:
        """Return a copy with some facts replaced."""
        info = dataclasses.replace(self.info, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, info=info)

    @property
    def host_extent(self) -> tuple[int, int]:
        """Return when the first host event began and the last one ended; `NONE` without any."""
        tables = (self.marks, self.host_calls, self.communications, self.operators)
        host = [table for table in tables if len(table)]
        if not host:
            return NONE, NONE
        first = min(int(table["start"].min()) for table in host)
        return first, max(int(table["end"].max()) for table in host)

    def validate(self) -> None:
        """Check columns, dtypes and times; for parser authors and tests.

        Raises:
            ValueError: Naming the table and the column.
        """
        for name, columns in _TABLES.items():
            _validate_table(name, getattr(self, name), columns)
        starts = self.device_events["start"].to_numpy()
        if np.any(np.diff(starts) < 0):
            raise ValueError("device_events: not sorted by start")
        event = self.communications["event"].to_numpy()
        if np.any((event != NONE) & ((event < 0) | (event >= len(self.device_events)))):
            raise ValueError("communications: column event points outside device_events")


_TABLES = {
    "device_events": DEVICE_EVENTS,
    "communications": COMMUNICATIONS,
    "marks": MARKS,
    "host_calls": HOST_CALLS,
    "operators": OPERATORS,
    "counters": COUNTERS,
}


def _validate_table(name: str, table: pd.DataFrame, columns: dict[str, str]) -> None:
    if list(table.columns) != list(columns):
        raise ValueError(f"{name}: columns {list(table.columns)}, expected {list(columns)}")
    for column, kind in columns.items():
        if kind != TEXT and str(table[column].dtype) != kind:
            raise ValueError(f"{name}: column {column} is {table[column].dtype}, not {kind}")
    if np.any(table["end"].to_numpy() < table["start"].to_numpy()):
        raise ValueError(f"{name}: an event ends before it starts")

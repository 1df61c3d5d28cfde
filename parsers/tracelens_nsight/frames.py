"""Put rows of an export into the tables every parser delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from tracelens.host_names import is_communication_range
from tracelens.model.trace import DEVICE_EVENTS, HOST_CALLS, MARKS, NAME, NONE, frame
from tracelens_nsight.device import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.intervals import Ints
    from tracelens_nsight.calls import Calls
    from tracelens_nsight.device import DeviceRows
    from tracelens_nsight.ranges import Ranges

OPERATOR = "c10d::"
_OUTER = ("_c10d_functional", "c10d_functional")


def device_events(rows: DeviceRows, made: Calls, launch: Ints, pid: int) -> pd.DataFrame:
    """Return the device events with the calls that launched them."""
    linked = launch >= 0
    row = np.where(linked, launch, 0)

    def of_launch(values: Ints) -> Ints:
        return np.where(linked, values[row], NONE) if len(values) else np.full(len(row), NONE)

    return frame(
        DEVICE_EVENTS,
        {
            "process": np.full(len(rows), pid),
            "device": rows.device,
            "stream": rows.stream,
            "start": rows.start,
            "end": rows.end,
            "name": categories(rows.name, rows.names),
            "kind": categories(rows.kind.astype(np.int64), KINDS),
            "correlation": rows.correlation,
            "launch": of_launch(made.start),
            "launch_end": of_launch(made.end),
            "launch_thread": of_launch(made.thread),
            "copy_bytes": rows.copy_bytes,
            "graph": rows.graph,
            "grid": _grids(rows.grid),
        },
    )


def _grids(packed: Ints) -> pd.Categorical:
    distinct, code = np.unique(packed, return_inverse=True)
    return categories(code.reshape(-1), ["" if one == NONE else str(one) for one in distinct])


def marks(said: Ranges) -> pd.DataFrame:
    """Return the named ranges that are neither NCCL's nor torch's around a collective."""
    other = [
        is_communication_range(name) or name.startswith((OPERATOR, *_OUTER)) or not name
        for name in said.names
    ]
    kept = np.flatnonzero(~said.is_nccl & ~np.array(other or [True])[said.name])
    return frame(
        MARKS,
        {
            "name": categories(said.name[kept], said.names),
            "start": said.start[kept],
            "end": said.end[kept],
            "thread": said.thread[kept],
        },
    )


def host_calls(made: Calls, said: Ranges) -> pd.DataFrame:
    """Return the runtime calls, and torch's functional wrappers of collectives."""
    outer = np.array([name.startswith(_OUTER) for name in said.names] or [False])
    around = np.flatnonzero(outer[said.name])
    name = np.concatenate((made.name, said.name[around] + len(made.names)))
    kind = np.concatenate((made.kind, np.full(len(around), len(made.kinds))))
    return frame(
        HOST_CALLS,
        {
            "name": categories(name, [*made.names, *said.names]),
            "kind": categories(kind, [*made.kinds, "outer"]),
            "start": np.concatenate((made.start, said.start[around])),
            "end": np.concatenate((made.end, said.end[around])),
            "thread": np.concatenate((made.thread, said.thread[around])),
            "correlation": np.concatenate((made.correlation, np.full(len(around), NONE))),
        },
    )


def categories(codes: Ints, names: Sequence[str]) -> pd.Categorical:
    """Return names as a categorical of those that are used, each once."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist()
    distinct = list(dict.fromkeys(names[code] for code in used))
    place = {text: number for number, text in enumerate(distinct)}
    renumbered = np.zeros(max(len(names), 1), np.int64)
    renumbered[used] = [place[names[code]] for code in used]
    return pd.Categorical.from_codes(renumbered[codes], pd.Index(distinct, dtype=object))


def joined(columns: dict[str, str], parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put tables of one schema one after the other."""
    whole = [part for part in parts if len(part)]
    if len(whole) < 2:
        return whole[0] if whole else frame(columns)
    data: dict[str, object] = {}
    for name, kind in columns.items():
        values = [part[name].array for part in whole]
        data[name] = union_categoricals(values) if kind == NAME else np.concatenate(values)
    return frame(columns, data)

"""Collective calls of many ranks as an operations table, without trace files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from tracelens.model.trace import NONE
from tracelens.operations import ALL_REDUCE, CODE
from tracelens.operations_table import MergedGroup, OperationsTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.intervals import Ints

EPOCH_NS = 1_767_225_600 * 10**9


@dataclass(frozen=True)
class Call:
    """One call of one rank; times are nanoseconds after `EPOCH_NS` on the rank's own clock."""

    rank: int
    start: int = 0
    end: int = 0
    op: str = ALL_REDUCE
    elements: int = 8
    dtype: str = "float32"
    group: tuple[int, ...] | None = (0, 1)
    name: str = "0"
    step: int = 1
    cycle: int = 0
    seq: int = NONE
    peer: int = NONE
    kernel: int | None = None  # the call whose kernel carries this one; None: its own
    complete: bool = True
    comms_id: int = NONE


def table_of(calls: Sequence[Call]) -> OperationsTable:
    """Return the table; row i is call i. Groups are told apart by rank list and nothing else."""
    keys = sorted(
        {(c.group is None, c.group or (), c.name if c.group is None else "") for c in calls}
    )
    place = {key: index for index, key in enumerate(keys)}
    groups = [
        MergedGroup(i, {name}, None, len(ranks) or None, None if unknown else ranks, "unknown")
        for i, (unknown, ranks, name) in enumerate(keys)
    ]
    rows = [
        {
            "rank": c.rank,
            "cycle": c.cycle,
            "cycle_key": c.cycle,
            "row": index,
            "group": place[(c.group is None, c.group or (), c.name if c.group is None else "")],
            "op": CODE[c.op],
            "dtype": c.dtype,
            "elements": c.elements,
            "buffer_bytes": NONE,
            "step_number": c.step,
            "seq": c.seq,
            "peer": c.peer,
            "launch": c.start,
            "carrier": index if c.kernel is None else c.kernel,
            "complete": c.complete,
            "comms_id": c.comms_id,
            "start": c.start,
            "end": c.end,
            "start_ns": NONE if c.start == NONE else c.start + EPOCH_NS,
            "end_ns": NONE if c.end == NONE else c.end + EPOCH_NS,
        }
        for index, c in enumerate(calls)
    ]
    return OperationsTable(pd.DataFrame(rows), groups, {}, {})


def together(instance: Ints) -> set[frozenset[int]]:
    """Return the rows of each instance."""
    rows: dict[int, set[int]] = {}
    for row, number in enumerate(instance.tolist()):
        rows.setdefault(number, set()).add(row)
    rows.pop(-1, None)
    return {frozenset(members) for members in rows.values()}


def instance(
    arrivals: Sequence[int],
    at: int = 0,
    transfer: int = 10,
    group: tuple[int, ...] = (),
    step: int = 1,
) -> list[Call]:
    """Return one collective: `arrivals[i]` is when the i-th member enters; all end together."""
    members = group or tuple(range(len(arrivals)))
    end = at + max(arrivals) + transfer
    return [
        Call(rank, at + start, end, group=members, step=step)
        for rank, start in zip(members, arrivals, strict=False)
    ]

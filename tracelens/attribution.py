"""The basic partition: where the time of a window goes (docs/attribution.md).

With C, K, M the unions of compute, communication and copy intervals in a window:
`compute + exposed_comm + exposed_copy + idle == window`, exactly, in integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from tracelens.communication import COMMUNICATION, COMPUTE, COPY
from tracelens.intervals import (
    Intervals,
    clip,
    covered,
    first_started,
    gaps,
    intersect,
    pieces,
    union,
    union_of,
)
from tracelens.model.result import Partition
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timed events of one device, ascending by start.

    Attributes:
        start: Nanoseconds.
        end: Nanoseconds.
        event_class: COMPUTE, COMMUNICATION or COPY.
        event_op: Index into `OPERATIONS` for communication, else -1.
        is_kernel: False for copies (and for everything of a CPU run).
        copied: Bytes of each copy, NONE if unknown; None if nothing is known of any.
    """

    start: Ints
    end: Ints
    event_class: NDArray[np.int8]
    event_op: NDArray[np.int8]
    is_kernel: NDArray[np.bool_]
    copied: Ints | None = None

    def of_class(self, which: int) -> Intervals:
        """Return the union of the intervals of one class."""
        mine = self.event_class == which
        return union(self.start[mine], self.end[mine])


@dataclass(frozen=True, slots=True)
class Unions:
    """The unions of a timeline, and each communication's share of exposed time.

    A share is an interval and its place in `rows`; an event may have several, which are disjoint.
    """

    compute: Intervals
    comm: Intervals
    copy: Intervals
    busy: Intervals
    rows: NDArray[np.intp]  # the communication events
    share_of: NDArray[np.intp]
    share_start: Ints
    share_end: Ints


def unions(timeline: Timeline) -> Unions:
    """Prepare a timeline for cutting into windows."""
    rows = np.flatnonzero(timeline.event_class == COMMUNICATION)
    compute, comm, copy = (timeline.of_class(c) for c in (COMPUTE, COMMUNICATION, COPY))
    return Unions(
        compute, comm, copy, union_of(compute, comm, copy), rows, *_shares(timeline, rows)
    )


def _shares(timeline: Timeline, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], Ints, Ints]:
    """Give each instant to one of the communications in flight: the one that started first.

    Messages come after collectives: a receive may be posted long before its message is sent, and
    its kernel spins beside whatever the rank does meanwhile.
    """
    start, end = timeline.start[rows], timeline.end[rows]
    message = np.isin(timeline.event_op[rows], POINT_TO_POINT)
    first, later = np.flatnonzero(~message), np.flatnonzero(message)
    share_start, share_end = first_started(start[first], end[first])
    if not len(later):
        return first, share_start, share_end
    others = union(start[first], end[first])
    low, high = int(start[later].min()), int(end[later].max())
    own = first_started(start[later], end[later])
    which, piece_start, piece_end = pieces(*own, gaps(others, low, high))
    return (
        np.concatenate((first, later[which])),
        np.concatenate((share_start, piece_start)),
        np.concatenate((share_end, piece_end)),
    )


def exposed_per_event(parts: Unions, low: int, high: int) -> Ints:
    """Return each communication event's exposed time within a window."""
    start = np.clip(parts.share_start, low, high)
    end = np.clip(parts.share_end, low, high)
    exposed = np.zeros(len(parts.rows), np.int64)
    np.add.at(exposed, parts.share_of, (end - start) - covered(parts.compute, start, end))
    return exposed


def exposed_pieces(parts: Unions) -> tuple[Ints, Ints, Ints]:
    """Return where each communication event is exposed: its row in `parts.rows`, start and end."""
    if not len(parts.rows):
        return parts.share_start, parts.share_start, parts.share_end
    low, high = int(parts.share_start.min()), int(parts.share_end.max())
    which, start, end = pieces(parts.share_start, parts.share_end, gaps(parts.compute, low, high))
    return parts.share_of[which], start, end


def partition(
    timeline: Timeline, parts: Unions, low: int, high: int, *, launches_without_record: int = 0
) -> Partition:
    """Partition the window [low, high)."""
    compute, comm, copy = (clip(p, low, high) for p in (parts.compute, parts.comm, parts.copy))
    overlapped = intersect(comm, compute).length
    busy = union_of(compute, comm, copy)
    hidden_copy = intersect(copy, union_of(compute, comm)).length
    inside = (timeline.end > low) & (timeline.start < high)
    kernels = int((inside & timeline.is_kernel).sum())
    copies = inside & (timeline.event_class == COPY)
    window = max(high - low, 0)
    return Partition(
        window_ns=window,
        busy_ns=busy.length,
        compute_ns=compute.length,
        comm_ns=comm.length,
        overlapped_comm_ns=overlapped,
        exposed_comm_ns=comm.length - overlapped,
        copy_ns=copy.length,
        exposed_copy_ns=copy.length - hidden_copy,
        idle_ns=window - busy.length,
        comm_by_op_ns=_comm_by_op(timeline, parts, low, high),
        exposed_by_op_ns=_exposed_by_op(timeline, parts, low, high),
        kernels=kernels,
        copies=int(copies.sum()),
        launches_without_record=launches_without_record,
        copied_bytes=_known_sum(timeline.copied, copies),
    )


def _known_sum(sizes: Ints | None, which: NDArray[np.bool_]) -> int | None:
    if sizes is None or (sizes[which] == NONE).any():
        return None
    return int(sizes[which].sum())


def _comm_by_op(timeline: Timeline, parts: Unions, low: int, high: int) -> dict[str, int]:
    """Length of the union of each operation's intervals; operations may overlap each other."""
    start = np.clip(timeline.start[parts.rows], low, high)
    end = np.clip(timeline.end[parts.rows], low, high)
    ops = timeline.event_op[parts.rows]
    totals = {
        OPERATIONS[code]: union(start[ops == code], end[ops == code]).length
        for code in np.unique(ops[end > start])
    }
    return {op: total for op, total in totals.items() if total}


def _exposed_by_op(timeline: Timeline, parts: Unions, low: int, high: int) -> dict[str, int]:
    exposed = exposed_per_event(parts, low, high)
    sums = np.zeros(len(OPERATIONS), np.int64)
    np.add.at(sums, timeline.event_op[parts.rows], exposed)
    present = np.unique(timeline.event_op[parts.rows])
    return {OPERATIONS[code]: int(sums[code]) for code in present if sums[code]}


_APART = ("comm_by_op_ns", "exposed_by_op_ns", "copied_bytes")
"""What is not just summed up."""


def combine(partitions: Sequence[Partition], divisor: int = 1) -> Partition | None:
    """Sum partitions, or average them (each number rounded to the nanosecond); None if empty.

    The identity survives rounding because the derived numbers are rebuilt from rounded parts.
    """
    if not partitions:
        return None
    sums: dict[str, int] = {}
    for field in fields(Partition):
        if field.name not in _APART:
            sums[field.name] = _divide(sum(getattr(p, field.name) for p in partitions), divisor)
    parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    sums["window_ns"] = sum(sums[name] for name in parts)
    sums["busy_ns"] = sums["window_ns"] - sums["idle_ns"]
    sums["comm_ns"] = sums["overlapped_comm_ns"] + sums["exposed_comm_ns"]
    by_op = [_sum_by_op([p.comm_by_op_ns for p in partitions], divisor)]
    exposed = _sum_by_op([p.exposed_by_op_ns for p in partitions], divisor)
    by_op.append(_closed(exposed, sums["exposed_comm_ns"]))
    copied = [p.copied_bytes for p in partitions if p.copied_bytes is not None]
    return Partition(
        **sums,
        comm_by_op_ns=by_op[0],
        exposed_by_op_ns=by_op[1],
        copied_bytes=_divide(sum(copied), divisor) if len(copied) == len(partitions) else None,
    )


def _divide(total: int, divisor: int) -> int:
    return (2 * total + divisor) // (2 * divisor)


def _sum_by_op(parts: Sequence[dict[str, int]], divisor: int) -> dict[str, int]:
    names = sorted({name for part in parts for name in part})
    return {name: _divide(sum(part.get(name, 0) for part in parts), divisor) for name in names}


def _closed(parts: dict[str, int], total: int) -> dict[str, int]:
    """Let rounded parts sum to the rounded total: the largest take the odd nanoseconds."""
    odd = total - sum(parts.values())
    for name in sorted(parts, key=lambda name: -parts[name]):
        change = max(odd, -parts[name])
        parts[name] += change
        odd -= change
    return parts

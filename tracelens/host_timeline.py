"""The timeline of a CPU run: no device, so the process's threads stand in for it.

Communication is the backend's own ranges (`gloo:all_reduce` on its run loop threads), compute the
operator time of all other threads outside collectives and waits. gloo records full sizes only on
the c10d operators that enqueued the work, so each range is matched to its operator.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens import operations
from tracelens.communication import COMMUNICATION, COMPUTE, Evidence, Operation
from tracelens.host_names import is_host_backend
from tracelens.intervals import EMPTY, Intervals, subtract, union, union_of
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.model.trace import RankTrace

# gloo runs its reduce-scatter as an all-reduce and annotates it so (ProcessGroupGloo.cpp).
_ANNOTATED_AS = {
    operations.REDUCE_SCATTER: (operations.REDUCE_SCATTER, operations.ALL_REDUCE),
}
_GATHERS = (operations.ALL_GATHER, operations.GATHER)


class HostTimeline(NamedTuple):
    """Events of a CPU run in the shape of device events, ascending by start."""

    start: Ints
    end: Ints
    launch: Ints
    event_class: NDArray[np.int8]
    event_op: NDArray[np.int8]
    operations: list[Operation]


def build(trace: RankTrace) -> HostTimeline:
    """Build the timeline of a rank without device events."""
    evidence = Evidence(trace)
    named = evidence.by_source["annotation"]
    ranges = [row for row in named if is_host_backend(evidence.name(int(row)))]
    found = _operations(evidence, [int(row) for row in ranges])
    compute = _compute(trace, {int(evidence.columns["thread"][row]) for row in ranges})
    return _timeline(evidence, [int(row) for row in ranges], found, compute)


def _compute(trace: RankTrace, loop_threads: set[int]) -> Intervals:
    operators, calls = trace.operators, trace.host_calls
    thread = operators["thread"].to_numpy()
    start, end = operators["start"].to_numpy(), operators["end"].to_numpy()
    kinds = np.asarray(calls["kind"].astype(object))
    not_work = np.isin(kinds, ("collective", "outer", "wait", "record"))
    call_thread = calls["thread"].to_numpy()
    call_start, call_end = calls["start"].to_numpy(), calls["end"].to_numpy()
    parts = []
    for one in np.unique(thread):
        if int(one) in loop_threads and not _has_steps(trace, int(one)):
            continue
        mine, waits = thread == one, not_work & (call_thread == one)
        busy = union(start[mine], end[mine])
        parts.append(subtract(busy, union(call_start[waits], call_end[waits])))
    return union_of(*parts) if parts else EMPTY


def _has_steps(trace: RankTrace, thread: int) -> bool:
    """Tell whether a thread runs the training loop: p2p ranges stand on the main thread itself."""
    marks = trace.marks
    mine = marks["thread"].to_numpy() == thread
    return any("ProfilerStep" in str(name) for name in marks["name"][mine])


def _operations(evidence: Evidence, ranges: list[int]) -> list[Operation]:
    """Return one operation per c10d operator, linked to the backend range that ran it."""
    waiting = _by_size(evidence, ranges)
    result: list[Operation] = []
    linked: set[int] = set()
    recorded = [*evidence.by_source["operator"], *evidence.by_source["record"]]
    for row in sorted((int(row) for row in recorded), key=lambda r: evidence.columns["start"][r]):
        op = operations.canonical(evidence.name(row))
        if op is None or not evidence.is_operation(row) or op == operations.BARRIER:
            continue
        partner = _take(evidence, waiting, row, op)
        rows = [row] if partner is None else [row, partner]
        operation = evidence.build(rows, op, str(evidence.columns["source"][row]))
        operation.event = partner
        operation.launch = int(evidence.columns["start"][row])
        _own_sizes(evidence, operation, row)
        evidence.context(operation, int(evidence.columns["thread"][row]), operation.launch)
        result.append(operation)
        linked.update(rows)
    return result + [_lone(evidence, row) for row in ranges if row not in linked]


def _own_sizes(evidence: Evidence, operation: Operation, row: int) -> None:
    """Take sizes from the operator where it has any: the range names one tensor only."""
    for name in ("in_elems", "out_elems"):
        value = evidence.value(name, row)
        other = evidence.value("out_elems" if name == "in_elems" else "in_elems", row)
        if value is not None or other is not None:
            setattr(operation, name, None if value is None else int(value))
        elif name == "out_elems" and operation.op in _GATHERS:
            operation.out_elems = None  # only the range has a size, and it names the input


def _lone(evidence: Evidence, row: int) -> Operation:
    """Build the operation of a range whose operator was not recorded (launched before)."""
    op = operations.canonical(evidence.name(row)) or operations.UNKNOWN
    operation = evidence.build([row], op, "annotation")
    if op in _GATHERS:
        operation.out_elems = None
    operation.event = row
    return operation


def _by_size(evidence: Evidence, ranges: list[int]) -> dict[tuple[str, int], deque[int]]:
    waiting: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for row in sorted(ranges, key=lambda row: evidence.columns["start"][row]):
        op = operations.canonical(evidence.name(row)) or operations.UNKNOWN
        waiting[op, int(evidence.columns["in_elems"][row])].append(row)
    return waiting


def _take(
    evidence: Evidence, waiting: dict[tuple[str, int], deque[int]], row: int, op: str
) -> int | None:
    """Take the earliest range of the same operation and size that starts after the operator."""
    at = int(evidence.columns["start"][row])
    sizes = {int(evidence.columns[name][row]) for name in ("in_elems", "out_elems")}
    for annotated in _ANNOTATED_AS.get(op, (op,)):
        keys = [(annotated, size) for size in sorted(sizes, reverse=True)]
        if sizes == {NONE}:  # shapes of tensor lists were not recorded before torch 2.2
            keys = [key for key in waiting if key[0] == annotated]
        if (found := _earliest(evidence, waiting, keys, at)) is not None:
            return found
    return None


def _earliest(
    evidence: Evidence,
    waiting: dict[tuple[str, int], deque[int]],
    keys: list[tuple[str, int]],
    at: int,
) -> int | None:
    """Take the earliest waiting range of some keys that starts after an instant."""
    start = evidence.columns["start"]
    queues = [waiting[key] for key in keys if key in waiting]
    for queue in queues:
        while queue and start[queue[0]] < at:
            queue.popleft()  # launched before this operator, so none after it can want it
    ready = [queue for queue in queues if queue]
    return min(ready, key=lambda queue: start[queue[0]]).popleft() if ready else None


def _timeline(
    evidence: Evidence, ranges: list[int], found: list[Operation], compute: Intervals
) -> HostTimeline:
    start = np.concatenate((compute.start, evidence.columns["start"][ranges])).astype(np.int64)
    end = np.concatenate((compute.end, evidence.columns["end"][ranges])).astype(np.int64)
    by_range = {operation.event: operation for operation in found if operation.event is not None}
    launches = [by_range[row].launch for row in ranges]
    launch = np.array([NONE if at is None else at for at in launches], np.int64)
    codes = np.array([operations.CODE[by_range[row].op] for row in ranges], np.int8)
    order = np.argsort(start, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    position = {row: int(place[len(compute.start) + i]) for i, row in enumerate(ranges)}
    for operation in found:
        if operation.event is not None:
            operation.event = position[operation.event]
    classes = np.repeat([COMPUTE, COMMUNICATION], (len(compute.start), len(ranges))).astype(np.int8)
    return HostTimeline(
        start[order],
        end[order],
        np.concatenate((compute.start, launch))[order],
        classes[order],
        np.concatenate((np.full(len(compute.start), -1, np.int8), codes))[order],
        found,
    )

"""What the calls that one kernel carries make up.

NCCL launches everything between ncclGroupStart and ncclGroupEnd at once: a batch of messages, an
all-to-all written as sends and receives to every member, a gather of uneven parts written as
broadcasts. A profiler that records the calls themselves (Nsight Systems) tells them apart by what
the framework called them, else by whom they are addressed to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens import operations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.communication import Evidence, Operation

_MESSAGES = (operations.SEND, operations.RECV)
_REDUCTIONS = (operations.ALL_REDUCE, operations.REDUCE_SCATTER, operations.REDUCE)
_IN_PARTS = (operations.GATHER, operations.SCATTER)
_SUMMED = {
    operations.ALL_TO_ALL: operations.SEND,
    operations.ALL_GATHER: operations.BROADCAST,
    operations.REDUCE_SCATTER: operations.REDUCE,
}
"""Which calls a collective without a call of its own is written as (ProcessGroupNCCL.cpp)."""


def operations_of(
    evidence: Evidence, rows: Sequence[int], called: str | None, dtype: str
) -> list[Operation]:
    """Return the operations of the calls one kernel carries.

    Args:
        evidence: The communications of the rank.
        rows: The calls, in order.
        called: The operation the framework says it asked for.
        dtype: What the kernel's name says it reduces.
    """
    ops = [operations.canonical(evidence.name(row)) or operations.UNKNOWN for row in rows]
    whole = _written_as(evidence, rows, ops, called)
    if whole is not None:
        found = [_collective(evidence, rows, ops, whole)]
    else:
        found = [evidence.build([row], op, "payload") for row, op in zip(rows, ops, strict=True)]
    if len(found) == 1 and found[0].op in _REDUCTIONS:  # several calls may be of several types
        found[0].dtype = found[0].dtype or dtype
    for operation in found:
        if operation.op not in _REDUCTIONS:
            operation.dtype = operation.dtype or evidence.dtype
    return found


def kind_of(found: Sequence[Operation]) -> str:
    """Return what a kernel does that carries these operations."""
    kinds = {operation.op for operation in found}
    if len(kinds) == 1:
        return kinds.pop()
    return operations.SEND_RECV if kinds <= set(_MESSAGES) else found[0].op


def _written_as(
    evidence: Evidence, rows: Sequence[int], ops: list[str], called: str | None
) -> str | None:
    """Return the collective that several calls implement, if they do."""
    if called is not None and called not in (*_MESSAGES, operations.SEND_RECV, *ops):
        return called
    if len(rows) == 1 or not set(ops) <= set(_MESSAGES):
        return None
    peers = {evidence.value("root", row) for row in rows}
    if None in peers:
        return operations.SEND_RECV  # a batch of messages, or an all-to-all
    group = evidence.value("group_size", rows[0])
    own = evidence.own_place(rows[0])
    to_itself = own is not None and own in peers
    return operations.ALL_TO_ALL if to_itself or len(peers) == group else None


def _collective(evidence: Evidence, rows: Sequence[int], ops: list[str], whole: str) -> Operation:
    operation = evidence.build(rows, whole, "payload")
    operation.root = operation.peer = None
    operation.buffer_bytes = operation.part_bytes = None
    if whole in _IN_PARTS:
        sizes = {evidence.value("buffer_bytes", row) for row in rows}
        operation.part_bytes = sizes.pop() if len(sizes) == 1 else None
        return operation
    mine = [row for row, op in zip(rows, ops, strict=True) if op == _SUMMED.get(whole)]
    sent = {evidence.value("root", row): evidence.value("buffer_bytes", row) for row in mine}
    if mine and len(sent) == len(mine) and None not in sent and None not in sent.values():
        operation.buffer_bytes = sum(sent.values())
        if whole == operations.ALL_TO_ALL:
            operation.in_splits = str(_splits(sent, operation.group_size))
    return operation


def _splits(sent: Mapping[Any, Any], size: int | None) -> list[int]:
    """Return the bytes to each member; PyTorch makes no call for a part without elements."""
    members = sorted(sent) if size is None else range(size)
    return [int(sent.get(peer, 0)) for peer in members]

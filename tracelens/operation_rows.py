"""One operation as a row: its sizes in both conventions, its group and where it was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.communication import Operation
from tracelens.digits import as_integer
from tracelens.dtypes import item_size, standard_name
from tracelens.model.facts import LARGEST_SIZE
from tracelens.model.trace import NONE
from tracelens.operations import ALL_TO_ALL, CODE, OPERATIONS, RECV, SEND
from tracelens.theory.collectives import full_elements, message_factor, wire_factor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.groups import Group

ROW_COLUMNS = (
    "op",
    "group",
    "dtype",
    "elements",
    "in_elems",
    "out_elems",
    "message_elements",
    "buffer_bytes",
    "message_bytes",
    "wire_bytes",
    "launch",
    "source",
    "functional",
    "mark",
    "dimensions",
    "peer",
    "seq",
    "comms_id",
    "part_bytes",
    "root",
    "in_splits",
    "thread",
)


def operation_row(
    operation: Operation, group: Group, place: int, rank: int | None
) -> tuple[Any, ...]:
    """Return an operation's sizes in both conventions; `NONE` is unknown."""
    size = operation.group_size if operation.group_size is not None else group.size
    elements = full_elements(operation.op, operation.in_elems, operation.out_elems, size)
    buffer = _buffer_bytes(operation, elements, size)
    elements = elements if elements is not None else _elements(operation, buffer)
    factor = message_factor(operation.op)
    message = None if elements is None else factor * elements
    share = _wire_share(operation, size, group, rank)
    return (
        CODE[operation.op],
        place,
        standard_name(operation.dtype) or "",
        _size(elements),
        _size(operation.in_elems),
        _size(operation.out_elems),
        _size(message),
        _size(buffer),
        _size(None if buffer is None else factor * buffer),
        _size(None if buffer is None or share is None else round(share * buffer)),
        _or_none(operation.launch),
        operation.source,
        operation.functional,
        operation.mark,
        _or_none(operation.dimensions),
        _or_none(_peer(operation, group)),
        _or_none(operation.seq),
        _or_none(operation.comms_id),
        _size(operation.part_bytes),
        _or_none(operation.root),
        operation.in_splits,
        _or_none(operation.thread),
    )


_NUMBERS = (
    "in_elems",
    "out_elems",
    "buffer_bytes",
    "part_bytes",
    "launch",
    "dimensions",
    "root",
    "peer",
    "seq",
    "thread",
)


def of_row(row: Mapping[str, Any]) -> Operation:
    """Return the operation a row was made of."""
    operation = Operation(OPERATIONS[int(row["op"])], str(row["source"]))
    for name in _NUMBERS:
        setattr(operation, name, None if row[name] == NONE else int(row[name]))
    for name in ("dtype", "mark", "in_splits", "functional"):
        setattr(operation, name, row[name])
    return operation


def _peer(operation: Operation, group: Group) -> int | None:
    """Return the global rank at the other end of a message; records may name its group rank."""
    if operation.peer is not None or operation.op not in (SEND, RECV):
        return operation.peer
    known = operation.root is not None and group.ranks is not None
    if not known or not 0 <= (operation.root or 0) < len(group.ranks or ()):
        return None
    return (group.ranks or ())[operation.root or 0]


def _or_none(value: int | None) -> int:
    return NONE if value is None else value


def _size(value: int | None) -> int:
    return NONE if value is None or not 0 <= value <= LARGEST_SIZE else value


def _buffer_bytes(operation: Operation, elements: int | None, size: int | None) -> int | None:
    """Return the bytes of the full buffer, from elements and type or as bytes were recorded."""
    each = item_size(operation.dtype)
    if elements is not None and (each is not None or not elements):
        return elements * (each or 0)
    if operation.buffer_bytes is not None:
        return operation.buffer_bytes
    if operation.part_bytes is None or size is None:
        return None
    return operation.part_bytes * size


def _elements(operation: Operation, buffer: int | None) -> int | None:
    """Return the elements of a buffer whose bytes and type are known."""
    each = item_size(operation.dtype)
    if buffer is None or each is None or buffer % each:
        return None
    return buffer // each


def _wire_share(
    operation: Operation, size: int | None, group: Group, rank: int | None
) -> float | None:
    """Return the part of its buffer that the rank sends to others."""
    if operation.op == ALL_TO_ALL and (own := _own_split(operation, group, rank)) is not None:
        return 1 - own
    return wire_factor(operation.op, size)


def _own_split(operation: Operation, group: Group, rank: int | None) -> float | None:
    """Return the part of an all-to-all-v that stays on the rank itself."""
    if not operation.in_splits or "..." in operation.in_splits:
        return None
    parts = [part.strip() for part in operation.in_splits.strip("[] ").split(",")]
    splits = [size for part in parts if (size := as_integer(part)) is not None]
    if group.ranks is None or rank not in group.ranks or len(splits) != len(group.ranks):
        return None
    total = sum(splits)
    return splits[group.ranks.index(rank)] / total if total else None

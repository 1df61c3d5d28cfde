"""One operation as a row: its sizes in both conventions, its group and where it was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.dtypes import item_size, standard_name
from tracelens.model.trace import NONE
from tracelens.operations import ALL_TO_ALL, CODE, RECV, SEND
from tracelens.theory.collectives import full_elements, message_factor, wire_factor

if TYPE_CHECKING:
    from tracelens.communication import Operation
    from tracelens.groups import Group

ROW_COLUMNS = (
    "op",
    "group",
    "dtype",
    "elements",
    "in_elems",
    "out_elems",
    "message_elements",
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
)


def operation_row(
    operation: Operation, group: Group, place: int, rank: int | None
) -> tuple[Any, ...]:
    """Return an operation's sizes in both conventions; `NONE` is unknown."""
    size = operation.group_size if operation.group_size is not None else group.size
    elements = full_elements(operation.op, operation.in_elems, operation.out_elems, size)
    bytes_each = item_size(operation.dtype)
    factor = message_factor(operation.op)
    message = None if elements is None else factor * elements
    wire = _wire_elements(operation, elements, size, group, rank)
    return (
        CODE[operation.op],
        place,
        standard_name(operation.dtype) or "",
        _or_none(elements),
        _or_none(operation.in_elems),
        _or_none(operation.out_elems),
        _or_none(message),
        _scaled(message, bytes_each),
        _scaled(wire, bytes_each),
        _or_none(operation.launch),
        operation.source,
        operation.functional,
        operation.mark,
        _or_none(operation.dimensions),
        _or_none(_peer(operation, group)),
        _or_none(operation.seq),
        _or_none(operation.comms_id),
    )


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


def _scaled(elements: float | None, bytes_each: int | None) -> int:
    if elements is None or (bytes_each is None and elements):
        return NONE
    return round(elements * (bytes_each or 0))


def _wire_elements(
    operation: Operation, elements: int | None, size: int | None, group: Group, rank: int | None
) -> float | None:
    if elements is None:
        return None
    if operation.op == ALL_TO_ALL and (own := _own_split(operation, group, rank)) is not None:
        return elements - own
    factor = wire_factor(operation.op, size)
    return None if factor is None else factor * elements


def _own_split(operation: Operation, group: Group, rank: int | None) -> float | None:
    """Return the elements of an all-to-all-v that stay on the rank itself."""
    if not operation.in_splits or "..." in operation.in_splits or operation.in_elems is None:
        return None
    splits = [int(part) for part in operation.in_splits.strip("[] ").split(",") if part.strip()]
    if group.ranks is None or rank not in group.ranks or len(splits) != len(group.ranks):
        return None
    total = sum(splits)
    # Splits count rows of the first dimension, the operation elements.
    return operation.in_elems * splits[group.ranks.index(rank)] / total if total else None

"""Read what single events recorded: times, ids, and the arguments of collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tracelens.model.facts import MOST_RANKS
from tracelens.model.trace import NONE
from tracelens_kineto import shapes
from tracelens_kineto.columns import integer, integers, sizes
from tracelens_kineto.events import CommArgs, Event, KernelArgs, OperatorArgs
from tracelens_kineto.times import from_doubles, from_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints

_NOT_A_SIZE = ("", "wait", "init", "barrier")
_NAMES_A_RANK = ("send", "recv_", "broadcast_", "reduce_")  # as their third argument


def decode(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw) -> Any:
    """Decode raw arguments; damaged or missing ones give an object with nothing in it."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _field_by_field(decoder, bytes(raw))


def _field_by_field(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """Keep the arguments that have a usable type when one of them has not."""
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decoder.type()
    result = decoder.type()
    for info in msgspec.structs.fields(result):
        if info.encode_name in values if isinstance(values, dict) else False:
            try:
                value = msgspec.convert(values[info.encode_name], info.type, strict=False)
            except msgspec.ValidationError:
                continue
            setattr(result, info.name, value)
    return result


def external(args: Any) -> Any:
    """Return an event's External id, under its name of today or of torch up to 1.11."""
    return args.external if args.external is not None else args.old_external


def times(events: list[Any]) -> tuple[Ints, Ints, Ints]:
    """Return start, end and duration in ns; a missing or negative duration gives end = start."""
    convert: Any = from_doubles if events and isinstance(events[0], Event) else from_texts
    start = convert([event.ts for event in events])
    duration = convert([event.dur for event in events])
    return start, start + np.where(duration > 0, duration, 0), duration


def says_collective(args: CommArgs) -> bool:
    """Tell whether arguments name a collective or its size."""
    if args.collective is not None:
        return True
    return (args.in_elems if args.in_elems is not None else args.old_in_elems) is not None


def comm_columns(args: list[Any]) -> dict[str, Any]:
    """Return the columns every source of collective arguments shares."""
    return {
        "group_name": ["" if a.group_name is None else str(a.group_name) for a in args],
        "group_description": [a.group_description or "" for a in args],
        "group_ranks": ["" if a.group_ranks is None else str(a.group_ranks) for a in args],
        "group_size": sizes((a.group_size for a in args), MOST_RANKS),
        "dtype": [a.dtype or "" for a in args],
        "in_elems": sizes(_first(a.in_elems, a.old_in_elems) for a in args),
        "out_elems": sizes(_first(a.out_elems, a.old_out_elems) for a in args),
        "in_splits": ["" if a.in_splits is None else str(a.in_splits) for a in args],
        "out_splits": ["" if a.out_splits is None else str(a.out_splits) for a in args],
        "root": integers(a.rank for a in args),
        "peer": integers(_first(a.target_rank, a.source_rank) for a in args),
        "seq": integers(a.seq for a in args),
        "comms_id": integers(a.comms_id for a in args),
    }


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def with_shapes(name: str, args: OperatorArgs) -> tuple[OperatorArgs, shapes.Sizes]:
    """Fill sizes from shapes where no named argument gives them."""
    if name == "record_param_comms":
        sizes = shapes.annotation_sizes(args.dims, args.types)
    else:
        sizes = shapes.operator_sizes(name, args.dims, args.types)
    if not says_collective(args) and (args.collective or name) not in _NOT_A_SIZE:
        args.in_elems = None if sizes.in_elems == NONE else sizes.in_elems
        args.out_elems = None if sizes.out_elems == NONE else sizes.out_elems
        args.dtype = args.dtype or sizes.dtype
    if name.rpartition("::")[2] in _NAMES_A_RANK and len(args.concrete) > 2:
        args.rank = args.concrete[2]
    return args, sizes


def graphs(args: list[KernelArgs]) -> NDArray[np.int64]:
    """Return the CUDA graph of each kernel; Kineto writes id 0 for kernels outside a graph."""
    return np.array([integer(a.graph) if a.graph not in (None, 0, "0") else NONE for a in args])

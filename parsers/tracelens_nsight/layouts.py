"""Layouts of NCCL's payload structs, as schemas describe them and as its versions have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = 32
FIRST_SCHEMA = 1 << 24

# nvtxPayloadEntryType of NVTX 3 (nvToolsExtPayload.h); ids from 2^24 on name an enum or a struct.
_TYPES = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 9: "<i8",
    10: "<u8", 11: "i1", 12: "u1", 13: "<i2", 14: "<u2", 15: "<i4", 16: "<u4", 17: "<i8",
    18: "<u8", 22: "<u8", 23: "<u8",
}  # fmt: skip
_ENUM = "<i4"


@dataclass(frozen=True, slots=True)
class Layout:
    """Fields of a struct: name, numpy type and offset of each, and its length."""

    names: tuple[str, ...]
    formats: tuple[str, ...]
    offsets: tuple[int, ...]
    length: int

    def dtype(self) -> np.dtype[np.void]:
        """Return the struct as a numpy type."""
        return np.dtype(
            {
                "names": list(self.names),
                "formats": list(self.formats),
                "offsets": list(self.offsets),
                "itemsize": self.length,
            }
        )


def of_types(entries: Sequence[tuple[str, int, int]], length: int) -> Layout:
    """Build a layout from (name, type, offset); fields that do not fit it are left out."""
    known = [
        (name, _TYPES.get(kind, _ENUM if kind >= FIRST_SCHEMA else ""), offset)
        for name, kind, offset in entries
    ]
    whole = [
        (name, form, offset)
        for name, form, offset in known
        if name and form and 0 <= offset <= length - np.dtype(form).itemsize
    ]
    distinct = {name: (form, offset) for name, form, offset in whole}
    return Layout(
        tuple(distinct),
        tuple(form for form, _ in distinct.values()),
        tuple(offset for _, offset in distinct.values()),
        max(length, 0),
    )


def _struct(fields: str, length: int) -> Layout:
    """Build a layout from "name:type name:type", placed as C does."""
    types = {"id": "<u8", "bytes": "<u8", "int": "<i4"}
    names, formats, offsets, at = [], [], [], 0
    for part in fields.split():
        name, kind = part.split(":")
        size = np.dtype(types[kind]).itemsize
        at = -(-at // size) * size
        names.append(_NAMES[name])
        formats.append(types[kind])
        offsets.append(at)
        at += size
    return Layout(tuple(names), tuple(formats), tuple(offsets), length)


_NAMES = {
    "comm": "NCCL communicator ID",
    "parent": "Parent NCCL communicator ID",
    "size": "Message size [bytes]",
    "redop": "Reduction operation",
    "peer": "Peer rank",
    "root": "Root",
    "nranks": "No. of ranks",
    "rank": "Rank",
    "device": "CUDA device",
    "color": "Color",
    "key": "Key",
}

_INIT = (
    _struct("comm:id nranks:int rank:int device:int", 24),
    _struct("rank:int nranks:int device:int", 12),  # up to 2.24
)
_SHARD = (_struct("comm:id size:bytes", 16), _struct("size:bytes", 8))
_REDUCED = (_struct("comm:id size:bytes redop:int", 24), _struct("size:bytes redop:int", 16))
_ROOTED = (_struct("comm:id size:bytes root:int", 24), _struct("size:bytes root:int", 16))
_REDUCE = (
    _struct("comm:id size:bytes root:int redop:int", 24),
    _struct("size:bytes root:int redop:int", 16),
)
_PEER = (_struct("comm:id size:bytes peer:int", 24), _struct("size:bytes peer:int", 16))
_SPLIT = (_struct("comm:id parent:id nranks:int rank:int device:int color:int key:int", 40),)

BUILT_IN: dict[int, tuple[Layout, ...]] = {
    FIRST_SCHEMA + number: layouts
    for number, layouts in {
        0: _INIT,  # CommInitRank
        4: _SHARD,  # AllGather
        5: _REDUCED,  # AllReduce
        6: _ROOTED,  # Broadcast
        7: _REDUCED,  # ReduceScatter
        8: _REDUCE,  # Reduce
        9: _PEER,  # Send
        10: _PEER,  # Recv
        11: _INIT,  # CommInitRankConfig
        12: _INIT,  # CommInitRankScalable
        13: _SPLIT,  # CommSplit
        16: _SHARD,  # AlltoAll
        17: _ROOTED,  # Gather
        18: _ROOTED,  # Scatter
    }.items()
}
"""For exports without the schema tables; several layouts of one schema differ in length."""

_VERSION_OF_ENUM = {14: "2.25", 15: "2.26", 16: "2.27", 19: "2.28", 20: "2.28"}


def version_of(entries: Sequence[tuple[str, int]]) -> str | None:
    """Return NCCL's version as far as its schemas tell; None if they leave it open.

    The number of the enum of reductions moves with each new kind of call, and 2.25 put the
    communicator into every payload. The environment's NCCL_VERSION is the container's, not torch's.

    Args:
        entries: Name and type of every field.
    """
    enums = {kind - FIRST_SCHEMA for name, kind in entries if name == _NAMES["redop"]}
    named = any(name == _NAMES["comm"] for name, _ in entries)
    return _VERSION_OF_ENUM.get(enums.pop()) if len(enums) == 1 and named else None

"""What NCCL tells NVTX about its calls, by NCCL release.

2.8 began with bare names, 2.16 added sizes, reductions, roots and peers, 2.25 the communicator.
Layouts: src/include/nvtx_payload_schemas.h and src/collectives.cc of NCCL's tags, and the schema
tables of real exports.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

INT, UINT64, SIZE = 5, 18, 22  # nvtxPayloadSchema entry types
_FIRST_ID = 1 << 24
_SCHEMAS = {
    "ncclCommInitRank": 0, "ncclAllGather": 4, "ncclAllReduce": 5, "ncclBroadcast": 6,
    "ncclReduceScatter": 7, "ncclReduce": 8, "ncclSend": 9, "ncclRecv": 10,
    "ncclCommInitRankConfig": 11,
}  # fmt: skip
_REDUCTION_IDS = (((2, 29), 24), ((2, 28), 20), ((2, 27), 16), ((2, 26), 15), ((2, 23), 14),
                  ((2, 16), 11))  # fmt: skip
REDUCTIONS = {"Sum": 0, "Product": 1, "Max": 2, "Min": 3, "Avg": 4}
COMMUNICATOR, SIZE_OF_GROUP, RANK, DEVICE = (
    "NCCL communicator ID", "No. of ranks", "Rank", "CUDA device",
)  # fmt: skip
BYTES, OLD_BYTES, REDUCTION, ROOT, PEER = (
    "Message size [bytes]", "Bytes", "Reduction operation", "Root", "Peer rank",
)  # fmt: skip
_FORMATS = {INT: "i", UINT64: "Q", SIZE: "Q"}
_HEADER = 32  # bytes before the payload


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of a payload."""

    name: str
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The payload of one call; no entries if the release sends none with it."""

    schema: int
    entries: tuple[Entry, ...]
    size: int

    def blob(self, domain: int, values: dict[str, int]) -> bytes:
        """Return `binaryData`: a header of four numbers, then the struct."""
        data = bytearray(self.size)
        for entry in self.entries:
            kind = _FORMATS.get(entry.type, "i")
            struct.pack_into("<" + kind, data, entry.offset, values[entry.name])
        return struct.pack("<4Q", domain, self.schema, self.size, _HEADER) + bytes(data)

    def json(self, values: dict[str, int]) -> dict[str, object]:
        """Return what `--include-json` shows."""
        shown: dict[str, object] = {entry.name: values[entry.name] for entry in self.entries}
        if REDUCTION in shown:
            names = {number: name for name, number in REDUCTIONS.items()}
            shown[REDUCTION] = names[values[REDUCTION]]
        return shown


class Nccl:
    """What one release of NCCL emits."""

    def __init__(self, version: str) -> None:
        major, minor, *_ = version.split(".")
        self._version = (int(major), int(minor))
        self.named = self._version >= (2, 8)
        self.sized = self._version >= (2, 16)
        self.identified = self._version >= (2, 25)
        self.init_call = (
            "ncclCommInitRankConfig" if self._version >= (2, 23) else "ncclCommInitRank"
        )

    @property
    def reduction_id(self) -> int:
        """Return the id of the enum of reductions, which grew with the API."""
        return _FIRST_ID + next(place for since, place in _REDUCTION_IDS if self._version >= since)

    def layout(self, call: str) -> Layout | None:
        """Return the payload of a call; None if there is none."""
        if not self.sized or call not in _SCHEMAS:
            return None
        fields = self._fields(call)
        if self.identified:
            fields.insert(0, (COMMUNICATOR, UINT64))
        entries, at = [], 0
        for name, kind in fields:
            width = struct.calcsize(_FORMATS.get(kind, "i"))
            at += -at % width
            entries.append(Entry(name, kind, at))
            at += width
        widest = max(struct.calcsize(_FORMATS.get(kind, "i")) for _, kind in fields)
        return Layout(_FIRST_ID + _SCHEMAS[call], tuple(entries), at + -at % widest)

    def _fields(self, call: str) -> list[tuple[str, int]]:
        if call.startswith("ncclCommInitRank"):
            ranks = [(SIZE_OF_GROUP, INT), (RANK, INT)]
            return (ranks if self.identified else ranks[::-1]) + [(DEVICE, INT)]
        unified = self.identified or call not in ("ncclBroadcast", "ncclSend", "ncclRecv")
        fields = [(BYTES if unified else OLD_BYTES, SIZE)]
        if call in ("ncclBroadcast", "ncclReduce"):
            fields.append((ROOT, INT))
        if call in ("ncclAllReduce", "ncclReduceScatter", "ncclReduce"):
            fields.append((REDUCTION, self.reduction_id))
        if call in ("ncclSend", "ncclRecv"):
            fields.append((PEER, INT))
        return fields

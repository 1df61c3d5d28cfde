"""NCCL's advanced tracing (`nsys profile -t nccl`, nsys 2025.6 and NCCL 2.28 or later).

It takes the place of NCCL's own ranges: calls have plain names (`AllReduce`) and say in JSON what
they move: elements and their type, communicator, own rank. NVIDIA's documentation lists the keys,
and that the schema may change; nothing here was seen in a real export. So keys are read however
they are spelt, and a call is believed only if it names its communicator. What runs on the GPU has
rows of its own, one a channel: those say nothing that the call does not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens import operations
from tracelens.digits import as_integer
from tracelens.dtypes import item_size
from tracelens.model.facts import LARGEST_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = {
    name: f"nccl{name}"
    for name in (
        "AllReduce",
        "AllGather",
        "ReduceScatter",
        "Broadcast",
        "Reduce",
        "Send",
        "Recv",
        "AlltoAll",
        "Gather",
        "Scatter",
    )
}
"""Names of calls, and what NCCL's own ranges call them."""
AROUND = frozenset({"API Group", "GroupLaunch", "GroupRuntime", "KernelLaunch", "CommInit"})
"""Ranges around calls and launches."""

# ncclDataType_t (nccl.h), by number and by name.
_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
          "bfloat16", "float8_e4m3fn", "float8_e5m2")  # fmt: skip
_ALIASES = {
    "char": "int8", "int": "int32", "half": "float16", "float": "float32", "double": "float64",
    "float8e4m3": "float8_e4m3fn", "float8e5m2": "float8_e5m2",
}  # fmt: skip
_COPIED = (operations.ALL_GATHER, operations.BROADCAST)
_BYTES = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class Call:
    """What a row says about a call; None is unknown.

    Attributes:
        communicator: The communicator's id, 64 bits, signed.
        size: Bytes: elements times their size.
        dtype: Type of the elements.
        place: Own rank in the communicator.
        peer: The other rank of a message.
        root: The root.
        ranks: Members of the communicator.
        identities: What is equal in all rows of one operation of the rank, and in no other's.
        on_device: Whether the row is a piece of work of the GPU.
    """

    communicator: int
    size: int | None = None
    dtype: str | None = None
    place: int | None = None
    peer: int | None = None
    root: int | None = None
    ranks: int | None = None
    identities: tuple[tuple[object, ...], ...] = ()
    on_device: bool = False


def read(name: str, text: str) -> Call | None:
    """Read the JSON of a row; None if it names no communicator."""
    said = _flat(text)
    communicator = _hash(said.get("commhash", said.get("communicatorhash")))
    if communicator is None:
        return None
    count, dtype = _number(said.get("count")), _type(said.get("datatype"))
    each = item_size(dtype)
    size = None if count is None or each is None else count * each
    op = operations.canonical(name)
    return Call(
        communicator,
        size=size if size is not None and size < LARGEST_SIZE else None,
        # NCCL copies bytes where it need not reduce: then a type of one byte says nothing.
        dtype=None if op in _COPIED and dtype in _BYTES else dtype,
        place=_number(said.get("commrank")),
        peer=_number(said.get("peer", said.get("peerrank"))),
        root=_number(said.get("root")),
        ranks=_number(said.get("nranks", said.get("commsize"))),
        identities=tuple(_identities(name, communicator, said)),
        on_device=any("channel" in key for key in said),
    )


def _flat(text: str) -> dict[str, Any]:
    """Return a JSON object's values by their keys, written in lower case without separators."""
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {re.sub(r"[^a-z0-9]", "", str(key).lower()): value for key, value in found.items()}


def _identities(name: str, communicator: int, said: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield them; a send and its receive, which may be to the rank itself, share the id."""
    if isinstance(said.get("operationid"), (int, str)):
        yield name, "operation", said["operationid"]
    number = _number(said.get("seqnumber", said.get("sequencenumber")))
    if number is not None and name not in ("Send", "Recv"):
        yield name, communicator, number


def _number(value: object) -> int | None:
    if isinstance(value, str):
        value = as_integer(value)
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return value if whole else None  # type: ignore[return-value]


def _hash(value: object) -> int | None:
    """Return the 64 bits of a communicator's id as a signed number."""
    if isinstance(value, str):
        try:
            value = int(value, 10 if value.isdecimal() else 16)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int) or not value:
        return None
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _type(value: object) -> str | None:
    """Return torch's name of a type of NCCL's; None for one it does not have."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _TYPES[value] if 0 <= value < len(_TYPES) else None
    if not isinstance(value, str):
        return None
    plain = value.strip().lower().removeprefix("nccl").replace("_", "")
    known = {name.replace("_", ""): name for name in _TYPES} | _ALIASES
    return known.get(plain)

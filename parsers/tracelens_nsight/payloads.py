"""Decode NCCL's NVTX payloads by the names of their fields.

NCCL describes each payload by a schema, which the export holds as tables; without them the layouts
of its versions are known (NCCL src/include/nvtx_payload_schemas.h, 2.16 to 2.30). A payload stands
in one of three places: a table per schema (`--dynamic-tables`), a blob (`--include-blobs`), or a
JSON text (`--include-json`). By default an export has none of them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.model.facts import LARGEST_SIZE
from tracelens.model.trace import NONE
from tracelens_nsight.layouts import BUILT_IN, HEADER, Layout, of_types, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.intervals import Ints
    from tracelens_nsight.ranges import Ranges
    from tracelens_nsight.tables import Tables

SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
LINKS = "NVTX_EVENTS_PAYLOAD_SCHEMAS"
_DYNAMIC = re.compile(r"^DYNAMIC_NVTXPAYLOAD_DATATYPE_(\d+)_(\d+)_(\d+)$")

FIELDS = ("communicator", "size", "peer", "root", "ranks", "rank")
"""What payloads say: communicator id, bytes, the other rank, the root, group size, own rank."""


@dataclass(slots=True)
class Payloads:
    """The fields of each range, `NONE` where its payload says nothing; `known` if it has any.

    `dtypes` are the types of elements that advanced tracing states, by row.
    """

    fields: dict[str, Ints]
    known: np.ndarray[tuple[int], np.dtype[np.bool_]]
    dtypes: dict[int, str] = field(default_factory=dict)


def field_of(name: str) -> str | None:
    """Return what a field of a payload means by the name NCCL gave it."""
    lowered = name.lower()
    if "size" in lowered or lowered == "bytes":
        return "size"
    if "parent" in lowered or "color" in lowered or "key" in lowered:
        return None
    if "communicator" in lowered or lowered in ("commhash", "comm"):
        return "communicator"
    if "peer" in lowered:
        return "peer"
    if "root" in lowered:
        return "root"
    if lowered in ("no. of ranks", "nranks", "number of ranks"):
        return "ranks"
    return "rank" if lowered in ("rank", "user rank", "commrank") else None


def decode(tables: Tables, ranges: Ranges, process: int) -> Payloads:
    """Decode the payloads of the ranges NCCL wrote."""
    count = len(ranges)
    fields = {name: np.full(count, NONE) for name in FIELDS}
    rows = np.flatnonzero(ranges.is_nccl)
    _from_texts(ranges, rows[~np.isin(rows, list(ranges.advanced))], fields)
    _from_blobs(ranges, rows, _layouts(tables), fields)
    _from_tables(tables, ranges, rows, process, fields)
    size = fields["size"]
    size[(size < 0) | (size > LARGEST_SIZE)] = NONE
    # Where no kernel carries a call of advanced tracing, its row may be of another kind.
    known = np.logical_or.reduce([values != NONE for values in fields.values()])
    _from_advanced(ranges, fields)
    return Payloads(fields, known, {r: c.dtype for r, c in ranges.advanced.items() if c.dtype})


def _from_advanced(ranges: Ranges, fields: dict[str, Ints]) -> None:
    for row, call in ranges.advanced.items():
        said = {
            "communicator": call.communicator,
            "size": call.size,
            "peer": call.peer,
            "root": call.root,
            "ranks": call.ranks,
            "rank": call.place,
        }
        for name, value in said.items():
            fields[name][row] = NONE if value is None else value


# schemas -----------------------------------------------------------------------------------------


def nccl_version(tables: Tables) -> str | None:
    """Return NCCL's version as far as the schemas tell."""
    rows = tables.read(ENTRIES, ["type"], ["name"])
    names = rows.texts["name"].texts()
    return version_of(list(zip(names, rows.integers["type"].tolist(), strict=True)))


def are_described(tables: Tables) -> bool:
    """Tell whether the program wrote payloads, whether or not the export holds them."""
    return tables.count(ENTRIES) > 0


def _layouts(tables: Tables) -> dict[tuple[int, int], Layout]:
    """Return the layouts the export describes by (domain, schema); rows repeat per process."""
    rows = tables.read(ENTRIES, ["domainId", "schemaId", "idx", "type", "offset"], ["name"])
    found: dict[tuple[int, int], dict[int, tuple[str, int, int]]] = defaultdict(dict)
    columns = (rows.integers[name].tolist() for name in ("domainId", "schemaId", "idx", "type"))
    offsets = rows.integers["offset"].tolist()
    for domain, schema, index, kind, offset, name in zip(
        *columns, offsets, rows.texts["name"].texts(), strict=True
    ):
        found[domain, schema][index] = (name, kind, 0 if offset == NONE else offset)
    sizes = tables.read(SCHEMAS, ["domainId", "schemaId", "payloadSize"]).integers
    lengths = dict(
        zip(
            zip(sizes["domainId"].tolist(), sizes["schemaId"].tolist(), strict=True),
            sizes["payloadSize"].tolist(),
            strict=True,
        )
    )
    return {
        key: of_types([entries[i] for i in sorted(entries)], lengths.get(key, NONE))
        for key, entries in found.items()
    }


# blobs -------------------------------------------------------------------------------------------


def _from_blobs(
    ranges: Ranges,
    rows: Ints,
    layouts: dict[tuple[int, int], Layout],
    fields: dict[str, Ints],
) -> None:
    """Decode blobs: a header of 32 bytes (domain, schema, size, offset), then the struct."""
    alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row in rows.tolist():
        blob = ranges.blob[row]
        if len(blob) > HEADER:
            schema, size = np.frombuffer(blob, "<u8", 2, 8).tolist()
            alike[int(ranges.domain[row]), schema, size].append(row)
    for (domain, schema, size), members in alike.items():
        layout = _layout(layouts.get((domain, schema)), schema, size)
        if layout is not None:
            whole = [row for row in members if len(ranges.blob[row]) >= HEADER + size]
            _unpack(ranges, np.array(whole, np.int64), layout, fields)


def _layout(described: Layout | None, schema: int, size: int) -> Layout | None:
    """Return the layout the export describes, else the known one; None if neither fits."""
    if described is not None and described.names and described.length == size:
        return described
    return next((one for one in BUILT_IN.get(schema, ()) if one.length == size), None)


def _unpack(ranges: Ranges, rows: Ints, layout: Layout, fields: dict[str, Ints]) -> None:
    if not len(rows):
        return
    end = HEADER + layout.length
    packed = b"".join(ranges.blob[row][HEADER:end] for row in rows.tolist())
    table = np.frombuffer(packed, layout.dtype())
    for name in layout.names:
        meaning = field_of(name)
        if meaning is not None:
            fields[meaning][rows] = _as_signed(table[name])


def _as_signed(values: Any) -> Ints:
    """Keep the bits of 64-bit ids."""
    if values.dtype == np.uint64:
        return np.asarray(values.view(np.int64))
    return np.asarray(values.astype(np.int64))


# JSON texts --------------------------------------------------------------------------------------


def _from_texts(ranges: Ranges, rows: Ints, fields: dict[str, Ints]) -> None:
    known: dict[str, dict[str, int]] = {}
    for row in rows.tolist():
        text = ranges.json[row]
        if not text:
            continue
        if text not in known:
            known[text] = _parsed(text)
        for meaning, value in known[text].items():
            fields[meaning][row] = value


def _parsed(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    pairs = ((field_of(str(name)), _integer(value)) for name, value in found.items())
    return {meaning: value for meaning, value in pairs if meaning and value is not None}


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        number = int(value, 0) if isinstance(value, str) else value
    except ValueError:
        return None
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


# dynamic tables ----------------------------------------------------------------------------------


def _from_tables(
    tables: Tables, ranges: Ranges, rows: Ints, process: int, fields: dict[str, Ints]
) -> None:
    """Read the tables of single payload schemas, whose rows name the NVTX event."""
    order = rows[np.argsort(ranges.event[rows], kind="stable")]
    keys = ranges.event[order]
    for table in _dynamic_tables(tables, process):
        names = [name for name in sorted(tables.columns[table]) if field_of(name)]
        found = tables.read(table, ["eventId", *names]).integers
        at = np.searchsorted(keys, found["eventId"])
        inside = at < len(keys)
        inside[inside] &= keys[at[inside]] == found["eventId"][inside]
        for name in names:
            meaning = field_of(name)
            if meaning is not None:
                fields[meaning][order[at[inside]]] = found[name][inside]


def _dynamic_tables(tables: Tables, process: int) -> Iterable[str]:
    for table in sorted(tables.columns):
        match = _DYNAMIC.match(table)
        if match and match[1] == str(process) and "eventId" in tables.columns[table]:
            yield table

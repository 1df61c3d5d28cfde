"""NVTX ranges and marks of one process.

`torch.autograd.profiler.emit_nvtx` writes one range an operator, by the million; those are dropped
while reading. Its texts end in `, seq = N, op_id = M`: the part before is the name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens import steps
from tracelens.model.trace import NONE
from tracelens_nsight import advanced
from tracelens_nsight.tables import OneOf, Unlike

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_nsight.export import Export
    from tracelens_nsight.strings import Strings
    from tracelens_nsight.tables import Coded, Rows

EVENTS = "NVTX_EVENTS"

# ENUM_NSYS_EVENT_TYPE: the numbers are those of every version seen.
MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75
_TYPES = (MARK, PUSH_POP, START_END, DOMAIN)

_OPERATORS = ("aten::", "autograd::", "torch::", "prim::", "prims::", "record_param_comms")
_IN_GRAPH = (", seq = ",)  # an operator that autograd recorded
_TORCH_SUFFIX = re.compile(r", (?:seq|op_id) = \d+.*$", re.DOTALL)
_NCCL_CALL = re.compile(r"^nccl[A-Z]")


@dataclass(slots=True)
class Ranges:
    """Ranges and marks by start; `name` is a place in `names`.

    Attributes:
        is_nccl: Whether NCCL itself wrote it.
        domain: Domain id, a number of the process.
        blob: NCCL's binary payload, empty if there is none.
        json: The payload as JSON text, empty if there is none.
        event: Row id that dynamic payload tables refer to.
        advanced: What NCCL's advanced tracing says about some rows.
        unread: Calls of that tracing whose details are missing or not understood.
    """

    start: Ints
    end: Ints
    thread: Ints
    name: Ints
    names: list[str]
    is_nccl: NDArray[np.bool_]
    domain: Ints
    event: Ints
    blob: list[bytes]
    json: list[str]
    advanced: dict[int, advanced.Call] = field(default_factory=dict)
    unread: int = 0

    def __len__(self) -> int:
        return len(self.start)


def read(export: Export, process: int) -> Ranges:
    """Read the ranges of a process that say more than which operator ran."""
    rows = export.of(
        process,
        EVENTS,
        "globalTid",
        ["start", "end", "eventType", "globalTid", "domainId", "textId", "jsonTextId", "eventId"],
        ["text", "jsonText"],
        ["binaryData"],
        [OneOf("eventType", _TYPES), Unlike("text", _OPERATORS, _IN_GRAPH)],
    )
    name, names = _names(rows, export.strings)
    found = _ordered(rows, name, names, export.strings, process)
    if not advanced.CALLS.keys().isdisjoint(names):
        return _with_advanced(found, _nccl_domains(rows, name, names, "nccl"))
    return found


def plain_name(text: str) -> str:
    """Return the text of a range without what torch appends to it."""
    return _TORCH_SUFFIX.sub("", text)


def _names(rows: Rows, strings: Strings) -> tuple[Ints, list[str]]:
    """Return each row's name: its own text, else the registered one, without torch's suffix."""
    own = rows.texts["text"]
    by_id, registered = strings.coded(rows.integers["textId"])
    plain, registered = ([plain_name(name) for name in part] for part in (own.names, registered))
    names = list(dict.fromkeys([*plain, *registered]))
    place = {name: number for number, name in enumerate(names)}
    of_own = np.array([place[name] for name in plain] or [0], np.int64)
    of_id = np.array([place[name] for name in registered] or [0], np.int64)
    empty = np.array([not name for name in own.names] or [True])
    if not len(rows):
        return np.empty(0, np.int64), names or [""]
    code = own.codes
    return np.where(empty[code], of_id[by_id], of_own[code]), names


def _nccl_domains(rows: Rows, name: Ints, names: list[str], part: str | None = None) -> Ints:
    """Return the ids of NCCL's domain, or of all whose name has a part."""
    made = (rows.integers["eventType"] == DOMAIN) & (rows.integers["domainId"] != NONE)
    told = [text == "NCCL" if part is None else part in text.lower() for text in names]
    called = np.array(told)[name]
    return np.asarray(rows.integers["domainId"][made & called], np.int64)


def _ordered(
    rows: Rows,
    name: Ints,
    names: list[str],
    strings: Strings,
    process: int,
) -> Ranges:
    ints = rows.integers
    start, end = ints["start"], ints["end"]
    is_mark = ints["eventType"] == MARK
    end = np.where(is_mark, start, end)
    _close_steps(name, names, start, end)
    # An end that is missing (or 0, before 2022) belongs to a range that was open at the end; one
    # that was open at the beginning starts before 0. Neither was recorded whole.
    whole = (start != NONE) & (end != NONE) & (end >= start) & (start >= 0)
    whole &= ints["eventType"] != DOMAIN
    kept = np.flatnonzero(whole)
    kept = kept[np.argsort(start[kept], kind="stable")]
    called = np.array([bool(_NCCL_CALL.match(text)) for text in names] or [False])
    by_name = called[name]
    is_nccl = np.isin(ints["domainId"], _nccl_domains(rows, name, names)) | by_name
    plain = np.array([text in advanced.CALLS for text in names] or [False])[name]
    json = _json(rows, strings, kept, is_nccl | plain)
    blobs = rows.blobs["binaryData"]
    return Ranges(
        start=start[kept],
        end=end[kept],
        thread=(ints["globalTid"] - process)[kept],
        name=name[kept],
        names=names,
        is_nccl=is_nccl[kept],
        domain=ints["domainId"][kept],
        event=ints["eventId"][kept],
        blob=[blobs[row] if is_nccl[row] else b"" for row in kept],
        json=json,
    )


def _close_steps(name: Ints, names: list[str], start: Ints, end: Ints) -> None:
    """End steps that were never popped where the next of their kind begins."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(names):
        if text[-1:].isdigit() and steps.numbers_of([text]):
            kinds[text.rstrip("0123456789")].append(place)
    for places in kinds.values():
        rows = np.flatnonzero(np.isin(name, places) & (start >= 0))
        rows = rows[np.argsort(start[rows], kind="stable")]
        before, after = rows[:-1], rows[1:]
        never = end[before] < start[before]
        end[before[never]] = start[after[never]]


def _json(rows: Rows, strings: Strings, kept: Ints, is_nccl: NDArray[np.bool_]) -> list[str]:
    """Return the JSON payloads of NCCL's ranges, own texts before registered ones."""
    own: Coded = rows.texts["jsonText"]
    ids = rows.integers["jsonTextId"]
    wanted = kept[is_nccl[kept]]
    shared = dict(zip((u := np.unique(ids[wanted])).tolist(), strings.of(u), strict=True))
    return [
        (own.names[own.codes[row]] or shared[int(ids[row])]) if is_nccl[row] else "" for row in kept
    ]


def _with_advanced(ranges: Ranges, domains: Ints) -> Ranges:
    """Take calls of NCCL's advanced tracing for NCCL's own; rows that repeat one are left out.

    Args:
        ranges: The ranges of a process.
        domains: Ids of domains that may be NCCL's: what has its names there is its own, too.
    """
    called = np.array([text in advanced.CALLS for text in ranges.names])[ranges.name]
    around = np.array([text in advanced.AROUND for text in ranges.names])[ranges.name]
    said: dict[int, advanced.Call] = {}
    seen: set[tuple[object, ...]] = set()
    kept = np.ones(len(ranges), bool)
    for row in np.flatnonzero(called).tolist():
        call = advanced.read(ranges.names[ranges.name[row]], ranges.json[row])
        if call is None:
            continue
        said[row] = call
        kept[row] = not call.on_device and seen.isdisjoint(call.identities)
        if kept[row]:
            seen.update(call.identities)
    theirs = called & np.isin(ranges.domain, domains)
    theirs[list(said)] = True
    beside = around & np.isin(ranges.domain, [*domains, *ranges.domain[list(said)]])
    names = list(dict.fromkeys([*ranges.names, *advanced.CALLS.values()]))
    codes = {text: number for number, text in enumerate(names)}
    plain = np.arange(len(ranges.names))
    full = np.array([codes[advanced.CALLS.get(text, text)] for text in ranges.names])
    rows = np.flatnonzero(kept)
    place = {row: number for number, row in enumerate(rows.tolist())}
    calls = {place[row]: call for row, call in said.items() if kept[row]}
    return replace(
        ranges,
        start=ranges.start[rows],
        end=ranges.end[rows],
        thread=ranges.thread[rows],
        name=np.where(theirs, full[ranges.name], plain[ranges.name])[rows],
        names=names,
        is_nccl=(ranges.is_nccl | theirs | beside)[rows],
        domain=ranges.domain[rows],
        event=ranges.event[rows],
        blob=[ranges.blob[row] for row in rows],
        json=[ranges.json[row] for row in rows],
        advanced=calls,
        unread=int(theirs[rows].sum()) - sum(call.size is not None for call in calls.values()),
    )

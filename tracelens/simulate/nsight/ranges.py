"""NVTX events: NCCL's own, PyTorch's, and the marks that make an export describe itself."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tracelens.dtypes import standard_name
from tracelens.simulate.host_events import ANNOTATION, RECORD
from tracelens.simulate.nsight import payloads
from tracelens.simulate.nsight.calls import Call
from tracelens.simulate.nsight.ids import global_thread
from tracelens.simulate.recording import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.simulate.host_events import HostEvent
    from tracelens.simulate.nsight.calls import Communicator
    from tracelens.simulate.nsight.payloads import Nccl
    from tracelens.simulate.nsight.tables import Database
    from tracelens.simulate.recording import RecordedRank, Recording

MARK, PUSH_POP, DOMAIN = 34, 59, 75
NCCL_DOMAIN = 1
STYLES = ("emit_nvtx", "names", "none")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_SETUP = 5_000_000  # ns it takes to make a communicator


def add_torch(database: Database, rank: RecordedRank, host: list[HostEvent], style: str) -> None:
    """Add PyTorch's ranges.

    `emit_nvtx` shows everything, numbered; by "names" only what a program marks itself, and the
    process group's ranges; steps are ours in every style.
    """
    for event in host:
        text = _text(event, style)
        if text is not None:
            _add(
                database, start=event.start, end=event.end, eventType=PUSH_POP, text=text,
                globalTid=global_thread(rank, event.thread), domainId=0,
            )  # fmt: skip


def _text(event: HostEvent, style: str) -> str | None:
    if step := _STEP.fullmatch(event.name):
        return f"tracelens.step {step[1]}"
    if style == "emit_nvtx":
        return f"{event.name}, op_id = {event.number}"
    named = event.kind == ANNOTATION or event.name == RECORD
    return event.name if style == "names" and named else None


def _add(database: Database, **values: object) -> None:
    number = database.count("NVTX_EVENTS") + 1
    database.add("NVTX_EVENTS", eventId=number, **values)


def add_description(database: Database, rank: RecordedRank, recording: Recording, at: int) -> None:
    """Add the mark that says which rank this process is and which groups it belongs to."""
    said: dict[str, object] = {
        "tracelens": 1,
        "rank": rank.rank,
        "world": max(len(group.ranks) for group in recording.groups),
        "groups": [
            {"name": group.name, "description": group.description, "ranks": list(group.ranks)}
            for group in recording.groups
            if rank.rank in group.ranks
        ],
    }
    if dtype := _common_dtype(recording):
        said["dtype"] = dtype
    text = json.dumps(said)
    _add(
        database, start=at, eventType=MARK, text=text,
        globalTid=global_thread(rank, MAIN), domainId=0,
    )  # fmt: skip


def _common_dtype(recording: Recording) -> str | None:
    """Return the one type in which everything travels that is not reduced, if it is one."""
    communications = (one for rank in recording.ranks for one in rank.communications)
    found = {one.dtype for one in communications if one.op not in ("all_reduce", "reduce_scatter")}
    return standard_name(found.pop()) if len(found) == 1 else None


class NcclRanges:
    """Adds NCCL's domain of one process: its name, its calls, and what payloads look like."""

    def __init__(
        self, database: Database, rank: RecordedRank, nccl: Nccl, *, blobs: bool, texts: bool
    ) -> None:
        self._database, self._rank, self._nccl = database, rank, nccl
        self._blobs, self._texts = blobs, texts

    def add_domain(self, at: int, calls: Iterable[str]) -> None:
        """Add the domain and the schemas of the calls it will see."""
        if not self._nccl.named:
            return
        _add(
            self._database, start=at, eventType=DOMAIN, text="NCCL",
            globalTid=global_thread(self._rank, MAIN), domainId=NCCL_DOMAIN,
        )  # fmt: skip
        layouts = [self._nccl.layout(name) for name in sorted({self._nccl.init_call, *calls})]
        for layout in layouts:
            if layout is not None:
                self._add_schema(layout)
        if any(layouts):
            self._add_reductions()

    def _add_schema(self, layout: payloads.Layout) -> None:
        self._database.add(
            "NVTX_PAYLOAD_SCHEMAS",
            domainId=NCCL_DOMAIN,
            schemaId=layout.schema,
            type=1,
            numEntries=len(layout.entries),
            payloadSize=layout.size,
        )
        for index, entry in enumerate(layout.entries):
            self._database.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=NCCL_DOMAIN,
                schemaId=layout.schema,
                idx=index,
                type=entry.type,
                name=entry.name,
                offset=entry.offset or None,
            )

    def _add_reductions(self) -> None:
        number = self._nccl.reduction_id
        self._database.add(
            "NVTX_PAYLOAD_ENUMS",
            domainId=NCCL_DOMAIN,
            schemaId=number,
            numEntries=len(payloads.REDUCTIONS),
            size=4,
        )
        for index, (name, value) in enumerate(payloads.REDUCTIONS.items()):
            self._database.add(
                "NVTX_PAYLOAD_ENUM_ENTRIES",
                domainId=NCCL_DOMAIN,
                schemaId=number,
                idx=index,
                name=name,
                value=value,
            )

    def add_setup(self, communicators: Iterable[Communicator], at: int) -> None:
        """Add the making of each communicator, one after the other."""
        for place, one in enumerate(communicators):
            begin = at + place * (_SETUP + 1_000)
            values = {
                payloads.COMMUNICATOR: one.number,
                payloads.SIZE_OF_GROUP: len(one.ranks),
                payloads.RANK: one.ranks.index(self._rank.rank),
                payloads.DEVICE: self._rank.device,
            }
            self._add_call(Call(self._nccl.init_call, MAIN, begin, begin + _SETUP, values))

    def add_calls(self, calls: Iterable[Call]) -> None:
        """Add the calls of the run."""
        for call in calls:
            self._add_call(call)

    def _add_call(self, call: Call) -> None:
        if not self._nccl.named:
            return
        layout = self._nccl.layout(call.name)
        _add(
            self._database,
            start=call.start,
            end=call.end,
            eventType=PUSH_POP,
            globalTid=global_thread(self._rank, call.thread),
            textId=self._database.string(call.name),
            domainId=NCCL_DOMAIN,
            binaryData=layout.blob(NCCL_DOMAIN, call.values) if layout and self._blobs else None,
            jsonText=json.dumps(layout.json(call.values)) if layout and self._texts else None,
        )

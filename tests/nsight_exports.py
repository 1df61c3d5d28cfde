"""Build SQLite exports of Nsight Systems by hand, row by row.

    Export().kernel("gemm", 1_000, 300).call("ncclAllReduce", 2_000, size=64).write(path)

Times are nanoseconds since the session began. Every method returns the builder. A table has the
columns its rows were given, so an old schema is one whose columns are not used; `drop` and `rename`
make odd ones. What NCCL's payloads look like is written down here once more, from its sources
(design notes of the versions 2.16 to 2.30), apart from the parser's own tables.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace

VM = 1 << 48
PID = 4000
NCCL = 1  # the domain
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
EVENTS = "NVTX_EVENTS"
SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
NAMES = {
    "ncclAllReduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclReduceScatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgs)",
    "ncclAllGather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclBroadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def process(pid: int = PID) -> int:
    return VM | pid << 24


def thread(pid: int = PID, tid: int | None = None) -> int:
    return process(pid) | (pid if tid is None else tid)


# payloads ----------------------------------------------------------------------------------------

INT, UINT64, SIZE, FIRST = 5, 18, 22, 1 << 24
_NUMBERS = {
    "ncclCommInitRank": 0, "ncclAllGather": 4, "ncclAllReduce": 5, "ncclBroadcast": 6,
    "ncclReduceScatter": 7, "ncclReduce": 8, "ncclSend": 9, "ncclRecv": 10,
    "ncclCommInitRankConfig": 11, "ncclCommInitRankScalable": 12, "ncclCommSplit": 13,
    "ncclAlltoAll": 16, "ncclGather": 17, "ncclScatter": 18,
}  # fmt: skip
ENUMS = {"2.16": 11, "2.22": 11, "2.23": 14, "2.24": 14, "2.25": 14, "2.26": 15, "2.27": 16,
         "2.28": 20, "2.29": 24, "2.30": 24}  # fmt: skip
VERSIONS = tuple(ENUMS)
Field = tuple[str, str, int]  # name, key of the value, type


def fields_of(call: str, version: str) -> list[Field]:
    """Return the fields of a call's payload in a release of NCCL."""
    named = version >= "2.25"
    comm: list[Field] = [("NCCL communicator ID", "comm", UINT64)] if named else []
    if call.startswith("ncclCommInit"):
        counts = [("No. of ranks", "nranks", INT), ("Rank", "rank", INT)]
        return comm + (counts if named else counts[::-1]) + [("CUDA device", "device", INT)]
    if call == "ncclCommSplit":
        return [
            ("NCCL communicator ID", "comm", UINT64),
            ("Parent NCCL communicator ID", "parent", UINT64),
            ("No. of ranks", "nranks", INT), ("Rank", "rank", INT), ("CUDA device", "device", INT),
            ("Color", "color", INT), ("Key", "key", INT),
        ]  # fmt: skip
    short = not named and call in ("ncclBroadcast", "ncclSend", "ncclRecv")
    found = [*comm, ("Bytes" if short else "Message size [bytes]", "size", SIZE)]
    if call in ("ncclBroadcast", "ncclReduce", "ncclGather", "ncclScatter"):
        found.append(("Root", "root", INT))
    if call in ("ncclAllReduce", "ncclReduceScatter", "ncclReduce"):
        found.append(("Reduction operation", "redop", FIRST + ENUMS[version]))
    if call in ("ncclSend", "ncclRecv"):
        found.append(("Peer rank", "peer", INT))
    return found


@dataclass(frozen=True)
class Packed:
    """A payload as its struct."""

    schema: int
    entries: list[tuple[str, int, int]]  # name, type, offset
    body: bytes

    @property
    def blob(self) -> bytes:
        return struct.pack("<4Q", NCCL, self.schema, len(self.body), 32) + self.body


def pack(call: str, version: str, values: dict[str, int]) -> Packed:
    """Lay a payload out as C does."""
    entries, body = [], b""
    for name, key, kind in fields_of(call, version):
        form = {UINT64: "<Q", SIZE: "<Q"}.get(kind, "<i")
        width = struct.calcsize(form)
        body += b"\0" * (-len(body) % width)
        entries.append((name, kind, len(body)))
        body += struct.pack(form, values.get(key, 0))
    body += b"\0" * (-len(body) % max(8 if kind in (UINT64, SIZE) else 4 for _, kind, _ in entries))
    return Packed(FIRST + _NUMBERS[call], entries, body)


# exports -----------------------------------------------------------------------------------------


@dataclass
class Export:
    """An export under construction.

    Attributes:
        nccl: The release whose payloads calls get, None for bare names.
        blobs, json, tables: Where payloads are put; `tables` writes a table a schema.
        schemas: Whether the tables that describe payloads are there.
    """

    nccl: str | None = "2.27"
    blobs: bool = True
    json: bool = False
    tables: bool = False
    schemas: bool = True
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _strings: dict[str, int] = field(default_factory=dict)
    _correlation: int = 0
    _event: int = 0

    def __post_init__(self) -> None:
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")

    def add(self, table: str, **values: Any) -> Export:
        """Add a row."""
        self.rows.setdefault(table, []).append(values)
        return self

    def string(self, text: str) -> int:
        """Return the id of a registered string."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def kernel(
        self,
        name: str,
        start: int,
        length: int = 100,
        *,
        at: int | None = -1,
        pid: int = PID,
        tid: int | None = None,
        device: int = 0,
        stream: int = 7,
        **more: Any,
    ) -> Export:
        """Add a kernel and, unless `at` is None, its launch: 50 ns long, 100 ns before it."""
        return self.device(
            KERNEL, start, length, at=at, pid=pid, tid=tid, device=device, stream=stream,
            demangledName=self.string(name), shortName=self.string(name.partition("(")[0]), **more,
        )  # fmt: skip

    def device(
        self,
        table: str,
        start: int | None,
        length: int = 100,
        *,
        at: int | None = -1,
        call: str = "cudaLaunchKernel_v7000",
        pid: int = PID,
        tid: int | None = None,
        device: int = 0,
        stream: int = 7,
        **more: Any,
    ) -> Export:
        """Add a row of device work and, unless `at` is None, the call behind it."""
        self._correlation += 1
        if at is not None:
            begin = (start or 0) - 100 if at == -1 else at
            self.runtime(call, begin, begin + 50, pid=pid, tid=tid, correlation=self._correlation)
        end = None if start is None else start + length
        values = {
            "start": start, "end": end, "deviceId": device, "streamId": stream,
            "correlationId": self._correlation, "globalPid": process(pid),
        }  # fmt: skip
        return self.add(table, **(values | more))

    def runtime(
        self,
        name: str,
        start: int,
        end: int,
        *,
        pid: int = PID,
        tid: int | None = None,
        correlation: int | None = None,
    ) -> Export:
        """Add a runtime call."""
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        return self.add(
            RUNTIME, start=start, end=end, globalTid=thread(pid, tid), correlationId=correlation,
            nameId=self.string(name), eventClass=0,
        )  # fmt: skip

    def range(
        self,
        text: str,
        start: int,
        end: int | None,
        *,
        pid: int = PID,
        tid: int | None = None,
        kind: int = 59,
        domain: int = 0,
        registered: bool = False,
        **more: Any,
    ) -> Export:
        """Add an NVTX range, or with kind 34 a mark."""
        name = {"textId": self.string(text)} if registered else {"text": text}
        self._event += 1
        return self.add(
            EVENTS, start=start, end=end, eventType=kind, globalTid=thread(pid, tid),
            domainId=domain, eventId=self._event, **name, **more,
        )  # fmt: skip

    def step(self, number: int, start: int, end: int, pid: int = PID) -> Export:
        """Add the range of a step."""
        return self.range(f"step {number}", start, end, pid=pid)

    def call(
        self,
        name: str,
        start: int,
        length: int = 100,
        *,
        pid: int = PID,
        tid: int | None = None,
        **values: int,
    ) -> Export:
        """Add one of NCCL's calls with its payload, and nothing on the device."""
        self.domain(pid)
        more: dict[str, Any] = {}
        if self.nccl is not None and name in _NUMBERS:
            packed = pack(name, self.nccl, values)
            self._describe(packed)
            if self.blobs:
                more["binaryData"] = packed.blob
            if self.json:
                more["jsonText"] = json.dumps(self._shown(name, values))
            if self.tables:
                self._tabulate(packed, name, values, pid)
        return self.range(
            name, start, start + length, pid=pid, tid=tid, domain=NCCL, registered=True, **more
        )

    def collective(
        self,
        name: str,
        start: int,
        length: int = 500,
        *,
        at: int | None = None,
        pid: int = PID,
        tid: int | None = None,
        device: int = 0,
        stream: int = 20,
        kernel: str | None = None,
        **values: int,
    ) -> Export:
        """Add a call, its launch inside and its kernel."""
        begin = start - 100 if at is None else at
        self.call(name, begin, 80, pid=pid, tid=tid, **values)
        return self.kernel(
            kernel or NAMES.get(name, SEND_RECV), start, length, at=begin + 20, pid=pid, tid=tid,
            device=device, stream=stream,
        )  # fmt: skip

    def group(
        self,
        calls: list[tuple[str, dict[str, int]]],
        start: int,
        length: int = 500,
        *,
        kernel: str = SEND_RECV,
        at: int | None = None,
        pid: int = PID,
        tid: int | None = None,
        stream: int = 20,
        more: int = 0,
    ) -> Export:
        """Add calls between ncclGroupStart and ncclGroupEnd, which launches their kernel."""
        begin = start - 1000 if at is None else at
        self.call("ncclGroupStart", begin, 10, pid=pid, tid=tid)
        for place, (name, values) in enumerate(calls):
            self.call(name, begin + 20 + 20 * place, 10, pid=pid, tid=tid, **values)
        end = begin + 20 + 20 * len(calls)
        self.call("ncclGroupEnd", end, 200, pid=pid, tid=tid)
        for extra in range(1 + more):
            where: dict[str, Any] = {"pid": pid, "tid": tid, "stream": stream}
            begun = start + extra * (length + 10)
            self.kernel(kernel, begun, length, at=end + 20 + 60 * extra, **where)
        return self

    def domain(self, pid: int = PID) -> Export:
        """Add the row that names NCCL's domain, once a process."""
        rows = self.rows.get(EVENTS, [])
        named = any(r["eventType"] == 75 and r["globalTid"] == thread(pid) for r in rows)
        return self if named else self.range("NCCL", 0, None, pid=pid, kind=75, domain=NCCL)

    def mark(self, pid: int = PID, **values: Any) -> Export:
        """Add the mark by which a program describes itself."""
        return self.range(json.dumps({"tracelens": 1, **values}), 1, None, pid=pid, kind=34)

    def gpu(self, number: int, name: str, pid: int = PID, ordinal: int | None = None) -> Export:
        """Add a GPU and the ordinal under which a process sees it."""
        self.add("TARGET_INFO_GPU", id=number, name=name, cuDevice=number)
        cuda = number if ordinal is None else ordinal
        return self.add("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=cuda, pid=pid)

    def variable(self, name: str, value: str) -> Export:
        """Add a variable of the environment nsys was started with."""
        key = "PROCESS_0:ENVIRONMENT_VARIABLE"
        return self.add("META_DATA_CAPTURE", name=key, value=f'{name}="{value}"')

    def _describe(self, packed: Packed) -> None:
        if not self.schemas or any(
            row["schemaId"] == packed.schema for row in self.rows.get(SCHEMAS, ())
        ):
            return
        for _ in range(2):  # rows repeat, once per process
            self.add(SCHEMAS, domainId=NCCL, schemaId=packed.schema, payloadSize=len(packed.body))
            for index, (name, kind, offset) in enumerate(packed.entries):
                self.add(
                    ENTRIES, domainId=NCCL, schemaId=packed.schema, idx=index, type=kind, name=name,
                    offset=offset or None,
                )  # fmt: skip

    def _shown(self, call: str, values: dict[str, int]) -> dict[str, object]:
        assert self.nccl is not None
        shown: dict[str, object] = {
            name: values.get(key, 0) for name, key, _ in fields_of(call, self.nccl)
        }
        return {**shown, "Reduction operation": "Sum"} if "Reduction operation" in shown else shown

    def _tabulate(self, packed: Packed, call: str, values: dict[str, int], pid: int) -> None:
        table = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{process(pid)}_{NCCL}_{packed.schema}"
        self.add(table, eventId=self._event + 1, **self._shown(call, values))

    def drop(self, table: str, *columns: str) -> Export:
        """Leave columns out of a table, or the whole table."""
        if not columns:
            del self.rows[table]
        for row in self.rows.get(table, ()):
            for column in columns:
                row.pop(column, None)
        return self

    def rename(self, table: str, name: str) -> Export:
        """Give a table another name."""
        self.rows[name] = self.rows.pop(table)
        return self

    def write(self, path: Path) -> Path:
        """Write the file."""
        with closing(sqlite3.connect(path)) as database:
            if self._strings:
                strings = [{"id": number, "value": text} for text, number in self._strings.items()]
                _create(database, "StringIds", [*strings, *self.rows.get("StringIds", [])])
            for table, rows in self.rows.items():
                if table != "StringIds":
                    _create(database, table, rows)
            database.commit()
        return path

    def traces(self, path: Path) -> list[RankTrace]:
        """Write the file and parse it."""
        from tracelens_nsight import NsightParser

        found = list(NsightParser().parse(self.write(path)))
        for trace in found:
            trace.validate()
        return found


_TEXTS = {"text", "value", "name", "jsonText", "binaryData"}


def _create(database: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    shown = ", ".join(f'"{c}" {"TEXT" if c in _TEXTS else "INTEGER"}' for c in columns)
    database.execute(f'CREATE TABLE "{table}" ({shown})')
    marks = ", ".join("?" * len(columns))
    values = [tuple(_signed(row.get(name)) for name in columns) for row in rows]
    database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)


def _signed(value: Any) -> Any:
    """SQLite's integers are signed: 64-bit ids keep their bits."""
    return value - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else value

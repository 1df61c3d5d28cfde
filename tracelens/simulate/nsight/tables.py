"""The tables of Nsight Systems exports, as they changed from 2022 to 2026, and a file of them.

Only the tables a run of PyTorch fills. Columns are written as `name`, `name!` if they may not be
NULL, with `:T` for text and `:R` for real numbers, and with the schemas that have them if not all:
`@3` from major 3 on, `@3.25` from 3.25 on.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

PRODUCTS = {
    "2.9.1": "2022.2.1.31",
    "3.24.0": "2025.5.2.266",
    "3.24.14": "2026.1.1.204",
    "3.25.0": "2026.2.1.210",
    "3.28.1": "2026.4.1.173",
}
"""Schemas that can be written, and the release each comes from."""

_TABLES = {
    "StringIds": "id value:T!",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start! end! deviceId! contextId! greenContextId@3 streamId! correlationId globalPid"
        " demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX!"
        " gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory!"
        " localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId"
        " sharedMemoryLimitConfig qmdBulkReleaseDone@3 qmdPreexitDone@3 qmdLastCtaDone@3 graphId@3"
        " clusterX@3 clusterY@3 clusterZ@3 clusterSchedulingPolicy@3 maxPotentialClusterSize@3"
        " maxActiveClusters@3 sharedMemoryRequestedPercentage@3.24.14"
        " tensorSizeMinusOneElements:T!@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start! end! deviceId! contextId! greenContextId@3 streamId! correlationId globalPid bytes!"
        " copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId"
        " dstContextId migrationCause graphNodeId virtualAddress copyCount@3"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start! end! deviceId! contextId! greenContextId@3 streamId! correlationId globalPid value!"
        " bytes! graphNodeId memKind"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start! end! deviceId! contextId! greenContextId@3 streamId! correlationId globalPid"
        " deprecatedSyncType@3 syncType! eventId! eventSyncId@3"
    ),
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:T globalTid endGlobalTid textId domainId"
        " uint64Value int64Value doubleValue:R uint32Value int32Value floatValue:R jsonTextId"
        " jsonText:T binaryData:T@3 eventId@3.28"
    ),
    "NVTX_PAYLOAD_SCHEMAS@3": (
        "domainId schemaId name:T type flags numEntries payloadSize alignTo"
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES@3": (
        "domainId! schemaId! idx! flags type name:T description:T arrayOrUnionDetail offset"
    ),
    "NVTX_PAYLOAD_ENUMS@3": "domainId schemaId name:T numEntries size",
    "NVTX_PAYLOAD_ENUM_ENTRIES@3": "domainId! schemaId! idx! name:T value isFlag",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId! priority globalTid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:T localTime:T systemClockNs@3.24.14",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:T! name:T! nameEnum! value:T!",
    "TARGET_INFO_GPU": (
        "vmId! id! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth"
        " clockRate smCount pwGpuId uuid:T chipName:T cuDevice computeMajor computeMinor"
    ),
    "TARGET_INFO_CUDA_DEVICE@3": "gpuId cudaId! pid! uuid:T@3.24.14",
    "TARGET_INFO_CUDA_CONTEXT_INFO@3": (
        "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext"
    ),
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "GPU_METRICS@3": "timestamp typeId! metricId! value!",
    "TARGET_INFO_GPU_METRICS@3": "typeId! sourceId! typeName:T! metricId! metricName:T!",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "META_DATA_CAPTURE@3": "name:T! value:T",
    "META_DATA_EXPORT@3": "name:T! value:T",
    "EXPORT_META_DATA@-3": "name:T! value:T",
    "ENUM_NSYS_EVENT_TYPE@3": "id name:T label:T",
    "ENUM_CUDA_MEMCPY_OPER@3": "id name:T label:T",
    "ENUM_CUDA_MEM_KIND@3": "id name:T label:T",
    "ENUM_CUPTI_SYNC_TYPE@3": "id name:T label:T",
}
_KEYS = ("StringIds", "ENUM_")  # tables whose id is a primary key
_TYPES = {"T": "TEXT", "R": "REAL", None: "INTEGER"}
_COLUMN = re.compile(r"(\w+)(?::(\w))?(!?)(?:@(-?[\d.]+))?")


class _Column(NamedTuple):
    name: str
    type: str
    required: bool


class Database:
    """One export under construction: rows by table, written at once.

    Columns and tables its schema lacks are left out, so that callers need not know schemas.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._columns = _columns(schema)
        self._rows: dict[str, list[tuple[object, ...]]] = defaultdict(list)
        self._strings: dict[str, int] = {}

    def has(self, table: str, column: str | None = None) -> bool:
        """Tell whether the schema has a table, or a column of it."""
        columns = self._columns.get(table, [])
        return any(column in (None, one.name) for one in columns)

    def add(self, table: str, **values: object) -> None:
        """Add a row; what is not given is NULL, or 0 or empty where NULL is not allowed."""
        if table in self._columns:
            self._rows[table].append(
                tuple(values.get(one.name, _default(one)) for one in self._columns[table])
            )

    def count(self, table: str) -> int:
        """Return how many rows a table has so far."""
        return len(self._rows[table])

    def string(self, value: str) -> int:
        """Return the id of a string in StringIds."""
        return self._strings.setdefault(value, len(self._strings) + 1)

    def write(self, path: Path) -> None:
        """Write the file anew."""
        path.unlink(missing_ok=True)
        for value, number in self._strings.items():
            self.add("StringIds", id=number, value=value)
        connection = sqlite3.connect(path)
        try:
            connection.execute("PRAGMA journal_mode = OFF")
            for table, columns in self._columns.items():
                connection.execute(f"CREATE TABLE {table} ({_definition(table, columns)})")
                marks = ", ".join("?" * len(columns))
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})",  # noqa: S608 - names from above
                    self._rows[table],
                )
            connection.commit()
        finally:
            connection.close()


def _columns(schema: str) -> dict[str, list[_Column]]:
    found = {}
    for title, text in _TABLES.items():
        table, _, since = title.partition("@")
        if _holds(schema, since):
            matches = [_COLUMN.fullmatch(part) for part in text.split()]
            found[table] = [
                _Column(match[1], _TYPES[match[2]], bool(match[3]))
                for match in matches
                if match is not None and _holds(schema, match[4])
            ]
    return found


def _holds(schema: str, since: str | None) -> bool:
    """Tell whether a schema is new enough; "-3" means older than 3."""
    if not since:
        return True
    older = since.startswith("-")
    return (_numbers(schema) < _numbers(since.lstrip("-"))) == older


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _default(column: _Column) -> object:
    if not column.required:
        return None
    return "" if column.type == "TEXT" else 0


def _definition(table: str, columns: list[_Column]) -> str:
    keyed = table.startswith(_KEYS)
    return ", ".join(
        f"{one.name} {one.type}"
        + " NOT NULL" * (one.required or (keyed and one.name == "id"))
        + " PRIMARY KEY" * (keyed and one.name == "id")
        for one in columns
    )

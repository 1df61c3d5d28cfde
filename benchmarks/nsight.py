"""Generate a big Nsight Systems export, and measure what reading it costs.

The run is a made-up FSDP2 training of eight processes in one file, profiled with `emit_nvtx`: per
kernel two or three ranges of operators (which a reader does not need), per collective torch's range
and NCCL's, with payloads. Tables and columns are those of schema 3.24, without indexes, as exports
are.

    python benchmarks/nsight.py                      # generate once, measure with and without Arrow
    python benchmarks/nsight.py export.sqlite --repeat 5
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import struct
import sys
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measure import WORK, Contender, measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    Row = tuple[object, ...]

_VM = 1 << 48
_EPOCH = 1_780_000_000 * 10**9
_NCCL_DOMAIN = 1
_COMMUNICATOR = 0x8A10BB22C215AD84
_SCHEMA = 1 << 24
_ID_FIELD, _SIZE_FIELD = ("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8)
_PAYLOADS: dict[int, tuple[int, list[tuple[str, int, int | None]]]] = {
    4: (16, [_ID_FIELD, _SIZE_FIELD]),
    7: (24, [_ID_FIELD, _SIZE_FIELD, ("Reduction operation", _SCHEMA + 16, 16)]),
    11: (24, [_ID_FIELD, ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)]),
}
_KERNEL = (
    "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName"
    " shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX"
    " blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal"
    " gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone"
    " qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy"
    " maxPotentialClusterSize maxActiveClusters"
)
_COLUMNS = {
    "StringIds": "id value:TEXT",
    "META_DATA_EXPORT": "name:TEXT value:TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_GPU": "id name:TEXT cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId payloadSize",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx type name:TEXT offset",
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL,
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId returnValue callchainId"
    ),
    "NVTX_EVENTS": (
        "start end eventType rangeId category color text:TEXT globalTid endGlobalTid textId"
        " domainId uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId"
        " jsonText:TEXT binaryData:TEXT"
    ),
}
_NAMES = (
    "cudaLaunchKernel_v7000",
    "cuLaunchKernelEx",
    "ncclCommInitRankConfig",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_AllGather_RING_LL",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    *(f"void at::native::kernel_{n}<c10::BFloat16>(int, c10::BFloat16 const*)" for n in range(40)),
    *(f"kernel_{n}" for n in range(40)),
)
_ID = {name: number for number, name in enumerate(_NAMES, 1)}
_OPERATORS = ("aten::linear", "aten::addmm", "aten::mul", "aten::add", "aten::copy_", "aten::view")


@dataclass(frozen=True)
class Plan:
    """What to write; the properties are the totals a right reader finds."""

    processes: int = 8
    steps: int = 10
    layers: int = 32
    kernels_a_layer: int = 407
    seed: int = 1

    @property
    def kernels(self) -> int:
        """Kernels in the file, collectives included."""
        return self.processes * self.steps * self.layers * (self.kernels_a_layer + 3)

    @property
    def message_bytes(self) -> int:
        """Bytes a rank gathers and scatters in a step, full buffers."""
        return self.layers * (2 * _GATHERED + _SCATTERED) * self.processes


_GATHERED, _SCATTERED = 25_165_824, 2 * 25_165_824  # bytes of one rank's part


class _Process(NamedTuple):
    """One rank's place in the file."""

    rank: int

    @property
    def pid(self) -> int:
        return 4000 + 13 * self.rank

    @property
    def process(self) -> int:
        return _VM | self.pid << 24

    @property
    def main(self) -> int:
        return self.process | self.pid

    @property
    def autograd(self) -> int:
        return self.process | self.pid + 7


def write(path: Path, plan: Plan) -> None:
    """Write the file anew."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        for table, columns in _COLUMNS.items():
            shown = ", ".join(_definition(column) for column in columns.split())
            database.execute(f"CREATE TABLE {table} ({shown})")
        _fill(database, "StringIds", ((number, name) for name, number in _ID.items()))
        _add_facts(database, plan)
        for rank in range(plan.processes):
            _add_process(database, plan, _Process(rank))
        database.commit()


def _definition(column: str) -> str:
    name, _, kind = column.partition(":")
    return f'"{name}" {kind or "INTEGER"}' + (" PRIMARY KEY" if name == "id" else "")


def _fill(database: sqlite3.Connection, table: str, rows: Iterator[Row] | list[Row]) -> None:
    marks = ", ".join("?" * len(_COLUMNS[table].split()))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608


def _add_facts(database: sqlite3.Connection, plan: Plan) -> None:
    _fill(database, "META_DATA_EXPORT", [("SYNTHETIC", "true: written by benchmarks/nsight.py")])
    _fill(database, "TARGET_INFO_SESSION_START_TIME", [(_EPOCH, "", "")])
    for rank in range(plan.processes):
        _fill(database, "TARGET_INFO_GPU", [(rank, "NVIDIA H100 80GB HBM3", rank)])
        _fill(database, "TARGET_INFO_CUDA_DEVICE", [(rank, rank, _Process(rank).pid)])
        for number, (size, fields) in _PAYLOADS.items():
            schema = _SCHEMA + number
            _fill(database, "NVTX_PAYLOAD_SCHEMAS", [(_NCCL_DOMAIN, schema, size)])
            for index, (name, kind, offset) in enumerate(fields):
                row = (_NCCL_DOMAIN, schema, index, kind, name, offset)
                _fill(database, "NVTX_PAYLOAD_SCHEMA_ENTRIES", [row])


def _add_process(database: sqlite3.Connection, plan: Plan, process: _Process) -> None:
    rows = _Rows(plan, process)
    for _ in rows.run():
        for table, pending in rows.pending.items():
            _fill(database, table, pending)
            pending.clear()


class _Rows:
    """The rows of one process, a layer at a time."""

    def __init__(self, plan: Plan, process: _Process) -> None:
        self.plan, self.process = plan, process
        self.random = random.Random(plan.seed * 1000 + process.rank)
        self.pending: dict[str, list[Row]] = {
            "CUPTI_ACTIVITY_KIND_KERNEL": [],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [],
            "NVTX_EVENTS": [],
        }
        self.host, self.compute, self.comm = 10_000_000, 10_100_000, 10_100_000
        self.correlation, self.operator = count(1), count(1)

    def run(self) -> Iterator[None]:
        """Add one layer after the other; forward first, then backward."""
        self._domain()
        halves = [False] * self.plan.layers + [True] * self.plan.layers
        for step in range(self.plan.steps):
            begin = self.host
            for backward in halves:
                self._layer(backward)
                yield
            self._range(begin, self.host, f"step {step}", self.process.main)
            yield

    def _domain(self) -> None:
        main = self.process.main
        self._nvtx(0, None, 75, "NCCL", main, None, _NCCL_DOMAIN, None)
        rank = (self.plan.processes, self.process.rank, self.process.rank)
        body = struct.pack("<Qiii4x", _COMMUNICATOR, *rank)
        head = struct.pack("<4Q", _NCCL_DOMAIN, _SCHEMA + 11, len(body), 32)
        name = _ID["ncclCommInitRankConfig"]
        self._nvtx(1_000, 2_000_000, 59, None, main, name, _NCCL_DOMAIN, head + body)

    def _layer(self, backward: bool) -> None:
        thread = self.process.autograd if backward else self.process.main
        self._collective("AllGather", "nccl:_all_gather_base", 4, thread, 6_000)
        for _ in range(self.plan.kernels_a_layer // 2 + (self.plan.kernels_a_layer % 2) * backward):
            self._kernel(thread)
        if backward:
            self._collective("ReduceScatter", "nccl:_reduce_scatter_base", 7, thread, 11_000)

    def _kernel(self, thread: int) -> None:
        begin, number = self.host, self.random.randrange(40)
        length = self.random.randrange(2_000, 9_000)
        self._launch(thread, begin + 700, "cudaLaunchKernel_v7000")
        self.compute = max(self.compute, self.host + 3_000)
        demangled, short = _ID[_NAMES[9 + number]], _ID[_NAMES[49 + number]]
        self._device(self.compute, self.compute + length, 7, demangled, short)
        self.compute += length
        for depth in range(3 if self.random.random() < 0.3 else 2):
            name = f"{self.random.choice(_OPERATORS)}, op_id = {next(self.operator)}"
            self._range(begin + 200 * depth, self.host + 600 - 200 * depth, name, thread)
        self.host += 900

    def _collective(self, call: str, torch: str, schema: int, thread: int, length: int) -> None:
        begin = self.host
        self._launch(thread, begin + 2_000, "cuLaunchKernelEx")
        start = max(self.comm, self.host + 4_000)
        full = next(n for n in _NAMES if n.startswith(f"ncclDevKernel_{call}") and "(" in n)
        self._device(start, start + length, 20, _ID[full], _ID[full.partition("(")[0]])
        self.comm = start + length
        size = _GATHERED if schema == 4 else _SCATTERED
        body = struct.pack("<QQ", _COMMUNICATOR, size) + (bytes(8) if schema == 7 else b"")
        head = struct.pack("<4Q", _NCCL_DOMAIN, _SCHEMA + schema, len(body), 32)
        self._nvtx(
            begin + 1_000, self.host + 500, 59, None, thread, _ID[f"nccl{call}"], _NCCL_DOMAIN,
            head + body,
        )  # fmt: skip
        self._range(begin, self.host + 1_000, f"{torch}, op_id = {next(self.operator)}", thread)
        self.host += 1_500

    def _launch(self, thread: int, at: int, name: str) -> None:
        self.host = at + 4_000
        self.number = next(self.correlation)
        self.pending["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            (at, self.host, 0, thread, self.number, _ID[name], 0, None)
        )

    def _device(self, start: int, end: int, stream: int, name: int, short: int) -> None:
        self.pending["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            (start, end, self.process.rank, 1, 0, stream, self.number, self.process.process, name,
             short, None, 1, 1, 96, 132, 1, 1, 384, 1, 1, 0, 65536, 0, 4325376, self.number, 65536,
             None, 0, None, None, None, None, 0, 0, 0, 1, 0, 0)
        )  # fmt: skip

    def _range(self, start: int, end: int, text: str, thread: int) -> None:
        self._nvtx(start, end, 59, text, thread, None, 0, None)

    def _nvtx(
        self,
        start: int,
        end: int | None,
        kind: int,
        text: str | None,
        thread: int,
        text_id: int | None,
        domain: int,
        blob: bytes | None,
    ) -> None:
        self.pending["NVTX_EVENTS"].append(
            (start, end, kind, None, None, None, text, thread, None, text_id, domain, None, None,
             None, None, None, None, None, None, blob)
        )  # fmt: skip


# measuring ---------------------------------------------------------------------------------------

_WITHOUT_ARROW = "import sys; sys.modules['tracelens_nsight.adbc'] = None; "
_LOAD = "import sys, tracelens; tracelens.load(sys.argv[1])"
_ANALYZE = "import sys, tracelens; tracelens.analyze(sys.argv[1])"


def contenders() -> list[Contender]:
    """Return the ways to read an export, with and without the extra `nsight`."""
    python = sys.executable
    found = []
    for how, before in (("standard library", _WITHOUT_ARROW), ("extra `nsight`", "")):
        for what, code in (("analyze", _ANALYZE), ("load", _LOAD)):
            name = f"`tracelens.{what}`, {how}"
            found.append(Contender(name, (python, "-c", before + code, "{path}")))
    return [
        *found,
        Contender("`tracelens inspect`", (python, "-m", "tracelens", "inspect", "{path}")),
    ]


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", type=Path, nargs="*", help="default: a generated export")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    generated = WORK / "nsight.sqlite"
    if not asked.paths and not generated.exists():
        write(generated, Plan())
    for path in asked.paths or [generated]:
        print(f"\n### {path.name}: {path.stat().st_size / 1e6:,.0f} MB\n")
        print("| | CPU s | wall s | peak RSS MB |\n|---|---:|---:|---:|")
        for contender in contenders():
            cost, _ = measure(contender, path, 1, asked.repeat)
            cells = f"{cost.cpu:.2f} | {cost.wall:.2f} | {cost.memory_mb:,.0f}"
            print(f"| {contender.name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

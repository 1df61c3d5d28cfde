"""Build Kineto trace files, in every schema real files come in (2020 to 2026).

    Trace(rank=0, world=2).step(10, 1000, 1000).kernel("gemm", 1100, 300).all_reduce(1500, 300)

Times are microseconds on the trace's own clock: ints, or strings like "100.7" for nanoseconds.
Every method returns the builder. What a file looks like is the `Schema`'s business alone.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens.reduction import Selection, reduce_rank
from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from tracelens.model.trace import RankTrace
    from tracelens.reduced import RankReduction

Us = int | str | Decimal
Args = dict[str, Any]
EPOCH_US = 1_767_225_600_000_000
LEAD = 20  # a launch call stands so many microseconds before its kernel, unless told otherwise
AUTO = "auto"  # the usual launch time; None: there is no launch call in the file


class Literally(str):
    """Text that goes into the JSON as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class Schema:
    """How a file is laid out.

    Attributes:
        torch: Which release's collective arguments: 2.1, 2.2, 2.3, 2.4, 2.5 or 2.12.
        times: How microseconds are printed; "epoch" adds no base time but absolute values, "whole"
            has no fractions, as torch wrote before 2.0.
        root: One object, or the legacy profiler's bare array.
        info: Where the root's other keys stand.
    """

    torch: Literal["2.1", "2.2", "2.3", "2.4", "2.5", "2.12"] = "2.12"
    times: Literal[
        "relative", "epoch", "text", "epoch text", "exponent", "whole", "epoch whole"
    ] = "relative"
    root: Literal["object", "array"] = "object"
    info: Literal["before", "after"] = "before"
    capitals: bool = False  # Kernel, Runtime, Operator ... of torch <= 1.11
    lower_external: bool = False  # "external id"
    text_ids: bool = False  # pid "4012", stream "7", correlation "101"
    minified: bool = False
    rocm: bool = False

    @property
    def absolute(self) -> bool:
        return self.times.startswith("epoch")


_CAPITALS = {
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "cuda_runtime": "Runtime",
    "cpu_op": "Operator",
    "user_annotation": "Operator",
}
_KERNEL_NAMES = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "barrier": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Group:
    """A process group, as pg_config and the collective arguments describe it."""

    ranks: tuple[int, ...]
    name: str = "0"
    description: str = "default_pg"

    def config(self) -> dict[str, Any]:
        return {
            "pg_name": self.name,
            "pg_desc": self.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(self.ranks),
            "ranks": list(self.ranks),
        }


@dataclass
class Trace:
    """A trace file under construction."""

    rank: int | None = 0
    world: int = 2
    schema: Schema = field(default_factory=Schema)
    base_ns: int = EPOCH_US * 1000
    pid: int = 4012
    groups: tuple[Group, ...] | None = None
    keys: dict[str, Any] = field(default_factory=dict)  # further keys of the root
    events: list[str] = field(default_factory=list)
    _last_id: int = 100

    # host ------------------------------------------------------------------------------------

    def step(self, number: int, start: Us, duration: Us, thread: int = 1) -> Trace:
        return self.mark(f"ProfilerStep#{number}", start, duration, thread)

    def mark(
        self, name: str, start: Us, duration: Us, thread: int = 1, args: Args | None = None
    ) -> Trace:
        return self.event("user_annotation", name, start, duration, tid=thread, args=args)

    def operator(
        self, name: str, start: Us, duration: Us, thread: int = 1, args: Args | None = None
    ) -> Trace:
        return self.event("cpu_op", name, start, duration, tid=thread, args=args)

    def call(
        self,
        name: str,
        start: Us,
        duration: Us = 5,
        correlation: int | None = None,
        thread: int = 1,
    ) -> Trace:
        args = {} if correlation is None else {"correlation": self._id(correlation)}
        return self.event("cuda_runtime", name, start, duration, tid=thread, args=args)

    # device ----------------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        start: Us,
        duration: Us | None,
        stream: int = 7,
        launch: Us | None = AUTO,
        device: int = 0,
        thread: int = 1,
        correlation: int | None = None,
        args: Args | None = None,
    ) -> Trace:
        """Add a kernel and, unless `launch` is None, the runtime call that launched it."""
        call = ("hipModuleLaunchKernel" if self.schema.rocm else "cudaLaunchKernel", thread)
        args = {"device": device, "stream": self._id(stream), **(args or {})}
        return self._device("kernel", name, start, duration, launch, call, correlation, args)

    def copy(
        self,
        start: Us,
        duration: Us,
        kind: str = "HtoD",
        launch: Us | None = AUTO,
        args: Args | None = None,
    ) -> Trace:
        name = f"Memcpy {kind} (Pinned -> Device)"
        args = {"device": 0, "stream": self._id(8), "bytes": 1024, **(args or {})}
        call = ("hipMemcpyAsync" if self.schema.rocm else "cudaMemcpyAsync", 1)
        return self._device("gpu_memcpy", name, start, duration, launch, call, None, args)

    def memset(self, start: Us, duration: Us, launch: Us | None = AUTO) -> Trace:
        args = {"device": 0, "stream": self._id(7), "bytes": 64}
        call = ("cudaMemsetAsync", 1)
        return self._device(
            "gpu_memset", "Memset (Device)", start, duration, launch, call, None, args
        )

    def graph(self, launch: Us, kernels: list[tuple[str, Us, Us]], graph: int = 3) -> Trace:
        """Add a CUDA graph launch: its kernels share one correlation and have no operator."""
        correlation = self.next_id()
        self.call("cudaGraphLaunch", launch, correlation=correlation)
        for name, start, duration in kernels:
            args = {"graph id": graph, "graph node id": self.next_id()}
            self.kernel(name, start, duration, launch=None, correlation=correlation, args=args)
        return self

    def gpu_annotation(self, name: str, start: Us, duration: Us, stream: int = 7) -> Trace:
        return self.event(
            "gpu_user_annotation", name, start, duration, pid=0, tid=stream, args={"stream": stream}
        )

    # collectives -----------------------------------------------------------------------------

    def all_reduce(self, start: Us, duration: Us, elems: int = 1 << 20, **options: Any) -> Trace:
        return self.collective("allreduce", start, duration, elems, elems, **options)

    def all_gather(self, start: Us, duration: Us, shard: int, **options: Any) -> Trace:
        return self.collective(
            "_allgather_base", start, duration, shard, shard * self.world, **options
        )

    def reduce_scatter(self, start: Us, duration: Us, shard: int, **options: Any) -> Trace:
        name = "_reduce_scatter_base"
        return self.collective(name, start, duration, shard * self.world, shard, **options)

    def collective(
        self,
        name: str,
        start: Us,
        duration: Us,
        in_elems: int,
        out_elems: int,
        *,
        kernel: str | None = None,
        kernels: int = 1,
        link: Literal["args", "external", "time", "none"] = "args",
        stream: int = 20,
        launch: Us | None = AUTO,
        thread: int = 1,
        device: int = 0,
        **options: Any,
    ) -> Trace:
        """Add a collective: its record on the host and its kernel(s), one after the other.

        Args:
            link: How the kernel says what it is: collective arguments, the External id of its
                record, standing in the record by launch time only, or not at all (no record).
            options: For `comm_args`: dtype, group, splits, peer ...
        """
        external = self.next_id()
        at = _plus(start, -LEAD) if launch == AUTO else launch
        args = self.comm_args(name, in_elems, out_elems, **options)
        if link != "none" and at is not None:
            self.record(name, _plus(at, -5), 30, external=external, thread=thread, args=args)
        names = kernel or _KERNEL_NAMES.get(name, SEND_RECV)
        own = {} if link in ("time", "none") else {self._external_key: self._id(external)}
        if link == "args":
            own |= self._on_kernel(args)
        for index in range(kernels):
            begin = _plus(start, index * Decimal(duration))
            self.kernel(names, begin, duration, stream, at, device, thread, args=own)
        return self

    def record(
        self,
        name: str,
        start: Us,
        duration: Us = 30,
        *,
        external: int | None = None,
        thread: int = 1,
        args: dict[str, Any] | None = None,
        **options: Any,
    ) -> Trace:
        """Add a `record_param_comms` without a kernel."""
        values = args if args is not None else self.comm_args(name, 0, 0, **options)
        own = {self._external_key: self._id(self.next_id() if external is None else external)}
        return self.event(
            "cpu_op", "record_param_comms", start, duration, tid=thread, args=values | own
        )

    def point_to_point(
        self, start: Us, duration: Us, messages: list[tuple[str, int, int]], launch: Us = AUTO
    ) -> Trace:
        """Add a batch (`batch_isend_irecv`): records first, then one kernel with no arguments.

        Args:
            messages: ("send" or "recv", peer, elements).
        """
        at = _plus(start, -LEAD) if launch == AUTO else launch
        first = -10 * len(messages) - 10
        for index, (kind, peer, elems) in enumerate(messages):
            args = self.comm_args(kind, elems, elems, peer=peer)
            self.record(kind, _plus(at, first + 10 * index), 8, args=args)
            self.mark(f"nccl:{kind} {self.rank}->{peer}", _plus(at, first + 10 * index + 1), 6)
        self.mark("nccl:coalesced", _plus(at, first - 5), Decimal(-first) + 20)
        return self.kernel(SEND_RECV, start, duration, 20, at)

    def gloo(
        self,
        operator: str,
        start: Us,
        duration: Us,
        dims: list[Any],
        *,
        annotated: str,
        enqueued: Us | None = AUTO,
        loop_thread: int = 90,
        dtype: str = "float",
        types: list[str] | None = None,
    ) -> Trace:
        """Add a CPU collective: the c10d operator that enqueued it and the backend's own range."""
        at = _plus(start, -LEAD) if enqueued == AUTO else enqueued
        if at is not None:
            args = {"Input Dims": dims, "Input type": types or [dtype] * len(dims)}
            self.operator(f"c10d::{operator}", at, 10, args=args)
        tensor = _first_tensor(dims)
        return self.mark(
            f"gloo:{annotated}",
            start,
            duration,
            loop_thread,
            {"Input Dims": [tensor], "Input type": [dtype]},
        )

    def comm_args(
        self,
        name: str,
        in_elems: int,
        out_elems: int,
        *,
        dtype: str = "BFloat16",
        group: Group | None = None,
        in_splits: list[int] | str = "[]",
        out_splits: list[int] | str = "[]",
        peer: int | None = None,
        seq: int | None = None,
        dims: list[Any] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of record_param_comms in the schema's torch release."""
        used = group or Group(tuple(range(self.world)))
        release = float(self.schema.torch.replace("2.12", "2.95"))
        args: dict[str, Any] = {}
        if dims is not None:
            args = {"Input Dims": dims, "Input type": [dtype] * len(dims)}
        if release < 2.2:
            return args
        word = "size" if release < 2.3 else "nelems"
        args |= {"Collective name": name, "dtype": dtype, "Group size": len(used.ranks)}
        args |= {f"In msg {word}": in_elems, f"Out msg {word}": out_elems}
        if release >= 2.3:
            args |= {"In split size": str(in_splits), "Out split size": str(out_splits)}
        if release >= 2.4:
            args |= {
                "Process Group Name": used.name,
                "Process Group Description": used.description,
                "Process Group Ranks": _cut(used.ranks),
            }
        if release >= 2.5 and peer is not None:
            args |= {"Rank": peer, "Dst Rank" if name == "send" else "Src Rank": peer}
        if release >= 2.95:
            args |= {"Seq": seq or 0, "Comms Id": "12345678901234567890"}
        return args

    def _on_kernel(self, args: dict[str, Any]) -> dict[str, Any]:
        # Kineto copied no name before 2.4, and nothing at all before 2.2.
        hidden = {"Input Dims", "Input type"}
        if self.schema.torch in ("2.2", "2.3"):
            hidden.add("Collective name")
        return {key: value for key, value in args.items() if key not in hidden}

    # raw material ----------------------------------------------------------------------------

    def event(
        self,
        category: str,
        name: str,
        start: Us,
        duration: Us | None,
        *,
        pid: int | str | None = None,
        tid: int | str = 1,
        args: dict[str, Any] | None = None,
    ) -> Trace:
        shown = _CAPITALS.get(category, category) if self.schema.capitals else category
        fields: dict[str, Any] = {"ph": "X", "cat": shown, "name": name}
        fields |= {"pid": self._id(self.pid if pid is None else pid), "tid": tid}
        fields["ts"] = self._time(start, absolute=self.schema.absolute)
        if duration is not None:
            fields["dur"] = self._time(duration, absolute=False)
        return self.raw(self._json(fields | {"args": args or {}}))

    def raw(self, text: str) -> Trace:
        """Add an event as JSON text, damaged or not."""
        self.events.append(text)
        return self

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _device(
        self,
        category: str,
        name: str,
        start: Us,
        duration: Us | None,
        launch: Us | None,
        call: tuple[str, int],
        correlation: int | None,
        args: dict[str, Any],
    ) -> Trace:
        correlation = self.next_id() if correlation is None else correlation
        if launch is not None:
            at = _plus(start, -LEAD) if launch == AUTO else launch
            self.call(call[0], at, correlation=correlation, thread=call[1])
        args = {"correlation": self._id(correlation), **args}
        device = args["device"]
        return self.event(
            category, name, start, duration, pid=device, tid=int(args["stream"]), args=args
        )

    @property
    def _external_key(self) -> str:
        return "external id" if self.schema.lower_external else "External id"

    def _id(self, value: int | str) -> int | str:
        return str(value) if self.schema.text_ids else value

    def _time(self, us: Us, *, absolute: bool) -> Literally:
        value = Decimal(str(us)) + (EPOCH_US if absolute else 0)
        if self.schema.times == "exponent":
            return Literally(f"{value:.20e}")
        if self.schema.times.endswith("whole"):
            return Literally(f"{value:.0f}")
        text = f"{value:.3f}"
        return Literally(f'"{text}"' if self.schema.times.endswith("text") else text)

    def _json(self, fields: dict[str, Any]) -> str:
        colon = ":" if self.schema.minified else ": "
        comma = "," if self.schema.minified else ",\n    "
        texts = {k: v if isinstance(v, Literally) else json.dumps(v) for k, v in fields.items()}
        parts = [f"{json.dumps(key)}{colon}{text}" for key, text in texts.items()]
        return "{" + comma.join(parts) + "}"

    # the file --------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """Return the root's keys other than traceEvents."""
        device = {"id": 0, "name": "AMD Instinct MI300X" if self.schema.rocm else "ACME G90 80GB"}
        device |= {"warpSize": 64 if self.schema.rocm else 32}
        keys: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [device]}
        if self.rank is not None:
            keys["distributedInfo"] = {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world,
                "pg_config": [group.config() for group in self._groups()],
                "nccl_version": "2.27.5",
            }
        if not self.schema.absolute:
            keys["baseTimeNanoseconds"] = self.base_ns
        return keys | self.keys

    def _groups(self) -> tuple[Group, ...]:
        return self.groups if self.groups is not None else (Group(tuple(range(self.world))),)

    def text(self) -> str:
        """Return the file's text."""
        comma = "," if self.schema.minified else ",\n  "
        array = f"[{comma.join(self.events)}]"
        if self.schema.root == "array":
            return array
        keys = self._json(self.header())[1:-1]
        parts = [keys, f'"traceEvents": {array}']
        if self.schema.info == "after":
            parts.reverse()
        return "{" + ", ".join(parts) + "}\n"

    def bytes(self) -> bytes:
        return self.text().encode()

    def write(self, path: Path, *, gz: bool = False) -> Path:
        data = self.bytes()
        path.write_bytes(gzip.compress(data, 1) if gz else data)
        return path

    def parse(self) -> RankTrace:
        """Return what the parser makes of the file; validated."""
        return parse_bytes(self.bytes())

    def reduce(self, selection: Selection | None = None) -> RankReduction:
        return reduce_rank(self.parse(), selection or Selection())


def parse_bytes(data: bytes, name: str = "trace.json") -> RankTrace:
    """Parse the bytes of a file; what the parser returns is validated."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        (trace,) = KinetoParser().parse(path)
    trace.validate()
    return trace


def _plus(us: Us, more: int | Decimal) -> str:
    return str(Decimal(str(us)) + more)


def _cut(ranks: tuple[int, ...]) -> str:
    """Print ranks as torch does: at most 30 of them."""
    shown = ", ".join(str(rank) for rank in ranks[:30])
    return f"[{shown}{', ...' if len(ranks) > 30 else ''}]"


def _first_tensor(dims: list[Any]) -> Any:
    first: Any = next((d for d in dims if d), [])
    return first[0] if first and isinstance(first[0], list) else first

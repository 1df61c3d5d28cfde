"""Build recordings by hand, call by call, without the simulator's engine.

    run = Run(4)
    with run.step(1):
        run.compute(51_003)
        run.collective("all_reduce", 1 << 20)
    recording = run.recording()

Host and streams keep a cursor per rank, so what is added comes after what is there. Lengths are odd
on purpose: a writer that loses nanoseconds shows.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.simulate.recording import (
    MAIN,
    Clock,
    Communication,
    DeviceEvent,
    Group,
    Launch,
    Range,
    RecordedRank,
    Recording,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

COMPUTE_STREAM, COMMUNICATION_STREAM, MESSAGE_STREAM = 7, 20, 24
CALL = 4_001  # ns of host time a launch takes
RECORD = 21_007  # ... and a record_param_comms
DELAY = 6_011  # from the launch to the kernel at the earliest
TRANSFER = 90_013  # of a collective, once all have arrived
AUTOGRAD = MAIN + 1
_NAMES = {
    "all_reduce": "AllReduce_Sum_{type}_RING_LL",
    "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_{type}_RING_LL",
    "broadcast": "Broadcast_RING_LL",
}
_TYPES = {"BFloat16": "bf16", "Float": "f32", "Long": "i64"}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def kernel_of(op: str, dtype: str) -> str:
    """Return the name of NCCL's kernel, which tells the type of reductions only."""
    if op not in _NAMES:
        return SEND_RECV
    name = _NAMES[op].format(type=_TYPES[dtype])
    return f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"


def world(size: int) -> Group:
    return Group("0", "default_pg", tuple(range(size)))


@dataclass
class _Cursor:
    host: int = 1_003
    streams: dict[int, int] = field(default_factory=dict)
    correlation: int = 0
    batch: int = 0


@dataclass(frozen=True)
class _Kernel:
    launch: Launch | None
    carried: tuple[int, ...]

    @property
    def launched(self) -> Launch:
        assert self.launch is not None
        return self.launch


class Run:
    """A recording under construction."""

    def __init__(
        self,
        size: int = 2,
        groups: Iterable[Group] = (),
        clocks: Mapping[int, Clock] | None = None,
        per_node: int = 8,
    ) -> None:
        self.groups = [world(size), *groups]
        self._ranks = [
            RecordedRank(
                rank,
                f"node{rank // per_node}",
                4_000 + 7 * rank,
                rank % per_node,
                (clocks or {}).get(rank, Clock()),
            )
            for rank in range(size)
        ]
        self._cursors = [_Cursor() for _ in self._ranks]
        self._instance = 0
        self._seqs: dict[tuple[int, int, bool], int] = {}
        self.thread = MAIN

    def recording(self) -> Recording:
        for rank in self._ranks:
            rank.device_events.sort(key=lambda event: event.start)
        return Recording(self._ranks, self.groups, seed=3, options={"layout": "by hand"})

    # ranges ------------------------------------------------------------------------------------

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        with self.range(f"ProfilerStep#{number}", "step"):
            yield
            for rank in range(len(self._ranks)):
                self._synchronize(rank)

    @contextmanager
    def range(self, name: str, kind: str = "annotation") -> Iterator[None]:
        """Enclose what is added meanwhile, on all ranks."""
        starts = [cursor.host for cursor in self._cursors]
        for cursor in self._cursors:
            cursor.host += 107
        yield
        for rank, cursor, start in zip(self._ranks, self._cursors, starts, strict=True):
            rank.ranges.append(Range(kind, name, start, cursor.host, self.thread))
            cursor.host += 113
            rank.ranges.sort(key=lambda one: (one.start, -one.end))

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Launch from autograd's thread meanwhile."""
        self.thread = AUTOGRAD
        yield
        self.thread = MAIN

    # device ------------------------------------------------------------------------------------

    def compute(
        self, length: int = 51_003, ranks: Iterable[int] | None = None, name: str = "nvjet_gemm"
    ) -> Run:
        for rank in self._all(ranks):
            tid, start = self.thread, self._cursors[rank].host
            launch = self._launch(rank, "cuLaunchKernelEx")
            end = self._cursors[rank].host
            self._ranks[rank].ranges.append(Range("operator", "aten::mm", start, end, tid))
            self._device(rank, launch, "kernel", name, COMPUTE_STREAM, length)
        return self

    def copy(self, size: int = 4096, ranks: Iterable[int] | None = None) -> Run:
        for rank in self._all(ranks):
            launch = self._launch(rank, "cudaMemcpyAsync")
            self._device(
                rank, launch, "copy", "Memcpy HtoD (Pinned -> Device)", COMPUTE_STREAM, 3_001,
                copy_bytes=size,
            )  # fmt: skip
        return self

    def memset(self, ranks: Iterable[int] | None = None) -> Run:
        for rank in self._all(ranks):
            launch = self._launch(rank, "cudaMemsetAsync")
            self._device(
                rank, launch, "memset", "Memset (Device)", COMPUTE_STREAM, 1_001, copy_bytes=64
            )
        return self

    # communication -----------------------------------------------------------------------------

    def collective(
        self,
        op: str,
        elems: int = 1 << 20,
        group: int = 0,
        dtype: str = "BFloat16",
        splits: Sequence[Sequence[int]] | None = None,
    ) -> Run:
        """Add a collective of all members; `elems` counts the full buffer.

        Args:
            splits: Of an uneven all-to-all: what each member sends to each.
        """
        members = self.groups[group].ranks
        shard = elems // len(members)
        kernels = {}
        for place, rank in enumerate(members):
            sent = tuple(splits[place]) if splits else None
            in_elems = shard if op == "all_gather" else sum(sent) if sent else elems
            received = sum(row[place] for row in splits) if splits else elems
            out_elems = shard if op == "reduce_scatter" else received
            kernels[rank] = self._record(
                rank, op, group, dtype, in_elems, out_elems, in_splits=sent
            )
        self._instance += 1
        self._together(kernels, kernel_of(op, dtype), COMMUNICATION_STREAM)
        return self

    def message(self, source: int, target: int, elems: int = 4096, group: int = 0) -> Run:
        """Add a send and its receive, each with a kernel of its own."""
        kernels = {
            rank: self._record(rank, op, group, "BFloat16", elems, elems, peer=peer)
            for rank, op, peer in ((source, "send", target), (target, "recv", source))
        }
        self._instance += 1
        self._together(kernels, SEND_RECV, MESSAGE_STREAM)
        return self

    def exchange(self, one: int, other: int, elems: int = 4096, group: int = 0) -> Run:
        """Add a batch on both ranks: each sends to the other and receives, in one kernel."""
        instances = {one: self._instance, other: self._instance + 1}
        self._instance += 2
        kernels = {}
        for rank, peer in ((one, other), (other, one)):
            cursor = self._cursors[rank]
            carried = [
                self._record(
                    rank, op, group, "BFloat16", elems, elems,
                    peer=peer, batch=cursor.batch, instance=instance,
                ).carried[0]
                for op, instance in (("send", instances[rank]), ("recv", instances[peer]))
            ]  # fmt: skip
            cursor.batch += 1
            kernels[rank] = _Kernel(self._launch(rank, "cuLaunchKernelEx"), tuple(carried))
        self._together(kernels, SEND_RECV, MESSAGE_STREAM)
        return self

    # parts -------------------------------------------------------------------------------------

    def _record(
        self,
        rank: int,
        op: str,
        group: int,
        dtype: str,
        in_elems: int,
        out_elems: int,
        *,
        peer: int | None = None,
        batch: int | None = None,
        in_splits: tuple[int, ...] | None = None,
        instance: int | None = None,
    ) -> _Kernel:
        """Add a record; its own launch is inside, that of a batch comes later."""
        cursor, recorded = self._cursors[rank], self._ranks[rank]
        start = cursor.host
        cursor.host += RECORD // 3
        launch = self._launch(rank, "cuLaunchKernelEx") if batch is None else None
        cursor.host = start + RECORD
        key = (rank, group, peer is not None)
        seq = self._seqs.get(key, 0)
        self._seqs[key] = seq + 1
        recorded.communications.append(
            Communication(
                op, group, dtype, in_elems, out_elems, start, cursor.host, self.thread, seq,
                peer, batch, in_splits, self._instance if instance is None else instance,
            )
        )  # fmt: skip
        cursor.host += 503
        return _Kernel(launch, (len(recorded.communications) - 1,))

    def _launch(self, rank: int, name: str) -> Launch:
        cursor, recorded = self._cursors[rank], self._ranks[rank]
        cursor.correlation += 1
        launch = Launch(name, cursor.correlation, cursor.host, cursor.host + CALL, self.thread)
        recorded.launches.append(launch)
        cursor.host += CALL + 211
        return launch

    def _device(
        self,
        rank: int,
        launch: Launch,
        kind: str,
        name: str,
        stream: int,
        length: int,
        copy_bytes: int | None = None,
    ) -> None:
        cursor = self._cursors[rank]
        start = max(launch.start + DELAY, cursor.streams.get(stream, 0))
        cursor.streams[stream] = start + length
        self._ranks[rank].device_events.append(
            DeviceEvent(
                kind, name, stream, start, start + length, launch.correlation, (), copy_bytes
            )
        )

    def _together(self, kernels: Mapping[int, _Kernel], name: str, stream: int) -> None:
        """Start each member's kernel when it can, and end all when the last one has arrived."""
        starts = {}
        for rank, kernel in kernels.items():
            free = self._cursors[rank].streams
            ready = max(free.get(stream, 0), free.get(COMPUTE_STREAM, 0))
            starts[rank] = max(kernel.launched.start + DELAY, ready)
        end = max(starts.values()) + TRANSFER
        for rank, kernel in kernels.items():
            self._cursors[rank].streams[stream] = end
            event = DeviceEvent(
                "kernel", name, stream, starts[rank], end, kernel.launched.correlation,
                kernel.carried,
            )  # fmt: skip
            self._ranks[rank].device_events.append(event)

    def _synchronize(self, rank: int) -> None:
        """Wait for the device at the end of a step, as reading the loss does."""
        cursor, recorded = self._cursors[rank], self._ranks[rank]
        start = cursor.host
        cursor.host = max([start + CALL, *cursor.streams.values()]) + 307
        cursor.correlation += 1
        recorded.launches.append(
            Launch(
                "cudaStreamSynchronize", cursor.correlation, start, cursor.host,
                self.thread,
            )
        )  # fmt: skip

    def _all(self, ranks: Iterable[int] | None) -> Iterable[int]:
        return range(len(self._ranks)) if ranks is None else ranks

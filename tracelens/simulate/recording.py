"""What a simulated run leaves: every rank's events in true time, before any clock or file format.

The engine fills it, `clocks.read` turns true time into each rank's own clock, and the writers (one
a file format) turn it into files. So the same run can be written in every format.

Times are integer nanoseconds since the run began.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAIN = 0
"""The main thread of a process; autograd has threads of its own, 1 and up."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its name and description as PyTorch would list them.

    Attributes:
        name: "0", "1", ... in order of creation; "0" is the world.
        description: As Megatron or DeviceMesh spell it: `TENSOR_MODEL_PARALLEL_GROUP`, `mesh_dp`.
        ranks: Global ranks, ascending.
    """

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective or message as one rank launches it.

    Attributes:
        op: From `tracelens.operations`: all_reduce, all_gather, reduce_scatter, all_to_all,
            broadcast, send, recv.
        group: Index into `Recording.groups`.
        dtype: As `c10::toString` spells it: BFloat16, Float.
        in_elems: Elements of the input.
        out_elems: Elements of the output.
        start: When the host entered `record_param_comms`.
        end: When it left.
        thread: The host thread, 0 is the main one.
        seq: Position among the group's collectives, or among its messages, from 0.
        peer: Global rank at the other end of a message.
        batch: Number of the batch (`batch_isend_irecv`) the message belongs to: one kernel,
            launched at the end of the batch, carries all of them. None if it has its own kernel.
        in_splits: Elements per member of an all-to-all with uneven splits.
        instance: Number of the collective or message in the run: equal on all its members.
    """

    op: str
    group: int
    dtype: str
    in_elems: int
    out_elems: int
    start: int
    end: int
    thread: int
    seq: int
    peer: int | None = None
    batch: int | None = None
    in_splits: tuple[int, ...] | None = None
    instance: int = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """A runtime call on the host.

    Attributes:
        name: cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync, cudaStreamSynchronize, ...
        correlation: Unique on the rank; the device event it launched has the same.
        start: When the call began.
        end: When it returned.
        thread: The host thread, 0 is the main one.
    """

    name: str
    correlation: int
    start: int
    end: int
    thread: int


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """A kernel or copy.

    Attributes:
        kind: kernel, copy or memset.
        name: As the driver reports it.
        stream: 7 is the default stream.
        start: When it began.
        end: When it ended.
        correlation: That of its launch.
        communications: Indices into `RecordedRank.communications` of what it carries.
        copy_bytes: Bytes of a copy or memset.
        part: What it is for: forward, backward, weight (the weight gradient, where a schedule
            splits it off), gradients (data-parallel communication), parameters (gathers), pipeline
            (messages), optimizer, data.
        micro_batch: The micro-batch it works for, None outside.
        chunk: The model chunk (virtual stage) of the rank it belongs to.
    """

    kind: str
    name: str
    stream: int
    start: int
    end: int
    correlation: int
    communications: tuple[int, ...] = ()
    copy_bytes: int | None = None
    part: str = "forward"
    micro_batch: int | None = None
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """A named host range.

    Attributes:
        kind: step (`ProfilerStep#N`), annotation (record_function) or operator (`aten::mm`).
        name: Its name.
        start: When it began.
        end: When it ended.
        thread: The host thread; autograd has its own, not 0.
    """

    kind: str
    name: str
    start: int
    end: int
    thread: int


@dataclass(frozen=True, slots=True)
class Clock:
    """A rank's clock: it reads `offset_ns + true + true * drift_ppm / 1e6`."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@dataclass(slots=True)
class RecordedRank:
    """Everything one rank recorded, each list in order of start.

    Attributes:
        rank: Global rank.
        host: Host name.
        process: Process id.
        device: CUDA ordinal in the process.
        clock: Its clock.
        launches: Runtime calls.
        device_events: Kernels and copies.
        communications: Collectives and messages in order of launch.
        ranges: Named host ranges.
    """

    rank: int
    host: str
    process: int
    device: int
    clock: Clock
    launches: list[Launch] = field(default_factory=list)
    device_events: list[DeviceEvent] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)

    def thread_id(self, thread: int) -> int:
        """Return the system's id of a thread: that of the process for the main one."""
        return self.process + 1000 * thread


@dataclass(slots=True)
class Recording:
    """A simulated run.

    Attributes:
        ranks: One entry a rank, ascending.
        groups: All process groups of the run.
        seed: Seed of the jitter.
        options: What was simulated, as given: for the files' marks and truth.json.
        device_name: As `deviceProperties` reports it.
    """

    ranks: list[RecordedRank]
    groups: list[Group]
    seed: int
    options: dict[str, object] = field(default_factory=dict)
    device_name: str = "NVIDIA H100 80GB HBM3"

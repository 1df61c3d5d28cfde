"""What the host of a rank does, one after the other: the language of scripts."""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE_STREAM = 7
"""The default stream, as CUPTI numbers it."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What device work is for; see `recording.DeviceEvent`."""

    part: str = "data"
    micro_batch: int | None = None
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """Launch a kernel, copy or memset of known length.

    Attributes:
        kind: kernel, copy or memset.
        name: As the driver reports it.
        call: The runtime call that launches it.
        operator: The operator around the call, "" for none.
        ns: How long it takes on the device.
        copy_bytes: Bytes of a copy or memset.
    """

    kind: str
    name: str
    call: str
    operator: str
    ns: int
    stream: int
    thread: int
    tag: Tag
    copy_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """Launch a collective."""

    op: str
    group: int
    dtype: str
    in_elems: int
    out_elems: int
    stream: int
    thread: int
    tag: Tag
    in_splits: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Post:
    """A send or receive of a batch; `label` is the same at both ends."""

    op: str
    peer: int
    elements: int
    label: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Launch sends and receives as one kernel (`batch_isend_irecv`)."""

    group: int
    dtype: str
    posts: tuple[Post, ...]
    stream: int
    thread: int
    tag: Tag


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Remember the present end of a stream under a number (cudaEventRecord)."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class WaitEvent:
    """Let what follows on a stream wait for a remembered end (cudaStreamWaitEvent)."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Synchronize:
    """Block the host until a stream has run empty."""

    stream: int
    thread: int


@dataclass(frozen=True, slots=True)
class Spend:
    """Let the host do something else."""

    ns: int


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a named range: step, annotation or operator."""

    kind: str
    name: str
    thread: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the innermost open range of a thread."""

    thread: int


Instruction = (
    Work | Collective | Batch | RecordEvent | WaitEvent | Synchronize | Spend | Open | Close
)

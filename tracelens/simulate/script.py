"""Write the script of one rank: what its host launches, as training code would."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens.dtypes import item_size
from tracelens.simulate import kernels
from tracelens.simulate.instructions import (
    COMPUTE_STREAM,
    Batch,
    Close,
    Collective,
    Instruction,
    Open,
    Post,
    RecordEvent,
    Spend,
    Synchronize,
    Tag,
    WaitEvent,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.simulate.kernels import Kernel
    from tracelens.simulate.machine import Chance, Machine

MAIN, AUTOGRAD = 0, 1
_SYNC_ON_CURRENT_STREAM_SINCE = (2, 8)
"""Since torch 2.8 a collective that is not asynchronous runs on the caller's stream."""


class Script:
    """The instructions of a rank, and what is written next.

    Attributes:
        instructions: What was written so far.
        thread: The host thread that goes on: `MAIN` or `AUTOGRAD`.
        tag: What the following device work is for.
    """

    def __init__(self, rank: int, machine: Machine, chance: Chance, torch: str = "2.12") -> None:
        self.rank = rank
        self.instructions: list[Instruction] = []
        self.thread = MAIN
        self.tag = Tag()
        self._machine, self._chance = machine, chance
        self._slow = machine.slow.get(rank, 1.0)
        self._streams: dict[object, int] = {}
        self._events = 0
        numbers = tuple(int(part) for part in torch.split("."))
        self._on_current = numbers >= _SYNC_ON_CURRENT_STREAM_SINCE

    # where and what for --------------------------------------------------------------------------

    @contextmanager
    def range(self, kind: str, name: str) -> Iterator[None]:
        """Write what follows inside a named range of the present thread."""
        thread = self.thread
        self.instructions.append(Open(kind, name, thread))
        yield
        self.instructions.append(Close(thread))

    @contextmanager
    def on_thread(self, thread: int) -> Iterator[None]:
        """Let another thread go on; this one waits for it, as for autograd's."""
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    @contextmanager
    def working_for(
        self, part: str, micro_batch: int | None = None, chunk: int | None = None
    ) -> Iterator[None]:
        """Tag the device work that follows; None keeps the present micro-batch and chunk."""
        before = self.tag
        self.tag = replace(
            before,
            part=part,
            micro_batch=before.micro_batch if micro_batch is None else micro_batch,
            chunk=before.chunk if chunk is None else chunk,
        )
        yield
        self.tag = before

    def stream_of(self, purpose: object) -> int:
        """Return the stream of a purpose: NCCL has one a communicator, FSDP2 its own."""
        return self._streams.setdefault(purpose, 20 + 4 * len(self._streams))

    # device work ---------------------------------------------------------------------------------

    def kernel(
        self,
        kernel: Kernel,
        *,
        operations: float = 0.0,
        moved: float = 0.0,
        stream: int = COMPUTE_STREAM,
    ) -> None:
        """Launch a kernel that computes so many operations and moves so many bytes."""
        ns = self._chance.around(self._slow * self._machine.kernel_ns(operations, moved))
        call = "cuLaunchKernelEx" if kernel.name.startswith("nvjet") else "cudaLaunchKernel"
        work = Work("kernel", kernel.name, call, kernel.operator, ns, stream, self.thread, self.tag)
        self.instructions.append(work)

    def matmul(self, m: float, n: float, k: float, kernel: Kernel = kernels.MATMUL) -> None:
        """Multiply an m x k by a k x n matrix."""
        self.kernel(kernel, operations=2 * m * n * k, moved=2 * (m * k + k * n + m * n))

    def copy(self, name: str, size: int) -> None:
        """Copy between host and device on the compute stream."""
        ns = self._chance.around(1_500 + size / 25.0)  # PCIe: about 25 GB/s
        self.instructions.append(
            Work(
                "copy", name, "cudaMemcpyAsync", "aten::copy_", ns, COMPUTE_STREAM, self.thread,
                self.tag, size,
            )
        )  # fmt: skip

    # communication -------------------------------------------------------------------------------

    def collective(
        self,
        op: str,
        group: int,
        size: int,
        elements: int,
        dtype: str,
        *,
        stream: int | None = None,
        after: int | None = COMPUTE_STREAM,
        splits: Sequence[int] | None = None,
    ) -> int:
        """Launch an asynchronous collective behind the work of a stream; return its event.

        Args:
            op: The operation.
            group: Index of its group.
            size: Ranks of the group.
            elements: Elements of the full buffer: all-gather's output, reduce-scatter's input.
            dtype: What travels.
            stream: Where it runs; the group's own stream if None.
            after: The stream whose present work it needs; None if it needs none.
            splits: What an all-to-all sends to each member, if uneven.
        """
        where = self.stream_of(("group", group)) if stream is None else stream
        if after is not None and after != where:
            self.wait(where, after)
        self.instructions.append(
            Collective(
                op, group, dtype, *_sizes(op, elements, size), where, self.thread, self.tag,
                None if splits is None else tuple(splits),
            )
        )  # fmt: skip
        return self.record(where)

    def blocking_collective(
        self, op: str, group: int, size: int, elements: int, dtype: str
    ) -> None:
        """Launch a collective whose result the compute stream needs at once."""
        if self._on_current:
            self.collective(op, group, size, elements, dtype, stream=COMPUTE_STREAM)
        else:
            self.wait_for(self.collective(op, group, size, elements, dtype))

    def exchange(self, group: int, dtype: str, posts: Sequence[Post]) -> int:
        """Launch sends and receives as one kernel behind the compute stream; return its event."""
        stream = self.stream_of(("group", group))
        self.wait(stream, COMPUTE_STREAM)
        batch = Batch(group, dtype, tuple(posts), stream, self.thread, self.tag)
        self.instructions.append(batch)
        return self.record(stream)

    # order ---------------------------------------------------------------------------------------

    def record(self, stream: int = COMPUTE_STREAM) -> int:
        """Remember the present end of a stream as an event."""
        self._events += 1
        self.instructions.append(RecordEvent(self._events, stream))
        return self._events

    def wait_for(self, event: int, stream: int = COMPUTE_STREAM) -> None:
        """Let what follows on a stream wait for an event."""
        self.instructions.append(WaitEvent(event, stream))

    def wait(self, stream: int, awaited: int) -> None:
        """Let what follows on a stream wait for the present work of another."""
        self.wait_for(self.record(awaited), stream)

    def synchronize(self) -> None:
        """Block the host until the compute stream has run empty."""
        self.instructions.append(Synchronize(COMPUTE_STREAM, self.thread))

    def spend(self, ns: int) -> None:
        """Let the host do something that launches nothing."""
        self.instructions.append(Spend(ns))


def _sizes(op: str, elements: int, size: int) -> tuple[int, int]:
    """Return elements of input and output from those of the full buffer."""
    if op == "all_gather":
        return elements // size, elements
    if op == "reduce_scatter":
        return elements, elements // size
    return elements, elements


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element.

    Raises:
        ValueError: If the dtype is unknown.
    """
    size = item_size(dtype)
    if size is None:
        raise ValueError(f"no size is known of dtype {dtype}")
    return size

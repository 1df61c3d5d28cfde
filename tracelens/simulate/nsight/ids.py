"""Global ids: hardware, virtual machine, process and thread in one number (8, 8, 24, 24 bits)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.simulate.recording import RecordedRank

VM = 1 << 48
_24_BITS = (1 << 24) - 1


def global_process(process: int) -> int:
    """Return the globalPid of a process."""
    return VM | (process & _24_BITS) << 24


def global_thread(rank: RecordedRank, thread: int) -> int:
    """Return the globalTid of a thread of a rank."""
    return global_process(rank.process) | (rank.thread_id(thread) & _24_BITS)

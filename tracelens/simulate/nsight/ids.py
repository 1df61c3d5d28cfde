"""Global ids: hardware, virtual machine, process and thread in one number (8, 8, 24, 24 bits)."""

from __future__ import annotations

VM = 1 << 48
_24_BITS = (1 << 24) - 1


def global_process(process: int) -> int:
    """Return the globalPid of a process."""
    return VM | (process & _24_BITS) << 24


def global_thread(process: int, thread: int) -> int:
    """Return the globalTid of a thread."""
    return global_process(process) | (thread & _24_BITS)

"""The ids of Nsight Systems: 64 bits hold hardware, virtual machine, process and thread.

GlobalId = HW:8 | VM:8 | PID:24 | TID:24, high bits first; a globalPid has thread 0. Two processes
may use equal correlation ids and thread ids, never equal globalPids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tracelens.intervals import Ints

_Number = TypeVar("_Number", "int", "Ints")
THREAD_BITS = 24
_MASK = (1 << THREAD_BITS) - 1


def pid_of(global_id: int) -> int:
    """Return the process id the operating system gave."""
    return (global_id >> THREAD_BITS) & _MASK


def process_of(global_tid: _Number) -> _Number:
    """Return the globalPid of a thread."""
    return global_tid & ~_MASK


def last_thread(global_pid: int) -> int:
    """Return the highest globalTid a process can have."""
    return global_pid | _MASK

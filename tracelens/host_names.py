"""What runtime calls and host ranges do, by their names: the same in every profiler."""

from __future__ import annotations

_MEMORY = ("Malloc", "Free", "MemPool", "HostAlloc", "MemGetInfo")
_SYNC = ("Synchronize", "EventQuery", "StreamWaitEvent", "StreamQuery")
_LAUNCH = ("Launch", "Memcpy", "Memset", "GraphLaunch")
_HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
_NO_DEVICE_WORK = ("HostFunc", "Node")  # a host callback; a node added to a graph


def call_kind(name: str) -> str:
    """Name what a runtime or driver call does: launch, sync, memory or other."""
    if any(word in name for word in _MEMORY):
        return "memory"
    if any(word in name for word in _SYNC):
        return "sync"
    if any(word in name for word in _NO_DEVICE_WORK):
        return "other"
    return "launch" if any(word in name for word in _LAUNCH) else "other"


def is_communication_range(name: str) -> bool:
    """Tell whether a user annotation is the process group's own range around a collective."""
    return name.startswith((*_HOST_BACKENDS, "nccl:", "rccl:", "xccl:", "hccl:"))


def is_host_backend(name: str) -> bool:
    """Tell whether a backend's range is of one that communicates from the host's memory."""
    return name.startswith(_HOST_BACKENDS)

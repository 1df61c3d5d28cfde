"""What each category and name of a Kineto trace is good for."""

from __future__ import annotations

from typing import Literal

Bucket = Literal["kernel", "copy", "memset", "call", "operator", "mark", "frame", "sync"]

# Capitals: torch up to 1.11. The names are libkineto's (ActivityType.cpp). Frames and
# synchronisation events are only counted.
BUCKETS: dict[str, Bucket] = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "Runtime": "call",
    "xpu_runtime": "call",
    "xpu_driver": "call",
    "privateuse1_runtime": "call",
    "privateuse1_driver": "call",
    "mtia_runtime": "call",
    "hpu_op": "call",
    "glow_runtime": "call",
    "cpu_op": "operator",
    "Operator": "operator",
    "user_annotation": "mark",
    "python_function": "frame",
    "cuda_sync": "sync",
}

# No evidence, dropped without a word: they repeat what other events say, or describe the profiler.
# A category in neither table is dropped too, and named: it may be the work of an unknown device.
IGNORED = frozenset(
    {
        "gpu_user_annotation",
        "cpu_instant_event",
        "cuda_event",
        "xpu_sync",
        "overhead",
        "external_correlation",
        "collective_comm",
        "cuda_profiler_range",
        "Trace",
        "fwdbwd",
        "forward_backward",
        "ac2g",
        "async",
        "async_cpu_to_gpu",
        "async_gpu",
    }
)

_MEMORY = ("Malloc", "Free", "MemPool", "HostAlloc", "MemGetInfo")
_SYNC = ("Synchronize", "EventQuery", "StreamWaitEvent", "StreamQuery")
_LAUNCH = ("Launch", "Memcpy", "Memset", "GraphLaunch")
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


def operator_kind(name: str) -> str | None:
    """Name why an operator is worth keeping as a row; None for the mass that is not.

    mark: a named range, an operator like any other until torch 1.11. collective: moves data.
    outer: wraps a collective of its own (one collective, several records). wait: the host waits
    for one.
    """
    if name == "record_param_comms":
        return "record"
    if name.startswith("ProfilerStep#") or is_communication_range(name):
        return "mark"
    if "wait_tensor" in name or name.startswith("c10d::barrier"):
        return "wait"
    if name.startswith("c10d::"):
        return "collective"
    if name.startswith(("_c10d_functional", "c10d_functional")):
        return "outer"
    if name.startswith(("aten::_fused_adam", "aten::_fused_sgd")):
        return "optimizer"
    return "dataloader" if name.startswith("enumerate(DataLoader)") else None


def is_communication_range(name: str) -> bool:
    """Tell whether a user annotation is the process group's own range around a collective."""
    return name.startswith(("nccl:", "gloo:", "rccl:", "xccl:", "hccl:", "mpi:", "ucc:"))

"""What each category and name of a Kineto trace is good for."""

from __future__ import annotations

from typing import Literal

from tracelens.host_names import is_communication_range

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
# torch_npu's queue of tasks stands beside the operators that fill it (enqueue, dequeue). A category
# in neither table is dropped too, and named: it may be the work of an unknown device.
IGNORED = frozenset(
    {
        "gpu_user_annotation",
        "cpu_instant_event",
        "cuda_event",
        "xpu_sync",
        "xpu_scope_profiler",
        "overhead",
        "external_correlation",
        "collective_comm",
        "cuda_profiler_range",
        "enqueue",
        "dequeue",
        "Trace",
        "fwdbwd",
        "forward_backward",
        "ac2g",
        "async",
        "async_cpu_to_gpu",
        "async_gpu",
    }
)

# Work of a device by definition (libkineto: "MTIA ondevice CCP events"), whatever its arguments.
UNREAD_WORK = frozenset({"mtia_ccp_events"})


STEP = "ProfilerStep#"


def operator_kind(name: str) -> str | None:
    """Name why an operator is worth keeping as a row; None for the mass that is not.

    mark: a named range, an operator like any other until torch 1.11. collective: moves data.
    outer: wraps a collective of its own (one collective, several records). wait: the host waits
    for one. autograd: a backward function; only when backward runs is kept, not each function.
    """
    if name.startswith("autograd::engine::evaluate_function"):
        return "autograd"
    if name == "record_param_comms":
        return "record"
    if name.startswith(STEP) or is_communication_range(name):
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

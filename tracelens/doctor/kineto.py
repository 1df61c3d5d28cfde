"""What a PyTorch profiler (Kineto) trace can lack, most important first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.doctor import finders, shared
from tracelens.doctor.check import Check, Found
from tracelens.doctor.finders import both, some, when

if TYPE_CHECKING:
    from tracelens.reduced import RankReduction

_SCHEDULE = "schedule(skip_first=10, wait=1, warmup=2, active=4, repeat=1)"
_UNUSED = ("profile_memory", "with_flops", "with_modules")


def device_left_out(rank: RankReduction) -> Found | None:
    """Find a trace without device events of a process that has a device."""
    if finders.has_device_events(rank):
        return None
    info = rank.info
    names = sorted(set(info.device_names.values()))
    launched = info.recorded.get("call", 0) > 0 or info.device_unseen
    if names:
        return Found(detail=f"the file lists {', '.join(names)}")
    if info.backend and any(word in info.backend for word in ("nccl", "rccl", "xccl", "hccl")):
        return Found(detail=f"the backend is {info.backend}")
    return when(launched, "what the host launched was")


def cpu_run(rank: RankReduction) -> Found | None:
    """Find a run without any device."""
    return when(not finders.has_device_events(rank) and not device_left_out(rank))


def no_operators(rank: RankReduction) -> Found | None:
    """Find a file that holds device events and nothing of the host's operators."""
    return when(not has_operators(rank))


def has_operators(rank: RankReduction) -> bool:
    """Tell whether operators or ranges were recorded: without them nothing else can be."""
    return finders.holds(rank, "operator", "mark") or not finders.holds(rank, "kernel")


def no_distributed_info(rank: RankReduction) -> Found | None:
    """Find a trace that was recorded before the process groups were made."""
    info = rank.info
    return when(info.world_size is None and not info.process_groups and bool(len(rank.operations)))


def shapes_left_out(rank: RankReduction) -> bool:
    """Tell whether shapes were not recorded."""
    return not rank.info.shapes_recorded


def shapes_recorded(rank: RankReduction) -> bool:
    """Tell whether shapes were recorded."""
    return bool(rank.info.shapes_recorded)


def python_frames(rank: RankReduction) -> Found | None:
    """Find recorded Python stacks."""
    return some(rank.info.recorded.get("frame", 0), rank.info.events)


def unused_settings(rank: RankReduction) -> Found | None:
    """Find settings that are on and that no section reads."""
    names = [name for name in _UNUSED if name in rank.info.settings]
    return when(bool(names), ", ".join(names))


def no_sync_events(rank: RankReduction) -> Found | None:
    """Find a CUDA trace without synchronisation events."""
    return when(rank.info.device_kind == "cuda" and not rank.info.recorded.get("sync"))


CHECKS: tuple[Check[RankReduction], ...] = (
    Check(
        "no-device-events",
        "missing",
        ("Step", "Collectives", "Kernels"),
        "no GPU event was recorded, though {detail}",
        "times are those of CPU operators: nothing is known of kernels, copies and idle GPUs",
        "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]); if it was so already, "
        "another tool that uses CUPTI (nsys, DCGM) kept the events",
        device_left_out,
    ),
    Check(
        "no-operators",
        "missing",
        ("Step", "Volume", "Stability"),
        "no CPU operator or range was recorded",
        "there are no steps, and collectives are known by the names of their kernels, without "
        "sizes and groups",
        "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
        no_operators,
    ),
    Check(
        "no-steps",
        "missing",
        ("Step", "Volume", "Stability"),
        "no step is marked",
        "there are no times and bytes per step, no comparison with theory and no findings",
        f"prof.step() once per optimizer step, with {_SCHEDULE}; or name the ranges that are "
        "your steps with --step-pattern",
        both(finders.no_steps, has_operators),
    ),
    Check(
        "no-collectives",
        "missing",
        ("Collectives", "Volume", "Layout", "Stability"),
        "no collective was recorded",
        "these sections stay empty",
        "nothing if the run has one process; else record whole training steps after "
        "dist.init_process_group, CPU and CUDA activities both",
        finders.no_operations,
    ),
    Check(
        "no-shapes",
        "missing",
        ("Volume", "Collectives"),
        "the size of {count} of {total} collective calls was not recorded",
        "their bytes, the comparison with theory and their bandwidth are unknown",
        "profile(record_shapes=True); with NCCL, torch 2.2 or later records sizes without it",
        both(finders.without_size, shapes_left_out),
    ),
    Check(
        "no-sizes",
        "missing",
        ("Volume", "Collectives"),
        "the size of {count} of {total} collective calls was not recorded, though shapes were",
        "their bytes, the comparison with theory and their bandwidth are unknown",
        "a torch of 2.4 or later, which puts sizes on the kernels of NCCL and RCCL",
        both(finders.without_size, shapes_recorded),
    ),
    Check(
        "truncated",
        "poorer",
        ("Trust", "Step"),
        "the file ends early",
        "sums are lower bounds, and the rank is left out of means if others are whole",
        "let the profiler's `with` block end before the process does, or copy the file again",
        finders.ends_early,
    ),
    Check(
        "damaged",
        "poorer",
        ("Trust", "Step"),
        "{count} device events are damaged",
        "sums are lower bounds, and the rank is left out of means if others are whole",
        "copy the file again; newer versions of torch escape what older ones did not",
        finders.damaged,
    ),
    Check(
        "lost-device-records",
        "poorer",
        ("Step", "Volume"),
        "{count} launches have no device record: the profiler's buffer was full, or it stopped "
        "too early",
        "sums are lower bounds, and the steps that launched them are left out of means",
        "fewer steps: schedule(active=3)",
        finders.lost_launches,
    ),
    Check(
        "untimed",
        "poorer",
        ("Step", "Kernels"),
        "{count} device events have no usable time",
        "they are counted and in no sum, so times are lower bounds",
        "more warm-up if they stand at the start: schedule(warmup=2)",
        finders.untimed,
    ),
    Check(
        "cuda-graphs",
        "poorer",
        ("Volume", "Collectives"),
        "{count} communication kernels ran inside CUDA graphs",
        "their operation is read off their name; sizes and groups are unknown",
        "profile one run without CUDA graphs for the volumes",
        finders.in_graphs,
    ),
    Check(
        "known-by-name",
        "poorer",
        ("Volume", "Collectives"),
        "{count} of {total} communication calls are known by the name of their kernel only",
        "their sizes and groups are unknown; RCCL's names do not even tell the operation",
        "a torch of 2.4 or later records them for NCCL and RCCL; no profiler does for NVSHMEM, "
        "DeepEP, symmetric memory and custom all-reduces",
        both(finders.known_by_name, has_operators),
    ),
    Check(
        "no-launch",
        "poorer",
        ("Volume", "Collectives"),
        "{count} of {total} collective calls inside steps have no launch record",
        "their sizes and groups are unknown, and so is to which step they belong",
        "warm-up steps: mostly they were launched before recording began and ran late",
        finders.without_launch,
    ),
    Check(
        "no-groups",
        "poorer",
        ("Stability", "Collectives"),
        "{count} of {total} collective calls do not say on which ranks they ran",
        "they cannot be matched across ranks: waiting and transfer stay unknown, and so may what "
        "the group is for (dp, tp, pp …)",
        "gloo never says it; with NCCL a torch of 2.4 or later does, and all process groups must "
        "be made before recording begins",
        finders.without_group,
    ),
    Check(
        "no-peers",
        "poorer",
        ("Pipeline",),
        "{count} of {total} sends and receives do not say with whom",
        "stages and the bubble cannot be told",
        "a torch of 2.5 or later",
        finders.without_peer,
    ),
    Check(
        "no-optimizer-range",
        "poorer",
        ("Pipeline",),
        "the optimizer step of a pipeline has no range",
        "its work counts as a stage's, so the bubble comes out too small",
        "torch.optim records it by itself; around any other optimizer: "
        'torch.profiler.record_function("Optimizer.step#mine")',
        finders.pipeline_without_optimizer,
    ),
    Check(
        "step-without-optimizer",
        "poorer",
        ("Volume", "Step"),
        "{count} of {total} steps hold no optimizer step",
        "a step looks like a micro-batch, and the bytes of such a step match no formula",
        "prof.step() after the optimizer's step only, not once per micro-batch",
        finders.steps_without_optimizer,
    ),
    Check(
        "set-up-steps",
        "poorer",
        ("Step", "Volume"),
        "the recording begins with step {detail} of the process",
        "set-up is in the numbers: DDP rebuilds its buckets after the first step, ZeRO-3 learns "
        "its order of parameters, allocators grow",
        _SCHEDULE,
        finders.set_up_steps,
    ),
    Check(
        "python-stacks",
        "poorer",
        ("Step",),
        "{count} of {total} events are Python frames",
        "recording them slows the host, so steps and idle time are longer than in a real run, and "
        "files are larger; no section reads them",
        "profile(with_stack=False)",
        python_frames,
    ),
    Check(
        "idle-without-cause",
        "poorer",
        ("Step",),
        "{share} % of the idle time ends with an event whose launch was not recorded",
        "whether the host was late or the device waited for itself is unknown there",
        "CPU and CUDA activities both, and warm-up before the first active step",
        finders.idle_without_cause,
    ),
    Check(
        "no-rank",
        "poorer",
        ("Trust", "Stability"),
        "no rank is said, neither in the file nor in its name",
        "which file is which rank is arbitrary, and missing ranks go unnoticed",
        "dist.init_process_group before recording begins; or put it into the name: "
        'tensorboard_trace_handler("traces", worker_name=f"rank{rank}")',
        finders.unnamed_rank,
    ),
    Check(
        "no-distributed-info",
        "poorer",
        ("Trust", "Collectives"),
        "there is no `distributedInfo`: no world size and no process groups",
        "missing ranks go unnoticed, and what groups are for is open",
        "dist.init_process_group, and all process groups, before recording begins",
        no_distributed_info,
    ),
    Check(
        "unused-settings",
        "remark",
        ("Trust",),
        "no section reads what {detail} records",
        "no number; files are larger",
        "leave it off",
        unused_settings,
    ),
    shared.EARLY_CALLS,
    Check(
        "no-sequence-numbers",
        "remark",
        ("Stability",),
        "{count} of {total} collective calls are not numbered",
        "no number: they are matched across ranks by their order, operation, type and size",
        "with NCCL a torch of 2.12 or later",
        both(finders.without_number, finders.has_device_events),
    ),
    Check(
        "no-sync-events",
        "remark",
        ("Step",),
        "synchronisation events were not recorded",
        "no number of this report; other tools find critical paths with them",
        "profile(experimental_config=torch._C._profiler._ExperimentalConfig("
        "enable_cuda_sync_events=True))",
        no_sync_events,
    ),
    shared.SEVERAL_DEVICES,
    Check(
        "cpu-run",
        "remark",
        ("Step",),
        "the run has no device",
        "volumes and counts are as good as on GPUs; times depend on how busy the cores were",
        "nothing if that is what you meant",
        cpu_run,
    ),
    shared.ONE_PROCESS,
)

"""What an export of Nsight Systems can lack, most important first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.doctor import finders, shared
from tracelens.doctor.check import Check, Found
from tracelens.doctor.finders import both, some, when

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.reduced import RankReduction

_UNREAD = {
    "os_call": "calls of the operating system",
    "sample": "samples of the CPU",
    "switch": "thread switches",
}
_LOST = {
    "device": "device events",
    "ranges": "NVTX ranges",
    "counters": "samples of counters",
}


def noticed(code: str) -> Callable[[RankReduction], Found | None]:
    """Return a finder of what the parser gave notice of."""

    def find(rank: RankReduction) -> Found | None:
        return some(sum(notice.count or 0 for notice in rank.notices if notice.code == code))

    return find


not_exported = noticed("payloads-not-exported")
unread = noticed("nccl-trace-unread")
damaged = noticed("payloads-unread")


def no_calls(rank: RankReduction) -> Found | None:
    """Find an export without the calls that launched its kernels."""
    return when(finders.holds(rank, "kernel") and not finders.holds(rank, "call"))


def no_nccl_ranges(rank: RankReduction) -> Found | None:
    """Find collectives without sizes where not a single one of NCCL's ranges was recorded."""
    return some(int(finders.unsized(rank).sum())) if not finders.holds(rank, "nccl") else None


def has_nccl_ranges(rank: RankReduction) -> bool:
    """Tell whether NCCL's ranges are there, and what they carry was not left out on export."""
    others = (not_exported, unread, damaged)
    return finders.holds(rank, "nccl") and not any(find(rank) for find in others)


def without_communicator(rank: RankReduction) -> Found | None:
    """Find calls with a size that do not name their communicator."""
    return _open_groups(rank, named=False)


def without_members(rank: RankReduction) -> Found | None:
    """Find calls of communicators whose members are not known."""
    return _open_groups(rank, named=True)


def _open_groups(rank: RankReduction, *, named: bool) -> Found | None:
    groups = [g.ranks is None and (g.communicator is not None) is named for g in rank.groups]
    place = rank.operations["group"].to_numpy(np.int64)
    rows = np.array([*groups, False])[place] & finders.sized(rank)
    return some(int(rows.sum()), int(finders.sized(rank).sum()))


def no_device_names(rank: RankReduction) -> Found | None:
    """Find an export without a description of its GPUs."""
    return when(not rank.info.device_names)


def reported_losses(rank: RankReduction) -> Found | None:
    """Find kinds of events that nsys says it lost; device events that launches lack stand apart."""
    kinds = rank.info.reported_losses.keys() - ({"device"} if rank.lost else set())
    names = [text for kind, text in _LOST.items() if kind in kinds]
    return when(bool(names), ", ".join(names))


def unread_tables(rank: RankReduction) -> Found | None:
    """Find tables no section reads, the largest of an export as a rule."""
    names = [text for kind, text in _UNREAD.items() if rank.info.recorded.get(kind)]
    return when(bool(names), ", ".join(names))


CHECKS: tuple[Check[RankReduction], ...] = (
    Check(
        "no-device-events",
        "missing",
        ("Step", "Collectives", "Kernels"),
        "no GPU event of a process was recorded, though it launched some",
        "none of its times is known",
        "a shorter capture (`-c cudaProfilerApi`), and nothing else in the process that uses CUPTI",
        lambda rank: when(not finders.has_device_events(rank)),
    ),
    Check(
        "opaque-graphs",
        "missing",
        ("Step", "Collectives", "Volume", "Kernels"),
        "{count} launches of CUDA graphs were recorded without their contents",
        "they count as compute, whatever ran in them; their communication is not seen",
        "record again with `nsys profile --cuda-graph-trace=node`",
        noticed("opaque-graphs"),
    ),
    Check(
        "no-calls",
        "missing",
        ("Step", "Volume", "Stability"),
        "no call of the CUDA API was recorded",
        "which step launched what is not known: no step is complete, and NCCL's calls find no "
        "kernel",
        "`nsys profile -t cuda,nvtx`, and `nsys export` without `--tables`",
        no_calls,
    ),
    Check(
        "payloads-not-exported",
        "missing",
        ("Volume", "Collectives", "Stability"),
        "sizes and communicators of {count} NCCL calls were recorded, but not exported",
        "bytes, the comparison with theory, bandwidth and process groups are unknown; nothing is "
        "matched across ranks",
        "export the report again, no new recording is needed:\n"
        "nsys export -t sqlite --include-blobs=true --include-json=true -f true X.nsys-rep",
        not_exported,
    ),
    Check(
        "nccl-trace-unread",
        "missing",
        ("Volume", "Collectives", "Stability"),
        "the details of {count} calls of NCCL's advanced tracing are not in the export, or unknown",
        "bytes, the comparison with theory and bandwidth are unknown",
        "export the report again, no new recording is needed:\n"
        "nsys export -t sqlite --include-blobs=true --include-json=true -f true X.nsys-rep",
        unread,
    ),
    Check(
        "payloads-unread",
        "missing",
        ("Volume", "Collectives", "Stability"),
        "the payloads of {count} NCCL calls are damaged, or of an unknown form",
        "their bytes, the comparison with theory and their bandwidth are unknown",
        "export the report again; if it does not help, tell us the versions of nsys and NCCL",
        damaged,
    ),
    Check(
        "no-nccl-ranges",
        "missing",
        ("Volume", "Collectives", "Stability"),
        "{count} communication calls were recorded, and not one range of NCCL",
        "collectives are known by name, without sizes and groups",
        "`nsys profile -t cuda,nvtx`, NCCL 2.16 or later, and NCCL_NVTX_DISABLE not set",
        no_nccl_ranges,
    ),
    Check(
        "no-steps",
        "missing",
        ("Step", "Volume", "Stability"),
        "no step is marked",
        "there are no times and bytes per step, no comparison with theory and no findings",
        '`nsys profile -t cuda,nvtx`, and torch.cuda.nvtx.range_push(f"step {n}") before, '
        "torch.cuda.nvtx.range_pop() after each optimizer step; or name the ranges that are your "
        "steps with --step-pattern",
        finders.no_steps,
    ),
    Check(
        "no-collectives",
        "missing",
        ("Collectives", "Volume", "Layout", "Stability"),
        "no collective was recorded",
        "these sections stay empty",
        "nothing if the run has one process; else record whole training steps",
        finders.no_operations,
    ),
    Check(
        "no-sizes",
        "missing",
        ("Volume", "Collectives"),
        "the size of {count} of {total} collective calls was not recorded",
        "their bytes, the comparison with theory and their bandwidth are unknown",
        "NCCL 2.16 or later, which says sizes, exported by a recent nsys, which keeps them",
        both(finders.without_size, has_nccl_ranges),
    ),
    Check(
        "nameless-kernels",
        "poorer",
        ("Step", "Collectives", "Kernels"),
        "the names of {count} kernels are not in the export",
        "they are in no number, and no step is complete",
        "export the report again, without `--tables`",
        finders.damaged,
    ),
    Check(
        "lost-device-records",
        "poorer",
        ("Step", "Volume"),
        "{count} launches have no device record",
        "sums are lower bounds, and the steps that launched them are left out of means",
        "torch.cuda.synchronize() before cudaProfilerStop(): what still runs then is not recorded",
        finders.lost_launches,
    ),
    Check(
        "reported-losses",
        "poorer",
        ("Trust", "Step", "Volume"),
        "nsys itself reports that it lost {detail}",
        "sums are lower bounds; without ranges, steps and sizes are missing",
        "a shorter capture (`-c cudaProfilerApi`), `nsys profile --cuda-flush-interval=100`, and "
        "torch.cuda.synchronize() before cudaProfilerStop()",
        reported_losses,
    ),
    Check(
        "untimed",
        "poorer",
        ("Step", "Kernels"),
        "{count} device events have no usable time",
        "they are counted and in no sum, so times are lower bounds",
        "torch.cuda.synchronize() before cudaProfilerStop()",
        finders.untimed,
    ),
    Check(
        "known-by-name",
        "poorer",
        ("Volume", "Collectives"),
        "{count} of {total} communication calls are known by the name of their kernel only",
        "their sizes and groups are unknown",
        "nothing records them for NVSHMEM, DeepEP, symmetric memory and custom all-reduces",
        both(finders.known_by_name, lambda rank: no_nccl_ranges(rank) is None),
    ),
    Check(
        "no-launch",
        "poorer",
        ("Volume", "Collectives"),
        "{count} of {total} collective calls inside steps have no launch record",
        "their sizes and groups are unknown, and so is to which step they belong",
        "let the capture begin a step earlier: they were launched before it, and ran late",
        finders.without_launch,
    ),
    Check(
        "no-communicators",
        "poorer",
        ("Stability", "Collectives"),
        "{count} of {total} NCCL calls do not name their communicator",
        "process groups are guessed from streams; calls cannot be matched across ranks, so waiting "
        "and transfer stay unknown",
        "NCCL 2.25 or later",
        without_communicator,
    ),
    Check(
        "no-members",
        "poorer",
        ("Stability", "Collectives"),
        "the members of the communicators of {count} of {total} NCCL calls are not known",
        "they cannot be matched across ranks: waiting and transfer stay unknown",
        "record all ranks; and either let the recording begin before the communicators are made, "
        "or mark the groups (docs/recording.md)",
        without_members,
    ),
    Check(
        "no-peers",
        "poorer",
        ("Pipeline",),
        "{count} of {total} sends and receives do not say with whom",
        "stages and the bubble cannot be told",
        "record all ranks, with NCCL 2.25 or later",
        both(finders.without_peer, has_nccl_ranges),
    ),
    Check(
        "no-optimizer-range",
        "poorer",
        ("Pipeline",),
        "the optimizer step of a pipeline has no range",
        "its work counts as a stage's, so the bubble comes out too small",
        'torch.cuda.nvtx.range_push("Optimizer.step") before it, range_pop() after it',
        finders.pipeline_without_optimizer,
    ),
    Check(
        "step-without-optimizer",
        "poorer",
        ("Volume", "Step"),
        "{count} of {total} steps hold no optimizer step",
        "a step looks like a micro-batch, and the bytes of such a step match no formula",
        "the range of a step around the whole optimizer step, not around each micro-batch",
        finders.steps_without_optimizer,
    ),
    Check(
        "idle-without-cause",
        "poorer",
        ("Step",),
        "{share} % of the idle time ends with an event whose launch was not recorded",
        "whether the host was late or the device waited for itself is unknown there",
        "`nsys profile -t cuda,nvtx` without leaving out calls of the CUDA API",
        finders.idle_without_cause,
    ),
    Check(
        "no-rank",
        "poorer",
        ("Trust", "Stability"),
        "nothing says which process is which rank: they are numbered in order of their devices",
        "ranks of several nodes may be swapped, and missing ranks go unnoticed",
        "one report a rank: `nsys profile -o run_rank%q{RANK}`; or let each process say its rank "
        "(docs/recording.md)",
        finders.unnamed_rank,
    ),
    Check(
        "unread-tables",
        "remark",
        ("Trust",),
        "no section reads the recorded {detail}",
        "no number; exports are larger, and recording costs time",
        "`nsys profile -t cuda,nvtx -s none --cpuctxsw=none`",
        unread_tables,
    ),
    replace(
        shared.EARLY_CALLS,
        find=both(shared.EARLY_CALLS.find, lambda rank: no_calls(rank) is None),
    ),
    Check(
        "no-device-names",
        "remark",
        ("Trust",),
        "the GPUs are not described",
        "no number; the report does not say on which GPUs the run was",
        "nothing; nsys cannot ask for them in some containers",
        no_device_names,
    ),
    shared.SEVERAL_DEVICES,
    shared.ONE_PROCESS,
)

"""The pieces of an `Analysis`, with the numbers a real run could have."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from tracelens.model.result import (
    Axis,
    Breakdown,
    Bubble,
    CollectiveResult,
    Contention,
    DeviceResult,
    Finding,
    GroupResult,
    KernelResult,
    Lateness,
    Links,
    Metric,
    Node,
    Parallelism,
    Parameters,
    Partition,
    PassResult,
    PerStepVolume,
    Pipeline,
    Prediction,
    RankPosition,
    RankResult,
    RankVolume,
    RunFacts,
    SlowedKernel,
    SourceFile,
    StageTimes,
    StepBytes,
    StepResult,
    Summary,
    Topology,
    Volumes,
    VolumeTerm,
)

MS = 1_000_000
EVIL = (
    '</script><script>window.__pwned=1</script><img src=x onerror="window.__pwned=2">',
    "<svg onload=window.__pwned=3>|a|`b`|<!-- --> @octocat #1 https://evil.test www.evil.test",
    "a | b \\| c\nd\r\n# heading\n- item ``` <b>x</b> [link](https://evil.example) ![i](x) $x$",
    "<a href='javascript:window.__pwned=4'>x</a>{{7*7}}%{text}\x1b[31m\u202eevil\u2028\u2029\udc80",
    "evil@example.com :tada: GH-1 octo/repo#2 *bold* _it_ ~~no~~ \\",
)
KERNELS = (
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "communication",
    ),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1", "compute"),
    (
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::"
        "Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t, "
        "pytorch_flash::Flash_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t>>, false, true>",
        "compute",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul>>(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
        "compute",
    ),
    ("Memcpy HtoD (Pinned -> Device)", "copy"),
    ("triton_poi_fused_add_mul_sigmoid_0", "compute"),
)


def partition(
    compute: int, exposed: int, overlapped: int, copy: int, idle: int, ops: dict[str, int]
) -> Partition:
    """Return a partition whose parts add up; `ops` shares out the exposed time."""
    window = compute + exposed + copy + idle
    total = sum(ops.values()) or 1
    exposed_by_op = {op: exposed * weight // total for op, weight in ops.items()}
    first = next(iter(ops), None)
    if first is not None:
        exposed_by_op[first] += exposed - sum(exposed_by_op.values())
    return Partition(
        window_ns=window,
        busy_ns=window - idle,
        compute_ns=compute,
        comm_ns=exposed + overlapped,
        overlapped_comm_ns=overlapped,
        exposed_comm_ns=exposed,
        copy_ns=2 * copy,
        exposed_copy_ns=copy,
        idle_ns=idle,
        comm_by_op_ns={op: time * 3 for op, time in exposed_by_op.items()},
        exposed_by_op_ns=exposed_by_op,
        kernels=1200,
        copies=14,
        copied_bytes=14 << 20,
        launches_without_record=0,
    )


def breakdown(mean: Partition, *, bubble: bool, split: bool = True) -> Breakdown:
    """Refine a partition; with `bubble` a part of the idle time is the pipeline's."""
    wait = mean.exposed_comm_ns // 5 if split else None
    by_op = dict(mean.exposed_by_op_ns)
    if wait:
        first = next(iter(by_op))
        by_op[first] -= wait
    bubble_ns = mean.idle_ns * 4 // 5 if bubble else None
    idle = mean.idle_ns - (bubble_ns or 0)
    host = idle // 2 if split else None
    return Breakdown(
        window_ns=mean.window_ns,
        compute_ns=mean.compute_ns,
        transfer_by_op_ns=by_op if split else None,
        wait_ns=wait,
        exposed_unsplit_by_op_ns={} if split else by_op,
        bubble_ns=bubble_ns,
        exposed_copy_ns=mean.exposed_copy_ns,
        idle_host_ns=host,
        idle_dependency_ns=0 if split else None,
        idle_unknown_ns=idle - (host or 0),
    )


def device(
    rng: random.Random, steps: list[int], *, bubble: bool, split: bool = True, slow: float = 1.0
) -> DeviceResult:
    """Return one device with noisy steps, the first one left out of the mean."""
    ops = {"all_gather": 60, "reduce_scatter": 35, "all_reduce": 5}
    mean = partition(
        compute=int(612 * MS * slow * rng.uniform(0.98, 1.02)),
        exposed=int(118 * MS / slow * rng.uniform(0.85, 1.15)),
        overlapped=int(304 * MS * rng.uniform(0.97, 1.03)),
        copy=int(14 * MS * rng.uniform(0.9, 1.1)),
        idle=int((117 if bubble else 21) * MS * rng.uniform(0.9, 1.1)),
        ops=ops,
    )
    results = [_step(rng, mean, step, index) for index, step in enumerate(steps)]
    return DeviceResult(
        device=0,
        process=4012,
        untimed_events=0,
        before_first_step=22,
        total=mean,
        mean_step=mean,
        steps=results,
        breakdown=breakdown(mean, bubble=bubble, split=split),
        name="NVIDIA H100 80GB HBM3",
    )


def _step(rng: random.Random, mean: Partition, step: int, index: int) -> StepResult:
    factor = 1.31 if index == 0 else rng.uniform(0.99, 1.03)
    window = int(mean.window_ns * factor)
    idle = mean.idle_ns + window - mean.window_ns
    part = dataclasses.replace(mean, window_ns=window, idle_ns=idle)
    return StepResult(step, 0, True, index > 0, window + 1000, part)


def kernels(
    rng: random.Random, names: tuple[tuple[str, str], ...], number: int
) -> list[KernelResult]:
    """Return kernels, longest first."""
    found = []
    for index in range(number):
        name, kernel_class = names[index % len(names)]
        count = rng.randint(20, 400)
        per_step = int(190 * MS / (index + 1.3))
        op = {0: "all_gather", 1: "reduce_scatter"}.get(index % len(names))
        found.append(
            KernelResult(
                name=name if index < len(names) else f"{name} #{index}",
                kernel_class=kernel_class,
                op=op if kernel_class == "communication" else None,
                count=count,
                total_ns=per_step * 4,
                mean_ns=per_step * 4 / count,
                mean_step_ns=per_step,
            )
        )
    return found


def collective(
    group: str,
    op: str,
    ranks: list[int],
    *,
    message: int | None,
    exposed: int,
    time: int,
    **more: Any,
) -> CollectiveResult:
    """Return a collective that ran 64 times in each of four steps."""
    wire = None if message is None else message * 7 // 8
    fields: dict[str, Any] = {
        "group": group,
        "op": op,
        "dtype": "bfloat16",
        "calls": 256.0,
        "calls_without_bytes": 0.0 if message is not None else 256.0,
        "message_bytes": None if message is None else message * 4,
        "wire_bytes": None if wire is None else wire * 4,
        "message_elements_per_step": None if message is None else message / 2,
        "bytes_per_step": StepBytes(message, wire),
        "calls_per_step": 64.0,
        "time_ns": time * 4,
        "time_per_step_ns": time,
        "exposed_ns": exposed * 4,
        "exposed_per_step_ns": exposed,
        "wait_ns": exposed,
        "wait_per_step_ns": exposed // 4,
        "transfer_ns": exposed * 3,
        "busbw_gbps": None if wire is None else wire / time,
        "algbw_gbps": None if message is None else message / time,
        "alpha_us": None,
        "beta_gbps": None,
        "by_rank": {
            rank: RankVolume(256, None if message is None else message * 4, wire) for rank in ranks
        },
        "sources": ["args"],
        "kind": "parameters",
        "link_peak_gbps": 450.0,
        "busbw_of_link_pct": None if wire is None else 100 * wire / time / 450,
        "matched_calls": {"high": 250.0, "low": 2.5} if len(ranks) > 1 else {},
    }
    return CollectiveResult(**(fields | more))


def ranks_of(number: int, steps: list[int], **options: Any) -> list[RankResult]:
    """Return ranks whose kernels, steps and hosts look like a real run's."""
    rng = random.Random(7)
    return [
        RankResult(
            rank=rank,
            files=[f"rank{rank}.pt.trace.json.gz"],
            partial=False,
            clock_offset_ns=rng.randint(-90_000, 90_000) if rank else 0,
            devices=[device(rng, steps, slow=0.94 if rank == number * 3 // 4 else 1.0, **options)],
            top_kernels=kernels(rng, KERNELS, 30 if number <= 64 else 10),
            host=f"gpu-a{rank // 8 + 1}",
            clock_drift_ppm=round(3.5 * rank - 7, 1) if rank else 0.0,
            clock_median_ns=4_200 + 100 * rank,
            clock_residual_ns=18_000 + 900 * rank,
        )
        for rank in range(number)
    ]


def run_facts(number: int, steps: list[int]) -> RunFacts:
    """Return the facts of a complete run on H100s."""
    return RunFacts(
        world_size=number,
        ranks_present=list(range(number)),
        ranks_missing=[],
        ranks_partial=[],
        ranks_duplicated=[],
        backend="nccl",
        device_kind="cuda",
        devices=["NVIDIA H100 80GB HBM3"] * number,
        hosts=[f"gpu-a{index + 1}" for index in range(max(number // 8, 1))],
        nccl_version="2.21.5",
        steps=steps,
        steps_complete=len(steps),
        step_source="ProfilerStep",
        started="2026-01-01T00:00:00Z",
        framework_version="2.13.0",
    )


def files(number: int) -> list[SourceFile]:
    """Return one complete file a rank."""
    return [
        SourceFile(
            f"rank{rank}.pt.trace.json.gz",
            "kineto",
            rank,
            0,
            "complete",
            None,
            1_412_331,
            48_122,
            9_210,
        )
        for rank in range(number)
    ]


def summary(ranks: list[RankResult]) -> Summary:
    """Return a verdict with two missed budgets, whose numbers are those of the ranks."""
    means = [device.mean_step for rank in ranks for device in rank.devices if device.mean_step]
    window = sum(mean.window_ns for mean in means)
    exposed = sum(mean.exposed_comm_ns for mean in means)
    hidden = 100 * sum(m.overlapped_comm_ns for m in means) / sum(m.comm_ns for m in means)
    step, lost = window / len(means), exposed / len(means)
    share, idle = 100 * exposed / window, 100 * sum(m.idle_ns for m in means) / window
    return Summary(
        f"Of every {step / MS:.0f} ms step, {lost / MS:.0f} ms wait for communication, most of it "
        "all-gather; the bytes are what FSDP2 should move.",
        "fail",
        [
            Metric(
                "step_time_ns", "Step time", step, "ns", "≤ +5 %", "warn", "+4.2 % on the baseline"
            ),
            Metric("exposed_comm_pct", "Exposed communication", share, "%", "≤ 10 %", "fail"),
            Metric("overlap_pct", "Communication overlapped", hidden, "%", "≥ 75 %", "fail"),
            Metric("idle_pct", "Idle and bubble", idle, "%", None, "ok", "no rank stands out"),
            Metric(
                "volume_ratio",
                "Volume ÷ theory",
                0.9749,
                "ratio",
                "1.00 ± 0.05",
                "ok",
                "against ZeRO-3 (paper)",
            ),
        ],
    )


def volumes(psi: int, group: str = "g0") -> Volumes:
    """Return observed traffic that the framework explains."""
    gathered, reduced = int(1.924 * psi * 2), psi * 2
    seen = gathered + reduced
    return Volumes(
        parameters_bytes=psi * 2,
        per_step=PerStepVolume(
            seen, seen * 7 // 8, 2.924, 318 / 320, 320, 318, seen / 2, other_message_bytes=4120
        ),
        predictions=[
            Prediction(
                "ZeRO-3 (paper)", "paper", 3.0, psi * 6, psi * 6 * 7 // 8, 0.975, "3Ψ", "ZeRO §7.2"
            ),
            Prediction(
                "FSDP2 default (root kept)",
                "framework",
                2.924,
                seen,
                seen * 7 // 8,
                1.0,
                "3Ψ − Ψ_root = 3 × 6,738,415,616 − 131,072,000",
                None,
                matches=True,
            ),
        ],
        terms=[
            VolumeTerm(
                "all_gather",
                group,
                gathered,
                gathered,
                "(2Ψ − Ψ_root) × 2 B = 25.9 GB",
                "the root unit stays gathered between forward and backward",
            ),
            VolumeTerm("reduce_scatter", group, reduced, reduced, "Ψ × 2 B = 13.5 GB", None),
            VolumeTerm("all_reduce", None, 4096, None, "2 × 1,024 × 2 B = 4,096 B", None),
        ],
        verdict="explained",
        unexplained_bytes=0,
        explanation="FSDP2 keeps the root unit gathered, so it moves 3Ψ − Ψ_root.",
    )


def parallelism(dims: dict[str, int], psi: int) -> Parallelism:
    """Return an FSDP2 layout with its evidence."""
    return Parallelism(
        "zero3",
        "fsdp2",
        "high",
        "inferred",
        dims,
        1,
        ["FSDP::all_gather ranges in forward and in backward", "reduce-scatter elements = Ψ"],
        Parameters(psi, "inferred", "high"),
    )


def findings(late: int) -> list[Finding]:
    """Return three findings, most costly first."""
    return [
        Finding(
            "exposed-all-gather",
            "high",
            "All-gather is not hidden behind compute",
            {"exposed_ns_per_step": 42 * MS, "calls": 64, "bus_gbps": 94.5},
            42 * MS,
            "start it earlier: `module.set_modules_to_forward_prefetch([next_module])`",
            ["collectives/0", "volumes/terms/0"],
        ),
        Finding(
            "straggler",
            "medium",
            f"Rank {late} enters its collectives 22 ms late",
            {"late_in_pct": 86.1, "mean_late_ns": 22 * MS, "host": f"gpu-a{late // 8 + 1}"},
            18 * MS,
            "Compare its clocks and data loading with the others'.",
            [f"lateness/{late}"],
        ),
        Finding(
            "small-messages",
            "low",
            "A third of all-reduce calls are bound by latency",
            {"share_pct": 33.3, "half_bandwidth_bytes": 11_000_000},
            None,
            "Use larger buckets: `bucket_cap_mb`.",
            ["collectives/2"],
        ),
    ]


def lateness(ranks: list[int], steps: list[int], late: int) -> Lateness:
    """Return noise, and one rank that is late in every step."""
    rng = random.Random(3)
    rows: list[list[int | None]] = [
        [rng.randint(0, 4 * MS) + (22 * MS if rank == late else 0) for _ in steps] for rank in ranks
    ]
    return Lateness(ranks, steps, rows)


def groups_3d(number: int) -> list[GroupResult]:
    """Return tp groups of neighbours, dp groups inside a stage, pp groups across stages."""
    stage = number // 4
    found = [("tp", [rank, rank + 1]) for rank in range(0, number, 2)]
    found += [
        ("dp", list(range(first * stage + odd, (first + 1) * stage, 2)))
        for first in range(4)
        for odd in (0, 1)
    ]
    found += [("pp", list(range(rank, number, stage))) for rank in range(stage)]
    return [
        GroupResult(f"g{index}", [str(index)], None, role, "high", len(ranks), ranks, 1)
        for index, (role, ranks) in enumerate(found)
    ]


def topology(mesh: dict[str, int], per_node: int | None = 8) -> Topology:
    """Return a layout whose last dimension changes fastest, on machines of so many ranks."""
    number, strides = 1, {}
    for name in reversed(mesh):
        strides[name] = number
        number *= mesh[name]
    machines = range(-(-number // per_node)) if per_node else []
    return Topology(
        nodes=[
            Node(
                f"gpu-a{i + 1}",
                list(range(number))[i * (per_node or 1) : (i + 1) * (per_node or 1)],
            )
            for i in machines
        ]
        if per_node
        else None,
        nodes_source="hosts" if per_node else None,
        axes=[_axis(name, mesh[name], strides[name], number, per_node) for name in mesh],
        positions=[
            RankPosition(
                rank,
                {name: rank // strides[name] % mesh[name] for name in mesh},
                rank // strides["pp"] % mesh["pp"] if "pp" in mesh else None,
                rank // per_node if per_node else None,
            )
            for rank in range(number)
        ],
        links=Links("NVLink 4", 450.0, None, "NVIDIA H100, H200, H20 SXM data sheets: 900 GB/s"),
    )


def _axis(name: str, size: int, stride: int, number: int, per_node: int | None) -> Axis:
    first = list(range(0, size * stride, stride))
    nodes = len({rank // per_node for rank in first}) if per_node else None
    return Axis(name, size, number // size, stride, first, nodes, "high")


def by_dimension(ranks: list[RankResult], **shares: float) -> list[RankResult]:
    """Return ranks whose exposed transfer is for several dimensions."""
    return [
        dataclasses.replace(rank, devices=[_by_dimension(one, shares) for one in rank.devices])
        for rank in ranks
    ]


def _by_dimension(device: DeviceResult, shares: dict[str, float]) -> DeviceResult:
    assert device.breakdown is not None
    total = sum((device.breakdown.transfer_by_op_ns or {}).values())
    parts = {name: int(total * share) for name, share in shares.items()}
    parts["dp"] += total - sum(parts.values())
    changed = dataclasses.replace(
        device.breakdown, transfer_by_dimension_ns=parts, exposed_unsplit_by_dimension_ns={}
    )
    return dataclasses.replace(device, breakdown=changed)


def contention() -> Contention:
    """Return two kernels that run slower beside communication."""
    return Contention(
        slowdown=1.21,
        gemm_slowdown=1.31,
        lost_per_step_ns=9 * MS,
        gemm_lost_per_step_ns=8 * MS,
        kernels=[
            SlowedKernel(KERNELS[2][0], True, 120, 182_000, 310, 239_000, 239 / 182),
            SlowedKernel(KERNELS[4][0], False, 88, 12_000, 201, 13_500, 13.5 / 12),
        ],
    )


def collectives_of(group: GroupResult) -> list[CollectiveResult]:
    assert group.ranks is not None
    ops = {
        "dp": (("all_gather", 3_240_000_000, 41, 223), ("reduce_scatter", 1_684_000_000, 28, 124)),
        "tp": (("all_reduce", 805_000_000, 38, 59),),
        "pp": (("send", 134_000_000, 9, 18), ("recv", None, 5, 16)),
    }
    return [
        collective(group.id, op, group.ranks, message=message, exposed=exposed * MS, time=time * MS)
        for op, message, exposed, time in ops[group.role]
    ]


def pipeline(number: int, stages: int = 4, microbatches: int = 8) -> Pipeline:
    """Return a 1F1B schedule, timed by the closed rules of equal stages."""
    per_stage = number // stages
    return Pipeline(
        schedule="1f1b",
        stages=stages,
        virtual_stages=1,
        microbatches=microbatches,
        stage_of_rank={rank: rank // per_stage for rank in range(number)},
        bubble=Bubble(
            theory=0.2727,
            measured=0.2841,
            by_rank={rank: 0.28 + rank % 7 / 1000 for rank in range(number)},
            warmup_ns=61 * MS,
            steady_ns=5 * MS,
            cooldown_ns=66 * MS,
            imbalance_ns=4 * MS,
            p2p_ns=9 * MS,
            filled_by_dp_ns=0,
            theory_at_measured_times=0.2761,
            phase_ns=464 * MS,
        ),
        timeline=[
            one for stage in range(stages) for one in _stage_timeline(stage, stages, microbatches)
        ],
        stage_times=[
            StageTimes(stage, 14 * MS, 28 * MS, None, 42 * MS * microbatches)
            for stage in range(stages)
        ],
        pipelines=per_stage,
        source="messages",
    )


def _stage_timeline(stage: int, stages: int, microbatches: int) -> list[PassResult]:
    forward, backward = 14 * MS, 28 * MS
    warm = min(stages - stage - 1, microbatches)
    first_backward = stages * forward + (stages - stage - 1) * backward
    found = []
    for batch in range(microbatches):
        back = first_backward + batch * (forward + backward)
        start = stage * forward + batch * forward if batch <= warm else back - forward
        if batch > warm:
            start = first_backward + (batch - warm - 1) * (forward + backward) + backward
        found += [
            PassResult(stage, "forward", batch, start, forward, stage),
            PassResult(stage, "backward", batch, back, backward, stage),
        ]
    return found

"""Build whole `Analysis` documents for tests of reports, without any trace.

`fsdp2()` is the everyday run, `large(ranks)` scales, `one_rank()` knows little, `without_steps()`
has no mean step, `cpu()` no device, `hostile()` has names that attack every format, and in
`nothing()` every field is empty or None.
"""

from __future__ import annotations

import dataclasses
import random

from analysis_parts import (
    EVIL,
    KERNELS,
    MS,
    by_dimension,
    collective,
    collectives_of,
    contention,
    device,
    files,
    findings,
    groups_3d,
    kernels,
    lateness,
    parallelism,
    pipeline,
    ranks_of,
    run_facts,
    summary,
    topology,
    volumes,
)

from tracelens.model.result import (
    SCHEMA,
    Analysis,
    Contention,
    Finding,
    GroupResult,
    Links,
    Metric,
    Node,
    Notice,
    Parallelism,
    Parameters,
    PassResult,
    PerStepVolume,
    RankResult,
    RunFacts,
    SlowedKernel,
    Source,
    SourceFile,
    Straggler,
    Summary,
    Tool,
    Topology,
    Volumes,
)

__all__ = ["EVIL", "cpu", "fsdp2", "hostile", "large", "nothing", "one_rank", "without_steps"]


def fsdp2(number: int = 4) -> Analysis:
    """Return a complete FSDP2 run that misses two budgets."""
    steps, psi = list(range(10, 20)), 6_738_415_616
    everybody = list(range(number))
    ranks = ranks_of(number, steps, bubble=False)
    return Analysis(
        schema=SCHEMA,
        tool=Tool("tracelens", "0.1.0"),
        source=Source("traces/llama-7b", files(number), {"steps": "10:20"}),
        run=run_facts(number, steps),
        summary=summary(ranks),
        budgets=[],
        comparison=None,
        notices=[
            Notice(
                "work-before-first-step",
                "info",
                "22 kernels a rank were launched before the "
                "first profiled step; they are in no step",
                count=22 * number,
            ),
            Notice(
                "unknown-bytes",
                "warning",
                "2 of 320 calls carry no sizes: volumes are lower bounds",
                "rank1.pt.trace.json.gz",
                1,
                2,
            ),
        ],
        ranks=ranks,
        groups=[GroupResult("g0", ["0"], "default_pg", "dp", "high", number, everybody, 1)],
        collectives=[
            collective(
                "g0",
                "all_gather",
                everybody,
                message=25_929_423_000,
                exposed=71 * MS,
                time=240 * MS,
            ),
            collective(
                "g0",
                "reduce_scatter",
                everybody,
                message=13_476_831_232,
                exposed=41 * MS,
                time=162 * MS,
            ),
            collective(
                "g0",
                "all_reduce",
                everybody,
                message=4096,
                exposed=6 * MS,
                time=9 * MS,
                dtype="float32",
            ),
        ],
        parallelism=parallelism({"dp": number, "tp": 1, "pp": 1, "ep": 1, "cp": 1}, psi),
        volumes=volumes(psi),
        pipeline=None,
        lateness=lateness(everybody, steps, 3),
        stragglers=[
            Straggler(3, 86.1, 22 * MS, 180 * MS, 71.5, "compute", ["g0"], 9, 10, persistent=True)
        ],
        findings=findings(3),
        topology=topology({"dp": number}),
        contention=contention(),
    )


def large(number: int = 64) -> Analysis:
    """Return a 3D-parallel run of `number` ranks, dp × tp 2 × pp 4, 1F1B."""
    base = fsdp2(number)
    steps, everybody = base.run.steps, list(range(number))
    groups = groups_3d(number)
    shown = everybody if number <= 128 else everybody[:32]
    late = number * 3 // 8 if number <= 128 else 7
    ranks = by_dimension(ranks_of(number, steps, bubble=True), dp=0.6, tp=0.3, pp=0.1)
    return dataclasses.replace(
        base,
        source=dataclasses.replace(base.source, path=f"traces/llama-7b-{number}"),
        summary=summary(ranks),
        ranks=ranks,
        groups=groups,
        collectives=[one for group in groups for one in collectives_of(group)],
        parallelism=parallelism(
            {"dp": number // 8, "tp": 2, "pp": 4, "ep": 1, "cp": 1}, 6_738_415_616
        ),
        volumes=volumes(6_738_415_616, next(group.id for group in groups if group.role == "dp")),
        pipeline=pipeline(number),
        lateness=lateness(shown, steps, late),
        stragglers=[Straggler(late, 86.1, 22 * MS, 180 * MS)],
        findings=findings(late),
        topology=topology({"pp": 4, "dp": number // 8, "tp": 2}),
    )


def one_rank() -> Analysis:
    """Return one rank of eight whose traces carry no sizes and whose strategy is not known."""
    base = fsdp2(4)
    rng = random.Random(1)
    only = RankResult(
        2,
        ["rank2.json"],
        True,
        None,
        [device(rng, [4], bubble=False, split=False)],
        kernels(rng, KERNELS, 5),
        None,
    )
    unsized = collective(
        "g0",
        "all_reduce",
        [2],
        message=None,
        exposed=30 * MS,
        time=44 * MS,
        wait_ns=None,
        wait_per_step_ns=None,
    )
    return dataclasses.replace(
        base,
        source=Source(
            "rank2.json",
            [
                SourceFile(
                    "rank2.json",
                    "kineto",
                    2,
                    None,
                    "partial",
                    "ends inside an event",
                    91_233,
                    812,
                    None,
                )
            ],
        ),
        run=RunFacts(
            8,
            [2],
            [0, 1, 3, 4, 5, 6, 7],
            [2],
            [],
            None,
            "cuda",
            ["NVIDIA A100-SXM4-40GB"],
            [],
            None,
            [4],
            0,
        ),
        summary=Summary(
            "One of 8 ranks was read; its bytes are not known.",
            "unknown",
            [
                Metric("step_time", "Step time", 771.0, "ms"),
                Metric("volume_ratio", "Volume ÷ theory", None, "ratio"),
            ],
        ),
        notices=[
            Notice(
                "truncated-file",
                "warning",
                "the file ends inside an event: sums are lower bounds",
                "rank2.json",
                2,
                1,
            )
        ],
        ranks=[only],
        groups=[],
        collectives=[unsized],
        parallelism=Parallelism(
            None, None, "unknown", "inferred", {}, None, [], Parameters(None, None, "unknown")
        ),
        volumes=Volumes(
            None, PerStepVolume(None, None, None, 0.0, 256, 0), [], [], "unknown", None
        ),
        lateness=None,
        stragglers=[],
        findings=[],
        topology=topology({"dp": 8}, per_node=None),
        contention=None,
    )


def nothing() -> Analysis:
    """Return a document in which every list is empty and every optional field None."""
    return Analysis(
        schema=SCHEMA,
        tool=Tool("tracelens", "0.1.0"),
        source=Source("", []),
        run=RunFacts(None, [], [], [], [], None, "unknown", [], [], None, [], 0),
        summary=Summary("Nothing could be measured.", "unknown", []),
        budgets=[],
        comparison=None,
        notices=[],
        ranks=[],
        groups=[],
        collectives=[],
        parallelism=Parallelism(
            None, None, "unknown", "inferred", {}, None, [], Parameters(None, None, "unknown")
        ),
        volumes=Volumes(None, PerStepVolume(None, None, None, None), [], [], "unknown", None),
        pipeline=None,
        lateness=None,
        stragglers=[],
        findings=[],
    )


def without_steps() -> Analysis:
    """Return four ranks whose every step is cut off: there is no mean step."""
    base = fsdp2()
    return dataclasses.replace(base, ranks=[_cut(rank) for rank in base.ranks])


def _cut(rank: RankResult) -> RankResult:
    steps = [
        dataclasses.replace(step, complete=False, in_mean=False) for step in rank.devices[0].steps
    ]
    cut = dataclasses.replace(rank.devices[0], mean_step=None, breakdown=None, steps=steps)
    return dataclasses.replace(rank, devices=[cut])


def cpu() -> Analysis:
    """Return a gloo run on CPUs."""
    base = fsdp2(2)
    run = dataclasses.replace(
        base.run, device_kind="cpu", devices=[], backend="gloo", nccl_version=None
    )
    return dataclasses.replace(base, run=run)


def hostile() -> Analysis:
    """Return a run in which every name that a trace can carry attacks a report."""
    base = fsdp2()
    evil, other = EVIL[0], EVIL[1]
    names = tuple((name, "compute") for name in EVIL)
    rng = random.Random(5)
    ranks = [
        dataclasses.replace(rank, top_kernels=kernels(rng, names, 10), host=other, files=[evil])
        for rank in base.ranks
    ]
    group = GroupResult("g0", [evil], " ".join(EVIL), "unknown", "unknown", 4, None, None)
    return dataclasses.replace(
        base,
        tool=Tool("tracelens", EVIL[4]),
        source=Source(
            f"traces/{EVIL[2]}",
            [
                dataclasses.replace(file, path=evil, reason=other, format=evil)
                for file in base.source.files
            ],
            {evil: other},
        ),
        run=dataclasses.replace(
            base.run,
            backend=evil,
            devices=[evil, other, EVIL[3]],
            hosts=list(EVIL),
            nccl_version=evil,
            step_source=other,
            started=EVIL[3],
            framework_version=evil,
        ),
        summary=Summary(
            f"Kernel {evil} {EVIL[3]}",
            "warn",
            [Metric(EVIL[1], EVIL[2], 3.0, EVIL[3], EVIL[4], "fail", evil)],
        ),
        notices=[Notice(name, "warning", name, name, 1, 1) for name in EVIL],
        ranks=ranks,
        groups=[group],
        collectives=[
            collective("g0", name, [0], message=1000, exposed=MS, time=2 * MS, dtype=EVIL[3])
            for name in EVIL
        ],
        parallelism=dataclasses.replace(
            base.parallelism,
            strategy=evil,
            framework=EVIL[3],
            dims={EVIL[1]: 4},
            evidence=list(EVIL),
        ),
        volumes=dataclasses.replace(
            base.volumes,
            predictions=[
                dataclasses.replace(one, name=EVIL[3], formula=EVIL[1], source=evil)
                for one in base.volumes.predictions
            ],
            terms=[
                dataclasses.replace(one, op=EVIL[1], formula=EVIL[2], explanation=evil)
                for one in base.volumes.terms
            ],
            explanation=other,
        ),
        pipeline=dataclasses.replace(
            pipeline(4),
            schedule=evil,
            timeline=[PassResult(0, name, None, 0, MS) for name in EVIL],
        ),
        findings=[
            Finding(name, "high", name, {name: name}, MS, name, [name, "collectives/0"])
            for name in EVIL
        ],
        topology=_hostile_topology(),
        contention=Contention(
            2.0,
            None,
            None,
            None,
            [SlowedKernel(name, False, 3, 1000, 3, 2000, 2.0) for name in EVIL],
        ),
    )


def _hostile_topology() -> Topology:
    base = topology({"tp": 4}, per_node=2)
    return dataclasses.replace(
        base,
        nodes=[Node(EVIL[0], [0, 1]), Node(EVIL[1], [2, 3])],
        nodes_source=EVIL[2],
        axes=[dataclasses.replace(base.axes[0], name=EVIL[3], confidence="low")],
        positions=[
            dataclasses.replace(p, coordinates={EVIL[3]: p.rank}, node=p.rank)
            for p in base.positions
        ],
        links=Links(EVIL[0], 1.0, None, EVIL[1]),
    )

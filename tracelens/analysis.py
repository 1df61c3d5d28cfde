"""Turn the reduced ranks of a run into the `Analysis` every report renders."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tracelens import (
    breakdown,
    causes,
    collectives,
    contention,
    dimension_volumes,
    dimensions,
    dtypes,
    exposed_wait,
    link_use,
    links,
    network_cards,
    nodes,
    operations_table,
    parallelism,
    pipeline,
    roles,
    stragglers,
    topology,
    traffic,
    untyped,
    verdict,
    volumes,
    waiting,
)
from tracelens.attribution import combine
from tracelens.findings import Network, find
from tracelens.joined_notices import joined_notices
from tracelens.model import result
from tracelens.model.trace import NONE
from tracelens.notices import notice
from tracelens.operations import ALL_GATHER, BROADCAST, CODE, OPERATIONS
from tracelens.reduced import CLASS_NAMES
from tracelens.run import EPOCH_2000_NS
from tracelens.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from tracelens.clocks import Clocks
    from tracelens.idle import IdleCauses
    from tracelens.intervals import Ints
    from tracelens.model.result import Notice
    from tracelens.pipeline.bubble import BubbleTime
    from tracelens.reduced import DeviceReduction
    from tracelens.run import RankRun, Run
    from tracelens.strategy.inference import Given, Inference

_TOP = 30


def analyse(
    run: Run, source: result.Source, notices: list[Notice], given: Given
) -> result.Analysis:
    """Run the cross-rank passes and build the result.

    Args:
        run: The assembled ranks; at least one.
        source: What was read.
        notices: Notices of discovery and parsing.
        given: The user's options.
    """
    table = operations_table.build(run)
    concluded = untyped.resolve(table, given.dtype)
    assumed = roles.assume(table)
    pattern = traffic.observe(run, table)
    found = parallelism.infer(pattern, given)
    kinds = _final_kinds(pattern.kinds, table, found)
    roled = roles.conclude(table, kinds, found, assumed)
    located, located_notices = nodes.locate(run, given.gpus_per_node)
    axes = topology.axes(run, table, roled)
    dims = topology.sizes(axes, given.dims)
    combined = any(dims[name] > 1 for name in ("tp", "pp", "ep", "cp"))
    compared = volumes.compare(table, kinds, found, given, combined=combined)
    layout = _parallelism(found, dims, given, combined=combined)
    counted = {id(rank) for rank in run.counted}
    waits = waiting.observe(run, table)
    cuts = exposed_wait.cuts_of(run, table, waits)
    pipes = pipeline.observe(run, table, roled.role, waits)
    if combined:
        seen = dimension_volumes.Seen(run, table, roled, kinds, pattern, found, dims, pipes.result)
        compared = dimension_volumes.added(compared, seen, given)
    dimension = exposed_wait.by_cycle(run, dimensions.of_rows(table, roled))
    by_dimension = {
        id(rank): dimensions.sums(rank, cuts[rank.rank], dimension[rank.rank])
        for rank in run.counted
    }
    ranks = [
        _rank(
            rank,
            _split_of(rank, cuts) if id(rank) in counted else None,
            waits,
            by_dimension.get(id(rank), {}),
            pipes.bubble.get(rank.rank, {}) if id(rank) in counted else {},
        )
        for rank in run.ranks
    ]
    peaks = links.Peaks(links.link_of(_devices(run)), located, given.intra_gbps, given.inter_gbps)
    moved = exposed_wait.exposed_transfer(run, cuts)
    rows = collectives.collective_results(table, kinds, waits, moved, peaks)
    groups = collectives.group_results(table, roled, located)
    contended = _contention(run)
    blamed = stragglers.blame(table, waits, exposed_wait.losses(run, cuts))
    late = causes.explained(stragglers.stragglers(blamed, _recorded(run)), ranks)
    facts = _facts(run)
    network = Network(rows, groups, peaks.described(), contended)
    return result.Analysis(
        schema=result.SCHEMA,
        tool=result.Tool("tracelens", __version__),
        source=source,
        run=facts,
        summary=verdict.summarise(facts, ranks, compared, layout.parameters, rows, pipes.result),
        budgets=[],
        comparison=None,
        notices=_sorted_notices(
            [
                *notices,
                *run.notices,
                *_run_notices(run, table, facts),
                *joined_notices(run, table, waits),
                *_layout_notices(given, run, dims, axes),
                *_stage_notices(given, found),
                *([] if combined else _dtype_notices(given, found)),
                *located_notices,
                *filter(None, [topology.contradiction(run, axes)]),
                *([notice("type-concluded", count=concluded)] if concluded else []),
            ]
        ),
        ranks=ranks,
        groups=groups,
        collectives=rows,
        parallelism=layout,
        volumes=replace(
            compared,
            network=network_cards.observe(run, table, located),
            link_use=link_use.observe(run, peaks.described()),
        ),
        pipeline=pipes.result,
        lateness=waiting.lateness(table, waits),
        stragglers=late,
        findings=find(ranks, compared, found.framework, late, pipes.result, network),
        topology=topology.describe(run, axes, peaks, pipes.result),
        contention=contended,
    )


def _final_kinds(
    kinds: pd.Series, table: operations_table.OperationsTable, found: Inference
) -> pd.Series:
    """Take out what the strategy does not send parameters by: broadcasts, and DDP's gathers."""
    parameters = (kinds == "parameters").to_numpy()
    if not found.parameter_broadcasts:
        broadcast = (table.frame["op"] == CODE[BROADCAST]).to_numpy()
        kinds = kinds.mask(broadcast & parameters, "other")
    if found.strategy == "ddp":
        gather = (table.frame["op"] == CODE[ALL_GATHER]).to_numpy()
        kinds = kinds.mask(gather & parameters, "activations")
    return kinds


_Split = dict[tuple[int, int], "Ints"]
_Bubble = dict[tuple[int, int], "BubbleTime"]


def _split_of(rank: RankRun, cuts: exposed_wait.ByCycle) -> _Split:
    return exposed_wait.exposed_wait(rank, cuts[rank.rank])


def _recorded(run: Run) -> int:
    """Return the recorded time of one rank: the mean over counted ranks of their first device."""
    totals = [sum(c.devices[0].total.window_ns for c in r.cycles if c.devices) for r in run.counted]
    return round(sum(totals) / len(totals))


def _rank(
    rank: RankRun,
    split: _Split | None,
    waits: waiting.Waiting,
    by_dimension: dimensions.Sums,
    bubble: _Bubble,
) -> result.RankResult:
    keys = sorted({(d.process, d.device) for cycle in rank.cycles for d in cycle.devices})
    return result.RankResult(
        rank=rank.rank,
        files=[cycle.info.path for cycle in rank.cycles],
        partial=rank.partial,
        **_clock(waits.clocks, rank.rank if split is not None else None),
        devices=[_device(rank, *key, split or {}, by_dimension, bubble.get(key)) for key in keys],
        top_kernels=_top_kernels(rank),
        host=rank.cycles[0].info.host,
        in_means=split is not None,
    )


def _clock(clocks: Clocks, rank: int | None) -> dict[str, Any]:
    """Return the clock's fields of a rank; all are None where nothing is known of it."""
    tables: dict[str, Mapping[int, float]] = {
        "clock_offset_ns": clocks.offset_ns,
        "clock_drift_ppm": clocks.drift_ppm,
        "clock_median_ns": clocks.rank_median_ns,
        "clock_residual_ns": clocks.rank_residual_ns,
    }
    return {name: None if rank is None else table.get(rank) for name, table in tables.items()}


def _device(
    rank: RankRun,
    process: int,
    device: int,
    split: _Split,
    by_dimension: dimensions.Sums,
    bubble: BubbleTime | None,
) -> result.DeviceResult:
    parts: list[tuple[int, DeviceReduction]] = [
        (number, d)
        for number, cycle in enumerate(rank.cycles)
        for d in cycle.devices
        if (d.process, d.device) == (process, device)
    ]
    steps = [
        result.StepResult(
            step=s.step,
            occurrence=s.occurrence,
            complete=s.complete,
            in_mean=rank.in_mean.get((number, index), False) and s.complete,
            period_ns=s.period_ns,
            partition=s.partition,
        )
        for number, d in parts
        for index, s in enumerate(d.steps)
    ]
    chosen = [s.partition for s in steps if s.in_mean]
    mean = combine(chosen, len(chosen))
    total = combine([d.total for _, d in parts])
    assert total is not None
    refined = breakdown.of_mean_step(
        mean, len(chosen), split.get((process, device)), _idle_of(rank, parts), bubble
    )
    return result.DeviceResult(
        device=device,
        process=process,
        untimed_events=sum(d.untimed for _, d in parts),
        before_first_step=sum(d.before_first_step for _, d in parts),
        total=total,
        mean_step=mean,
        steps=steps,
        breakdown=dimensions.split(refined, by_dimension.get((process, device))),
        name=parts[0][1].name,
    )


def _idle_of(rank: RankRun, parts: list[tuple[int, DeviceReduction]]) -> list[IdleCauses | None]:
    """Return the causes of idle time of each step in the mean."""
    return [
        step.idle
        for number, device in parts
        for index, step in enumerate(device.steps)
        if rank.in_mean.get((number, index), False) and step.complete
    ]


def _top_kernels(rank: RankRun) -> list[result.KernelResult]:
    totals: dict[tuple[str, int, int], list[int]] = {}
    for number, cycle in enumerate(rank.cycles):
        rows = cycle.kernels[["name", "class", "op", "step", "count", "total_ns"]]
        for name, kind, op, step, count, total in rows.itertuples(index=False):
            sums = totals.setdefault((str(name), int(kind), int(op)), [0, 0, 0])
            sums[0] += int(count)
            sums[1] += int(total)
            sums[2] += int(total) if rank.in_mean.get((number, int(step)), False) else 0
    steps = sum(rank.in_mean.values())
    longest = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))[:_TOP]
    return [
        result.KernelResult(
            name=name,
            kernel_class=CLASS_NAMES[kind],
            op=OPERATIONS[op] if op >= 0 else None,
            count=count,
            total_ns=total,
            mean_ns=total / count,
            mean_step_ns=round(in_steps / steps) if steps else None,
        )
        for (name, kind, op), (count, total, in_steps) in longest
    ]


def _facts(run: Run) -> result.RunFacts:
    infos = [cycle.info for rank in run.ranks for cycle in rank.cycles]
    first = run.counted[0]
    steps = sorted(
        {s.step for r in run.ranks for c in r.cycles for d in c.devices for s in d.steps}
    )
    started = min((c.first_ns for r in run.ranks for c in r.cycles if c.devices), default=0)
    return result.RunFacts(
        world_size=run.world_size,
        ranks_present=sorted({rank.rank for rank in run.ranks}),
        ranks_missing=run.missing,
        ranks_partial=[rank.rank for rank in run.ranks if rank.partial],
        ranks_duplicated=run.duplicated,
        backend=_common([info.backend for info in infos]),
        device_kind=_common([info.device_kind for info in infos]) or "unknown",
        devices=_devices(run),
        hosts=sorted({info.host for info in infos if info.host}),
        nccl_version=_common([info.nccl_version for info in infos]),
        steps=steps,
        steps_complete=_steps_complete(run),
        step_source=first.cycles[0].step_source,
        started=_date(started),
        framework_version=_common([info.framework_version for info in infos]),
    )


def _devices(run: Run) -> list[str]:
    return sorted({d.name for r in run.ranks for c in r.cycles for d in c.devices if d.name})


def _contention(run: Run) -> result.Contention | None:
    cycles = [cycle for rank in run.counted for cycle in rank.cycles]
    steps = sum(len(device.steps) for cycle in cycles for device in cycle.devices)
    return contention.merge([cycle.contention for cycle in cycles], steps)


def _steps_complete(run: Run) -> int:
    """Count the steps that are complete on every counted rank that recorded them."""
    complete: dict[tuple[int, int], bool] = {}
    for rank in run.counted:
        for key in rank.step_keys():
            complete[key] = complete.get(key, True) and rank.complete(*key)
    return sum(complete.values())


def _common(values: list[str | None]) -> str | None:
    said = Counter(value for value in values if value)
    return said.most_common(1)[0][0] if said else None


def _date(ns: int) -> str | None:
    """Format an absolute time; a trace without a base time has none."""
    if ns < EPOCH_2000_NS:
        return None
    return datetime.fromtimestamp(ns // 10**9, UTC).isoformat()


def _parallelism(
    found: Inference, dims: dict[str, int], given: Given, *, combined: bool
) -> result.Parallelism:
    strategy, evidence = found.strategy, list(found.evidence)
    if combined:
        # Each rank holds a shard, so Ψ is never read off a mixed run.
        evidence = [line for line in evidence if line != parallelism.READ_OFF]
        parts = [f"{name} {size}" for name, size in dims.items() if size > 1]
        evidence.insert(0, f"groups of several kinds: {', '.join(parts)}")
        kinds = [name for name, size in dims.items() if size > 1]
        strategy = kinds[0] if len(kinds) == 1 else f"{len(kinds)}d"
    source = "option" if given.dims or found.stage_given else "inferred"
    count = given.parameters if combined else found.parameters
    origin = "option" if given.parameters else ("inferred" if count is not None else None)
    return result.Parallelism(
        strategy=strategy,
        framework=found.framework,
        confidence=found.confidence if strategy == found.strategy else "medium",
        source=source,
        dims=dims,
        gradient_accumulation=found.micro_batches,
        evidence=evidence,
        parameters=result.Parameters(
            count, origin, found.parameters_confidence if count is not None else "unknown"
        ),
    )


def _layout_notices(
    given: Given, run: Run, dims: dict[str, int], axes: dict[str, topology.Axis]
) -> list[Notice]:
    """Compare the sizes the user gave with the world and with the groups in the traces."""
    notices = []
    # Experts share the data-parallel ranks.
    product = math.prod(size for name, size in dims.items() if name != "ep")
    whole, world = {"dp", "tp", "pp"} <= given.dims.keys(), run.world_size
    if given.dims and world is not None and (product > world or (whole and product < world)):
        shown = [(name, size) for name, size in dims.items() if size > 1 or name in given.dims]
        layout = ", ".join(f"{name} {size}" for name, size in shown)
        notices.append(notice("layout-mismatch", layout=layout, product=product, world=world))
    for name, size in given.dims.items():
        axis = axes.get(name)
        if axis is not None and axis.confidence == "high" and axis.size != size:
            notices.append(notice("layout-contradicted", name=name, given=size, found=axis.size))
    return notices


def _stage_notices(given: Given, found: Inference) -> list[Notice]:
    stage = given.zero_stage
    if stage is None or parallelism.stage_fits(found, stage):
        return []
    return [notice("stage-contradicted", stage=stage)]


def _dtype_notices(given: Given, found: Inference) -> list[Notice]:
    """Say where bytes are predicted for another type than the one that travels."""
    recorded = volumes.item_sizes(found, replace(given, dtype=None))
    if given.dtype is None or recorded is None:
        return []
    if set(recorded) == {dtypes.item_size(given.dtype)}:
        return []
    sizes = " and ".join(str(size) for size in dict.fromkeys(recorded))
    return [notice("dtype-contradicted", dtype=given.dtype, found=sizes)]


def _run_notices(
    run: Run, table: operations_table.OperationsTable, facts: result.RunFacts
) -> list[Notice]:
    found: list[Notice] = []
    devices = [d for r in run.ranks for c in r.cycles for d in c.devices]
    cycles = [c for r in run.ranks for c in r.cycles]
    if facts.device_kind == "cpu" and any(c.devices for c in cycles):
        found.append(notice("cpu-run"))
    if not devices and not any(c.info.device_unseen for c in cycles):
        found.append(notice("no-device-events"))
    if devices and not facts.steps:
        found.append(notice("no-steps", hint=_hint(run, "steps")))
    if (early := sum(d.before_first_step for d in devices)) and facts.steps:
        found.append(notice("before-first-step", count=early))
    incomplete = sum(not s.complete for d in devices for s in d.steps)
    if incomplete:
        found.append(notice("incomplete-steps", count=incomplete))
    found += _bytes_notices(table, _hint(run, "bytes"))
    found += _rank_notices(run)
    return found


_HINTS = {
    "steps": "call `prof.step()` once per optimizer step",
    "bytes": "no arguments or shapes recorded: record_shapes=True",
}


def _hint(run: Run, what: str) -> str:
    """Return how to get what a file lacks, in the words of the first rank's profiler."""
    return run.counted[0].cycles[0].info.hints.get(what, _HINTS[what])


def _bytes_notices(table: operations_table.OperationsTable, hint: str) -> list[Notice]:
    """Tell of calls without a size: those in complete steps apart from the harmless rest."""
    frame = table.frame
    unknown = (frame["message_bytes"] == NONE).to_numpy()
    complete = frame["complete"].to_numpy(bool)
    unlaunched = (frame["launch"] == NONE).to_numpy()
    found = []
    if inside := int((unknown & complete).sum()):
        why = _why_unknown(inside, int((unknown & complete & unlaunched).sum()), hint)
        calls = f"{int(complete.sum()):,}"
        found.append(notice("bytes-unknown", count=inside, calls=calls, why=why))
    if outside := int((unknown & ~complete).sum()):
        why = _why_unknown(outside, int((unknown & ~complete & unlaunched).sum()), hint)
        found.append(notice("bytes-unknown-outside-steps", count=outside, why=why))
    return found


def _why_unknown(unknown: int, unlaunched: int, hint: str) -> str:
    early = "launched before the profiler started"
    if unlaunched == unknown:
        return early
    return hint if not unlaunched else f"{unlaunched:,} {early}; for the rest, {hint}"


def _reported_losses(rank: RankRun, *, device: bool) -> list[Notice]:
    """Say what the profiler itself says it lost; device events only if no launch shows the loss."""
    lost: Counter[str] = Counter()
    kinds: set[str] = set()
    for cycle in rank.cycles:
        kinds |= cycle.info.reported_losses.keys()
        lost.update(cycle.info.reported_losses)
    shown = {kind: f"{lost[kind]:,}" if lost[kind] else "some" for kind in kinds}
    number = rank.rank
    found = []
    if device and "device" in kinds:
        some = shown["device"]
        found.append(notice("reported-device-loss", rank=number, some=some, who=number))
    if "ranges" in kinds:
        found.append(notice("reported-range-loss", rank=number, some=shown["ranges"]))
    if "counters" in kinds:
        found.append(notice("reported-counter-loss", rank=number, some=shown["counters"]))
    return found


def _rank_notices(run: Run) -> list[Notice]:
    found: list[Notice] = []
    for rank in run.ranks:
        devices = {(d.process, d.device) for cycle in rank.cycles for d in cycle.devices}
        if len(devices) > 1:
            found.append(notice("several-devices", rank=rank.rank, count=len(devices)))
        if lost := sum(cycle.lost for cycle in rank.cycles):
            found.append(notice("lost-device-records", rank=rank.rank, count=lost, who=rank.rank))
        found += _reported_losses(rank, device=not lost)
    cycles = [cycle for rank in run.ranks for cycle in rank.cycles]
    if guessed := sum(cycle.guessed_groups for cycle in cycles):
        found.append(notice("group-guessed", count=guessed))
    if without := sum(cycle.without_device_time for cycle in cycles):
        found.append(notice("no-device-time", count=without))
    if graphs := sum(cycle.in_graphs for cycle in cycles):
        found.append(notice("cuda-graphs", count=graphs))
    steps = {
        tuple(s.step for c in r.cycles for d in c.devices[:1] for s in d.steps) for r in run.ranks
    }
    if len(steps) > 1:
        text = "; ".join(", ".join(map(str, numbers)) or "none" for numbers in sorted(steps))
        found.append(notice("steps-differ", steps=text))
    return found


def _sorted_notices(notices: list[Notice]) -> list[Notice]:
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(notices, key=lambda n: (order[n.level], n.code, n.rank or 0, n.file or ""))

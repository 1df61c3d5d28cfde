"""The headline: a handful of numbers, one sentence, one status."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from tracelens.model.result import Metric, Summary
from tracelens.operations import named

if TYPE_CHECKING:
    from tracelens.model.result import (
        Breakdown,
        CollectiveResult,
        DeviceResult,
        Parameters,
        Partition,
        Pipeline,
        RankResult,
        RunFacts,
        Status,
        Volumes,
    )

_MUCH_EXPOSED_PCT = 10.0
_WELL_OVERLAPPED_PCT = 70.0
_BUBBLE_OVER_THEORY = 0.05


def summarise(
    run: RunFacts,
    ranks: list[RankResult],
    volumes: Volumes,
    parameters: Parameters,
    collectives: list[CollectiveResult],
    pipeline: Pipeline | None,
) -> Summary:
    """Build the summary; every number in it is also elsewhere in the result."""
    devices = [device for rank in ranks if rank.in_means for device in rank.devices]
    means = [device.mean_step for device in devices if device.mean_step]
    breakdowns = [device.breakdown for device in devices if device.breakdown]
    bubble = _Bubble.of(means, breakdowns)
    metrics = [
        _step_time(devices),
        _exposed(means, bubble),
        _overlap(means),
        _bubble(pipeline, collectives),
        _volume_ratio(volumes),
        *_transfer_estimate(collectives),
    ]
    statuses = [metric.status for metric in metrics]
    status = _worst(statuses, volumes, run)
    wait = sum(b.wait_ns or 0 for b in breakdowns) / len(means) if means else 0.0
    clauses = (
        _time_clause(run, means, wait, bubble),
        _bubble_clause(pipeline),
        _volume_clause(volumes, parameters),
    )
    return Summary(" ".join(clause for clause in clauses if clause), status, metrics)


def _step_time(devices: list[DeviceResult]) -> Metric:
    windows = [s.partition.window_ns for d in devices for s in d.steps if s.in_mean]
    if not windows:
        return Metric("step_time_ns", "Step time", None, "ns", detail="no complete step")
    detail = "one step"
    if len(windows) > 1:
        mean = _ms(statistics.fmean(windows))
        detail = f"median of {len(windows)} steps over all ranks; mean {mean}"
    return Metric("step_time_ns", "Step time", statistics.median(windows), "ns", None, "ok", detail)


def _share(means: list[Partition], part: str, whole: str) -> float | None:
    total = sum(getattr(mean, whole) for mean in means)
    return 100 * sum(getattr(mean, part) for mean in means) / total if total else None


class _Bubble(NamedTuple):
    """The mean step's bubble, and the exposed communication in it and outside it, in ns."""

    time: float
    inside: float
    outside: float

    @classmethod
    def of(cls, means: list[Partition], breakdowns: list[Breakdown]) -> _Bubble | None:
        """Return nothing where some device's bubble is unknown, or none has one."""
        bubbles = [b.bubble_ns for b in breakdowns if b.bubble_ns is not None]
        if not any(bubbles) or len(bubbles) != len(means):
            return None
        outside = statistics.fmean(_exposed_outside(b) for b in breakdowns)
        exposed = statistics.fmean(mean.exposed_comm_ns for mean in means)
        return cls(statistics.fmean(bubbles), exposed - outside, outside)


def _exposed_outside(part: Breakdown) -> int:
    known = (part.transfer_by_op_ns or {}).values()
    return sum(known) + (part.wait_ns or 0) + sum(part.exposed_unsplit_by_op_ns.values())


def _exposed(means: list[Partition], bubble: _Bubble | None) -> Metric:
    value = _share(means, "exposed_comm_ns", "window_ns")
    status: Status = "unknown"
    if value is not None:
        status = "warn" if value > _MUCH_EXPOSED_PCT else "ok"
    detail = "share of the step that no compute hides"
    if bubble is not None and value:
        window = statistics.fmean(mean.window_ns for mean in means)
        detail = (
            f"share of the step; {100 * bubble.inside / window:.3g} points of it are in the bubble"
        )
    return Metric("exposed_comm_pct", "Exposed communication", value, "%", None, status, detail)


def _overlap(means: list[Partition]) -> Metric:
    value = _share(means, "overlapped_comm_ns", "comm_ns")
    status: Status = "unknown"
    detail = "share of communication that compute hides"
    if value is None:
        detail = "no communication in complete steps"
    else:
        status = "ok" if value >= _WELL_OVERLAPPED_PCT else "warn"
    label = "Communication overlapped"
    return Metric("overlap_pct", label, value, "%", None, status, detail)


def _bubble(pipeline: Pipeline | None, collectives: list[CollectiveResult]) -> Metric:
    label = "Pipeline bubble"
    measured = pipeline.bubble.measured if pipeline else None
    if pipeline is None or measured is None:
        messages = any(c.op in ("send", "recv") for c in collectives)
        detail = "stages could not be told" if messages else "no pipeline traffic"
        return Metric("bubble_pct", label, None, "%", detail=detail)
    theory = pipeline.bubble.theory
    status: Status = "unknown"
    if pipeline.bubble.over == "step":
        detail = "of the whole step: stages or clocks are missing"
    elif theory is None:
        detail = "no prediction: the schedule is not known"
    else:
        status = "ok" if measured - theory <= _BUBBLE_OVER_THEORY else "warn"
        detail = f"predicted {100 * theory:.3g} % for {_shape(pipeline)}"
    return Metric("bubble_pct", label, 100 * measured, "%", None, status, detail)


def _shape(pipeline: Pipeline) -> str:
    virtual = pipeline.virtual_stages or 1
    each = f" of {virtual} virtual ones" if virtual > 1 else ""
    sizes = f"{pipeline.stages} stages{each}, {pipeline.microbatches} micro-batches"
    return f"{pipeline.schedule}, {sizes}" if pipeline.schedule else sizes


def _volume_ratio(volumes: Volumes) -> Metric:
    label = "Volume ÷ theory"
    if volumes.dimensions:
        return _dimension_ratio(label, volumes)
    papers = [p for p in volumes.predictions if p.kind == "paper"]
    if not papers or volumes.verdict == "unknown":
        return Metric("volume_ratio", label, None, "ratio", detail=_short_reason(volumes))
    value = papers[0].observed_over_predicted
    status = _STATUS_OF_VOLUMES[volumes.verdict]
    detail = f"against {papers[0].name}; {volumes.verdict}"
    return Metric("volume_ratio", label, value, "ratio", None, status, detail)


def _dimension_ratio(label: str, volumes: Volumes) -> Metric:
    """Return the ratio of the dimension that is farthest from its prediction."""
    judged = {
        row.dimension: row.observed_over_predicted
        for row in volumes.dimensions
        if row.verdict != "unknown" and row.observed_over_predicted is not None
    }
    if not judged:
        return Metric("volume_ratio", label, None, "ratio", detail=_short_reason(volumes))
    worst, value = max(judged.items(), key=lambda one: abs(math.log(one[1] or math.inf)))
    status = _STATUS_OF_VOLUMES.get(volumes.verdict, "unknown")
    detail = f"{worst}; {len(judged)} of {len(volumes.dimensions)} dimensions are predicted"
    return Metric("volume_ratio", label, value, "ratio", None, status, detail)


_STATUS_OF_VOLUMES: dict[str, Status] = {
    "as expected": "ok",
    "explained": "ok",
    "unexplained": "warn",
}


def _transfer_estimate(collectives: list[CollectiveResult]) -> list[Metric]:
    """Say how much of a lone rank's communication may be transfer; nothing where it is known."""
    guessed = [c for c in collectives if c.transfer_estimate_ns is not None and c.time_ns]
    shares = [(c.transfer_estimate_ns or 0) / (c.time_ns or 1) for c in guessed]
    whole = sum(c.time_per_step_ns or 0 for c in guessed)
    if not whole:
        return []
    steps = zip(guessed, shares, strict=True)
    value = sum((c.time_per_step_ns or 0) * share for c, share in steps)
    detail = f"of {_ms(whole)} in collectives, at the pace of the fastest 5 %"
    return [Metric("transfer_estimate_ns", "Transfer (estimate)", value, "ns", None, detail=detail)]


def _short_reason(volumes: Volumes) -> str:
    if volumes.dimensions:
        return "no dimension is predicted: see the section on bytes"
    coverage = volumes.per_step.coverage
    if coverage is not None and coverage < 1:
        return "not all sizes are known"
    if not volumes.per_step.calls:
        return "no data-parallel traffic"
    return "no prediction: see the section on bytes"


def _worst(statuses: list[Status], volumes: Volumes, run: RunFacts) -> Status:
    if not run.steps_complete:
        return "unknown"
    if volumes.verdict == "unexplained" or "warn" in statuses or run.ranks_partial:
        return "warn"
    return "ok"


def _time_clause(run: RunFacts, means: list[Partition], wait: float, bubble: _Bubble | None) -> str:
    if not means:
        return "No complete step was recorded, so there are no per-step numbers."
    window = statistics.fmean(mean.window_ns for mean in means)
    compute = statistics.fmean(mean.compute_ns for mean in means)
    idle = statistics.fmean(mean.idle_ns for mean in means)
    of = "CPU run: of" if run.device_kind == "cpu" else "Of"
    of = f"{of} a mean step of {_ms(window)},"
    if not sum(mean.comm_ns for mean in means):
        return f"{of} {_ms(compute)} are compute and {_ms(idle)} idle; there is no communication."
    waiting = f", {_ms(wait)} of it waiting for late ranks" if wait else ""
    if bubble is not None:
        return (
            f"{of} {_part(bubble.time, window)} are pipeline bubble and "
            f"{_part(bubble.outside, window)} exposed communication outside it{waiting}; "
            f"{_part(compute, window)} are compute."
        )
    exposed = statistics.fmean(mean.exposed_comm_ns for mean in means)
    return (
        f"{of} {_part(exposed, window)} are exposed communication{_most_exposed(means)}{waiting}; "
        f"{_ms(compute)} are compute and {_ms(idle)} idle."
    )


def _part(time: float, window: float) -> str:
    return f"{_ms(time)} ({100 * time / window:.3g} %)"


def _most_exposed(means: list[Partition]) -> str:
    """Name the operation with the most exposed time: it may be less than half of it."""
    sums: dict[str, int] = {}
    for mean in means:
        for op, exposed in mean.exposed_by_op_ns.items():
            sums[op] = sums.get(op, 0) + exposed
    total = sum(sums.values())
    if not total:
        return ""
    op, most = max(sums.items(), key=lambda item: item[1])
    part = "most of it" if 2 * most > total else "the largest part"
    return f", {part} {named(op)}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms" if ns < 1e9 else f"{ns / 1e9:.3g} s"


def _bubble_clause(pipeline: Pipeline | None) -> str:
    measured = pipeline.bubble.measured if pipeline else None
    if pipeline is None or measured is None or pipeline.bubble.over == "step":
        return ""
    theory = pipeline.bubble.theory
    said = "unknown" if theory is None else f"{100 * theory:.3g} %"
    return f"The bubble is {100 * measured:.3g} % of the pipeline phase (theory: {said})."


def _volume_clause(volumes: Volumes, parameters: Parameters) -> str:
    if volumes.dimensions:
        return _dimension_clause(volumes)
    multiple = volumes.per_step.multiple_of_parameters
    if volumes.verdict == "unknown" or multiple is None or parameters.count is None:
        return ""
    origin = "as given" if parameters.source == "option" else "inferred from the trace"
    moved = f"It moves {multiple:.4g}Ψ per step (Ψ = {parameters.count:,}, {origin})"
    papers = [p for p in volumes.predictions if p.kind == "paper"]
    matched = [p for p in volumes.predictions if p.matches]
    if volumes.verdict == "as expected":
        return f"{moved}, as theory says."
    if volumes.verdict == "explained" and matched:
        paper = papers[0].message_multiple if papers else None
        against = f"the paper says {paper:.4g}Ψ" if paper is not None else "unlike the paper"
        return f"{moved}; {against}, and the difference is explained: {matched[0].name}."
    return f"{moved}, which no prediction explains."


def _dimension_clause(volumes: Volumes) -> str:
    """Name the dimensions that deviate; say so if none does."""
    parts = [
        f"{row.dimension} {_times(row.observed_over_predicted)}"
        for row in volumes.dimensions
        if row.verdict == "unexplained"
    ]
    if parts:
        return f"Bytes are not what theory says: {', '.join(parts)}."
    return "Every dimension moves the bytes theory says." if volumes.verdict != "unknown" else ""


def _times(ratio: float | None) -> str:
    return "though it says none" if ratio is None else f"{ratio:.3g} times"

"""What a pipeline's bubble is made of, and what would shrink it.

The bubble is split so that no nanosecond is promised twice: what the schedule costs with equal
stages, what unequal stages add, and the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tracelens.model.result import Finding
from tracelens.theory.pipeline import schedule_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.model.result import Breakdown, Bubble, Pipeline

_LARGE_BUBBLE = 0.1
_ENOUGH = 4  # micro-batches a stage: a bubble below 20 % of the ideal time
_EXCESS = 0.05
_TIMES_THEORY = 1.25
_LEAST_EXCESS = 0.01
_UNEQUAL = 1.05
_HIGH = 0.1


def pipeline_findings(
    pipeline: Pipeline | None, breakdowns: Sequence[Breakdown] = ()
) -> Iterator[Finding]:
    """Name what a pipeline loses; nothing where its phase is not known.

    Args:
        pipeline: The run's.
        breakdowns: The mean step of every device.
    """
    phase = phase_of(pipeline)
    if pipeline is None or phase is None:
        return
    bubbles = [one.bubble_ns for one in breakdowns if one.bubble_ns is not None]
    lost = _lost(pipeline.bubble, phase, bubbles)
    if lost is not None:
        yield from _schedule(pipeline, phase, lost)
    yield from _imbalance(pipeline, phase)
    if lost is not None:
        yield from _excess(pipeline, phase, lost)
    yield from _blocking(pipeline)


def phase_of(pipeline: Pipeline | None) -> int | None:
    """Return the length of the phase in which stages wait for each other, if it is known."""
    if pipeline is None or pipeline.bubble.over == "step":
        return None
    return pipeline.bubble.phase_ns or None


def _lost(bubble: Bubble, phase: int, bubbles: Sequence[int]) -> float | None:
    """Return how long stages wait for each other, in the mean.

    Launch gaps within passes are no part of it: they are the host's, and its own finding.
    """
    if bubble.measured is None:
        return None
    lost = bubble.measured * phase
    if not bubbles:
        return lost
    return min(lost, sum(bubbles) / len(bubbles) + (bubble.p2p_ns or 0))


def _severity(saving: int, phase: int) -> Literal["high", "medium"]:
    return "high" if saving > _HIGH * phase else "medium"


def _schedule(pipeline: Pipeline, phase: int, lost: float) -> Iterator[Finding]:
    """Name a bubble that the schedule has by itself."""
    theory, measured = pipeline.bubble.theory, pipeline.bubble.measured
    stages, count = pipeline.stages, pipeline.microbatches
    if theory is None or measured is None or stages is None or count is None:
        return
    if min(theory, measured) <= _LARGE_BUBBLE:
        return
    virtual = pipeline.virtual_stages or 1
    few = count * virtual < _ENOUGH * stages
    wanted = -(-_ENOUGH * stages // virtual)
    better = schedule_share(pipeline.schedule or "", stages, wanted, virtual) if few else None
    work = phase - max(lost, theory * phase)
    saving = _saved(theory, better if better is not None else _interleaved(pipeline), work)
    evidence: dict[str, float | int | str | None] = {
        "theory": theory,
        "measured": measured,
        "stages": stages,
        "microbatches": count,
    }
    if better is not None:
        yield Finding(
            id="too-few-micro-batches",
            severity=_severity(saving, phase),
            title=f"{count} micro-batches for {stages} stages leave a bubble of "
            f"{100 * theory:.3g} % by theory",
            evidence={**evidence, "enough": wanted, "theory_with_enough": better},
            saving_ns_per_step=saving,
            advice=f"split the batch into {wanted} micro-batches (theory: {100 * better:.3g} %), "
            "or interleave stages",
            links=["pipeline"],
        )
        return
    yield Finding(
        id="pipeline-bubble",
        severity=_severity(saving, phase),
        title=f"The schedule leaves a bubble of {100 * theory:.3g} % by theory",
        evidence=evidence,
        saving_ns_per_step=saving,
        advice="interleave stages (virtual stages), or use a zero-bubble schedule",
        links=["pipeline"],
    )


def _interleaved(pipeline: Pipeline) -> float:
    """Return the bubble with twice as many virtual stages."""
    stages, count = pipeline.stages or 1, pipeline.microbatches or 1
    share = schedule_share("interleaved-1f1b", stages, count, 2 * (pipeline.virtual_stages or 1))
    return share or 0.0


def _saved(share: float, better: float, work: float) -> int:
    """Return what a phase of the same work is shorter by with a smaller bubble."""
    return max(round(_beside(work, share) - _beside(work, better)), 0)


def _beside(work: float, share: float) -> float:
    """Return the bubble beside so much work: a share is one of work and bubble together."""
    return work * share / (1 - share)


def _imbalance(pipeline: Pipeline, phase: int) -> Iterator[Finding]:
    """Name stages that work longer than the others."""
    works = [one.work_ns for one in pipeline.stage_times]
    if len(works) < 2 or not sum(works):
        return
    mean = sum(works) / len(works)
    longest = max(range(len(works)), key=lambda stage: works[stage])
    ratio = works[longest] / mean
    if ratio <= _UNEQUAL:
        return
    saving = round(works[longest] - mean)
    yield Finding(
        id="stage-imbalance",
        severity=_severity(saving, phase),
        title=f"Stage {longest} works {100 * (ratio - 1):.3g} % longer than the mean stage",
        evidence={
            "stage": longest,
            "work_ns_per_step": works[longest],
            "mean_work_ns_per_step": round(mean),
        },
        saving_ns_per_step=saving,
        advice=f"move layers away from stage {longest}; the embedding and the head count as layers",
        links=["pipeline"],
    )


def _excess(pipeline: Pipeline, phase: int, lost: float) -> Iterator[Finding]:
    """Name a bubble larger than the schedule and the stages' own times explain."""
    bubble = pipeline.bubble
    expected = _expected(bubble, phase - lost)
    if expected is None:
        return
    excess = lost - expected
    much = excess > _EXCESS * phase or lost > _TIMES_THEORY * expected
    if not much or excess <= _LEAST_EXCESS * phase:
        return
    yield Finding(
        id="bubble-over-theory",
        severity=_severity(round(excess), phase),
        title=f"Stages wait {100 * excess / phase:.3g} % of the pipeline phase longer than the "
        "schedule explains",
        evidence={
            "measured": bubble.measured,
            "theory": bubble.theory,
            "theory_at_measured_times": bubble.theory_at_measured_times,
            "p2p_ns": bubble.p2p_ns,
            "steady_ns": bubble.steady_ns,
        },
        saving_ns_per_step=round(excess),
        advice="let messages overlap with compute, and look for what delays single micro-batches: "
        "uneven sequences, a host that is late, links that are slow or shared",
        links=["pipeline"],
    )


def _expected(bubble: Bubble, work: float) -> float | None:
    """Return the time that is explained: by the stages' own times where they are known.

    Theory's shares are of a phase of this work without the excess, which is shorter than the one
    that was measured.
    """
    if bubble.theory_at_measured_times is not None:
        return _beside(work, max(bubble.theory_at_measured_times, bubble.theory or 0.0))
    if bubble.theory is None:
        return None
    return _beside(work, bubble.theory) + (bubble.imbalance_ns or 0)


def _blocking(pipeline: Pipeline) -> Iterator[Finding]:
    """Name a host that waits for its device at every exchange."""
    count, syncs = pipeline.microbatches, pipeline.device_syncs
    if count is None or syncs is None or syncs < count:
        return
    yield Finding(
        id="blocking-messages",
        severity="medium",
        title=f"Between the messages of a step the host waits {syncs:.3g} times for its device",
        evidence={"device_syncs_per_step": syncs, "microbatches": count},
        saving_ns_per_step=None,
        advice="Megatron: `batch_p2p_sync=False` on a modern PyTorch, or the interleaved schedule "
        "with overlapped messages; elsewhere remove `torch.cuda.synchronize()`",
        links=["pipeline"],
    )

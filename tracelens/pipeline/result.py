"""Observe the pipelines of a run, and write down what they show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tracelens.model.result import Bubble, PassResult, Pipeline, StageTimes
from tracelens.model.trace import NONE
from tracelens.passes import KINDS
from tracelens.pipeline import stages
from tracelens.pipeline.bubble import BubbleTime, bubble_time
from tracelens.pipeline.exposure import Exposures
from tracelens.pipeline.measure import Measured, busy_of, measure
from tracelens.pipeline.schedules import numbered
from tracelens.pipeline.views import device_of, views, work_of
from tracelens.theory.pipeline import PassLength, bubble_share, replayed_share, schedule_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.clocks import Clocks
    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.passes import Work
    from tracelens.pipeline.measure import StageStep
    from tracelens.pipeline.stages import Pipe
    from tracelens.pipeline.views import View
    from tracelens.run import RankRun, Run
    from tracelens.waiting import Waiting

_T = TypeVar("_T")


@dataclass(slots=True)
class Pipelines:
    """What was found.

    Attributes:
        result: The result's part.
        bubble: Per rank and device the bubble of the breakdown.
        spanning: Groups with members on several stages: whoever works in a later stage, or an
            earlier one, is late there by the schedule and not by any fault.
    """

    result: Pipeline | None = None
    bubble: dict[int, dict[tuple[int, int], BubbleTime]] = field(default_factory=dict)
    spanning: set[int] = field(default_factory=set)


def observe(run: Run, table: OperationsTable, roles: dict[int, str], waits: Waiting) -> Pipelines:
    """Find the run's pipelines, and measure them.

    Args:
        run: All ranks.
        table: Their operations.
        roles: Role of each group.
        waits: Clocks, and how the time of messages splits.
    """
    seen = views(run, table, roles)
    groups = [g.ranks for g in table.groups if g.ranks is not None and roles[g.index] == "pp"]
    pipes = stages.find(seen, groups)
    if not pipes:
        return Pipelines()
    ranks = {rank.rank: rank for rank in run.counted}
    spanning = _spanning(table, pipes)
    exposures = Exposures(table, roles, waits, spanning)
    measured = [measure(pipe, ranks, waits.clocks, exposures) for pipe in pipes]
    bubble = {
        rank: bubble_time(ranks[rank], phases, exposures)
        for one in measured
        for rank, phases in one.phases.items()
        if phases
    }
    return Pipelines(_result(measured, seen, ranks, waits.clocks, exposures), bubble, spanning)


def _spanning(table: OperationsTable, pipes: list[Pipe]) -> set[int]:
    """Return the groups that have members on several stages."""
    stage_of = {rank: stage for pipe in pipes for rank, stage in pipe.stage_of.items()}
    found = set()
    for group in table.groups:
        held = {stage_of[rank] for rank in group.ranks or () if rank in stage_of}
        if len(held) > 1:
            found.add(group.index)
    return found


def _result(
    measured: list[Measured],
    seen: dict[int, View],
    ranks: dict[int, RankRun],
    clocks: Clocks,
    exposures: Exposures,
) -> Pipeline:
    """Describe the pipelines as one where they agree; numbers are means over all of them."""
    pipes = [one.pipe for one in measured]
    first = pipes[0]
    schedule = _same([pipe.schedule for pipe in pipes])
    count, virtual = (_same([getattr(p, n) for p in pipes]) for n in ("micro_batches", "virtual"))
    named = all(seen[rank].stages for pipe in pipes for rank in pipe.members)
    steps = [_Step(one, ranks, clocks, exposures) for one in measured if one.has_phase]
    return Pipeline(
        schedule=schedule,
        stages=_same([pipe.stages for pipe in pipes]),
        virtual_stages=virtual,
        microbatches=count,
        stage_of_rank={rank: stage for pipe in pipes for rank, stage in pipe.stage_of.items()},
        bubble=_bubble(measured, steps),
        timeline=steps[0].timeline() if steps else [],
        stage_times=_stage_times(measured),
        pipelines=len(pipes),
        source="ranges" if named else "messages" if first.stages else None,
        device_syncs=_mean_syncs(measured),
    )


def _mean_syncs(measured: list[Measured]) -> float | None:
    steps = [step for one in measured for own in one.steps.values() for step in own]
    return sum(step.synchronized for step in steps) / len(steps) if steps else None


def _same(values: list[_T]) -> _T | None:
    return values[0] if all(value == values[0] for value in values) else None


def _bubble(measured: list[Measured], shown: list[_Step]) -> Bubble:
    by_rank = {rank: one.bubble_of(rank) for one in measured for rank in one.pipe.members}
    known = [value for value in by_rank.values() if value is not None]
    steps = [step for one in measured for own in one.steps.values() for step in own]
    has_phase = all(one.has_phase for one in measured) and bool(steps)
    idle = [s.within - s.worked - s.warmup - s.cooldown for s in steps]
    transfers = [s.transfer for s in steps]
    return Bubble(
        theory=_theory(measured),
        measured=float(np.mean(known)) if known else None,
        by_rank=by_rank,
        warmup_ns=_mean([s.warmup for s in steps]) if has_phase else None,
        steady_ns=_mean(idle) if has_phase else None,
        cooldown_ns=_mean([s.cooldown for s in steps]) if has_phase else None,
        imbalance_ns=_imbalance(measured) if has_phase else None,
        p2p_ns=None if None in transfers else _mean([t for t in transfers if t is not None]),
        filled_by_dp_ns=_mean([s.filled for s in steps]) if has_phase else None,
        over="phase" if has_phase else "step",
        theory_at_measured_times=_replayed(measured, shown),
        phase_ns=_mean([s.within for s in steps]) if has_phase else None,
    )


def _mean(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None


def _theory(measured: list[Measured]) -> float | None:
    """Return the closed form of the pipelines, where they are alike.

    One micro-batch goes through GPipe and 1F1B in the same order, so the name may be open.
    """
    shapes = {
        (p.schedule, p.stages, p.micro_batches, p.virtual) for p in (m.pipe for m in measured)
    }
    if len(shapes) != 1:
        return None
    schedule, count, micro_batches, virtual = shapes.pop()
    if count is None or micro_batches is None or virtual is None:
        return None
    if schedule is None:
        return bubble_share(count, 1) if micro_batches == virtual == 1 else None
    return schedule_share(schedule, count, micro_batches, virtual)


def _replayed(measured: list[Measured], shown: list[_Step]) -> float | None:
    shares = [step.replayed() for step in shown]
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if len(known) == len(measured) else None


def _imbalance(measured: list[Measured]) -> int | None:
    """Return how much less a stage works in a step than the one that works most, on average."""
    missing = []
    for one in measured:
        worked = [_mean_work(steps) for steps in one.steps.values() if steps]
        missing += [max(worked) - own for own in worked]
    return _mean([round(value) for value in missing])


def _mean_work(steps: list[StageStep]) -> float:
    return sum(step.worked for step in steps) / len(steps)


def _stage_times(measured: list[Measured]) -> list[StageTimes]:
    """Return the mean times of each stage over all pipelines; nothing where they are not alike."""
    shapes = {(one.pipe.whole, one.pipe.stages, one.pipe.micro_batches) for one in measured}
    whole, stages, count = shapes.pop()
    if shapes or not whole or stages is None:
        return []
    found = []
    for stage in range(stages):
        steps = [step for one in measured for step in one.steps[one.pipe.members[stage]]]
        if not steps:
            return []
        each = (count or 1) * len(steps)
        weight = sum(step.weight for step in steps)
        found.append(
            StageTimes(
                stage=stage,
                forward_ns=round(sum(s.forward for s in steps) / each) if count else None,
                backward_ns=round(sum(s.backward for s in steps) / each) if count else None,
                weight_ns=round(weight / each) if count and weight else None,
                work_ns=round(_mean_work(steps)),
            )
        )
    return found


class _Step:
    """The step of one pipeline that is drawn and replayed."""

    def __init__(
        self, one: Measured, ranks: dict[int, RankRun], clocks: Clocks, exposures: Exposures
    ) -> None:
        assert one.shown is not None
        self.pipe, self.clocks = one.pipe, clocks
        place, self.low, _ = one.shown
        self.works: dict[int, Work] = {}
        self.busy: dict[int, Ints] = {}
        self.base: dict[int, int] = {}
        for number, (cycle, index) in place.items():
            rank = ranks[number]
            work, device = work_of(rank, (cycle, index)), device_of(rank, cycle)
            if work is not None and device is not None:
                self.works[number] = work
                self.busy[number] = busy_of(work, exposures.of(rank, cycle, device))
                self.base[number] = rank.cycles[cycle].info.base_ns

    def _numbers(self, number: int) -> tuple[Ints, Ints]:
        pipe, stage = self.pipe, self.pipe.stage_of[number]
        passes = self.works[number].passes
        return numbered(passes, stage, pipe.stages or 1, pipe.micro_batches, pipe.virtual)

    def timeline(self) -> list[PassResult]:
        """List the passes, on the common clock since the phase began."""
        found: list[PassResult] = []
        for number in self.pipe.members:
            passes = self.works[number].passes
            batches, virtual = self._numbers(number)
            own = np.full(len(passes.start), number)
            start = self.clocks.common(own, passes.start + self.base[number]) - self.low
            found += [
                PassResult(
                    stage=self.pipe.stage_of[number],
                    kind=KINDS[int(passes.kind[i])],
                    microbatch=None if batches[i] == NONE else int(batches[i]),
                    start_ns=int(start[i]),
                    duration_ns=int(passes.end[i] - passes.start[i]),
                    virtual_stage=None if virtual[i] == NONE else int(virtual[i]),
                )
                for i in range(len(start))
            ]
        return found

    def replayed(self) -> float | None:
        """Return the bubble of the same passes in the same order if messages took no time.

        Each takes as long as its kind does on its virtual stage on average.
        """
        orders = []
        for number in self.pipe.members:
            kind = self.works[number].passes.kind
            batches, virtual = self._numbers(number)
            if (batches == NONE).any() or (virtual == NONE).any():
                return None
            alike = virtual * len(KINDS) + kind
            lengths = {key: float(self.busy[number][alike == key].mean()) for key in set(alike)}
            orders.append(
                [
                    PassLength(KINDS[int(k)], int(v), int(b), lengths[a])
                    for k, v, b, a in zip(kind, virtual, batches, alike, strict=True)
                ]
            )
        return replayed_share(orders)

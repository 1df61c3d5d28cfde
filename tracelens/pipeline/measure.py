"""Measure a pipeline: its phase in each step, and when each stage works in it.

The phase is from the first work of any stage to the last one, on aligned clocks. A window from a
stage's own first to its own last work would hide the bubble of the late stages. Where stages have
no trace, or their clocks are not linked, the phase is unknown, and the step's own time stands in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.intervals import covered
from tracelens.operations_table import cycle_key
from tracelens.passes import BACKWARD_WEIGHT, FORWARD
from tracelens.pipeline.exposure import length_in
from tracelens.pipeline.views import device_of, work_of

if TYPE_CHECKING:
    from tracelens.clocks import Clocks
    from tracelens.intervals import Ints
    from tracelens.passes import Work
    from tracelens.pipeline.exposure import Exposure, Exposures
    from tracelens.pipeline.stages import Pipe
    from tracelens.run import RankRun

StepKey = tuple[int, int]
_LONG_AGO = 1 << 62


@dataclass(frozen=True, slots=True)
class StageStep:
    """A rank's part in one step; idle times are 0 where the phase is unknown.

    Attributes:
        within: Length of the phase, or of the step where that is unknown.
        worked: Forward and backward work in it, exposed model-parallel communication included.
        warmup: Idle before the first backward pass.
        cooldown: Idle after the last forward pass, and not before the first backward one.
        transfer: Exposed transfer of messages; None if some could not be matched.
        filled: Exposed data-parallel communication.
        forward: Work of forward passes.
        backward: Work of backward passes, weight gradients included.
        weight: Work of passes that are weight gradients alone.
        synchronized: How often the host waited for the device between messages.
    """

    within: int
    worked: int
    warmup: int
    cooldown: int
    transfer: int | None
    filled: int
    forward: int
    backward: int
    weight: int
    synchronized: int


@dataclass(slots=True)
class Measured:
    """One pipeline, measured.

    Attributes:
        pipe: Which one.
        steps: Per rank, its steps of the mean.
        phases: Per rank, (cycle, first, last) of each phase on the rank's own clock without base.
        shown: The step to draw: its place on each rank, and its phase on the common clock.
    """

    pipe: Pipe
    steps: dict[int, list[StageStep]] = field(default_factory=dict)
    phases: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    shown: tuple[dict[int, StepKey], int, int] | None = None

    @property
    def has_phase(self) -> bool:
        """Whether times are shares of the pipeline phase, or of the step."""
        return self.shown is not None

    def bubble_of(self, rank: int) -> float | None:
        """Return the share of the phase (or the step) in which a rank does not work."""
        within = sum(step.within for step in self.steps.get(rank, []))
        return 1 - sum(step.worked for step in self.steps[rank]) / within if within else None


def measure(
    pipe: Pipe, ranks: dict[int, RankRun], clocks: Clocks, exposures: Exposures
) -> Measured:
    """Measure one pipeline over the steps of the mean."""
    members = {number: ranks[number] for number in pipe.members}
    result = Measured(pipe, {rank: [] for rank in members}, {rank: [] for rank in members})
    linked = pipe.whole and len({clocks.component.get(r, ~r) for r in members}) == 1
    for place in _shared_steps(members):
        works = {number: work_of(members[number], key) for number, key in place.items()}
        known = {number: work for number, work in works.items() if work is not None}
        phase = None
        if linked and len(known) == len(members):
            phase = _phase(known, members, place, clocks)
            _note_phase(result, members, place, phase, clocks)
        for number, work in known.items():
            rank, key = members[number], place[number]
            if not rank.in_mean.get(key, False) or (linked and phase is None):
                continue
            span = _window(rank, key) if phase is None else _own(phase, rank, key[0], clocks)
            exposed = exposures.of(rank, key[0], device_of(rank, key[0]) or 0)
            result.steps[number].append(_stage_step(work, exposed, span, edges=phase is not None))
    for number, phases in result.phases.items():
        result.phases[number] = [*_before_recording(phases), *phases]
    return result


def _before_recording(phases: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the phase each cycle's recording begins in: late stages wait through its end.

    It is taken to end as long before the first recorded phase as those follow each other.
    """
    found = []
    for cycle in sorted({one for one, _, _ in phases}):
        spans = [(low, high) for one, low, high in phases if one == cycle]
        gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
        if gaps:
            found.append((cycle, -_LONG_AGO, spans[0][0] - round(float(np.median(gaps)))))
    return found


def _shared_steps(members: dict[int, RankRun]) -> list[dict[int, StepKey]]:
    """Return the steps in order of time, each with its place (cycle, index) on every rank."""
    steps: dict[tuple[int, int, int], dict[int, StepKey]] = {}
    for number, rank in members.items():
        for cycle, index in rank.step_keys():
            step = rank.cycles[cycle].devices[0].steps[index]
            key = (cycle_key(rank, cycle), step.step, step.occurrence)
            steps.setdefault(key, {})[number] = (cycle, index)
    return [steps[key] for key in sorted(steps)]


def _note_phase(
    result: Measured,
    members: dict[int, RankRun],
    place: dict[int, StepKey],
    phase: tuple[int, int],
    clocks: Clocks,
) -> None:
    """Keep the phase of a step that is whole, and show it if it is in the mean."""
    if not all(members[number].complete(*key) for number, key in place.items()):
        return
    for number, key in place.items():
        low, high = _own(phase, members[number], key[0], clocks)
        result.phases[number].append((key[0], low, high))
    if all(members[number].in_mean.get(key, False) for number, key in place.items()):
        result.shown = (place, *phase)


def _phase(
    works: dict[int, Work],
    members: dict[int, RankRun],
    place: dict[int, StepKey],
    clocks: Clocks,
) -> tuple[int, int]:
    """Return the first and the last instant of any stage's work, on the common clock."""
    who = np.array(list(works), np.int64)
    bases = [members[number].cycles[place[number][0]].info.base_ns for number in works]
    base = np.array(bases, np.int64)
    first = np.array([work.first for work in works.values()], np.int64)
    last = np.array([work.last for work in works.values()], np.int64)
    low, high = clocks.common(who, first + base), clocks.common(who, last + base)
    return int(low.min()), int(high.max())


def _own(phase: tuple[int, int], rank: RankRun, cycle: int, clocks: Clocks) -> tuple[int, int]:
    """Return a phase on a rank's own clock, without base."""
    times = clocks.own(np.full(2, rank.rank), np.array(phase, np.int64))
    low, high = (times - rank.cycles[cycle].info.base_ns).tolist()
    return int(low), int(high)


def _window(rank: RankRun, key: StepKey) -> tuple[int, int]:
    cycle, index = key
    device = device_of(rank, cycle) or 0
    step = rank.cycles[cycle].devices[device].steps[index]
    return step.low, step.high


def _stage_step(work: Work, exposed: Exposure, span: tuple[int, int], *, edges: bool) -> StageStep:
    low, high = span
    passes, busy = work.passes, busy_of(work, exposed)
    forward, weight = passes.kind == FORWARD, passes.kind == BACKWARD_WEIGHT
    worked = work.work_ns + length_in(exposed.model, work.first, work.last)
    warmup = cooldown = 0
    if edges:
        until, since = _edges(work, low, high)
        warmup = until - low - _worked_in(passes.start, passes.end, busy, low, until)
        cooldown = high - since - _worked_in(passes.start, passes.end, busy, since, high)
    unsplit = length_in(exposed.unsplit, low, high)
    return StageStep(
        within=high - low,
        worked=worked,
        warmup=max(warmup, 0),
        cooldown=max(cooldown, 0),
        transfer=None if unsplit else length_in(exposed.transfer, low, high),
        filled=length_in(exposed.data, low, high),
        forward=int(busy[forward].sum()),
        backward=int(busy[~forward].sum()),
        weight=int(busy[weight].sum()),
        synchronized=work.synchronized,
    )


def busy_of(work: Work, exposed: Exposure) -> Ints:
    """Return each pass's work, exposed model-parallel communication included."""
    passes = work.passes
    return passes.work_ns + covered(exposed.model, passes.start, passes.end)


def _edges(work: Work, low: int, high: int) -> tuple[int, int]:
    """Return when the warm-up ends and when the cool-down begins.

    The warm-up lasts until the first backward pass, the cool-down from the last forward pass on.
    Without passes of both kinds only idle time outside a stage's work counts.
    """
    forward = work.passes.kind == FORWARD
    if forward.all() or not forward.any():
        return min(max(work.first, low), high), max(min(work.last, high), low)
    until = int(work.passes.start[~forward].min())
    since = max(int(work.passes.end[forward].max()), until)
    return until, since


def _worked_in(start: Ints, end: Ints, busy: Ints, low: int, high: int) -> int:
    """Measure work in a window; a pass that reaches out of it counts by the part inside."""
    inside = np.clip(end, low, high) - np.clip(start, low, high)
    length = np.maximum(end - start, 1)
    return round(float((busy * inside / length).sum()))

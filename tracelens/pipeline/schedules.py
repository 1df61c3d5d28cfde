"""Name the schedule of a pipeline, and say which micro-batch each of its passes works for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE
from tracelens.passes import BACKWARD, BACKWARD_WEIGHT, FORWARD
from tracelens.theory.pipeline import (
    DUALPIPEV,
    GPIPE,
    INTERLEAVED,
    INTERLEAVED_ZB,
    LOOPED_BFS,
    ONE_F_ONE_B,
    ZB_H1,
    ZBV,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from tracelens.intervals import Ints
    from tracelens.passes import Passes
    from tracelens.pipeline.views import View

    Style = Literal["loop", "v"]

_OWES = 0.02


def name(
    by_stage: Mapping[int, View], stages: int, micro_batches: int, virtual: int, style: Style
) -> str | None:
    """Name the schedule by the order of passes on every stage that is there.

    Args:
        by_stage: Stages from 0, with what they show.
        stages: p.
        micro_batches: m.
        virtual: v.
        style: Whether the virtual stages of a rank go round, or down and up again.

    Returns:
        None if the order fits no schedule, or more than one.
    """
    split = _splits_backward(by_stage)
    if style == "v":
        if not split:
            return None
        whole = any(_has(view, BACKWARD) for view in by_stage.values())
        return DUALPIPEV if whole else ZBV
    ahead = {stage: _ahead(view, stage) for stage, view in by_stage.items()}
    known = {stage: count for stage, count in ahead.items() if count is not None}
    if len(known) < len(by_stage):
        return None
    total = micro_batches * virtual
    first = all(count == total for count in known.values())
    one = all(count == min(stages - stage, total) for stage, count in known.items())
    if virtual == 1:
        if split:
            return ZB_H1 if one else None
        return None if first == one else GPIPE if first else ONE_F_ONE_B
    if split:
        return INTERLEAVED_ZB
    if first:
        return LOOPED_BFS
    return INTERLEAVED if _interleaved(known, stages, micro_batches, virtual) else None


def _interleaved(ahead: dict[int, int], stages: int, micro_batches: int, virtual: int) -> bool:
    """Tell whether each stage runs ahead as far as interleaved 1F1B lets it.

    Megatron's schedules.py takes p micro-batches through a chunk at a time; torch as many as
    divide m into m // p rounds.
    """
    rounds = max(micro_batches // stages, 1)
    for at_a_time in {stages, micro_batches // rounds}:
        wanted = {
            stage: min(
                2 * (stages - stage - 1) + (virtual - 1) * at_a_time + 1, virtual * micro_batches
            )
            for stage in ahead
        }
        if wanted == ahead:
            return True
    return False


def _has(view: View, kind: int) -> bool:
    return view.passes is not None and bool((view.passes.kind == kind).any())


def _splits_backward(by_stage: Mapping[int, View]) -> bool:
    """Tell whether weight gradients are put off.

    Their ranges say so; without ranges, stages other than the first still work on them after the
    last gradient was sent on.
    """
    if any(_has(view, BACKWARD_WEIGHT) for view in by_stage.values()):
        return True
    later = [view for stage, view in by_stage.items() if stage]
    return bool(later) and all(view.owes > _OWES for view in later)


def _ahead(view: View, stage: int) -> int | None:
    """Return the forward passes before the first backward one, by messages if passes are unknown.

    The first stage sends an activation for each; the others receive one, and then send a gradient
    back to the same rank.
    """
    if view.ahead is not None:
        return view.ahead
    ops = [op for op, _ in view.messages]
    if stage == 0:
        return ops.index("recv") if "recv" in ops else None
    before = view.messages[0][1]
    with_before = [op for op, peer in view.messages if peer == before]
    return with_before.index("send") if "send" in with_before else None


def numbered(
    passes: Passes, stage: int, stages: int, micro_batches: int | None, virtual: int | None
) -> tuple[Ints, Ints]:
    """Return micro-batch and virtual stage of each pass; `NONE` where they cannot be told.

    Args:
        passes: In order of launch.
        stage: The rank's own stage.
        stages: p.
        micro_batches: m.
        virtual: v.
    """
    numbers, at = passes.micro_batch.copy(), passes.stage.copy()
    if virtual == 1:
        at[at == NONE] = stage
    if micro_batches is None or virtual is None or (numbers != NONE).any():
        return numbers, at
    if virtual > 1 and micro_batches % stages:
        return numbers, at
    for kind in (FORWARD, BACKWARD):
        mine = np.flatnonzero(passes.kind == kind)
        if len(mine) != micro_batches * virtual:
            continue
        block, inside = np.divmod(np.arange(len(mine)), stages * virtual)
        chunk, place = np.divmod(inside, stages)
        if virtual == 1:
            numbers[mine] = np.arange(len(mine))
            continue
        numbers[mine] = block * stages + place
        chunk = chunk if kind == FORWARD else virtual - 1 - chunk
        at[mine] = chunk * stages + stage
    return numbers, at

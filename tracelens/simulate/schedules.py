"""Pipeline schedules: in which order a stage computes which micro-batch.

F is a forward pass, B a whole backward pass. ZB-H1 splits backward: I is the gradient of the input,
which the stage before waits for, W that of the weights, which nobody waits for.

Sources: GPipe (Huang et al. 2019), 1F1B and interleaved (Narayanan et al. 2021, section 2.2;
megatron/core/pipeline_parallel/schedules.py), ZB-H1 (Qi et al. 2023, Zero Bubble Pipeline
Parallelism, section 2).
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracelens.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Pass = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk (virtual stage) of a rank."""

    kind: Pass
    micro_batch: int
    chunk: int = 0


def actions(
    schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> list[Action]:
    """Return what a stage does in a step, in order.

    Args:
        schedule: A key of `SCHEDULES`.
        stage: From 0.
        stages: p.
        micro_batches: m.
        chunks: v, virtual stages of a rank; 1 but for `interleaved`.

    Raises:
        OptionError: If the schedule cannot have these sizes.
    """
    if schedule not in SCHEDULES:
        raise OptionError(
            f"there is no schedule {schedule!r}", hint=f"one of {', '.join(SCHEDULES)}"
        )
    if (chunks > 1) != (schedule == "interleaved"):
        raise OptionError("virtual stages above 1 and the schedule interleaved belong together")
    if schedule == "interleaved" and micro_batches % stages:
        raise OptionError(
            f"the interleaved schedule needs a multiple of {stages} micro-batches, one a stage"
        )
    return SCHEDULES[schedule](stage, stages, micro_batches, chunks)


def warm_up(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Return how many forward passes stand before the first backward pass's partner."""
    if schedule == "gpipe":
        return micro_batches
    ahead = stages - stage - 1
    if schedule == "interleaved":
        ahead = 2 * ahead + (chunks - 1) * stages
    return min(ahead, micro_batches * chunks)


def _gpipe(_stage: int, _stages: int, micro_batches: int, _chunks: int) -> list[Action]:
    return [Action(kind, i) for kind in ("F", "B") for i in range(micro_batches)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Action]:
    forward = [Action("F", i) for i in range(micro_batches)]
    backward = [Action("B", i) for i in range(micro_batches)]
    return _woven(forward, backward, warm_up("1f1b", stage, stages, micro_batches))


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """Take as many micro-batches as there are stages through one chunk, then through the next."""
    total = micro_batches * chunks

    def passes(kind: Pass, chunk_of: Callable[[int], int]) -> Iterator[Action]:
        for number in count():
            block, inside = divmod(number, stages * chunks)
            chunk, place = divmod(inside, stages)
            yield Action(kind, block * stages + place, chunk_of(chunk))

    forward = list(islice(passes("F", lambda chunk: chunk), total))
    backward = list(islice(passes("B", lambda chunk: chunks - 1 - chunk), total))
    return _woven(forward, backward, warm_up("interleaved", stage, stages, micro_batches, chunks))


def _woven(forward: list[Action], backward: list[Action], ahead: int) -> list[Action]:
    """Return the first `ahead` forward passes, then one forward and one backward in turn."""
    result = forward[:ahead]
    for place, action in enumerate(backward):
        result += forward[ahead + place : ahead + place + 1]
        result.append(action)
    return result


def _zb_h1(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Action]:
    """Split 1F1B's backward; a stage owes as many weight gradients as stages stand before it.

    So many W fill its cool-down, in which 1F1B idles, and it holds no more activations than 1F1B.
    """
    result: list[Action] = []
    for action in _one_f_one_b(stage, stages, micro_batches, 1):
        if action.kind == "F":
            result.append(action)
            continue
        result.append(action._replace(kind="I"))
        if action.micro_batch >= stage:
            result.append(Action("W", action.micro_batch - stage))
    owed = range(max(micro_batches - stage, 0), micro_batches)
    return result + [Action("W", micro_batch) for micro_batch in owed]


SCHEDULES: dict[str, Callable[[int, int, int, int], list[Action]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "zb-h1": _zb_h1,
}

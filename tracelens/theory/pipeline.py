"""Pipeline bubbles: in closed form for equal stages, and by replaying a schedule for unequal ones.

p stages, m micro-batches, v virtual stages a rank; F and B are a rank's forward and backward of one
micro-batch, I and W the two halves of B: the gradients of the input and of the weights. Sources:
Narayanan et al. 2021 (section 2.2) for GPipe, 1F1B and interleaving; Qi et al. 2023, Zero Bubble
Pipeline Parallelism, for ZB-H1 and ZB-V; DeepSeek's DualPipe README for DualPipeV.

Each is the share of the pipeline phase, from the first work of any stage to the last. So the
time by which stages begin after each other counts, though the zero-bubble schedules fill it with
the step before where no barrier stands between steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED_BFS = "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs"
ZB_H1, INTERLEAVED_ZB, ZBV, DUALPIPEV = "zb-h1", "interleaved-zb", "zbv", "dualpipev"


def bubble_share(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Return the bubble of GPipe and 1F1B as a share of the whole: (p-1) / (v·m + p-1).

    Equal stages and free messages are assumed. Interleaving divides the bubble by its `v` virtual
    stages a rank.

    Args:
        stages: p.
        micro_batches: m.
        virtual_stages: v.
    """
    return (stages - 1) / (virtual_stages * micro_batches + stages - 1)


def schedule_share(
    schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1
) -> float | None:
    """Return a schedule's bubble as a share of the pipeline phase; None if it has no closed form.

    Equal stages are assumed, free messages, and where a schedule splits backward F = I = W.
    """
    if schedule in (GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED_BFS):
        return bubble_share(stages, micro_batches, virtual_stages)
    delay = _DELAYS.get(schedule)
    if delay is None:
        return None
    bubble = (stages - 1) * delay
    return bubble / (3 * virtual_stages * micro_batches + bubble)


# By what each further stage lengthens the phase, in passes of one chunk (F = I = W = 1, B = 2).
_DELAYS = {
    ZB_H1: 1,  # F + I - W
    INTERLEAVED_ZB: 1,
    ZBV: 1,  # F: nothing idles, but stages begin after each other
    DUALPIPEV: 2,  # F&B + B - 3W, where F and B side by side take as long as one after the other
}


class PassLength(NamedTuple):
    """A pass in the order in which a rank runs it, and how long it takes.

    Attributes:
        kind: forward, backward, backward_input or backward_weight.
        stage: The virtual stage, counted over all ranks.
        micro_batch: Its micro-batch.
        length: In any unit.
    """

    kind: str
    stage: int
    micro_batch: int
    length: float


def replayed_share(orders: Sequence[Sequence[PassLength]]) -> float | None:
    """Return the mean share of the phase in which ranks idle if messages took no time at all.

    Every rank runs its passes in order, each as soon as what it needs is there: a forward pass the
    one of the stage before, a backward pass that of the stage after, a weight gradient its input's.

    Args:
        orders: Per rank.

    Returns:
        None if the passes wait for each other in a ring: their numbers cannot be right.
    """
    present = {(_part(one), one.stage, one.micro_batch) for order in orders for one in order}
    if not present or len(present) < sum(len(order) for order in orders):
        return None
    last = max(stage for _, stage, _ in present)
    done: dict[tuple[str, int, int], float] = {}
    place, free, began = [0] * len(orders), [0.0] * len(orders), [0.0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                one = order[place[rank]]
                needed = _needed(one, last, present)
                if needed is not None and needed not in done:
                    break
                start = max(free[rank], done[needed] if needed is not None else 0.0)
                began[rank] = start if place[rank] == 0 else began[rank]
                free[rank] = done[_part(one), one.stage, one.micro_batch] = start + one.length
                place[rank] += 1
                moved = True
    if any(place[rank] < len(order) for rank, order in enumerate(orders)):
        return None
    phase = max(free) - min(began)
    work = sum(one.length for order in orders for one in order) / len(orders)
    return 1 - work / phase if phase else None


def _part(one: PassLength) -> str:
    """Tell what others may wait for: a gradient, be it of a whole or of a split backward pass."""
    return "gradient" if one.kind in ("backward", "backward_input") else one.kind


def _needed(
    one: PassLength, last: int, present: Container[tuple[str, int, int]]
) -> tuple[str, int, int] | None:
    """Return the pass that must come first; the first stage may have no input to derive by."""
    if one.kind == "forward":
        wanted = ("forward", one.stage - 1, one.micro_batch)
        return wanted if one.stage else None
    own = ("gradient", one.stage, one.micro_batch)
    if one.kind == "backward_weight" and own in present:
        return own
    if one.stage == last:
        return ("forward", one.stage, one.micro_batch)
    return ("gradient", one.stage + 1, one.micro_batch)

"""The bubble as a class of the breakdown: what is left of it after communication.

Within a pipeline phase it is the exposed waiting of messages between stages, that of collectives
whose members are on several stages, and idle time in which the device waited for something it had
been told to do. Idle time *inside* a pass is none: there the host was late, or the next kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.intervals import Intervals, intersect, pieces, union
from tracelens.operations import OPERATIONS
from tracelens.pipeline.views import device_of

if TYPE_CHECKING:
    from tracelens.intervals import Ints
    from tracelens.pipeline.exposure import Exposures
    from tracelens.run import RankRun


def _nothing() -> Ints:
    return np.zeros(len(OPERATIONS), np.int64)


@dataclass(slots=True)
class BubbleTime:
    """Sums over the steps of the mean on one device.

    Attributes:
        waiting: Waiting for other stages within phases, by operation code.
        dependency: Idle time within phases and outside of passes.
    """

    waiting: Ints = field(default_factory=_nothing)
    dependency: int = 0


def bubble_time(
    rank: RankRun, phases: list[tuple[int, int, int]], exposures: Exposures
) -> dict[tuple[int, int], BubbleTime]:
    """Return the bubble of a rank by device (process, device).

    Args:
        rank: The rank.
        phases: Cycle, start and end of each phase on the rank's own clock.
        exposures: What it exposes.
    """
    result: dict[tuple[int, int], BubbleTime] = {}
    for number, cycle in enumerate(rank.cycles):
        mine = [(low, high) for one, low, high in phases if one == number]
        place = device_of(rank, number)
        if not mine or place is None:
            continue
        device = cycle.devices[place]
        bounds = np.array(mine, np.int64).reshape(-1, 2)
        phase = union(bounds[:, 0], bounds[:, 1])
        start, end, op = exposures.of(rank, number, place).waiting
        which, start, end = pieces(start, end, phase)
        total = result.setdefault((device.process, device.device), BubbleTime())
        for index, step in enumerate(device.steps):
            if not rank.in_mean.get((number, index), False) or not step.complete:
                continue
            inside = np.clip(end, step.low, step.high) - np.clip(start, step.low, step.high)
            np.add.at(total.waiting, op[which], inside)
            if step.work is not None:
                around = intersect(Intervals(*step.work.dependency_edges), phase).length
                total.dependency += step.work.dependency_ns + around
    return result

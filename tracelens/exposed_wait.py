"""How much of the waiting no compute hides, by step and operation or by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.intervals import Intervals, pieces
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.reduction import DeviceReduction, RankReduction
    from tracelens.run import RankRun, Run
    from tracelens.waiting import Waiting

ByCycle = dict[int, list["Ints"]]
"""Per rank an array per cycle, with an entry per operation."""


def by_cycle(run: Run, values: Ints) -> ByCycle:
    """Cut a column of the operations frame into the cycles of the ranks."""
    cycles = [(rank.rank, len(cycle.operations)) for rank in run.counted for cycle in rank.cycles]
    parts = np.split(values, np.cumsum([length for _, length in cycles])[:-1])
    found: ByCycle = {rank.rank: [] for rank in run.counted}
    for (rank, _), part in zip(cycles, parts, strict=True):
        found[rank].append(part)
    return found


def cuts_of(run: Run, table: OperationsTable, waiting: Waiting) -> ByCycle:
    """Return when the last member arrived, on the rank's own clock without its base time.

    It is `NONE` for unmatched operations.
    """
    start, start_ns = (table.frame[n].to_numpy(np.int64) for n in ("start", "start_ns"))
    return by_cycle(run, np.where(waiting.cut == NONE, NONE, waiting.cut - (start_ns - start)))


def exposed_wait(rank: RankRun, cuts: Sequence[Ints]) -> dict[tuple[int, int], Ints]:
    """Return, per step of each device in the mean, exposed waiting by operation.

    Args:
        rank: The rank.
        cuts: Per cycle and operation when the last member arrived, see `cuts_of`.

    Returns:
        Keys (process, device); values are sums over the steps of the mean, indexed by operation
        code, followed by the exposed time of matched operations in the same order.
    """
    sums: dict[tuple[int, int], Ints] = {}
    for number, cycle in enumerate(rank.cycles):
        rows, place, start, end = _exposed(cycle)
        cut = cuts[number][rows]
        codes = cycle.operations["op"].to_numpy(np.int64)[rows]
        for index, device in enumerate(cycle.devices):
            mine = np.flatnonzero((cut != NONE) & (place == index))
            total = sums.setdefault(
                (device.process, device.device), np.zeros(2 * len(OPERATIONS), np.int64)
            )
            for windows in _windows(rank, number, device):
                which, low, high = pieces(start[mine], end[mine], windows)
                code = codes[mine][which]
                waited = np.clip(np.minimum(high, cut[mine][which]) - low, 0, None)
                np.add.at(total, code, waited)
                np.add.at(total, code + len(OPERATIONS), high - low)
    return sums


class Losses(NamedTuple):
    """What calls cost their rank, an entry a row of the operations frame.

    Attributes:
        lost_ns: Exposed time in which the rank may have waited for others: its known waiting, or
            all exposed time of calls that could not be matched and of messages.
        held: Whether the rank had nothing else to do when the call ended.
    """

    lost_ns: Ints
    held: NDArray[np.bool_]


def losses(run: Run, cuts: ByCycle) -> Losses:
    """Return what each call cost its rank."""
    lost, held = [np.empty(0, np.int64)], [np.empty(0, bool)]
    for rank in run.counted:
        for cycle, cut in zip(rank.cycles, cuts[rank.rank], strict=True):
            rows, _, start, end = _exposed(cycle)
            until = np.where(cut[rows] == NONE, end, np.clip(cut[rows], start, end))
            lost.append(np.rint(np.bincount(rows, until - start, len(cut))).astype(np.int64))
            last = np.full(len(cut), NONE)
            np.maximum.at(last, rows, end)
            held.append(last == cycle.operations["end"].to_numpy(np.int64))
    return Losses(np.concatenate(lost), np.concatenate(held))


def _exposed(cycle: RankReduction) -> tuple[Ints, Ints, Ints, Ints]:
    """Return operation, device, start and end of each piece of exposed communication."""
    row, device, start, end = (
        cycle.exposed[name].to_numpy(np.int64) for name in ("row", "device", "start", "end")
    )
    return row, device, start, end


def _windows(rank: RankRun, number: int, device: DeviceReduction) -> Iterator[Intervals]:
    """Yield the windows of the steps in the mean: all at once, unless they overlap."""
    chosen = [
        (step.low, step.high)
        for index, step in enumerate(device.steps)
        if rank.in_mean.get((number, index), False) and step.complete
    ]
    bounds = np.array(sorted(chosen), np.int64).reshape(-1, 2)
    if np.all(bounds[1:, 0] >= bounds[:-1, 1]):
        yield Intervals(bounds[:, 0], bounds[:, 1])
        return
    for low, high in bounds:
        yield Intervals(np.array([low]), np.array([high]))

"""How much of the waiting no compute hides, by step and operation or by call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.intervals import Intervals, pieces
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.reduction import DeviceReduction, RankReduction
    from tracelens.run import RankRun, Run
    from tracelens.waiting import Waiting

Cuts = dict[int, list["Ints"]]


def cuts_of(run: Run, table: OperationsTable, waiting: Waiting) -> Cuts:
    """Return when the last member arrived, on the rank's own clock without its base time.

    Returns:
        Per rank an array per cycle, with an entry per operation; `NONE` for unmatched ones.
    """
    start, start_ns = (table.frame[n].to_numpy(np.int64) for n in ("start", "start_ns"))
    own = np.where(waiting.cut == NONE, NONE, waiting.cut - (start_ns - start))
    cycles = [(rank.rank, len(cycle.operations)) for rank in run.counted for cycle in rank.cycles]
    parts = np.split(own, np.cumsum([length for _, length in cycles])[:-1])
    cuts: Cuts = {rank.rank: [] for rank in run.counted}
    for (rank, _), part in zip(cycles, parts, strict=True):
        cuts[rank].append(part)
    return cuts


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


def lost_to_others(run: Run, cuts: Cuts) -> Ints:
    """Return per row of the operations frame the exposed time in which the rank may have waited.

    That is its known waiting, or all exposed time of calls that could not be matched and of
    messages.
    """
    parts = []
    for rank in run.counted:
        for cycle, cut in zip(rank.cycles, cuts[rank.rank], strict=True):
            rows, _, start, end = _exposed(cycle)
            until = np.where(cut[rows] == NONE, end, np.clip(cut[rows], start, end))
            lost = np.bincount(rows, until - start, len(cut))
            parts.append(np.rint(lost).astype(np.int64))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


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

"""How much of the waiting no compute hides, by step and operation or by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.intervals import Intervals, first_started, pieces, union
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.reduced import DeviceReduction, RankReduction
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
        codes = cycle.exposed["op"].to_numpy(np.int64)
        for device, which, low, high, cut in _matched(rank, number, cuts[number]):
            key = device.process, device.device
            total = sums.setdefault(key, np.zeros(2 * len(OPERATIONS), np.int64))
            np.add.at(total, codes[which], np.clip(np.minimum(high, cut) - low, 0, None))
            np.add.at(total, codes[which] + len(OPERATIONS), high - low)
    return sums


def exposed_transfer(run: Run, cuts: ByCycle) -> Ints:
    """Return how long each call was exposed after its last member arrived, in steps of the mean.

    An entry a row of the operations frame; calls that could not be matched have none, so 0.
    """
    parts: list[Ints] = [np.empty(0, np.int64)]
    for rank in run.counted:
        for number, cycle in enumerate(rank.cycles):
            moved = np.zeros(len(cycle.operations), np.int64)
            rows = cycle.exposed["row"].to_numpy(np.int64)
            for _, which, low, high, cut in _matched(rank, number, cuts[rank.rank][number]):
                np.add.at(moved, rows[which], np.clip(high - np.maximum(low, cut), 0, None))
            parts.append(moved)
    return np.concatenate(parts)


def _matched(
    rank: RankRun, number: int, cuts: Ints
) -> Iterator[tuple[DeviceReduction, Ints, Ints, Ints, Ints]]:
    """Yield a cycle's exposed pieces of matched calls in the mean, device by device.

    Each with its places in `exposed`, its starts and ends within the windows, and the cuts.
    """
    cycle = rank.cycles[number]
    rows, place, start, end = _exposed(cycle)
    cut = cuts[rows]
    for index, device in enumerate(cycle.devices):
        mine = np.flatnonzero((cut != NONE) & (place == index))
        for windows in _windows(rank, number, device):
            which, low, high = pieces(start[mine], end[mine], windows)
            yield device, mine[which], low, high, cut[mine[which]]


class Losses(NamedTuple):
    """What calls cost their rank, an entry a row of the operations frame.

    A call holds its rank up if it ends while no compute runs. Of several in flight the last one to
    end before compute goes on holds it up; one that compute does not wait for costs nothing.

    Attributes:
        lost_ns: Time for which the call held its rank up and in which it may have waited for
            others: before the last member arrived, or all of it for messages and calls that could
            not be matched.
        held: Whether nothing else held the rank up after the call.
        begun_ns: When the recording of its rank and cycle began, on the rank's own clock.
    """

    lost_ns: Ints
    held: NDArray[np.bool_]
    begun_ns: Ints


def losses(run: Run, cuts: ByCycle) -> Losses:
    """Return what each call cost its rank."""
    parts = [
        _losses(cycle, cut)
        for rank in run.counted
        for cycle, cut in zip(rank.cycles, cuts[rank.rank], strict=True)
    ]
    columns = zip(*parts, strict=True)
    return Losses(*(np.concatenate(column) for column in columns))


def _losses(cycle: RankReduction, cut: Ints) -> Losses:
    """Return the losses of one rank and cycle, whose devices are taken for one."""
    _, _, low, high = _exposed(cycle)
    exposed = union(low, high)
    result = Losses(
        np.zeros(len(cut), np.int64), np.zeros(len(cut), bool), np.full(len(cut), cycle.first_ns)
    )
    if not len(exposed.start):
        return result
    start, end = (cycle.operations[name].to_numpy(np.int64) for name in ("start", "end"))
    inside = np.searchsorted(exposed.end, end)
    inside[inside == len(exposed.end)] = 0
    calls = np.flatnonzero((exposed.start[inside] < end) & (end <= exposed.end[inside]))
    inside, end = inside[calls], end[calls]
    start = np.maximum(start[calls], exposed.start[inside])
    # The last to end comes first where time runs backwards.
    until, since = (-at for at in first_started(-end, -start))
    known = cut[calls] != NONE
    waited = np.where(known, np.minimum(until, cut[calls]), until) - since
    result.lost_ns[calls] = np.maximum(waited, 0)
    last = np.full(len(exposed.end), NONE)
    np.maximum.at(last, inside, end)
    result.held[calls] = end == last[inside]
    return result


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

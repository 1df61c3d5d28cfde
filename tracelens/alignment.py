"""Put the ranks' clocks on one time line.

A collective ends on all its members within microseconds, however early each began to wait. So the
offset of a rank is the median difference of matched ends, and its drift their slope. Ranks that
share no group are linked through others: the differences within groups are balanced over the whole
graph of ranks and groups. Clocks of ranks that nothing links stay apart.

Nothing is kept per rank and instance: memory grows with calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens import operations
from tracelens.balance import balance
from tracelens.clocks import Clocks
from tracelens.operations import CODE
from tracelens.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.samples import Floats, Places

# A broadcast's root and a gather's senders need not wait for the others: their ends say little.
ENDING_TOGETHER = [
    CODE[name]
    for name in (
        operations.ALL_REDUCE,
        operations.ALL_GATHER,
        operations.REDUCE_SCATTER,
        operations.ALL_TO_ALL,
        operations.BARRIER,
    )
]
_ROUNDS = 3
_ENOUGH = 400
"""Instances a group is judged by: more of them would not move a median by a microsecond."""
_SMALLEST_SPREAD_NS = 1000.0
"""Ends agree no better than this, so a group whose ends seem to gets no more weight for it."""
_FEWEST_FOR_DRIFT = 30
_FEWEST_FOR_A_SLOPE = 6  # two in a third; the fewer, the less a group counts
_SHORTEST_FOR_DRIFT_NS = 5e7
_WORTH_NS = 100.0
_GAIN = 0.25
"""Drift counts if it takes this share off what some rank's ends deviate; less may be chance."""
_MOST_DRIFT = 2e-4
"""Oscillators keep to 100 ppm; a clock that seems to do worse is none of this run."""


def align(frame: pd.DataFrame, instance: Ints) -> Clocks:
    """Estimate offsets, and drift where it shows, from matched ends.

    Args:
        frame: Operations with `rank`, `group`, `op` and absolute `end_ns`.
        instance: The instance of each row, negative for none.
    """
    rows = (instance >= 0) & frame["op"].isin(ENDING_TOGETHER).to_numpy()
    if not rows.any():
        return Clocks()
    ends = _Ends.of(frame[rows], instance[rows])
    sample = ends.thinned()
    still = _Lines.linked(sample)
    for _ in range(_ROUNDS):
        still = still.refined(sample)
    drifting = still
    for _ in range(_ROUNDS):
        drifting = drifting.turned(sample).refined(sample)
    return (drifting if _is_better(drifting, still, sample) else still).clocks(ends)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The matched ends, one entry a call; ranks, groups and instances are numbered from 0.

    A cell is a rank in a group, and `third` tells the first, middle and last third of its calls.
    Ends are nanoseconds since `first_ns`: at the epoch they do not fit a double.
    """

    ranks: Ints
    rank: Places
    instance: Places
    cell: Places
    third: Places
    end: Floats
    cell_rank: Places
    cell_group: Places
    first_ns: int

    @classmethod
    def of(cls, frame: pd.DataFrame, instance: Ints) -> _Ends:
        ranks, rank = np.unique(frame["rank"].to_numpy(np.int64), return_inverse=True)
        _, group = np.unique(frame["group"].to_numpy(np.int64), return_inverse=True)
        _, number = np.unique(instance, return_inverse=True)
        cells, cell = np.unique(group * len(ranks) + rank, return_inverse=True)
        absolute = frame["end_ns"].to_numpy(np.int64)
        first = int(absolute.min())
        end = (absolute - first).astype(np.float64)
        third = _thirds(end, cell)
        return cls(
            ranks, rank, number, cell, third, end, cells % len(ranks), cells // len(ranks), first
        )

    def thinned(self) -> _Ends:
        """Keep a number of instances, evenly spread, of groups that have all members in all."""
        group = self.cell_group[self.cell]
        of_instance = np.zeros(self.instance.max() + 1, np.intp)
        of_instance[self.instance] = group
        instances = np.bincount(of_instance, minlength=self.cell_group.max() + 1)
        gaps = np.bincount(self.cell) != instances[self.cell_group]
        every = -(-instances // _ENOUGH)
        every[self.cell_group[gaps]] = 1
        order = np.argsort(of_instance, kind="stable")
        place = np.empty(len(order), np.intp)
        place[order] = (
            np.arange(len(order)) - (np.cumsum(instances) - instances)[of_instance[order]]
        )
        kept = (place % every[of_instance] == 0)[self.instance]
        cell, end = self.cell[kept], self.end[kept]
        return _Ends(
            self.ranks,
            self.rank[kept],
            self.instance[kept],
            cell,
            _thirds(end, cell),
            end,
            self.cell_rank,
            self.cell_group,
            self.first_ns,
        )


def _thirds(end: Floats, cell: Places) -> Places:
    count = np.bincount(cell)
    order = np.lexsort((end, cell))
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    place -= (np.cumsum(count) - count)[cell]
    return 3 * cell + place * 3 // count[cell]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Each clock as a line: at the time T it shows `T + offset + drift x (T - origin)`."""

    offset: Floats
    drift: Floats
    turns: NDArray[np.bool_]  # ranks whose drift was measured
    origin: Floats
    component: Places

    @classmethod
    def linked(cls, ends: _Ends) -> _Lines:
        """Walk from rank to rank along shared instances and add up median differences."""
        count = len(ends.ranks)
        offset, component = np.zeros(count), np.full(count, -1)
        peers = _Peers(ends)
        for first in range(count):
            if component[first] >= 0:
                continue
            component[first] = first
            waiting = deque([first])
            while waiting:
                known = waiting.popleft()
                for other, lead in peers.leads(known, component < 0):
                    offset[other], component[other] = offset[known] + lead, first
                    waiting.append(other)
        common = ends.end - offset[ends.rank]
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, component[ends.rank], common)
        np.maximum.at(high, component[ends.rank], common)
        origin = np.rint((low[component] + high[component]) / 2)
        return cls(offset, np.zeros(count), np.zeros(count, bool), origin, component)

    def common(self, ends: _Ends) -> Floats:
        """Return all ends on the common line."""
        origin, drift = self.origin[ends.rank], self.drift[ends.rank]
        return origin + (ends.end - origin - self.offset[ends.rank]) / (1 + drift)

    def deviation(self, ends: _Ends) -> Floats:
        """Return how far each end is from the median end of its instance."""
        common = self.common(ends)
        return common - Samples(common, ends.instance).median[ends.instance]

    def refined(self, ends: _Ends) -> _Lines:
        """Move the clocks so that what ends deviate balances out over all groups."""
        left = Samples(self.deviation(ends), ends.cell)
        weight = left.count / (left.spread + _SMALLEST_SPREAD_NS) ** 2
        change = balance(left.median, weight, ends.cell_rank, ends.cell_group, len(ends.ranks))
        return self._with(self.offset + change, self.drift, self.turns)

    def turned(self, ends: _Ends) -> _Lines:
        """Turn the clocks so that the slopes of the deviations balance out."""
        slope, weight = _slopes(self.common(ends), self.deviation(ends), ends)
        change = balance(slope, weight, ends.cell_rank, ends.cell_group, len(ends.ranks))
        turns = np.bincount(ends.cell_rank, weight, len(ends.ranks)) > 0
        return self._with(self.offset, self.drift + change, turns)

    def _with(self, offset: Floats, drift: Floats, turns: NDArray[np.bool_]) -> _Lines:
        """Return other lines; the first rank of a set keeps its own clock."""
        base, rate = offset[self.component], drift[self.component]
        relative = (1 + drift) / (1 + rate) - 1
        return _Lines(offset - base, relative, turns, self.origin, self.component)

    def clocks(self, ends: _Ends) -> Clocks:
        """Return the clocks as integers, with what alignment leaves."""
        common = self.common(ends)
        deviation = common - Samples(common, ends.instance).median[ends.instance]
        left = Samples(np.abs(deviation), ends.rank)
        ranks = [int(rank) for rank in ends.ranks]
        sets = [ranks[first] for first in self.component]
        return Clocks(
            offset_ns=_by_rank(ranks, self.offset),
            component=dict(zip(ranks, sets, strict=True)),
            residual_ns=_spans(common, ends.instance),
            drift_ppm={r: float(self.drift[i]) * 1e6 for i, r in enumerate(ranks) if self.turns[i]},
            origin_ns={s: round(o) + ends.first_ns for s, o in zip(sets, self.origin, strict=True)},
            rank_median_ns=_by_rank(ranks, left.median),
            rank_residual_ns=_by_rank(ranks, left.quantile(0.95)),
        )


class _Peers:
    """The differences of ends between ranks that share a group."""

    def __init__(self, ends: _Ends) -> None:
        self._ends = ends
        self._order = np.argsort(ends.cell, kind="stable")
        self._rows = np.append(0, np.cumsum(np.bincount(ends.cell)))
        by_rank = np.argsort(ends.cell_rank, kind="stable")
        bounds = np.cumsum(np.bincount(ends.cell_rank))[:-1]
        self._cells = np.split(by_rank, bounds)
        self._groups = np.searchsorted(ends.cell_group, np.arange(ends.cell_group.max() + 2))

    def leads(self, known: int, wanted: NDArray[np.bool_]) -> Iterator[tuple[int, float]]:
        """Yield each wanted rank once, with its median lead over a known one."""
        for own in self._cells[known]:
            group = self._ends.cell_group[own]
            for cell in range(self._groups[group], self._groups[group + 1]):
                other = int(self._ends.cell_rank[cell])
                if not wanted[other]:
                    continue
                instance, end = self._calls(own)
                theirs, ends = self._calls(cell)
                _, i, j = np.intersect1d(instance, theirs, assume_unique=True, return_indices=True)
                if len(i):
                    wanted[other] = False
                    yield other, float(np.median(ends[j] - end[i]))

    def _calls(self, cell: int) -> tuple[Places, Floats]:
        rows = self._order[self._rows[cell] : self._rows[cell + 1]]
        return self._ends.instance[rows], self._ends.end[rows]


def _slopes(time: Floats, deviation: Floats, ends: _Ends) -> tuple[Floats, Floats]:
    """Return the slope of each cell and its weight, 0 where calls are too few or too close.

    Tukey's resistant line: through the medians of the first and the last third of the calls, so
    that a few disturbed ends do not turn it.
    """
    cells = len(ends.cell_rank)
    value = Samples(deviation, ends.third, 3 * cells).median.reshape(cells, 3)
    at = Samples(time, ends.third, 3 * cells).median.reshape(cells, 3)
    whole = Samples(deviation, ends.cell)
    span = at[:, 2] - at[:, 0]
    usable = (whole.count >= _FEWEST_FOR_A_SLOPE) & (span >= _SHORTEST_FOR_DRIFT_NS)
    span = np.where(usable, span, 1.0)
    slope = np.where(usable, (value[:, 2] - value[:, 0]) / span, 0.0)
    spread = whole.spread + _SMALLEST_SPREAD_NS
    return slope, np.where(usable, whole.count * (span / spread) ** 2, 0.0)


def _is_better(drifting: _Lines, still: _Lines, ends: _Ends) -> bool:
    """Tell whether drift explains what offsets leave, by rates that clocks have."""
    if np.abs(drifting.drift).max() > _MOST_DRIFT:
        return False
    before, after = (
        Samples(np.abs(lines.deviation(ends)), ends.rank) for lines in (still, drifting)
    )
    gained = after.median < (1 - _GAIN) * before.median
    counts = (before.count >= _FEWEST_FOR_DRIFT) & (before.median > _WORTH_NS)
    return bool((gained & counts).any())


def _by_rank(ranks: list[int], values: Floats) -> dict[int, int]:
    return {rank: round(value) for rank, value in zip(ranks, values, strict=True)}


def _spans(values: Floats, sample: Places) -> Ints:
    low, high = np.full(sample.max() + 1, np.inf), np.full(sample.max() + 1, -np.inf)
    np.minimum.at(low, sample, values)
    np.maximum.at(high, sample, values)
    spans: Ints = np.rint(high - low).astype(np.int64)
    return spans

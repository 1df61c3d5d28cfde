"""Put the ranks' clocks on one time line.

A collective ends on all its members within microseconds, however early each began to wait. So the
offset of a rank is the median difference of matched ends. Ranks that share no group are linked
through others; clocks of ranks that nothing links stay apart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens import operations
from tracelens.matching import UNMATCHED
from tracelens.operations import CODE

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints

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
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Clocks:
    """Offsets of the ranks' clocks: subtract a rank's offset from its times.

    Attributes:
        offset_ns: Per rank; ranks without a matched collective are missing.
        component: Per rank the number of its linked set; times compare within one set only.
        residual_ns: Per matched instance the spread of its ends after alignment.
    """

    offset_ns: dict[int, int] = field(default_factory=dict)
    component: dict[int, int] = field(default_factory=dict)
    residual_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def common(self, rank: Ints, time: Ints) -> Ints:
        """Read own times of ranks on the first rank's clock."""
        return time - self._offsets(rank)

    def own(self, rank: Ints, time: Ints) -> Ints:
        """Read times of the first rank's clock on the ranks' own ones."""
        return time + self._offsets(rank)

    def _offsets(self, rank: Ints) -> Ints:
        return np.array([self.offset_ns[int(one)] for one in rank], np.int64)


def align(frame: pd.DataFrame, instance: Ints) -> Clocks:
    """Estimate clock offsets from matched ends.

    Args:
        frame: Operations with `rank`, `op` and absolute `end_ns`.
        instance: The instance of each row, from `matching.match`.
    """
    rows = (instance != UNMATCHED) & frame["op"].isin(ENDING_TOGETHER).to_numpy()
    if not rows.any():
        return Clocks()
    ranks, rank_of = np.unique(frame["rank"].to_numpy(np.int64)[rows], return_inverse=True)
    _, instance_of = np.unique(instance[rows], return_inverse=True)
    ends = np.full((instance_of.max() + 1, len(ranks)), np.nan)
    absolute = frame["end_ns"].to_numpy(np.int64)[rows]
    # Epoch nanoseconds do not fit a double; differences within a run do.
    ends[instance_of, rank_of] = absolute - absolute.min()
    offsets, component = _linked(ends)
    offsets = _refined(ends, offsets, component)
    return Clocks(
        {int(rank): round(offsets[i]) for i, rank in enumerate(ranks)},
        {int(rank): int(component[i]) for i, rank in enumerate(ranks)},
        _spread(ends - offsets),
    )


def _linked(ends: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Walk from rank to rank along shared instances and add up median differences."""
    count = ends.shape[1]
    offsets = np.zeros(count)
    component = np.full(count, -1)
    for first in range(count):
        if component[first] >= 0:
            continue
        component[first] = first
        waiting = deque([first])
        while waiting:
            known = waiting.popleft()
            difference = ends - ends[:, [known]]
            shared = ~np.isnan(difference)
            for other in np.flatnonzero(shared.any(axis=0) & (component < 0)):
                step = np.median(difference[shared[:, other], other])
                offsets[other] = offsets[known] + step
                component[other] = first
                waiting.append(int(other))
    return offsets, component


def _refined(
    ends: NDArray[np.float64], offsets: NDArray[np.float64], component: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Move each clock to the median distance from its instances' common end, a few rounds."""
    for _ in range(_ROUNDS):
        corrected = ends - offsets
        common = np.nanmedian(corrected, axis=1, keepdims=True)
        offsets = offsets + np.nanmedian(corrected - common, axis=0)
        # Only differences mean anything: the first rank of a set keeps its own clock.
        offsets = offsets - offsets[component]
    return offsets


def _spread(corrected: NDArray[np.float64]) -> Ints:
    spread: NDArray[np.float64] = np.nanmax(corrected, axis=1) - np.nanmin(corrected, axis=1)
    return np.rint(spread).astype(np.int64)

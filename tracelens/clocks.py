"""The clocks of the ranks: read a rank's own times on the line all its peers share.

Events of a rank stay on its own clock everywhere; only what compares ranks asks for common times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints


@dataclass(frozen=True, slots=True)
class Clocks:
    """How each rank's clock differs from that of the first rank of its set.

    When the first rank's clock shows T, this one shows `T + offset + drift x (T - origin)`.

    Attributes:
        offset_ns: Per rank; ranks without a matched collective are missing.
        component: Per rank the first rank of its linked set; times compare within one set only.
        residual_ns: Per matched instance the spread of its ends after alignment.
        drift_ppm: Per rank, in parts per million, where it could be measured.
        origin_ns: Per set, named by its first rank, the time at which offsets hold: the middle of
            the matched collectives, on the first rank's clock.
        rank_median_ns: Per rank, how far half of its ends stay from the common ones at most.
        rank_residual_ns: The same for 95 % of them.
    """

    offset_ns: dict[int, int] = field(default_factory=dict)
    component: dict[int, int] = field(default_factory=dict)
    residual_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    drift_ppm: dict[int, float] = field(default_factory=dict)
    origin_ns: dict[int, int] = field(default_factory=dict)
    rank_median_ns: dict[int, int] = field(default_factory=dict)
    rank_residual_ns: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_one_clock(cls, ranks: list[int]) -> Clocks:
        """Return the clocks of ranks that read one and the same."""
        return cls(dict.fromkeys(ranks, 0), dict.fromkeys(ranks, min(ranks, default=0)))

    def common(self, rank: Ints, time: Ints) -> Ints:
        """Read own times of ranks on the first rank's clock.

        Args:
            rank: Whose clock each time is from; all of them are in `offset_ns`.
            time: Absolute times.
        """
        offset, drift, origin = self._of(rank)
        since = time - offset - origin
        return time - offset - _rounded(since * (drift / (1 + drift)))

    def own(self, rank: Ints, time: Ints) -> Ints:
        """Read times of the first rank's clock on the ranks' own ones."""
        offset, drift, origin = self._of(rank)
        return time + offset + _rounded((time - origin) * drift)

    def _of(self, rank: Ints) -> tuple[Ints, NDArray[np.float64], Ints]:
        """Return offset, drift (as a share) and origin for each of many ranks."""
        known, which = np.unique(rank, return_inverse=True)
        ranks = [int(number) for number in known]
        offset = np.array([self.offset_ns[number] for number in ranks], np.int64)
        drift = np.array([self.drift_ppm.get(number, 0.0) / 1e6 for number in ranks], np.float64)
        sets = [self.component[number] for number in ranks]
        origin = np.array([self.origin_ns.get(first, 0) for first in sets], np.int64)
        return offset[which], drift[which], origin[which]


def _rounded(values: NDArray[np.float64]) -> Ints:
    return np.rint(values).astype(np.int64)

"""Quantiles of many small samples at once: a loop over a million of them would take minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.intp]


class Samples:
    """Values sorted within each sample.

    Args:
        values: Any numbers.
        sample: The sample of each, numbered from 0.
        samples: At least so many samples, the last of which may be empty.
    """

    def __init__(self, values: Floats, sample: Places, samples: int = 0) -> None:
        self.count: Places = np.bincount(sample, minlength=samples)
        self._first = np.cumsum(self.count) - self.count
        self._ordered = values[np.lexsort((values, sample))]

    def quantile(self, share: float) -> Floats:
        """Return a quantile of each sample, the mean of its two nearest values; 0 if it is empty.

        Args:
            share: From 0 to 1.
        """
        result = np.zeros(len(self.count))
        known = self.count > 0
        rank = (self.count[known] - 1) * share
        first = self._first[known]
        low, high = np.floor(rank).astype(np.intp), np.ceil(rank).astype(np.intp)
        result[known] = (self._ordered[first + low] + self._ordered[first + high]) / 2
        return result

    @property
    def median(self) -> Floats:
        """The median of each sample."""
        return self.quantile(0.5)

    @property
    def spread(self) -> Floats:
        """The distance between the quartiles of each sample."""
        return self.quantile(0.75) - self.quantile(0.25)

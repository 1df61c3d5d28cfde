"""Latency and bandwidth of a link from message sizes: t = alpha + wire bytes / beta.

Fitted per (operation, group) over the transfer times of matched calls. The slope is the median over
all pairs of sizes (Theil-Sen), so that a few disturbed calls do not bend the line.
"""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints

_FEWEST_SIZES = 3
_SMALLEST_SPAN = 8.0
"""Sizes closer together than this factor say nothing about latency."""
_MOST_SIZES = 64


class Fit(NamedTuple):
    """alpha in microseconds, beta in decimal GB/s of wire bytes."""

    alpha_us: float
    beta_gbps: float


def fit_all(frame: pd.DataFrame, wait_ns: Ints) -> dict[tuple[int, int], Fit]:
    """Fit every (group, operation code) whose sizes differ enough.

    Args:
        frame: Operations.
        wait_ns: Waiting of each, `NONE` where unmatched.
    """
    usable = (wait_ns != NONE) & (frame["wire_bytes"] != NONE).to_numpy()
    usable &= frame["wire_bytes"].to_numpy(np.int64) > 0
    # The time of a batch of messages stands with its first one.
    usable &= frame["time_ns"].to_numpy(np.int64) > 0
    part = frame.loc[usable, ["group", "op", "wire_bytes"]]
    part = part.assign(transfer_ns=frame["time_ns"].to_numpy(np.int64)[usable] - wait_ns[usable])
    found: dict[tuple[int, int], Fit] = {}
    for key, rows in part.groupby(["group", "op"], sort=True):
        group, op = (int(str(number)) for number in key)
        result = fit(rows["wire_bytes"].to_numpy(float), rows["transfer_ns"].to_numpy(float))
        if result is not None:
            found[group, op] = result
    return found


def fit(wire_bytes: NDArray[np.float64], transfer_ns: NDArray[np.float64]) -> Fit | None:
    """Fit one line through the median transfer time of each size; None if it makes no sense.

    Args:
        wire_bytes: Bytes on the wire of each call.
        transfer_ns: Its transfer time.
    """
    sizes = np.unique(wire_bytes)
    if len(sizes) < _FEWEST_SIZES or sizes[-1] < _SMALLEST_SPAN * sizes[0]:
        return None
    if len(sizes) > _MOST_SIZES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, _MOST_SIZES).astype(int)]
    points = [(float(x), float(np.median(transfer_ns[wire_bytes == x]))) for x in sizes]
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    alpha = median(time - slope * size for size, time in points)
    # Time must grow with size, and no message takes less than none.
    return Fit(alpha / 1000, 1 / slope) if slope > 0 and alpha >= 0 else None

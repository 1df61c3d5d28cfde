"""What the transfer times of matched calls say: bandwidth, its share of the link, latency.

algbw = S / t and busbw = wire bytes / t (nccl-tests doc/PERFORMANCE.md), in decimal GB/s: a byte a
nanosecond. A call of fewer wire bytes than alpha x beta spends more of its time on latency than on
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens.latency import Fit

_TIMES_HALF = 8.0
"""From so many times the half-bandwidth size on, latency takes less than an eighth of a call."""
_LARGE_BYTES = 64_000_000
"""Large without a fit: some five times the half-bandwidth size of 8 GPUs on NVLink."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bandwidths of one row of collectives, None where nothing was matched or sized.

    Attributes:
        algbw_gbps: S over transfer time, all calls.
        busbw_gbps: Wire bytes over transfer time, all calls.
        large_busbw_gbps: The same of the calls that latency hardly slows.
        half_bandwidth_bytes: Wire bytes at which latency and bytes take as long.
        latency_bound_calls_pct: Share of calls below that size.
        latency_bound_time_pct: Their share of the transfer time.
    """

    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    large_busbw_gbps: float | None = None
    half_bandwidth_bytes: int | None = None
    latency_bound_calls_pct: float | None = None
    latency_bound_time_pct: float | None = None


def measure(matched: pd.DataFrame, fitted: Fit | None) -> Bandwidth:
    """Measure one row of collectives.

    Args:
        matched: Its matched calls, with `wait_ns`.
        fitted: Latency and bandwidth of the operation on the group.
    """
    known = (matched["buffer_bytes"] != NONE) & (matched["wire_bytes"] != NONE)
    sized = matched[known]
    wire = sized["wire_bytes"].to_numpy(np.int64)
    transfer = (sized["time_ns"] - sized["wait_ns"]).to_numpy(np.int64)
    buffers = sized["buffer_bytes"].to_numpy(np.int64)
    half = None if fitted is None else 1000 * fitted.alpha_us * fitted.beta_gbps
    large = wire >= (_LARGE_BYTES if half is None else _TIMES_HALF * half)
    below = np.zeros(len(wire), bool) if half is None else wire < half
    is_moving = bool(buffers.sum())
    return Bandwidth(
        algbw_gbps=_rate(buffers, transfer) if is_moving else None,
        busbw_gbps=_rate(wire, transfer) if is_moving else None,
        large_busbw_gbps=_rate(wire[large], transfer[large]),
        half_bandwidth_bytes=None if half is None else round(half),
        latency_bound_calls_pct=None if half is None else _share(below, np.ones_like(wire)),
        latency_bound_time_pct=None if half is None else _share(below, transfer),
    )


def _rate(size: Ints, time: Ints) -> float | None:
    total = float(time.sum())
    return float(size.sum()) / total if total > 0 else None


def _share(which: np.ndarray[tuple[int], np.dtype[np.bool_]], of: Ints) -> float | None:
    total = float(of.sum())
    return 100 * float(of[which].sum()) / total if total > 0 else None

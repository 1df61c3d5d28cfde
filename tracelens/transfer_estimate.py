"""What one rank's trace tells of transfer: how fast the fastest of equal calls were.

A call's time is waiting and transfer, and with one rank's trace nobody can tell them apart. But of
many calls of one size some hardly waited. What these took is shown beside the time, as an estimate,
and never subtracted from it: if the rank waited in all calls, the estimate is too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    import pandas as pd

PERCENTILE = 0.05
_FEWEST = 5
_MOST_OF_THE_TIME = 0.95


class Estimate(NamedTuple):
    """Estimated transfer time of all calls of a row, and the bus bandwidth that makes."""

    transfer_ns: int
    busbw_gbps: float | None


def estimate(rows: pd.DataFrame) -> Estimate | None:
    """Estimate the transfer time of the calls of one rank, group and operation.

    Args:
        rows: With `message_bytes`, `wire_bytes` and `time_ns`.

    Returns:
        None if calls without enough of their size take more than a twentieth of the time. What such
        calls take is left out.
    """
    time = rows["time_ns"].to_numpy(np.int64)
    sized = (rows["message_bytes"].to_numpy(np.int64) != NONE) & (time > 0)
    transfer = wire = covered = 0
    known = rows[sized]
    for _, equal in known.groupby(["message_bytes", "wire_bytes"], sort=True):
        times = np.sort(equal["time_ns"].to_numpy(np.int64))
        if len(times) < _FEWEST:
            continue
        covered += int(times.sum())
        transfer += len(times) * int(times[int(PERCENTILE * (len(times) - 1))])
        wire += max(int(equal["wire_bytes"].sum()), 0)
    if not covered or covered < _MOST_OF_THE_TIME * time.sum():
        return None
    return Estimate(transfer, wire / transfer if wire else None)

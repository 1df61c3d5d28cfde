"""Launches whose kernel or copy has no record on the device: the trace has lost it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.model.trace import RankTrace


def of(trace: RankTrace) -> Ints:
    """Return the times of launches without a device record.

    A memset may be folded away by the driver, so a missing one says nothing. Untimed events have a
    record; the parser marks their launches.
    """
    calls = trace.host_calls
    kinds = np.asarray(calls["kind"].astype(object))
    correlation = calls["correlation"].to_numpy()
    launches = (kinds == "launch") & _says(correlation)
    memset = [
        code for code, name in enumerate(calls["name"].cat.categories) if "emset" in str(name)
    ]
    launches &= ~np.isin(calls["name"].cat.codes.to_numpy(), memset)
    events = trace.device_events
    if not len(events):
        return np.empty(0, np.int64)  # of none there is a record: that is said once
    times = calls["start"].to_numpy()
    own = events["correlation"].to_numpy()
    launches &= ~np.isin(correlation, own)
    # Of events that say no correlation, some were linked in another way: they have this time.
    launches &= ~np.isin(times, events["launch"].to_numpy()[~_says(own)])
    lost: Ints = times[launches]
    return lost


def unexplained(trace: RankTrace, lost: Ints) -> int:
    """Count those of the launches without a record whose loss nothing else names.

    Args:
        trace: The trace.
        lost: Times of the launches without a record.
    """
    info = trace.info
    if info.truncated:
        return 0
    return max(0, len(lost) - info.damaged_device_events - _unlinked(trace))


def _unlinked(trace: RankTrace) -> int:
    """Count device events that do not say what launched them: they may be those of any launch."""
    own, launch = (trace.device_events[name].to_numpy() for name in ("correlation", "launch"))
    counted = (trace.device_events["kind"] != "memset").to_numpy(bool)  # as among the launches
    return int((counted & ~_says(own) & (launch == NONE)).sum())


def _says(correlation: Ints) -> NDArray[np.bool_]:
    said: NDArray[np.bool_] = (correlation != NONE) & (correlation != 0)
    return said

"""Find device events whose duration cannot be.

A stream runs one event after the other; a kernel may start early (programmatic dependent launch)
but not run through a later one. Kernels inside CUDA graphs report one stream for several branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints

_FAR_NS = 1_000_000
# A stream on which this happens more often does not run in order, whatever its number means.
_FEW, _FEW_SHARE = 10, 0.05
HOUR_NS = 3600 * 10**9


def clip(events: pd.DataFrame, untimed: NDArray[np.bool_]) -> tuple[pd.DataFrame, int]:
    """End events that last far beyond a later one of their stream where that one starts.

    Args:
        events: The device table.
        untimed: Which events have no usable time and are left alone.

    Returns:
        The table and how many events were cut.
    """
    start, end = events["start"].to_numpy(), events["end"].to_numpy().copy()
    graph = events["graph"].to_numpy()
    cut = 0
    stream = events["stream"].to_numpy()
    for one in _streams(events):
        rows = one[(graph[one] == NONE) & (stream[one] != NONE) & ~untimed[one]]
        following = rows[1:]
        through = end[rows[:-1]] > end[following] + _FAR_NS
        through &= end[rows[:-1]] > start[following] + _FAR_NS
        if 0 < through.sum() <= max(_FEW, _FEW_SHARE * len(rows)):
            end[rows[:-1][through]] = start[following][through]
            cut += int(through.sum())
    return (events.assign(end=end) if cut else events), cut


def _streams(events: pd.DataFrame) -> list[NDArray[np.intp]]:
    """Return the rows of each stream in order of start."""
    keys = events[["device", "stream"]].to_numpy()
    start = events["start"].to_numpy()
    if not len(keys):
        return []
    order = np.lexsort((start, keys[:, 1], keys[:, 0]))
    changes = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
    return list(np.split(order, changes))


def endless(events: pd.DataFrame, last_host_ns: int) -> NDArray[np.bool_]:
    """Tell which events end more than an hour after everything else: their duration is none.

    Args:
        events: The device table.
        last_host_ns: When the last host event ended, `NONE` without any.
    """
    start, end = events["start"].to_numpy(), events["end"].to_numpy()
    if not len(start):
        return np.zeros(0, bool)
    latest: Ints = np.maximum(start.max(), last_host_ns)
    found: NDArray[np.bool_] = (end - start > HOUR_NS) & (end > latest + HOUR_NS)
    return found


def strays(events: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which events start more than an hour from their launch and from all that do not.

    Their start cannot be: no queue is that long, and nothing runs before it is launched.

    Args:
        events: The device table, with launches.
    """
    start, launch = events["start"].to_numpy(), events["launch"].to_numpy()
    linked = launch != NONE
    near = linked & (np.abs(start - np.where(linked, launch, start)) <= HOUR_NS)
    if not near.any():
        return np.zeros(len(start), bool)
    first, last = start[near].min() - HOUR_NS, start[near].max() + HOUR_NS
    found: NDArray[np.bool_] = ~near & ((start < first) | (start > last))
    return found if are_few(found) else np.zeros(len(start), bool)


def are_few(found: NDArray[np.bool_]) -> bool:
    """Tell whether so few of a file's events are odd that each is an error of its own."""
    return bool(found.sum() <= max(_FEW, _FEW_SHARE * len(found)))

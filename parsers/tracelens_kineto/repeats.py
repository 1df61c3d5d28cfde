"""Find events that a file holds twice: a tool joined files that overlap, or a file with itself.

Unions of time would not show it; counts, bytes, micro-batches and sums by name would double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_RUN = ["device", "stream", "start", "end", "correlation", "kind", "name"]


def of_device(events: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which rows stand in a table before: a launch runs once, a stream one at a time.

    Branches of a CUDA graph share both, so they are not compared.

    Args:
        events: The device table.
    """
    known = (events["graph"].to_numpy() == NONE) & (events["correlation"].to_numpy() != NONE)
    return _repeated(events, known & (events["stream"].to_numpy() != NONE), _RUN)


def of_host(table: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which rows stand in a table before: a thread begins and ends one thing at a time."""
    named = table["thread"].to_numpy() != NONE
    return _repeated(table, named, [name for name in table.columns if name != "event"])


def _repeated(table: pd.DataFrame, known: NDArray[np.bool_], keys: list[str]) -> NDArray[np.bool_]:
    start, end = table["start"].to_numpy(), table["end"].to_numpy()
    order = np.argsort(start, kind="stable")
    again = np.diff(start[order]) == 0
    beside = np.zeros(len(start), bool)
    beside[order[1:][again]] = True
    beside[order[:-1][again]] = True
    beside &= known & (end > start)
    found = np.zeros(len(start), bool)
    if beside.any():
        found[beside] = table.loc[beside, keys].duplicated().to_numpy()
    return found

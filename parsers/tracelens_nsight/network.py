"""Counters of network cards (`nsys profile --nic-metrics=true`): what really left the machine.

They are about the whole machine, whoever sent, so they go to one process of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import COUNTERS, NONE, frame
from tracelens_nsight.frames import categories

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_nsight.tables import Tables

SAMPLES = "NET_NIC_METRIC"
_NAMES = "TARGET_INFO_NETWORK_METRICS"
_KEY = ("metricsListId", "metricsIdx")
_UNNAMED = ("", "")


def counters(tables: Tables) -> pd.DataFrame:
    """Return the samples of bytes of all network cards; rates are turned into counts."""
    if SAMPLES not in tables.columns:
        return frame(COUNTERS)
    rows = tables.read(SAMPLES, ["start", "end", "value", *_KEY]).integers
    named = _named(tables)
    keys, metric = np.unique(
        np.column_stack([rows[name] for name in _KEY]), axis=0, return_inverse=True
    )
    facts = [named.get((int(one), int(other)), _UNNAMED) for one, other in keys]
    usable = [_counts_bytes(*fact) for fact in facts]
    metric = metric.reshape(-1)
    start, end, value = rows["start"], rows["end"], rows["value"]
    kept = np.array(usable or [False])[metric] & (start != NONE) & (end >= start) & (value != NONE)
    rate = np.array([unit.endswith("/s") for _, unit in facts] or [False])[metric]
    counted = np.where(rate, np.rint(value / 1e9 * (end - start)), value).astype(np.int64)
    return frame(
        COUNTERS,
        {
            "name": categories(metric[kept], [name for name, _ in facts]),
            "unit": categories(np.zeros(int(kept.sum()), np.int64), ["B"]),
            "device": np.full(int(kept.sum()), NONE),
            "start": start[kept],
            "end": end[kept],
            "value": counted[kept],
        },
    )


def _named(tables: Tables) -> dict[tuple[int, int], tuple[str, str]]:
    rows = tables.read(_NAMES, _KEY, ["name", "unit"])
    keys = zip(*(rows.integers[name].tolist() for name in _KEY), strict=True)
    facts = zip(rows.texts["name"].texts(), rows.texts["unit"].texts(), strict=True)
    return dict(zip(keys, facts, strict=True))


def _counts_bytes(name: str, unit: str) -> bool:
    """Tell whether a metric is an amount of data; packets and waits are none."""
    return "bytes" in name.lower() and unit.lower() in ("", "b", "bytes", "b/s", "bytes/s")

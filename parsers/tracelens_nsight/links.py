"""Samples of how busy the links of GPUs are (`nsys profile --gpu-metrics-devices=all`).

A row is the value of one counter at one time, for one GPU of the machine: its number is in the
lowest bits of the type's id. Ids of counters differ between files, their names do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.link_use import PERCENT, metric
from tracelens.model.trace import COUNTERS, NONE, frame
from tracelens_nsight.frames import categories, joined
from tracelens_nsight.tables import OneOf

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens_nsight.tables import Tables

SAMPLES = "GPU_METRICS"
_NAMES = "TARGET_INFO_GPU_METRICS"
_GPU = 0xFF  # of a typeId
_LONGEST = 2
"""A sample stands for the time since the one before, for two usual periods at most: then samples
were lost."""


def are_there(tables: Tables) -> bool:
    """Tell whether links were sampled."""
    return SAMPLES in tables.columns and bool(_counters(tables)) and tables.holds(SAMPLES)


def counters(tables: Tables, ordinals: Mapping[int, int]) -> pd.DataFrame:
    """Return the samples of the links of a process's devices.

    Args:
        tables: The export.
        ordinals: CUDA ordinal of each GPU the process uses.
    """
    if SAMPLES not in tables.columns or not ordinals:
        return frame(COUNTERS)
    named = {key: name for key, name in _counters(tables).items() if key[0] & _GPU in ordinals}
    kinds = sorted({kind for kind, _ in named})
    return joined(COUNTERS, [_of_type(tables, kind, named, ordinals) for kind in kinds])


def _counters(tables: Tables) -> dict[tuple[int, int], str]:
    """Return the counters of links by type and id."""
    rows = tables.read(_NAMES, ["typeId", "metricId"], ["metricName"])
    keys = zip(*(rows.integers[name].tolist() for name in ("typeId", "metricId")), strict=True)
    named = zip(keys, rows.texts["metricName"].texts(), strict=True)
    return {key: name for key, name in named if metric(name) is not None}


def _of_type(
    tables: Tables, kind: int, named: Mapping[tuple[int, int], str], ordinals: Mapping[int, int]
) -> pd.DataFrame:
    """Return the samples of one GPU."""
    ids = sorted(number for of, number in named if of == kind)
    wanted = [OneOf("typeId", (kind,)), OneOf("metricId", tuple(ids))]
    rows = tables.read(SAMPLES, ["timestamp", "metricId", "value"], where=wanted).integers
    timed = (rows["timestamp"] != NONE) & (rows["value"] != NONE)
    end, number, value = (rows[name][timed] for name in ("timestamp", "metricId", "value"))
    names = [named[kind, one] for one in ids]
    count = len(end)
    return frame(
        COUNTERS,
        {
            "name": categories(np.searchsorted(ids, number), names),
            "unit": categories(np.zeros(count, np.int64), [PERCENT]),
            "device": np.full(count, ordinals[kind & _GPU]),
            "start": _starts(end),
            "end": end,
            "value": value,
        },
    )


def _starts(end: Ints) -> Ints:
    """Return when the sample taken at each time begins."""
    times, place = np.unique(end, return_inverse=True)
    if len(times) < 2:
        return end
    usual = float(np.median(np.diff(times)))
    lengths = np.minimum(np.diff(times, prepend=times[0] - usual), _LONGEST * usual)
    return np.asarray(times - np.rint(lengths).astype(np.int64))[place]

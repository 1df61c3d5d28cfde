"""Counts and times of a device's kernels by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from tracelens.device_views import DeviceView
    from tracelens.intervals import Ints
    from tracelens.model.trace import RankTrace

TOP_KERNELS = 100


def of_device(trace: RankTrace, view: DeviceView, step_of: Ints) -> pd.DataFrame:
    """Count kernels per (name, class, op, step); on a CPU, operations of the backend instead."""
    timeline = view.timeline
    if len(trace.device_events):
        rows = np.arange(len(view.rows))
        names: Any = trace.device_events["name"].array[view.rows]
    else:
        rows = np.flatnonzero(view.owner >= 0)
        backend = trace.info.backend or "backend"
        text = [f"{backend}:{OPERATIONS[code]}" for code in timeline.event_op[rows]]
        names = np.array(text, object)
    frame = pd.DataFrame(
        {
            "name": names,
            "class": timeline.event_class[rows],
            "op": timeline.event_op[rows],
            "step": step_of[rows],
            "total_ns": timeline.end[rows] - timeline.start[rows],
        }
    )
    grouped = frame.groupby(["name", "class", "op", "step"], observed=True, sort=True)
    summed = grouped["total_ns"].agg(["size", "sum"]).reset_index()
    summed.columns = pd.Index(["name", "class", "op", "step", "count", "total_ns"])
    summed["name"] = summed["name"].astype(object)
    return summed


def longest(kernels: pd.DataFrame) -> pd.DataFrame:
    """Keep the names with the longest totals: the report shows no more."""
    if not len(kernels):
        return kernels
    totals = kernels.groupby("name", sort=False)["total_ns"].sum().sort_values(kind="stable")
    return kernels[kernels["name"].isin(totals.index[-TOP_KERNELS:])].reset_index(drop=True)

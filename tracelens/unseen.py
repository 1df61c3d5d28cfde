"""Tell a run without a device from one whose device left no usable event in the trace.

On a CPU run the process's threads stand in for the device. That must not happen to a run on a
device of which nothing was kept: its operator time is not the device's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.host_names import is_host_backend
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from tracelens.model.trace import RankTrace


def unseen_device(trace: RankTrace) -> str | None:
    """Name the signs of a device of which no event has a usable time; None if nothing.

    gloo and MPI record no `record_param_comms` (ProcessGroupGloo.cpp): records, and ranges of other
    backends, are of collectives between devices.
    """
    if len(trace.device_events):
        return None
    found = {
        "device events": sum(trace.info.untimed.values()),
        "events of an unknown device": trace.info.unknown_device_events,
        "launches": _launches(trace),
        "collectives between devices": _collectives(trace),
    }
    if said := next((f"{what}: {count:,}" for what, count in found.items() if count), None):
        return said
    return _backend_of_nothing(trace)


def _backend_of_nothing(trace: RankTrace) -> str | None:
    """Name the backend between devices of a rank whose trace has no event at all."""
    backend = trace.info.backend or ""
    if "nccl" not in backend or trace.host_extent[0] != NONE:
        return None
    return "the backend is nccl, and the trace has no events"


def _launches(trace: RankTrace) -> int:
    calls = trace.host_calls
    launch = np.asarray(calls["kind"].astype(object)) == "launch"
    return int((launch & ~np.isin(calls["correlation"].to_numpy(), (NONE, 0))).sum())


def _collectives(trace: RankTrace) -> int:
    table = trace.communications
    source = np.asarray(table["source"].astype(object))
    records = int((source == "record").sum())
    ranges = table["name"][source == "annotation"]
    return records or sum(not is_host_backend(str(name)) for name in ranges)

"""One timeline per device, with the place of its events in the whole rank's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens import host_timeline
from tracelens.attribution import Timeline
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from tracelens.communication import Identified, Operation
    from tracelens.intervals import Ints
    from tracelens.model.trace import RankTrace


@dataclass(slots=True)
class DeviceView:
    """One device's events with their place in the whole rank's tables."""

    process: int
    device: int
    rows: np.ndarray[Any, np.dtype[np.intp]]
    timeline: Timeline
    launch: Ints
    launch_end: Ints
    thread: Ints
    owner: Ints
    stream: Ints | None = None


def of_devices(trace: RankTrace, identified: Identified) -> list[DeviceView]:
    """Return the timelines of a rank's devices, by process and device."""
    events = trace.device_events
    owners = events[["process", "device"]]
    keys = owners.to_numpy()
    start, end = events["start"].to_numpy(), events["end"].to_numpy()
    kernel = np.asarray(events["kind"].astype(object)) == "kernel"
    copied = events["copy_bytes"].to_numpy()
    views = []
    for process, device in sorted(owners.drop_duplicates().itertuples(index=False, name=None)):
        rows = np.flatnonzero((keys[:, 0] == process) & (keys[:, 1] == device))
        timeline = Timeline(
            start[rows],
            end[rows],
            identified.event_class[rows],
            identified.event_op[rows],
            kernel[rows],
            copied[rows],
        )
        launched = ("launch", "launch_end", "launch_thread")
        launch, launch_end, thread = (events[n].to_numpy()[rows] for n in launched)
        views.append(
            DeviceView(
                int(process),
                int(device),
                rows,
                timeline,
                launch,
                launch_end,
                thread,
                identified.owner[rows],
                events["stream"].to_numpy()[rows],
            )
        )
    return views


def of_host(trace: RankTrace) -> tuple[list[DeviceView], list[Operation]]:
    """Return the timeline of a rank without a device, and the operations on it."""
    host = host_timeline.build(trace)
    is_kernel = np.zeros(len(host.start), bool)
    timeline = Timeline(host.start, host.end, host.event_class, host.event_op, is_kernel)
    owner = np.full(len(host.start), -1, np.int64)
    for index, operation in enumerate(host.operations):
        if operation.event is not None:
            owner[operation.event] = index
    rows = np.arange(len(host.start))
    none = np.full(len(host.start), NONE)
    view = DeviceView(trace.info.process, 0, rows, timeline, host.launch, host.launch, none, owner)
    return ([view] if len(host.start) else []), host.operations

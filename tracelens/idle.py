"""Why a device was idle: the host was late, or the work waited for something on the device.

A gap ends with a device event. If the call that launched it returned after the gap began, the
device waited for the host; if it was launched already, the event waited for another stream or a
collective. Without a launch record the cause is unknown (docs/attribution.md, Idle time).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.intervals import Intervals, gaps
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from tracelens.attribution import Timeline, Unions
    from tracelens.intervals import Ints


class IdleCauses(NamedTuple):
    """Idle time of a window by cause; what is left of the idle time has no known cause."""

    host_ns: int
    dependency_ns: int


def idle_causes(
    timeline: Timeline, parts: Unions, launch_end: Ints, low: int, high: int
) -> IdleCauses:
    """Attribute the idle time of the window [low, high).

    Args:
        timeline: The device's events, ascending by start.
        parts: Their unions.
        launch_end: When each event's launching call returned, `NONE` if unknown.
        low: Start of the window.
        high: Its end. A gap that reaches it ends with the event that follows the window.
    """
    host, dependency = idle_gaps(timeline, parts, launch_end, low, high)
    return IdleCauses(host.length, dependency.length)


def idle_gaps(
    timeline: Timeline, parts: Unions, launch_end: Ints, low: int, high: int
) -> tuple[Intervals, Intervals]:
    """Return the gaps of the window [low, high) the host caused, and those a dependency did.

    Args as `idle_causes`.
    """
    free = gaps(parts.busy, low, high)
    following = np.searchsorted(timeline.start, free.end, side="left")
    ended = following < len(timeline.start)
    returned = np.full(len(free.end), NONE)
    returned[ended] = launch_end[following[ended]]
    known = returned != NONE
    host = known & (returned > _when_gaps_began(parts, free.start))
    chosen = (host, known & ~host)
    of_host, of_dependency = (Intervals(free.start[one], free.end[one]) for one in chosen)
    return of_host, of_dependency


def _when_gaps_began(parts: Unions, start: Ints) -> Ints:
    """Return the end of the busy time before each gap: a window may cut a gap in two."""
    before = np.searchsorted(parts.busy.end, start, side="right") - 1
    ends = parts.busy.end[np.maximum(before, 0)] if len(parts.busy.end) else start
    return np.where(before >= 0, ends, start)

"""Cut a rank's true time into steps and classes, as docs/attribution.md defines them.

This repeats the definitions on purpose, by another way than the analysis takes: it is what the
analysis is held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.simulate.clocks import reading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.simulate.options import Options
    from tracelens.simulate.recording import DeviceEvent, Range, RecordedRank

COMPUTE, COMMUNICATION, COPY = "compute", "comm", "copy"


@dataclass(frozen=True, slots=True)
class Steps:
    """The recorded steps of a rank.

    Attributes:
        marks: Their ranges.
        events: Per step the device events it launched.
        windows: Per step the device's time that counts as its own, [low, high), as the rank's own
            clock shows it.
    """

    marks: list[Range]
    events: list[list[DeviceEvent]]
    windows: list[tuple[int, int]]


def steps_of(rank: RecordedRank, options: Options) -> Steps:
    """Find what each recorded step launched, and the windows from first event to first event."""
    around = 1 if options.drop_edges else 0
    marks = [one for one in rank.ranges if one.kind == "step"][around:][: options.steps]
    launched = {launch.correlation: launch.start for launch in rank.launches}
    events: list[list[DeviceEvent]] = [[] for _ in marks]
    place = 0
    for event in sorted(rank.device_events, key=lambda one: launched[one.correlation]):
        at = launched[event.correlation]
        while place < len(marks) and at >= marks[place].end:
            place += 1
        if place < len(marks) and at >= marks[place].start:
            events[place].append(event)
    lows = [reading(rank.clock, min(event.start for event in listed)) for listed in events]
    begun, ended = (reading(rank.clock, at) for at in (marks[-1].start, marks[-1].end))
    lag = lows[-1] - begun
    last = max(ended + lag, *(reading(rank.clock, event.end) for event in events[-1]))
    return Steps(marks, events, list(zip(lows, [*lows[1:], last], strict=True)))


def partition(rank: RecordedRank, steps: Steps) -> list[dict[str, object]]:
    """Return per step how long the device computed, communicated, copied and idled.

    Lengths are as the rank's own clock shows them: it drifts.
    """
    shown = [
        (
            _class(event),
            reading(rank.clock, event.start),
            reading(rank.clock, event.end),
        )
        for event in rank.device_events
    ]
    result: list[dict[str, object]] = []
    for mark, (low, high) in zip(steps.marks, steps.windows, strict=True):
        number = int(mark.name.partition("#")[2])
        result.append({"step": number, **_classes(shown, low, high)})
    return result


def _class(event: DeviceEvent) -> str:
    if event.communications:
        return COMMUNICATION
    return COMPUTE if event.kind == "kernel" else COPY


def _classes(shown: list[tuple[str, int, int]], low: int, high: int) -> dict[str, int]:
    """Sweep a window once: at each instant the first class of compute, comm and copy counts."""
    changes = []
    for kind, start, end in shown:
        if start < high and end > low:
            changes += [(max(start, low), kind, 1), (min(end, high), kind, -1)]
    changes.sort()
    running = dict.fromkeys((COMPUTE, COMMUNICATION, COPY), 0)
    lengths = dict.fromkeys(("compute", "comm", "exposed_comm", "copy", "exposed_copy", "idle"), 0)
    before = low
    for at, kind, change in [*changes, (high, COMPUTE, 0)]:
        for name in _counted([name for name, count in running.items() if count]):
            lengths[name] += at - before
        running[kind] += change
        before = at
    return {"window_ns": high - low, **{f"{name}_ns": ns for name, ns in lengths.items()}}


def _counted(running: list[str]) -> list[str]:
    """Return what an instant counts as: everything that runs, and its first class exclusively."""
    if not running:
        return ["idle"]
    return running if running[0] == COMPUTE else [*running, f"exposed_{running[0]}"]


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of a union of intervals."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total += end - start
            reach = end
        elif end > reach:
            total += end - reach
            reach = end
    return total

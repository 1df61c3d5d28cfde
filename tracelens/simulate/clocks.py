"""Read true times on each rank's own clock, as every profiler does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tracelens.simulate.recording import Clock, RecordedRank, Recording

_Timed = TypeVar("_Timed")

EPOCH_NS = 1_775_210_400_000_000_000
"""What a right clock shows when the run begins: every file format counts from here."""


def read(recording: Recording, begin_ns: int = 0) -> Recording:
    """Return the run with every time as the rank's own clock shows it.

    Args:
        recording: The run in true time.
        begin_ns: What a right clock shows when the run begins.
    """
    ranks = [of_rank(rank, begin_ns) for rank in recording.ranks]
    return dataclasses.replace(recording, ranks=ranks)


def reading(clock: Clock, true_ns: int) -> int:
    """Return what a clock shows at a true time; order is kept."""
    return true_ns + clock.offset_ns + round(true_ns * clock.drift_ppm / 1e6)


def of_rank(rank: RecordedRank, begin_ns: int = 0) -> RecordedRank:
    """Return one rank with every time as its own clock shows it; arguments as of `read`."""

    def shown(events: list[_Timed]) -> list[_Timed]:
        return [
            dataclasses.replace(  # type: ignore[type-var]
                event,
                start=begin_ns + reading(rank.clock, event.start),  # type: ignore[attr-defined]
                end=begin_ns + reading(rank.clock, event.end),  # type: ignore[attr-defined]
            )
            for event in events
        ]

    return dataclasses.replace(
        rank,
        launches=shown(rank.launches),
        device_events=shown(rank.device_events),
        communications=shown(rank.communications),
        ranges=shown(rank.ranges),
    )

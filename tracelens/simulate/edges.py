"""Cut each rank's recording at its own instants, as profilers start and stop when they do.

A run with `drop_edges` has a step more at either end. The recording of each rank begins in the
first one and ends in the last one, at most so many device events away from the steps between. What
began before is lost: of work launched before the beginning only the device event is there, without
its launch and without what it carried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens.simulate.machine import Chance

if TYPE_CHECKING:
    from tracelens.simulate.options import Options
    from tracelens.simulate.recording import RecordedRank, Recording


def cut(recording: Recording, options: Options) -> Recording:
    """Return the recording as each rank's profiler saw it."""
    return replace(recording, ranks=[_cut(rank, options) for rank in recording.ranks])


def _cut(rank: RecordedRank, options: Options) -> RecordedRank:
    chance = Chance(options.machine, options.seed, f"edges {rank.rank}")
    steps = [one for one in rank.ranges if one.kind == "step"]
    begin, end = _window(rank, steps[1].start, steps[-2].end, options.drop_edges, chance)
    launches = [one for one in rank.launches if begin <= one.start and one.end <= end]
    launched = {one.correlation for one in launches}
    seen = [one for one in rank.device_events if begin <= one.start and one.end <= end]
    kept = sorted(
        index for one in seen if one.correlation in launched for index in one.communications
    )
    place = {index: number for number, index in enumerate(kept)}
    return replace(
        rank,
        launches=launches,
        device_events=[
            replace(one, communications=tuple(place[i] for i in one.communications if i in place))
            for one in seen
        ],
        communications=[rank.communications[index] for index in kept],
        ranges=[one for one in rank.ranges if begin <= one.start and one.end <= end],
    )


def _window(
    rank: RecordedRank, first: int, last: int, most: int, chance: Chance
) -> tuple[int, int]:
    """Return when a rank's recording begins and ends: between two of its device events."""
    before = [one.start for one in rank.device_events if one.end <= first]
    after = [one.end for one in rank.device_events if one.start >= last]
    early = before[len(before) - min(chance.below(most), len(before) - 1) - 1 :]
    late = after[: min(chance.below(most), len(after) - 1) + 1]
    return early[0] + 1, late[-1] + 1

"""Cut each rank's recording at its own instants, as profilers start and stop when they do.

A run with `drop_edges` has a step more at either end. The recording of each rank begins in the
first one and ends in the last one, at most so many device events away from the steps between. What
began before is lost: of work launched before the beginning only the device event is there, without
its launch and without what it carried. At the end the profiler waits for the device, so whatever
was launched is there.
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
    begin = _beginning(rank, steps[1].start, chance.below(options.drop_edges))
    end = _ending(rank, steps[-2].end, chance.below(options.drop_edges))
    launches = [one for one in rank.launches if begin <= one.start and one.end <= end]
    launched = {one.correlation for one in launches}
    later = {one.correlation for one in rank.launches if one.end > end}
    seen = [e for e in rank.device_events if e.start >= begin and e.correlation not in later]
    kept = sorted(i for e in seen if e.correlation in launched for i in e.communications)
    place = {index: number for number, index in enumerate(kept)}
    return replace(
        rank,
        launches=launches,
        device_events=[
            replace(e, communications=tuple(place[i] for i in e.communications if i in place))
            for e in seen
        ],
        communications=[rank.communications[index] for index in kept],
        ranges=[one for one in rank.ranges if begin <= one.start and one.end <= end],
    )


def _beginning(rank: RecordedRank, first: int, count: int) -> int:
    """Return a time before which all but the last `count` device events before `first` began."""
    before = [event.start for event in rank.device_events if event.end <= first]
    return before[max(len(before) - count - 1, 0)] + 1


def _ending(rank: RecordedRank, last: int, count: int) -> int:
    """Return the end of the launch of the `count`-th work after `last`."""
    work = {event.correlation for event in rank.device_events}
    after = [one.end for one in rank.launches if one.start >= last and one.correlation in work]
    return [last, *after][min(count, len(after))]

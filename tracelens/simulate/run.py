"""Simulate a run from its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import edges, program
from tracelens.simulate.engine import Engine
from tracelens.simulate.layout import ProcessGroups
from tracelens.simulate.machine import Chance
from tracelens.simulate.recording import RecordedRank, Recording

if TYPE_CHECKING:
    from tracelens.simulate.host import Recorded
    from tracelens.simulate.options import Options
    from tracelens.simulate.recording import DeviceEvent

_FIRST_PROCESS = 4_000


def simulate(options: Options) -> Recording:
    """Return a simulated run in true time; see docs/simulate.md."""
    groups = ProcessGroups(options.layout)
    scripts = program.scripts(options, groups)
    results = Engine(scripts, groups.listed, options.machine, options.seed).run()
    ranks = [_rank(number, result, options) for number, result in enumerate(results)]
    recording = Recording(ranks, groups.listed, options.seed, options.as_dict())
    return edges.cut(recording, options) if options.drop_edges else recording


def _rank(
    number: int, result: tuple[Recorded, list[DeviceEvent]], options: Options
) -> RecordedRank:
    recorded, device_events = result
    machine = options.machine
    node, local = divmod(number, machine.gpus_per_node)
    return RecordedRank(
        rank=number,
        host=f"node{node:02d}",
        process=_FIRST_PROCESS + local,
        device=local,
        clock=Chance(machine, options.seed, f"clock {number}").clock(),
        launches=recorded.launches,
        device_events=device_events,
        communications=recorded.communications,
        ranges=sorted(recorded.ranges, key=lambda one: (one.start, -one.end)),
    )

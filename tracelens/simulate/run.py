"""Simulate a run from its options, and write it with its truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import edges, kineto, nsight, program
from tracelens.simulate.engine import Engine
from tracelens.simulate.layout import ProcessGroups
from tracelens.simulate.machine import Chance
from tracelens.simulate.recording import RecordedRank, Recording
from tracelens.simulate.truth import text, truth

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.simulate.host import Recorded
    from tracelens.simulate.options import Options
    from tracelens.simulate.recording import DeviceEvent

_FIRST_PROCESS = 4_000


def simulate(options: Options) -> Recording:
    """Return what the profilers of a simulated run record, in true time; see docs/simulate.md.

    Raises:
        OptionError: If the options do not go together.
    """
    whole = whole_run(options)
    return edges.cut(whole, options) if options.drop_edges else whole


def write(options: Options, folder: Path, kind: str = "kineto") -> list[Path]:
    """Simulate, and write the recordings and `truth.json` beside them.

    Args:
        options: What to simulate.
        folder: Made if it is missing.
        kind: kineto, nsight (one file a node) or nsight-per-rank.
    """
    whole = whole_run(options)
    recording = edges.cut(whole, options) if options.drop_edges else whole
    if kind == "kineto":
        files = kineto.write(recording, folder, torch=options.torch)
    else:
        files = nsight.write(recording, folder, per_node=kind == "nsight")
    answers = folder / "truth.json"
    answers.write_text(text(truth(whole, options)))
    return [*files, answers]


def whole_run(options: Options) -> Recording:
    """Return everything that happens, also before and after the profilers' windows."""
    groups = ProcessGroups(options.layout)
    scripts = program.scripts(options, groups)
    results = Engine(scripts, groups.listed, options.machine, options.seed).run()
    ranks = [_rank(number, result, options) for number, result in enumerate(results)]
    return Recording(ranks, groups.listed, options.seed, options.as_dict())


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

"""Simulated runs on disk, analysed by the real engine, beside what is true of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tracelens
from tracelens import waiting
from tracelens.operations import CODE
from tracelens.simulate import edges, kineto
from tracelens.simulate.clocks import EPOCH_NS, reading
from tracelens.simulate.run import whole_run
from tracelens.simulate.truth import truth

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.operations_table import OperationsTable
    from tracelens.run import Run
    from tracelens.simulate import Options
    from tracelens.simulate.recording import Recording
    from tracelens.waiting import Waiting


@dataclass(frozen=True)
class Simulated:
    """A run, what the analysis makes of its files, and the truth."""

    options: Options
    whole: Recording
    recorded: Recording
    truth: dict[str, Any]
    analysis: tracelens.Analysis
    table: OperationsTable
    waiting: Waiting


def simulated(options: Options, folder: Path) -> Simulated:
    """Simulate, write, analyse."""
    whole = whole_run(options)
    recorded = edges.cut(whole, options) if options.drop_edges else whole
    kineto.write(recorded, folder, torch=options.torch)
    seen: list[tuple[OperationsTable, Waiting]] = []
    observe = waiting.observe

    def spy(run: Run, table: OperationsTable) -> Waiting:
        seen.append((table, observe(run, table)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "observe", spy)
        analysis = tracelens.analyze(folder)
    [(table, waits)] = seen
    return Simulated(options, whole, recorded, truth(whole, options), analysis, table, waits)


Key = tuple[int, int, tuple[int, ...]]


def members(run: Simulated) -> dict[Key, tuple[dict[str, Any], dict[str, Any]]]:
    """Return each collective's instance and member by rank, start as its clock shows it, group.

    Kernels of two groups may start together: both waited for the same kernel.
    """
    clocks = {rank.rank: rank.clock for rank in run.whole.ranks}
    groups = {group.name: group.ranks for group in run.whole.groups}
    found: dict[Key, tuple[dict[str, Any], dict[str, Any]]] = {}
    for instance in run.truth["instances"]:
        for member in instance["members"]:
            shown = EPOCH_NS + reading(clocks[member["rank"]], member["start_ns"])
            if instance["op"] != "message":
                key = (member["rank"], shown, groups[instance["group"]])
                assert key not in found
                found[key] = (instance, member)
    return found


def keys(run: Simulated) -> list[Key | None]:
    """Return the key of each row of the operations frame, None for messages."""
    frame = run.table.frame
    messages = [CODE["send"], CODE["recv"], CODE["send_recv"]]
    return [
        None
        if op in messages
        else (int(rank), int(start), tuple(run.table.groups[int(group)].ranks or ()))
        for rank, start, group, op in zip(
            frame["rank"], frame["start_ns"], frame["group"], frame["op"], strict=True
        )
    ]


def clock_errors(run: Simulated) -> dict[int, int]:
    """Return by how much each rank's times are wrong at most, read on the first rank's clock."""
    found = run.waiting.clocks
    ranks = {rank.rank: rank for rank in run.recorded.ranks}
    errors: dict[int, int] = {}
    for number in found.offset_ns:
        first = ranks[found.component[number]].clock
        times = [event.end for event in ranks[number].device_events if event.communications]
        own, true = (
            np.array([EPOCH_NS + reading(clock, time) for time in times], np.int64)
            for clock in (ranks[number].clock, first)
        )
        common = found.common(np.full(len(times), number), own)
        errors[number] = int(np.abs(common - true).max())
    return errors

"""Join the ranks of a run: which of their collectives are one, and how their clocks differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.alignment import ENDING_TOGETHER, align
from tracelens.clocks import Clocks
from tracelens.cohorts import sort_into_runs
from tracelens.matching import LOW, UNMATCHED, Matching, match

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.run import Run

ENDS = "their collectives end at other times"
_MOST_DEVIATION_NS = 1_000_000
"""Matched ends of devices fall within a tenth of a millisecond, whatever the network."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What connects the ranks.

    Attributes:
        matching: Which rows are one collective.
        clocks: How the ranks' clocks differ.
        runs: The ranks of each run, the largest first: nothing matches across runs.
        reasons: What shows that they are several.
    """

    matching: Matching
    clocks: Clocks
    runs: list[set[int]]
    reasons: set[str]


def join(run: Run, table: OperationsTable) -> Joined:
    """Match all ranks' collectives and align their clocks on them."""
    runs, reasons = sort_into_runs(run.counted)
    number = {rank: place for place, ranks in enumerate(runs) for rank in ranks}
    known = _one_clock(run, table)
    matching = match(table, number, known)
    if known is not None:
        return Joined(matching, known, runs, reasons)
    clocks = align(table.frame, _reliable(table.frame, matching))
    strangers = _strangers(run, clocks)
    if strangers:
        matching = _without(table.frame, matching, strangers)
        clocks = align(table.frame, _reliable(table.frame, matching))
        left = [one for ranks in runs if (one := ranks - strangers)]
        runs, reasons = [*left, *({rank} for rank in sorted(strangers))], {*reasons, ENDS}
    return Joined(matching, clocks, runs, reasons)


def _one_clock(run: Run, table: OperationsTable) -> Clocks | None:
    """Return zero offsets for a CPU run on one host: its ranks read the same clock.

    A host backend's ranges end when a thread gets a core, so their ends would only add noise.
    """
    hosts = {cycle.info.host for rank in run.counted for cycle in rank.cycles}
    if not is_cpu_run(run) or len(hosts) > 1 or None in hosts:
        return None
    return Clocks.of_one_clock([int(rank) for rank in table.frame["rank"].unique()])


def is_cpu_run(run: Run) -> bool:
    """Tell whether no rank has a device: times then depend on who gets a core."""
    return {cycle.info.device_kind for rank in run.counted for cycle in rank.cycles} == {"cpu"}


def _reliable(frame: pd.DataFrame, matching: Matching) -> Ints:
    """Return the instances that clocks rely on: uncertain ones only for ranks without others.

    A wrong match moves a clock by the time between two calls.
    """
    rank, instance = frame["rank"].to_numpy(np.int64), matching.instance
    usable = (instance != UNMATCHED) & frame["op"].isin(ENDING_TOGETHER).to_numpy()
    good = usable & (matching.confidence < LOW)
    needed = instance[usable & ~np.isin(rank, rank[good])]
    return np.where(good | np.isin(instance, needed), instance, UNMATCHED)


def _strangers(run: Run, clocks: Clocks) -> set[int]:
    """Return the ranks whose ends agree with nobody's, wherever their clocks are put."""
    if is_cpu_run(run):
        return set()
    return {rank for rank, off in clocks.rank_median_ns.items() if off > _MOST_DEVIATION_NS}


def _without(frame: pd.DataFrame, matching: Matching, strangers: set[int]) -> Matching:
    """Take ranks out of all instances, and what is left of one with a single member."""
    gone = frame["rank"].isin(strangers).to_numpy()
    instance = np.where(gone, UNMATCHED, matching.instance)
    members = np.bincount(instance[instance != UNMATCHED], minlength=1)
    alone = (instance != UNMATCHED) & (members[instance] < 2)
    return Matching(np.where(alone, UNMATCHED, instance), matching.confidence)

"""Put the reduced files of a run together: ranks, cycles, duplicates, what is missing.

A rank is never decided by sort order, and no file silently replaces another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens import communicator_ranks
from tracelens.notices import notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Notice
    from tracelens.reduced import RankReduction

_SHOWN = 12
"""Ranks or files that a sentence names; the result lists them all."""
_SLOW_FIRST_STEP = 1.2
SAME_RUN_NS = 10 * 60 * 10**9  # clocks of hosts may be minutes apart
EPOCH_2000_NS = 946_684_800 * 10**9
"""A clock that shows less says no date: it counts from some start of its own."""


@dataclass(slots=True)
class RankRun:
    """One rank: its profiler cycles in time order.

    `counted` is False for a second set of files that claims a rank already there: it is shown, but
    in no mean.
    """

    rank: int
    cycles: list[RankReduction]
    counted: bool = True
    in_mean: dict[tuple[int, int], bool] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Tell whether events of this rank are known to be lost."""
        return any(
            c.info.lacks_device_events or c.info.device_unseen or c.launches_without_record
            for c in self.cycles
        )

    def complete(self, cycle: int, index: int) -> bool:
        """Tell whether a step is complete on every device of the rank."""
        devices = self.cycles[cycle].devices
        return bool(devices) and all(device.steps[index].complete for device in devices)

    def step_keys(self) -> list[tuple[int, int]]:
        """Return (cycle, index) of every step."""
        return [
            (number, index)
            for number, cycle in enumerate(self.cycles)
            for index in range(cycle.step_count)
        ]


@dataclass(slots=True)
class Run:
    """All ranks, and what a reader must know about their completeness."""

    ranks: list[RankRun]
    world_size: int | None
    missing: list[int]
    duplicated: list[int]
    notices: list[Notice]

    @property
    def counted(self) -> list[RankRun]:
        """Return the ranks that means are over: whole ones, or all if none is whole."""
        candidates = [rank for rank in self.ranks if rank.counted]
        return [rank for rank in candidates if not rank.partial] or candidates


def assemble(reductions: list[RankReduction], asked: frozenset[int] | None = None) -> Run:
    """Sort reduced files into ranks and cycles.

    Args:
        reductions: The reduced files; at least one.
        asked: The ranks the user asked for: no other one is missing.
    """
    notices: list[Notice] = []
    by_rank = _by_rank(reductions, notices)
    ranks: list[RankRun] = []
    duplicated = []
    for rank in sorted(by_rank):
        sets = _cycle_sets(by_rank[rank])
        sets.sort(key=lambda cycles: not any(cycle.devices for cycle in cycles))  # empty ones last
        if len(sets) > 1:
            duplicated.append(rank)
            notices.append(_duplicate_notice(rank, sets))
        ranks += [RankRun(rank, cycles, counted=i == 0) for i, cycles in enumerate(sets)]
    world = _world_size(reductions, notices)
    present = {run.rank for run in ranks}
    expected = set(range(world)) if world is not None else set()
    missing = sorted((expected if asked is None else expected & asked) - present)
    if asked is not None:
        notices.append(notice("selected-ranks", ranks=ranges(sorted(present))))
    if missing:
        notices.append(_missing_notice(missing, world or 0))
    if simulated := sum(reduction.info.simulated for reduction in reductions):
        notices.append(notice("simulated", count=simulated))
    run = Run(ranks, world, missing, duplicated, notices)
    notices += _apart_in_time(run)
    _decide_means(run)
    return run


def _apart_in_time(run: Run) -> list[Notice]:
    """Say if ranks were recorded at different times: then they are ranks of different runs."""
    counted = [r for r in run.ranks if r.counted and r.cycles[0].first_ns < r.cycles[-1].last_ns]
    gaps = [_gap([r for r in counted if dated(r) == with_date]) for with_date in (True, False)]
    if max(gaps) <= SAME_RUN_NS:
        return []
    return [notice("different-times", minutes=f"{max(gaps) / 60e9:,.0f}")]


def dated(rank: RankRun) -> bool:
    """Tell whether the clock of a rank's trace says the date."""
    return rank.cycles[0].first_ns >= EPOCH_2000_NS


def _gap(ranks: list[RankRun]) -> int:
    if not ranks:
        return 0
    return max(r.cycles[0].first_ns for r in ranks) - min(r.cycles[-1].last_ns for r in ranks)


def _by_rank(
    reductions: list[RankReduction], notices: list[Notice]
) -> dict[int, list[RankReduction]]:
    by_rank: dict[int, list[RankReduction]] = defaultdict(list)
    for reduction in reductions:
        if reduction.info.rank is not None:
            by_rank[reduction.info.rank].append(reduction)
    unknown = _number_by_communicator(reductions, by_rank, notices)
    free = iter(number for number in range(len(reductions) + len(by_rank)) if number not in by_rank)
    _number_by_device(unknown, free, by_rank, notices)
    by_process: dict[tuple[str | None, int], int] = {}
    rest = [reduction for reduction in unknown if reduction.info.local_rank is None]
    for reduction in sorted(rest, key=lambda r: (r.first_ns, r.info.path)):
        process = communicator_ranks.process_of(reduction)
        if process not in by_process:
            by_process[process] = next(free)
            file = reduction.info.path
            notices.append(notice("rank-unknown", file=file, rank=by_process[process]))
        by_rank[by_process[process]].append(reduction)
    return by_rank


def _number_by_communicator(
    reductions: list[RankReduction],
    by_rank: dict[int, list[RankReduction]],
    notices: list[Notice],
) -> list[RankReduction]:
    """Number what says no rank by a communicator of all processes; return what is left."""
    unknown = [reduction for reduction in reductions if reduction.info.rank is None]
    places = communicator_ranks.places(reductions) if unknown else {}
    if not places:
        return unknown
    given = set[int]()
    for reduction in unknown:
        place = places[communicator_ranks.process_of(reduction)]
        by_rank[place].append(reduction)
        given.add(place)
    notices.append(
        notice("ranks-by-communicator", count=len(given), ranks=ranges(sorted(given), _SHOWN))
    )
    return []


def _number_by_device(
    unknown: list[RankReduction],
    free: Iterator[int],
    by_rank: dict[int, list[RankReduction]],
    notices: list[Notice],
) -> None:
    """Number the processes of a file in order of their devices, as torchrun starts them."""
    files: dict[str, list[RankReduction]] = defaultdict(list)
    for reduction in unknown:
        if reduction.info.local_rank is not None:
            files[reduction.info.path].append(reduction)
    for path in sorted(files):
        members = sorted(files[path], key=lambda r: r.info.local_rank or 0)
        given = [next(free) for _ in members]
        for number, reduction in zip(given, members, strict=True):
            by_rank[number].append(reduction)
        shown = ranges(given)
        notices.append(notice("ranks-by-device", file=path, count=len(members), ranks=shown))


def _cycle_sets(files: list[RankReduction]) -> list[list[RankReduction]]:
    """Split the files of a rank into sets of cycles: one process, no overlap in time."""
    sets: list[list[RankReduction]] = []
    for file in sorted(files, key=lambda r: (r.first_ns, r.info.path)):
        home = next((cycles for cycles in sets if _follows(cycles[-1], file)), None)
        if home is None:
            sets.append([file])
        else:
            home.append(file)
    return sorted(sets, key=lambda cycles: cycles[0].info.path)


def _follows(earlier: RankReduction, later: RankReduction) -> bool:
    same = communicator_ranks.process_of(earlier) == communicator_ranks.process_of(later)
    return same and later.first_ns >= earlier.last_ns


def _duplicate_notice(rank: int, sets: list[list[RankReduction]]) -> Notice:
    first = [cycles[0].info for cycles in sets]
    what, names = "files", [info.path for info in first]
    if len(set(names)) < len(names):  # a file may hold several processes
        what, names = "traces", [f"process {info.process} of {info.path}" for info in first]
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return notice(
        "duplicate-rank", rank=rank, count=len(sets), what=what, names=shown, kept=names[0]
    )


def _world_size(reductions: list[RankReduction], notices: list[Notice]) -> int | None:
    said = Counter(r.info.world_size for r in reductions if r.info.world_size)
    if not said:
        return None
    # The most frequent size that holds every rank; among equals the larger one.
    highest = max((r.info.rank for r in reductions if r.info.rank is not None), default=0)
    chosen = max(said, key=lambda size: (size > highest, said[size], size))
    if len(said) > 1:
        sizes = ", ".join(
            f"{size} in {count} file{'s' if count > 1 else ''}"
            for size, count in sorted(said.items())
        )
        notices.append(notice("world-size-conflict", sizes=sizes, chosen=chosen))
    return chosen


def _missing_notice(missing: list[int], world: int) -> Notice:
    return notice("missing-ranks", count=len(missing), world=world, ranks=ranges(missing, _SHOWN))


def ranges(numbers: list[int], most: int | None = None) -> str:
    """Write sorted numbers as ranges: "0-3, 6", and at most so many of them: "0-3, …"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    shown = [f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts[:most]]
    return ", ".join([*shown, "…"] if len(parts) > len(shown) else shown)


def _decide_means(run: Run) -> None:
    """Mark the steps means are over: complete ones, without a slow first one."""
    slow = _slow_cycles(run)
    for rank in run.ranks:
        keys = rank.step_keys()
        complete = {key: rank.complete(*key) for key in keys}
        kept = {key: ok and not (key[1] == 0 and key[0] in slow) for key, ok in complete.items()}
        rank.in_mean = kept if any(kept.values()) else complete
    if slow and any(not rank.in_mean.get((cycle, 0), True) for rank in run.ranks for cycle in slow):
        run.notices.append(notice("first-step-slow"))


def _slow_cycles(run: Run) -> set[int]:
    """Return the cycles whose first step takes more than 1.2 x the median step, over ranks."""
    first: dict[int, list[int]] = defaultdict(list)
    other: list[int] = []
    for rank in run.counted:
        for cycle, index in rank.step_keys():
            window = rank.cycles[cycle].devices[0].steps[index].partition.window_ns
            if rank.complete(cycle, index):
                (first[cycle] if index == 0 else other).append(window)
    if not other:
        return set()
    limit = _SLOW_FIRST_STEP * float(np.median(other))
    return {cycle for cycle, windows in first.items() if float(np.median(windows)) > limit}

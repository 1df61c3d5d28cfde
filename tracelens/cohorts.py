"""Tell ranks of different runs apart: their collectives never match, however alike they look."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.run import SAME_RUN_NS, dated

if TYPE_CHECKING:
    from tracelens.reduced import RankReduction
    from tracelens.run import RankRun

_ONE_HOST_NS = 10**9
"""Ranks of one host read one clock: what they do together falls together."""

WORLD = "they name another world size"
TIME = "they were recorded at another time"
DATE = "nothing shows when they were recorded"
GROUPS = "they list other process groups"


@dataclass(slots=True)
class _Cohort:
    """Ranks that can be of one run."""

    ranks: set[int] = field(default_factory=set)
    world: int | None = None
    dated: bool | None = None
    latest_start: int | None = None
    earliest_end: int | None = None
    by_host: dict[str, list[RankRun]] = field(default_factory=dict)

    def conflict(self, rank: RankRun, contradicting: set[int]) -> str | None:
        """Say why a rank cannot belong here; None if it can."""
        info = rank.cycles[0].info
        if None not in (info.world_size, self.world) and info.world_size != self.world:
            return WORLD
        if contradicting & self.ranks:
            return GROUPS
        if not _is_timed(rank):
            return None
        if self.dated not in (None, dated(rank)):
            return DATE
        start, end = self._span(rank)
        neighbours = self.by_host.get(info.host, []) if info.host else []
        if start - end > SAME_RUN_NS or any(_apart(rank, other) for other in neighbours):
            return TIME
        return None

    def add(self, rank: RankRun) -> None:
        info = rank.cycles[0].info
        self.ranks.add(rank.rank)
        self.world = self.world if self.world is not None else info.world_size
        if not _is_timed(rank):
            return
        self.dated = dated(rank)
        self.latest_start, self.earliest_end = self._span(rank)
        if info.host:
            self.by_host.setdefault(info.host, []).append(rank)

    def _span(self, rank: RankRun) -> tuple[int, int]:
        start, end = rank.cycles[0].first_ns, rank.cycles[-1].last_ns
        if self.latest_start is None or self.earliest_end is None:
            return start, end
        return max(start, self.latest_start), min(end, self.earliest_end)


def sort_into_runs(ranks: list[RankRun]) -> tuple[list[set[int]], set[str]]:
    """Return the ranks of each run, the largest run first, and what shows that they differ."""
    contradicting = _contradicting(ranks)
    cohorts: list[_Cohort] = []
    reasons: set[str] = set()
    for rank in ranks:
        for cohort in cohorts:
            reason = cohort.conflict(rank, contradicting[rank.rank])
            if reason is None:
                break
            reasons.add(reason)
        else:
            cohort = _Cohort()
            cohorts.append(cohort)
        cohort.add(rank)
    sets = sorted((cohort.ranks for cohort in cohorts), key=lambda one: (-len(one), min(one)))
    return sets, reasons


def _is_timed(rank: RankRun) -> bool:
    return any(cycle.devices for cycle in rank.cycles)


def _apart(one: RankRun, other: RankRun) -> bool:
    """Tell whether two ranks of one host recorded the same steps at different times."""
    begins = {c.recorded_steps[0]: c for c in one.cycles if _has_steps(c)}
    return any(
        _gap(begins[cycle.recorded_steps[0]], cycle) > _ONE_HOST_NS
        for cycle in other.cycles
        if _has_steps(cycle) and cycle.recorded_steps[0] in begins
    )


def _has_steps(cycle: RankReduction) -> bool:
    return bool(cycle.recorded_steps and cycle.devices)


def _gap(one: RankReduction, other: RankReduction) -> int:
    return max(one.first_ns, other.first_ns) - min(one.last_ns, other.last_ns)


def _contradicting(ranks: list[RankRun]) -> dict[int, set[int]]:
    """Return per rank those that list other members under the name of a group of both."""
    listed: dict[str, dict[tuple[int, ...], set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank in ranks:
        groups = rank.cycles[0].info.process_groups
        names = Counter(group.name for group in groups)
        for group in groups:
            if group.ranks and len(group.ranks) == group.size and names[group.name] == 1:
                listed[group.name][group.ranks].add(rank.rank)
    found: dict[int, set[int]] = defaultdict(set)
    for by_members in listed.values():
        for members, here in by_members.items():
            for others, there in by_members.items():
                if members != others:
                    for rank_number in here & set(others):
                        found[rank_number] |= there & set(members)
    return found

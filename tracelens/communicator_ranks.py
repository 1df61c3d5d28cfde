"""Number processes that say no rank by their places in a communicator of all of them.

NCCL says a process's place in a communicator if its making is recorded. Frameworks and MPI order
the group of all processes by rank, so the place in a communicator of that many members is the rank.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.reduced import RankReduction

Process = tuple[str | None, int]
"""Host and process id."""


def process_of(reduction: RankReduction) -> Process:
    """Return whose recording it is: cycles are several of one process."""
    return reduction.info.host, reduction.info.process


def places(reductions: Sequence[RankReduction]) -> dict[Process, int]:
    """Return the rank of every process; nothing if no communicator holds exactly all of them.

    Ranks that are known must be these places, and several such communicators must agree.
    """
    processes = {process_of(one) for one in reductions}
    if len(processes) == 1:
        return {}
    sizes: defaultdict[str, set[int | None]] = defaultdict(set)
    members: defaultdict[str, dict[Process, int | None]] = defaultdict(dict)
    for one in reductions:
        for group in one.info.process_groups:
            if group.communicator is not None:
                sizes[group.communicator].add(group.size)
                members[group.communicator][process_of(one)] = group.place
    found = [
        mine
        for name, mine in members.items()
        if sizes[name] == {len(processes)} and set(mine.values()) == set(range(len(processes)))
    ]
    if not found or any(other != found[0] for other in found):
        return {}
    chosen = {process: place for process, place in found[0].items() if place is not None}
    known = ((process_of(one), one.info.rank) for one in reductions if one.info.rank is not None)
    return chosen if all(chosen[process] == rank for process, rank in known) else {}

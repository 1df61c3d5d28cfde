"""Complete the groups that files know by a communicator id only.

NCCL's payloads name the communicator of a call and, when it was made during the recording, its size
and the process's own place in it: never the members. Those are the ranks whose files name the same
id (it is a hash of the id all members were given). What depends on them (bytes of a gather, global
peers) is computed again here, since a rank is reduced without the others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tracelens.groups import role_of
from tracelens.notices import notice
from tracelens.operation_rows import ROW_COLUMNS, of_row, operation_row
from tracelens.operations import ALL_TO_ALL, CODE, MESSAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.groups import Group
    from tracelens.reduced import RankReduction
    from tracelens.run import Run

    Row = Mapping[str, Any]


@dataclass(slots=True)
class _Communicator:
    """What the files say about one communicator: its size, and the members' places in it."""

    sizes: set[int] = field(default_factory=set)
    places: dict[int, int | None] = field(default_factory=dict)
    size: int | None = None

    def ranks(self) -> tuple[int, ...] | None:
        """Return the members in order of their places; None if some have no file."""
        if self.size is None or len(self.places) != self.size:
            return None
        known = {place: rank for rank, place in self.places.items() if place is not None}
        if sorted(known) == list(range(self.size)):
            return tuple(known[place] for place in range(self.size))
        # Frameworks number members by rank (torch.distributed.new_group sorts them).
        return tuple(sorted(self.places)) if not known else None


def complete(run: Run) -> None:
    """Give groups known by communicator their size and members, as far as the files tell."""
    found = _collect(run)
    if not found:
        return
    _close_world(run, found)
    _settle_sizes(run, found)
    described = _described(run)
    for rank in run.counted:
        for cycle in rank.cycles:
            for place, group in enumerate(cycle.groups):
                if group.communicator in found and group.ranks is None:
                    one = found[group.communicator]
                    cycle.groups[place] = _completed(group, one, described, _talk(cycle, place))
                    _recompute(cycle, place, rank.rank)


def _collect(run: Run) -> dict[str, _Communicator]:
    found: dict[str, _Communicator] = defaultdict(_Communicator)
    for rank in (one for one in run.ranks if one.counted):  # partial ones are members too
        for cycle in rank.cycles:
            for group in cycle.info.process_groups:
                if group.communicator is not None:
                    one = found[group.communicator]
                    one.sizes |= {group.size} if group.size is not None else set()
                    one.places[rank.rank] = group.place
    return dict(found)


def _close_world(run: Run, found: dict[str, _Communicator]) -> None:
    """Take the ranks there are for the world if none of their communicators reaches beyond them."""
    members = {rank for one in found.values() for rank in one.places}
    present = {rank.rank for rank in run.ranks}
    whole = all(one.sizes == {len(one.places)} for one in found.values())
    if run.world_size is None and whole and members == present == set(range(len(present))):
        run.world_size = len(present)


def _settle_sizes(run: Run, found: dict[str, _Communicator]) -> None:
    """Take the size that is said, else the number of ranks seen if no rank can be missing."""
    whole = run.world_size is not None and not run.missing
    seen = 0
    for one in found.values():
        if one.sizes:
            one.size = next(iter(one.sizes)) if len(one.sizes) == 1 else None
        elif whole:
            one.size = len(one.places)
            seen += 1
    if seen:
        run.notices.append(notice("group-size-seen", count=seen))


def _described(run: Run) -> dict[tuple[int, ...], list[str]]:
    """Return what the files say otherwise of groups, by their ranks: several may be of the same."""
    found: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for rank in run.ranks:
        for cycle in rank.cycles:
            for group in cycle.info.process_groups:
                if group.ranks is not None and group.description:
                    found[group.ranks].append(group.description)
    return found


def _talk(cycle: RankReduction, place: int) -> set[int]:
    """Return the operations of a group."""
    table = cycle.operations
    return set(table["op"][(table["group"] == place).to_numpy(bool)].tolist())


def _completed(
    group: Group,
    one: _Communicator,
    described: dict[tuple[int, ...], list[str]],
    talk: set[int],
) -> Group:
    """Return the group with its members and, of what is said of those, what its traffic fits."""
    if one.size is not None and len(one.places) > one.size:
        return replace(group, size=one.size, communicator=None)  # one id, several groups
    ranks = one.ranks()
    said = described.get(ranks, []) if ranks is not None else []
    fitting = [text for text in said if role_of(text)[0] in _usual_roles(talk)]
    description = group.description or next(iter([*fitting, *said]), None)
    role, _ = role_of(description)
    return replace(group, size=one.size, ranks=ranks, description=description, role=role)


def _usual_roles(talk: set[int]) -> tuple[str, ...]:
    """Return the roles of groups with such operations, where one set of ranks has several."""
    if talk.intersection(MESSAGES):
        return ("pp", "cp")
    if CODE[ALL_TO_ALL] in talk:
        return ("ep", "cp")
    return ("dp", "shard", "replicate", "edp", "tp", "embedding")


def _recompute(cycle: RankReduction, place: int, rank: int) -> None:
    """Build the rows of a group's operations again, now that its members are known."""
    table, group = cycle.operations, cycle.groups[place]
    rows = np.flatnonzero((table["group"] == place).to_numpy(bool))
    if not len(rows):
        return
    old = table.iloc[rows][list(ROW_COLUMNS)].to_dict("records")
    built = [operation_row(of_row(cast("Row", row)), group, place, rank) for row in old]
    for name, values in zip(ROW_COLUMNS, zip(*built, strict=True), strict=True):
        column = table[name].to_numpy(copy=True)
        column[rows] = values
        table[name] = column

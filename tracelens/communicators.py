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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.groups import Group
    from tracelens.model.trace import ProcessGroup
    from tracelens.reduction import RankReduction
    from tracelens.run import Run

    Row = Mapping[str, Any]


@dataclass(slots=True)
class _Communicator:
    """What the files say about one communicator: its size, and the members' places in it."""

    sizes: set[int] = field(default_factory=set)
    places: dict[int, int | None] = field(default_factory=dict)

    def ranks(self, size: int | None) -> tuple[int, ...] | None:
        """Return the members in order of their places; None if some have no file."""
        if size is None or len(self.places) != size:
            return None
        known = {place: rank for rank, place in self.places.items() if place is not None}
        if sorted(known) == list(range(size)):
            return tuple(known[place] for place in range(size))
        # Frameworks number members by rank (torch.distributed.new_group sorts them).
        return tuple(sorted(self.places)) if not known else None


def complete(run: Run) -> None:
    """Give groups known by communicator their size and members, as far as the files tell."""
    found = _collect(run)
    if not found:
        return
    _close_world(run, found)
    sizes = {name: _size(run, communicator) for name, communicator in found.items()}
    seen = sum(not c.sizes and sizes[name] is not None for name, c in found.items())
    if seen:
        run.notices.append(notice("group-size-seen", count=seen))
    described = _described(run)
    for rank in run.counted:
        for cycle in rank.cycles:
            for place, group in enumerate(cycle.groups):
                if group.communicator in found and group.ranks is None:
                    one, size = found[group.communicator], sizes[group.communicator]
                    whole = _completed(group, size, one.ranks(size), described)
                    if size is not None and len(one.places) > size:
                        whole = replace(whole, communicator=None)  # it names several groups
                    cycle.groups[place] = whole
                    _recompute(cycle, place, whole, rank.rank)


def _collect(run: Run) -> dict[str, _Communicator]:
    found: dict[str, _Communicator] = defaultdict(_Communicator)
    for rank in run.counted:
        for cycle in rank.cycles:
            for group in cycle.info.process_groups:
                if group.communicator is not None:
                    one = found[group.communicator]
                    one.sizes |= {group.size} - {None}  # type: ignore[arg-type]
                    one.places[rank.rank] = group.place
    return dict(found)


def _size(run: Run, communicator: _Communicator) -> int | None:
    """Return the size that is said, else the number of ranks seen if no rank can be missing."""
    if communicator.sizes:
        return next(iter(communicator.sizes)) if len(communicator.sizes) == 1 else None
    return len(communicator.places) if run.world_size and not run.missing else None


def _close_world(run: Run, found: dict[str, _Communicator]) -> None:
    """Take the ranks there are for the world if none of their communicators reaches beyond them."""
    members = {rank for one in found.values() for rank in one.places}
    present = {rank.rank for rank in run.ranks}
    whole = all(one.sizes == {len(one.places)} for one in found.values())
    if run.world_size is None and whole and members == present == set(range(len(present))):
        run.world_size = len(present)


def _described(run: Run) -> dict[tuple[int, ...], ProcessGroup]:
    """Return the groups the files describe otherwise, by their ranks."""
    return {
        group.ranks: group
        for rank in run.ranks
        for cycle in rank.cycles
        for group in cycle.info.process_groups
        if group.ranks is not None and group.description
    }


def _completed(
    group: Group,
    size: int | None,
    ranks: tuple[int, ...] | None,
    described: dict[tuple[int, ...], ProcessGroup],
) -> Group:
    said = described.get(ranks) if ranks is not None else None
    description = group.description or (said.description if said else None)
    role, _ = role_of(description)
    return replace(group, size=size, ranks=ranks, description=description, role=role)


def _recompute(cycle: RankReduction, place: int, group: Group, rank: int) -> None:
    """Build the rows of a group's operations again, now that its members are known."""
    table = cycle.operations
    rows = np.flatnonzero((table["group"] == place).to_numpy(bool))
    old = table.iloc[rows][list(ROW_COLUMNS)].to_dict("records")
    built = [operation_row(of_row(cast("Row", row)), group, place, rank) for row in old]
    for name, values in zip(ROW_COLUMNS, zip(*built, strict=True), strict=bool(built)):
        column = table[name].to_numpy(copy=True)
        column[rows] = values
        table[name] = column

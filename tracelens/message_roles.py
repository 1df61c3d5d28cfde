"""Which messages of one rank go from stage to stage, before ranks are joined.

What groups are for is concluded from all ranks (`tracelens.roles`), but a rank's work is cut into
passes while only its own file is known. Where no description names a group, its messages tell: a
schedule calls them from one thread, rings of keys and values turn in forward and in backward, which
autograd runs on a thread of its own. And NCCL says how large a communicator is and which place the
rank has in it: if all described groups of that size and place are for one thing, so is it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracelens.groups import role_of
from tracelens.operations import RECV, SEND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.communication import Operation
    from tracelens.groups import Group
    from tracelens.model.trace import RankInfo

_NEARLY_ALL = 0.8


def between_stages(
    operations: Sequence[Operation], groups: Sequence[Group], info: RankInfo
) -> list[bool]:
    """Tell which operations are messages between stages of a pipeline.

    Args:
        operations: All operations of a rank.
        groups: The group of each.
        info: Facts of the rank, its process groups among them.
    """
    messages: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, (operation, group) in enumerate(zip(operations, groups, strict=True)):
        if operation.op in (SEND, RECV):
            messages[(*group.key, group.name)].append(row)
    roles = {
        key: _role(groups[rows[0]], [operations[row] for row in rows], info)
        for key, rows in messages.items()
    }
    wanted = "pp" if "pp" in roles.values() else "unknown"
    found = [False] * len(operations)
    for key, rows in messages.items():
        for row in rows:
            found[row] = roles[key] == wanted
    return found


def _role(group: Group, messages: Sequence[Operation], info: RankInfo) -> str:
    if group.role != "unknown":
        return group.role
    if _from_two_threads(messages) >= _NEARLY_ALL:
        return "cp"
    roles = _described(group, info)
    return roles.pop() if len(roles) == 1 else "unknown"


def _from_two_threads(messages: Sequence[Operation]) -> float:
    """Return the share of bytes whose sizes both threads send, or both receive."""
    threads: dict[tuple[str, int], set[int]] = defaultdict(set)
    weight: dict[tuple[str, int], int] = defaultdict(int)
    for one in messages:
        size = one.buffer_bytes if one.buffer_bytes is not None else one.in_elems or 0
        if one.thread is not None:
            threads[one.op, size].add(one.thread)
            weight[one.op, size] += max(size, 1)
    total = sum(weight.values())
    both = sum(weight[key] for key, found in threads.items() if len(found) > 1)
    return both / total if total else 0.0


def _described(group: Group, info: RankInfo) -> set[str]:
    """Return what described groups are for that a communicator can be."""
    if group.communicator is None:
        return set()
    known = {one.communicator: (one.size, one.place) for one in info.process_groups}
    own = known.get(group.communicator)
    return {
        role_of(one.description)[0]
        for one in info.process_groups
        if one.ranks and info.rank in one.ranks
        if own == (len(one.ranks), one.ranks.index(info.rank))
    }

"""Which process group an operation ran on, and what the group is for.

A group's identity is its rank list: names repeat and differ between ranks. What a group is for is
read from its description (Megatron's and DeviceMesh's strings say it); gloo records no group on its
operations at all, so there it is narrowed down by size ratios and by how the operation was called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens import operations
from tracelens.digits import as_integer
from tracelens.model.facts import believed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.communication import Operation
    from tracelens.model.result import Confidence
    from tracelens.model.trace import ProcessGroup, RankInfo


# Megatron parallel_state.py and torch device_mesh.py spell these; order matters. Groups over two
# dimensions (norms, amax) are no dimension; those for dispatching tokens are the experts'.
_ROLES = (
    (re.compile(r"expert_tensor_parallel|(?:^|_)etp(?:$|_)", re.I), "etp"),
    (re.compile(r"expert_tensor_and_model", re.I), "ep"),
    (re.compile(r"_and_|tensor_model_pipeline|_in_ep", re.I), "unknown"),
    (re.compile(r"expert.*data|edp|efsdp|mod_ep", re.I), "edp"),
    (re.compile(r"embedding|\bembd", re.I), "embedding"),
    (re.compile(r"pipeline|(?:^|_)pp(?:$|_)|stage", re.I), "pp"),
    (re.compile(r"replicat|inter_partial", re.I), "replicate"),
    (re.compile(r"shard|fsdp|intra_partial", re.I), "shard"),
    (re.compile(r"data_?parallel|(?:^|_)d?dp(?:$|_)|distributed_optimizer", re.I), "dp"),
    (re.compile(r"expert|(?:^|_)ep(?:$|_)|moe", re.I), "ep"),
    (re.compile(r"context|(?:^|_)cp(?:$|_)|ulysses|(?:^|_)sp(?:$|_)", re.I), "cp"),
    (re.compile(r"tensor|(?:^|_)tp(?:$|_)", re.I), "tp"),
)


def role_of(description: str | None) -> tuple[str, Confidence]:
    """Read a group's role from its description; ("unknown", "unknown") if it says none."""
    for pattern, role in _ROLES:
        if description and pattern.search(description):
            return role, "unknown" if role == "unknown" else "high"
    return "unknown", "unknown"


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank sees it; `ranks` is None if the list is not known.

    `communicator` is an id that only its members share, where the trace has one; `beginning` the
    first ranks of a list that torch cut after 30: enough to tell groups of one name apart.
    """

    name: str
    description: str | None
    size: int | None
    ranks: tuple[int, ...] | None
    role: str = "unknown"
    communicator: str | None = None
    beginning: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Identity across ranks: the rank list, else the little that is known."""
        if self.ranks is not None:
            return ("ranks", self.ranks)
        if self.communicator is not None:
            return ("communicator", self.communicator)
        return ("size", self.name, self.size, self.beginning)


UNKNOWN_GROUP = Group("", None, None, None)


class Groups:
    """Resolves the group of each operation of one rank."""

    def __init__(self, info: RankInfo) -> None:
        self.info = info
        listed = [_from_listed(group) for group in info.process_groups]
        self.by_name = {group.name: group for group in listed}
        self.distinct = _distinct(listed)
        self.guessed = 0

    def of(self, operation: Operation) -> Group:
        """Return the group of an operation; `UNKNOWN_GROUP` if nothing tells it."""
        recorded = self._recorded(operation)
        if recorded is not None:
            return recorded
        candidates = self._possible(operation)
        if len(candidates) == 1:
            return candidates[0]
        # A kernel known by its name only may be any group's.
        chosen = None if operation.source in _NAMELESS else _by_use(operation, candidates)
        if chosen is not None:
            self.guessed += 1
            return chosen
        sizes = {group.size for group in candidates}
        if _ratio(operation) is not None and len(sizes) == 1:
            return Group("", None, sizes.pop(), None)  # which one is open, its size is not
        return UNKNOWN_GROUP

    def _recorded(self, operation: Operation) -> Group | None:
        listed = self.by_name.get(operation.group_name) if operation.group_name else None
        if listed is not None and (listed.ranks is not None or listed.communicator is not None):
            return listed
        ranks = _parse_ranks(operation.group_ranks, operation.group_size)
        size = operation.group_size
        if ranks is None and size is not None and size == self.info.world_size:
            ranks = tuple(range(size))
        if size is None and ranks is None and listed is None:
            return None
        description = operation.group_description or (listed.description if listed else None)
        role, _ = role_of(description)
        beginning = _numbers(operation.group_ranks) if ranks is None else ()
        return Group(operation.group_name, description, size, ranks, role, beginning=beginning)

    def _possible(self, operation: Operation) -> list[Group]:
        """Return the listed groups an operation of unknown group can have run on."""
        candidates = self.distinct or _world(self.info.world_size)
        ratio = _ratio(operation)
        if ratio is None:
            return candidates
        fitting = [group for group in candidates if group.size == ratio]
        # A group the trace does not list: its size is known all the same.
        return fitting or ([Group("", None, ratio, None)] if ratio > 1 else [])


def _from_listed(group: ProcessGroup) -> Group:
    size = group.size if group.size is not None else len(group.ranks or ()) or None
    whole = group.ranks if group.ranks and len(group.ranks) == size else None
    role, _ = role_of(group.description)
    return Group(group.name, group.description, size, whole, role, group.communicator)


def _distinct(listed: Sequence[Group]) -> list[Group]:
    """Return the groups of more than one rank, one for each rank list."""
    seen: dict[tuple[object, ...], Group] = {}
    for group in listed:
        if group.size is not None and group.size > 1:
            kept = seen.setdefault(group.key, group)
            if kept.role == "unknown" and group.role != "unknown":
                seen[group.key] = group
    return list(seen.values())


def _world(size: int | None) -> list[Group]:
    if size is None or size < 2:
        return []
    return [Group("", None, size, tuple(range(size)), "unknown")]


def _parse_ranks(text: str, size: int | None) -> tuple[int, ...] | None:
    """Parse "[0, 1, 2]"; a cut list ("...", after 30) or one of another length is unknown."""
    if not text or "..." in text:
        return None
    numbers = _numbers(text)
    return numbers if numbers and (size is None or len(numbers) == size) else None


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [believed(as_integer(digits)) for digits in re.findall(r"\d+", text)]
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else ()


def _ratio(operation: Operation) -> int | None:
    """Return the group's size as the shapes show it: full over shard."""
    small, large = operation.in_elems, operation.out_elems
    if operation.op == operations.REDUCE_SCATTER:
        small, large = large, small
    elif operation.op != operations.ALL_GATHER:
        return None
    if not small or not large or large % small:
        return None
    return large // small


_NAMELESS = ("name", "rule")
_SHARDED = (operations.ALL_GATHER, operations.REDUCE_SCATTER)
_PREFERRED_ROLES = {
    "p2p": ("pp",),
    "functional": ("tp", "ep", "cp"),
    "sharded": ("shard", "dp"),
    "reduced": ("replicate", "dp"),
}


def _by_use(operation: Operation, candidates: Sequence[Group]) -> Group | None:
    """Choose by the way the operation was called: the one group of the role that calls so.

    FSDP and DDP call c10d directly, DTensor's tensor parallelism through functional collectives,
    pipelining through send and recv.
    """
    if operation.op in (operations.SEND, operations.RECV):
        use = "p2p"
    elif operation.functional:
        use = "functional"
    else:
        use = "sharded" if operation.op in _SHARDED else "reduced"
    for role in _PREFERRED_ROLES[use]:
        matching = [group for group in candidates if group.role == role]
        if len(matching) == 1:
            return matching[0]
    return None

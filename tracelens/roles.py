"""Conclude what each group is for: from its description, else from what it carries and how.

Three facts tell dimensions apart without a name (docs/theory.md, "What a group is for"). Autograd
runs backward on a thread of its own, so what is called with equal sizes from two threads happens in
forward and in backward: activations. Gradients and schedules come from one thread. And groups nest:
gradients are reduced over context-parallel ranks too, experts divide the data-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.collectives import Roles
from tracelens.model.trace import NONE
from tracelens.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CODE,
    MESSAGES,
    REDUCE_SCATTER,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens.model.result import Confidence
    from tracelens.operations_table import MergedGroup, OperationsTable
    from tracelens.strategy.inference import Inference

_REDUCTIONS = (CODE[ALL_REDUCE], CODE[REDUCE_SCATTER])
_NEARLY_ALL = 0.8
_SEVERAL = 4  # calls of one size: as many as two layers have


def assume(table: OperationsTable) -> dict[int, Confidence]:
    """Give groups that nothing describes the role their traffic shows, before it is interpreted.

    Returns:
        How sure each of these roles is. Data-parallel groups are left to `conclude`.
    """
    unnamed = [group for group in table.groups if group.role == "unknown"]
    traffic = _traffic(table) if unnamed else {}
    sure: dict[int, Confidence] = {}

    def settle(group: MergedGroup, found: tuple[str, Confidence] | None) -> None:
        if found is not None and group.role == "unknown":
            group.role, sure[group.index] = found

    for group in unnamed:
        settle(group, _by_threads(traffic[group.index]))
    for group in unnamed:
        settle(group, _by_nesting(group, table.groups, traffic))
    return sure


@dataclass(frozen=True, slots=True)
class _Traffic:
    """The calls of more than 1 KiB of one step of one rank on a group."""

    op: Ints
    size: Ints  # bytes: NCCL's payloads state no elements
    thread: Ints

    @property
    def ops(self) -> set[int]:
        """The operations."""
        return set(self.op.tolist())

    def calls(self, *ops: int) -> int:
        """Count the calls of some operations."""
        return int(np.isin(self.op, ops).sum())

    def from_two_threads(self, *ops: int) -> float:
        """Return the share of bytes whose sizes two threads call (of calls without sizes)."""
        total = both = 0
        for op in ops:
            mine = (self.op == op) & (self.thread != NONE)
            for size in np.unique(self.size[mine]):
                equal = mine & (self.size == size)
                weight = int(equal.sum()) * max(int(size), 1)
                total += weight
                both += weight if len(np.unique(self.thread[equal])) > 1 else 0
        return both / total if total else 0.0

    def has_one_size(self, op: int) -> bool:
        """Tell whether an operation is called several times, always with one size."""
        sizes = self.size[self.op == op]
        return len(sizes) >= _SEVERAL and len(np.unique(sizes)) == 1 and sizes[0] != NONE


def _traffic(table: OperationsTable) -> dict[int, _Traffic]:
    """Return what each group carries in the last complete step of its first rank."""
    large = np.flatnonzero(~table.frame["small"].to_numpy(bool))
    group = table.frame["group"].to_numpy(np.int64)[large]
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(table.groups) + 1))
    columns = {name: table.frame[name].to_numpy(np.int64) for name in _COLUMNS}
    return {
        index: _of_rows(large[order[bounds[index] : bounds[index + 1]]], columns)
        for index in range(len(table.groups))
    }


_COLUMNS = ("complete", "rank", "cycle", "step", "op", "buffer_bytes", "thread")


def _of_rows(rows: Ints, columns: dict[str, Ints]) -> _Traffic:
    whole = rows[columns["complete"][rows] > 0]
    rows = whole if len(whole) else rows
    for name, of in (("rank", np.min), ("cycle", np.max), ("step", np.max)):
        values = columns[name][rows]
        rows = rows[values == of(values)] if len(rows) else rows
    return _Traffic(*(columns[name][rows] for name in ("op", "buffer_bytes", "thread")))


def _by_threads(traffic: _Traffic) -> tuple[str, Confidence] | None:
    if traffic.from_two_threads(*_REDUCTIONS) >= _NEARLY_ALL:
        return "tp", "medium"
    # A schedule calls its messages from one thread; rings of keys and values turn in both, maybe
    # on the group that reduces gradients.
    if traffic.from_two_threads(*MESSAGES) >= _NEARLY_ALL:
        return "cp", "medium"
    if traffic.calls(*MESSAGES) and traffic.calls(*MESSAGES) == len(traffic.op):
        return "pp", "medium"
    if traffic.from_two_threads(CODE[ALL_TO_ALL]) >= _NEARLY_ALL:
        return "ep", "low"
    return None


def _by_nesting(
    group: MergedGroup, groups: list[MergedGroup], traffic: dict[int, _Traffic]
) -> tuple[str, Confidence] | None:
    """Name groups of gradients and parameters by the groups they lie in or cut."""
    own = traffic[group.index]
    if group.ranks is None or not own.calls(*_REDUCTIONS):
        return None
    members = set(group.ranks)
    if _is_ends(members, groups, own):
        return "embedding", "medium"
    outer = [
        other
        for other in groups
        if other.ranks is not None
        and members < set(other.ranks)
        and traffic[other.index].calls(*_REDUCTIONS)
        and other.role not in ("tp", "ep", "pp")
    ]
    sizes = {len(other.ranks or ()) for other in outer}
    experts = {len(e.ranks or ()) for e in groups if e.role == "ep" and _meet_once(members, e)}
    if any(len(members) * e in sizes for e in experts):
        return "edp", "medium"
    if outer and own.has_one_size(CODE[ALL_GATHER]) and own.has_one_size(CODE[REDUCE_SCATTER]):
        return "cp", "low"
    return None


def _is_ends(members: set[int], groups: Iterable[MergedGroup], traffic: _Traffic) -> bool:
    """Tell whether a group is the first and last stage: they share the embedding's gradient."""
    lines = [g.ranks for g in groups if g.role == "pp" and g.ranks and len(g.ranks) > 2]
    ends = any({line[0], line[-1]} == members for line in lines)
    return ends and traffic.calls(CODE[ALL_REDUCE]) == len(traffic.op)


def _meet_once(members: set[int], other: MergedGroup) -> bool:
    return len(members.intersection(other.ranks or ())) == 1


def conclude(
    table: OperationsTable, kinds: pd.Series, found: Inference, assumed: dict[int, Confidence]
) -> Roles:
    """Return all roles: described, assumed, and the data-parallel ones the strategy shows."""
    role: dict[int, str] = {}
    confidence: dict[int, Confidence] = {}
    data = {g.group.index: g.group for g in found.traffic} if found.strategy else {}
    unnamed = any(group.role == "unknown" for group in table.groups)
    traffic = _traffic(table) if data and unnamed else {}
    for group in table.groups:
        like = data.get(group.index) or _alike(group, data.values(), traffic)
        if group.role != "unknown":
            role[group.index] = group.role
            confidence[group.index] = assumed.get(group.index, "high")
        elif like is not None:
            role[group.index] = _data_role(found, like.index)
            confidence[group.index] = found.confidence
        else:
            role[group.index], confidence[group.index] = _by_content(table, kinds, group)
    return Roles(role, confidence)


def _alike(
    group: MergedGroup, data: Iterable[MergedGroup], traffic: dict[int, _Traffic]
) -> MergedGroup | None:
    """Return the data-parallel group that an unnamed one is like: size, operations, no rank shared.

    The strategy is read from one group; other stages and tensor-parallel ranks have their own.
    """
    like = (
        other
        for other in data
        if group.size == other.size
        and set(group.ranks or ()).isdisjoint(other.ranks or ())
        and traffic[group.index].ops == traffic[other.index].ops
    )
    return next(like, None) if traffic and traffic[group.index].ops else None


def _data_role(found: Inference, index: int) -> str:
    if found.strategy != "hsdp":
        return "dp"
    return "shard" if index == found.traffic[0].group.index else "replicate"


def _by_content(
    table: OperationsTable, kinds: pd.Series, group: MergedGroup
) -> tuple[str, Confidence]:
    mine = (table.frame["group"] == group.index).to_numpy()
    activations = mine & (kinds == "activations").to_numpy()
    if not activations.any():
        return "unknown", "unknown"
    ops = set(table.frame["op"].to_numpy()[activations])
    if ops <= set(MESSAGES):
        return "pp", "medium"
    if CODE[ALL_REDUCE] in ops:
        return "tp", "medium"
    return ("ep", "low") if CODE[ALL_TO_ALL] in ops else ("unknown", "unknown")

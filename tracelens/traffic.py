"""What one training step sends, seen as a pattern: the evidence the strategy is read from."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens import operations
from tracelens.model.trace import NONE
from tracelens.operations import CODE, OPERATIONS

if TYPE_CHECKING:
    from tracelens.operations_table import MergedGroup, OperationsTable
    from tracelens.run import Run

ACTIVATION_ROLES = ("tp", "etp", "pp", "ep", "cp")
_P2P = (operations.SEND, operations.RECV, operations.SEND_RECV)
_REPEATED_SHARE = 0.8
_NEARLY_ALL = 0.9
_MANY_CALLS = 8
_ACTIVATION_DIMENSIONS = 3


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of the reference step, in launch order."""

    op: str
    elements: int
    launch: int
    mark: str


@dataclass(slots=True)
class GroupTraffic:
    """Parameter-like traffic of one group: elements per step and rank, by operation.

    `by_step` holds the first rank's elements of each complete step.
    """

    group: MergedGroup
    elements: dict[str, float]
    calls: list[Call]
    dtypes: dict[str, str]
    unknown: int = 0
    by_step: list[int] = field(default_factory=list)

    def total(self, *ops: str) -> float:
        """Return the elements of some operations per step."""
        return sum(self.elements.get(op, 0.0) for op in ops)


@dataclass(slots=True)
class Traffic:
    """The run's traffic per group, what each call carries, and named ranges per step."""

    groups: list[GroupTraffic]
    kinds: pd.Series  # parameters | activations | other | unknown, per row of the table
    marks: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    def marks_like(self, pattern: str) -> float:
        """Return how many ranges per step match a regular expression."""
        return sum(count for name, count in self.marks.items() if re.search(pattern, name))


def observe(run: Run, table: OperationsTable) -> Traffic:
    """Collect the pattern of a run's complete steps."""
    frame = table.frame
    kinds = _kinds(table)
    counted = frame["complete"].to_numpy(bool) & (kinds == "parameters").to_numpy()
    groups = [
        _group_traffic(table, group, frame[counted & (frame["group"] == group.index).to_numpy()])
        for group in table.groups
    ]
    present = [g for g in groups if g.calls or g.unknown]
    steps = sum(table.complete_steps.values())
    return Traffic(present, kinds, _marks(run), steps)


def _kinds(table: OperationsTable) -> pd.Series:
    """Decide per operation what travels: parameters (or gradients), activations or other."""
    frame = table.frame
    op = frame["op"].to_numpy(np.int64)
    role = np.array([group.role for group in table.groups] or [""], object)
    on_activation_group = np.isin(role, ACTIVATION_ROLES)
    group = frame["group"].to_numpy(np.int64)
    activations = on_activation_group[group] if len(frame) else np.zeros(0, bool)
    activations |= np.isin(op, [CODE[name] for name in (*_P2P, operations.ALL_TO_ALL)])
    activations |= _activation_reductions(frame)
    kinds = np.where(activations, "activations", "parameters").astype(object)
    kinds[frame["small"].to_numpy(bool)] = "other"
    kinds[np.isin(op, [CODE[operations.UNKNOWN], CODE[operations.BARRIER]])] = "unknown"
    return pd.Series(kinds, index=frame.index)


def _activation_reductions(frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Find tensor-parallel collectives on groups nobody named.

    Gradients travel as flat buckets or as each parameter's own shape. An activation [batch,
    sequence, hidden] has three dimensions and one size that repeats over all layers; DTensor calls
    it through functional collectives.
    """
    result = np.zeros(len(frame), bool)
    many_dimensions = frame["dimensions"].to_numpy(np.int64) >= _ACTIVATION_DIMENSIONS
    functional = frame["functional"].to_numpy(bool) & (frame["dimensions"].to_numpy(np.int64) >= 2)
    result |= functional & ~frame["small"].to_numpy(bool)
    reductions = (frame["op"] == CODE[operations.ALL_REDUCE]).to_numpy() & many_dimensions
    for rows in frame[reductions].groupby(["group", "dtype", "rank"]).groups.values():
        sizes = Counter(frame.loc[rows, "elements"])
        most = sizes.most_common(1)[0][1]
        if most >= _MANY_CALLS and most >= _REPEATED_SHARE * len(rows):
            result[rows] = True
    return result | _on_activation_groups(frame, result)


def _on_activation_groups(
    frame: pd.DataFrame, found: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the other all-reduces of groups whose all-reduces are activations nearly all.

    Tensor parallelism also reduces the loss's maxima and sums, one number a token.
    """
    reductions = (frame["op"] == CODE[operations.ALL_REDUCE]).to_numpy()
    elements = np.where(frame["elements"] == NONE, 0, frame["elements"])
    groups = frame["group"].to_numpy(np.int64)
    result = np.zeros(len(frame), bool)
    for group in np.unique(groups[found]):
        mine = reductions & (groups == group)
        if elements[mine & found].sum() >= _NEARLY_ALL * elements[mine].sum():
            result |= mine
    return result


def _group_traffic(table: OperationsTable, group: MergedGroup, frame: pd.DataFrame) -> GroupTraffic:
    known = frame[frame["elements"] != NONE]
    ranks = sorted(set(frame["rank"]))
    steps = sum(table.complete_steps[rank] for rank in ranks)
    elements: dict[str, float] = {}
    dtypes: dict[str, str] = {}
    for code, rows in known.groupby("op"):
        name = OPERATIONS[int(str(code))]
        elements[name] = float(rows["elements"].sum()) / steps if steps else 0.0
        dtypes[name] = str(rows.groupby("dtype")["elements"].sum().idxmax())
    unknown = len(frame) - len(known)
    return GroupTraffic(group, elements, _reference_step(known), dtypes, unknown, _by_step(known))


def _by_step(frame: pd.DataFrame) -> list[int]:
    first = frame[frame["rank"] == frame["rank"].min()]
    return [int(total) for total in first.groupby(["cycle", "step"])["elements"].sum()]


def _reference_step(frame: pd.DataFrame) -> list[Call]:
    """Return the calls of the last complete step of the first rank, in launch order."""
    if not len(frame):
        return []
    first = frame[frame["rank"] == frame["rank"].min()]
    last = first[first["cycle"] == first["cycle"].max()]
    step = last[last["step"] == last["step"].max()].sort_values("launch", kind="stable")
    return [
        Call(OPERATIONS[int(op)], int(elements), int(launch), str(mark))
        for op, elements, launch, mark in zip(
            step["op"], step["elements"], step["launch"], step["mark"], strict=True
        )
    ]


def _marks(run: Run) -> dict[str, float]:
    """Count named ranges per step on the first rank."""
    rank = run.counted[0]
    totals: Counter[str] = Counter()
    for cycle in rank.cycles:
        for name, count in zip(cycle.mark_counts["name"], cycle.mark_counts["count"], strict=True):
            totals[str(name)] += int(count)
    steps = len(rank.step_keys())
    return {name: count / steps for name, count in totals.items()} if steps else {}

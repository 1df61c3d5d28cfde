"""What one training step sends, seen as a pattern: the evidence the strategy is read from."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens import operations, shared_groups
from tracelens.dtypes import INTEGERS
from tracelens.model.trace import NONE
from tracelens.operations import CODE, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.operations_table import MergedGroup, OperationsTable
    from tracelens.run import Run

ACTIVATION_ROLES = ("tp", "etp", "pp", "ep", "cp")
_REDUCTIONS = (operations.ALL_REDUCE, operations.REDUCE, operations.REDUCE_SCATTER)
_REPEATED_SHARE = 0.8
_NEARLY_ALL = 0.9
_MANY_CALLS = 8
_ACTIVATION_DIMENSIONS = 3
_FORWARD = re.compile(r"forward(?!.*backward)|(?:^|[._ ])fwd", re.IGNORECASE)


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

    `by_step` holds the first rank's elements of each complete step, `item_bytes` the bytes of one
    element, `unknown` and `untyped` count the calls without a size and with bytes but no type.
    """

    group: MergedGroup
    elements: dict[str, float]
    calls: list[Call]
    item_bytes: dict[str, int]
    unknown: int = 0
    untyped: int = 0
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
    present = [g for g in groups if g.calls or g.unknown or g.untyped]
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
    activations &= ~shared_groups.gradients(frame, {g.index: g.role for g in table.groups})
    activations |= np.isin(op, [*operations.POINT_TO_POINT, CODE[operations.ALL_TO_ALL]])
    activations |= _activation_reductions(frame)
    kinds = np.where(activations, "activations", "parameters").astype(object)
    kinds[frame["small"].to_numpy(bool)] = "other"
    # DDP's map of used parameters, counts of tokens: gradients are floating-point numbers.
    counts = frame["dtype"].isin(INTEGERS).to_numpy() & np.isin(op, [CODE[n] for n in _REDUCTIONS])
    kinds[counts & ~activations] = "other"
    kinds[np.isin(op, [CODE[operations.UNKNOWN], CODE[operations.BARRIER]])] = "unknown"
    return pd.Series(kinds, index=frame.index)


def _activation_reductions(frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Find tensor-parallel collectives on groups nobody named.

    Gradients travel as flat buckets or as each parameter's own shape, after the forward pass. An
    activation [batch, sequence, hidden] has three dimensions and one size that repeats over all
    layers, in forward as in backward; DTensor calls it through functional collectives.
    """
    result = np.zeros(len(frame), bool)
    many_dimensions = frame["dimensions"].to_numpy(np.int64) >= _ACTIVATION_DIMENSIONS
    functional = frame["functional"].to_numpy(bool) & (frame["dimensions"].to_numpy(np.int64) >= 2)
    result |= functional & ~frame["small"].to_numpy(bool)
    reductions = (frame["op"] == CODE[operations.ALL_REDUCE]).to_numpy()
    for rows in _repeated(frame, reductions & many_dimensions):
        result[rows] = True
    for rows in _repeated(frame, reductions & _in_forward(frame)):
        result |= reductions & _like(frame, rows)
    return result | _on_activation_groups(frame, result)


def _repeated(
    frame: pd.DataFrame, among: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Iterator[pd.Index]:
    """Yield the calls of each group, type and rank most of which have one size."""
    for rows in frame[among].groupby(["group", "dtype", "rank"]).groups.values():
        sizes = Counter(frame.loc[rows, "elements"])
        most = sizes.most_common(1)[0][1]
        if most >= _MANY_CALLS and most >= _REPEATED_SHARE * len(rows):
            yield rows


def _in_forward(frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which calls stand in a range of the forward pass: gradients are not reduced there."""
    names = frame["mark"].astype(str)
    forward = {name for name in names.unique() if _FORWARD.search(name)}
    small = frame["small"].to_numpy(bool)
    return np.asarray(names.isin(forward).to_numpy() & ~small, np.bool_)


def _like(frame: pd.DataFrame, rows: pd.Index) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which calls of the same group and rank have the most usual size of some rows."""
    first = frame.loc[rows[0]]
    size = Counter(frame.loc[rows, "elements"]).most_common(1)[0][0]
    same = (frame["group"] == first["group"]) & (frame["rank"] == first["rank"])
    same &= (frame["dtype"] == first["dtype"]) & (frame["elements"] == size)
    return np.asarray(same.to_numpy(), np.bool_)


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
    item_bytes: dict[str, int] = {}
    for code, rows in known.groupby("op"):
        name = OPERATIONS[int(str(code))]
        elements[name] = float(rows["elements"].sum()) / steps if steps else 0.0
        sized = rows[rows["item_bytes"] != NONE].groupby("item_bytes")["elements"].sum()
        item_bytes |= {name: int(str(sized.idxmax()))} if len(sized) else {}
    without = frame[frame["elements"] == NONE]
    untyped = int((without["buffer_bytes"] != NONE).sum())
    counts = len(without) - untyped, untyped
    return GroupTraffic(
        group, elements, _reference_step(known), item_bytes, *counts, _by_step(table, known)
    )


def _by_step(table: OperationsTable, frame: pd.DataFrame) -> list[int]:
    """Return the elements of each complete step of the first rank; a step may send nothing."""
    if not len(frame):
        return []
    rank = int(frame["rank"].min())
    first = frame[frame["rank"] == rank]
    sums = [int(total) for total in first.groupby(["cycle", "step"])["elements"].sum()]
    return sums + [0] * (table.complete_steps[rank] - len(sums))


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

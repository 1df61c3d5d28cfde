"""Exposed communication by parallel dimension: which of dp, tp, pp, ep and cp a step pays for.

A dimension is what an operation's group is for. The parts of each operation's exposed time are
shares of the number that the breakdown already gives, so both ways of splitting it sum to the same.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tracelens import shared_groups
from tracelens.model.trace import NONE
from tracelens.operations import MESSAGES, OPERATIONS, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tracelens.collectives import Roles
    from tracelens.intervals import Ints
    from tracelens.model.result import Breakdown
    from tracelens.operations_table import OperationsTable
    from tracelens.reduced import RankReduction
    from tracelens.run import RankRun

DIMENSIONS = ("dp", "tp", "pp", "ep", "cp", "other")
_OF_ROLE = {
    "dp": "dp",
    "shard": "dp",
    "replicate": "dp",
    "edp": "dp",
    "tp": "tp",
    "etp": "tp",
    "pp": "pp",
    "embedding": "pp",  # the first and the last stage share its gradient
    "ep": "ep",
    "cp": "cp",
}

Sums = dict[tuple[int, int], "NDArray[np.int64]"]
"""Per (process, device): exposed transfer and exposed unmatched time, by operation and dimension"""


def of_rows(table: OperationsTable, roles: Roles) -> Ints:
    """Return the dimension of each operation, as its place in `DIMENSIONS`.

    Messages on a group that is for something else go between pipeline stages; gradients may be
    reduced over the ranks of a context or expert-parallel group. NCCL's SendRecv kernel also
    carries all-to-alls, gathers and scatters (pytorch issue 42514), so one that no record
    names is for stages only where something else shows stages.
    """
    names = [_OF_ROLE.get(roles.role[group.index], "other") for group in table.groups]
    codes = np.array([DIMENSIONS.index(name) for name in names] or [0], np.int64)
    if not len(table.frame):
        return np.empty(0, np.int64)
    found: Ints = codes[table.frame["group"].to_numpy(np.int64)]
    shared = shared_groups.gradients(table.frame, roles.role)
    shared &= np.isin(found, [DIMENSIONS.index("cp"), DIMENSIONS.index("ep")])
    found = np.where(shared, DIMENSIONS.index("dp"), found)
    messages = table.frame["op"].isin(POINT_TO_POINT).to_numpy()
    if not table.frame["op"].isin(MESSAGES).any() and "pp" not in roles.role.values():
        messages = messages & (table.frame["source"] != "name").to_numpy()
    between = messages & np.isin(found, [DIMENSIONS.index("dp"), DIMENSIONS.index("other")])
    return np.where(between, DIMENSIONS.index("pp"), found)


def sums(rank: RankRun, cuts: Sequence[Ints], dimension: Sequence[Ints]) -> Sums:
    """Sum a rank's exposed time by operation and dimension over the steps of its mean.

    Args:
        rank: The rank.
        cuts: Per cycle and operation when the last member arrived, from `exposed_wait.cuts_of`.
        dimension: Its dimension likewise, from `of_rows`.
    """
    result: Sums = {}
    for number, cycle in enumerate(rank.cycles):
        kept = [rank.in_mean.get((number, at), False) for at in range(cycle.step_count)]
        for key, part in _cycle_sums(cycle, kept, cuts[number], dimension[number]).items():
            result[key] = result[key] + part if key in result else part
    return result


def _cycle_sums(cycle: RankReduction, kept: list[bool], cut: Ints, dimension: Ints) -> Sums:
    """Sum one cycle; `cut` and `dimension` are per row of its operations."""
    rows, op, place, start, end = (
        cycle.exposed[name].to_numpy(np.int64) for name in ("row", "op", "device", "start", "end")
    )
    result: Sums = {}
    for index, device in enumerate(cycle.devices):
        total = np.zeros((2, len(OPERATIONS), len(DIMENSIONS)), np.int64)
        for step, in_mean in zip(device.steps, kept, strict=True):
            if not in_mean or not step.complete:
                continue
            low, high = np.clip(start, step.low, step.high), np.clip(end, step.low, step.high)
            # What follows the last arrival is transfer; what nobody matched stays whole.
            moved = high - np.clip(cut[rows], low, high)
            use = np.flatnonzero((place == index) & (moved > 0))
            kind = (cut[rows[use]] == NONE).astype(np.int64)
            np.add.at(total, (kind, op[use], dimension[rows[use]]), moved[use])
        key = device.process, device.device
        result[key] = result[key] + total if key in result else total
    return result


def split(breakdown: Breakdown | None, found: NDArray[np.int64] | None) -> Breakdown | None:
    """Add the split by dimension to a breakdown.

    Args:
        breakdown: The mean step of a device.
        found: Its entry of `sums`; None for a rank out of the means.
    """
    if breakdown is None or found is None:
        return breakdown
    transfer = breakdown.transfer_by_op_ns
    return dataclasses.replace(
        breakdown,
        transfer_by_dimension_ns=None if transfer is None else _by_dimension(transfer, found, 0),
        exposed_unsplit_by_dimension_ns=_by_dimension(breakdown.exposed_unsplit_by_op_ns, found, 1),
    )


def _by_dimension(by_op: Mapping[str, int], found: NDArray[np.int64], kind: int) -> dict[str, int]:
    totals = np.zeros(len(DIMENSIONS), np.int64)
    for op, time in by_op.items():
        totals += _apportioned(time, _weights(OPERATIONS.index(op), found, kind))
    return {name: int(t) for name, t in zip(DIMENSIONS, totals, strict=True) if t}


def _weights(op: int, found: NDArray[np.int64], kind: int) -> Ints:
    """Return the shares of the dimensions in an operation's time.

    A kernel that sends and receives is an operation of its own name, its messages have theirs.
    """
    own: Ints = found[kind, op]
    if own.any() or op not in POINT_TO_POINT:
        return own
    messages = found[:, POINT_TO_POINT].sum(axis=1)
    pooled: Ints = messages[kind] if messages[kind].any() else messages.sum(axis=0)
    return pooled


def _apportioned(total: int, weights: Ints) -> Ints:
    """Split a total by weights so that whole parts sum to it; without weights it is other."""
    if not weights.any():
        weights = np.zeros_like(weights)
        weights[-1] = 1
    exact = total * weights.astype(float) / float(weights.sum())
    parts: Ints = np.floor(exact).astype(np.int64)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return parts

"""Conclude what each group is for, and the size of each parallel dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.collectives import Roles
from tracelens.operations import ALL_REDUCE, ALL_TO_ALL, CODE, RECV, SEND

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.model.result import Confidence
    from tracelens.operations_table import MergedGroup, OperationsTable
    from tracelens.parallelism import Inference

_P2P = (CODE[SEND], CODE[RECV])


def conclude(table: OperationsTable, kinds: pd.Series, found: Inference) -> Roles:
    """Return described roles, and for undescribed groups what their traffic says."""
    role: dict[int, str] = {}
    confidence: dict[int, Confidence] = {}
    inferred = {g.group.index for g in found.traffic} if found.strategy else set()
    for group in table.groups:
        if group.role != "unknown":
            role[group.index], confidence[group.index] = group.role, "high"
        elif group.index in inferred:
            role[group.index] = _data_role(found, group.index)
            confidence[group.index] = found.confidence
        else:
            role[group.index], confidence[group.index] = _by_content(table, kinds, group)
    return Roles(role, confidence)


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
    if ops <= set(_P2P):
        return "pp", "medium"
    if CODE[ALL_REDUCE] in ops:
        return "tp", "medium"
    return ("ep", "low") if CODE[ALL_TO_ALL] in ops else ("unknown", "unknown")

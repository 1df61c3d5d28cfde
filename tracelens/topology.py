"""The parallel layout: on which place of each dimension a rank sits, and on which machine.

A rank's coordinate in a dimension is its place in the rank list of its group of that role. Groups
come from the operations and from the trace's own list, so ranks without a trace are placed by the
groups of the others, or by the regularity that all known places show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from tracelens.groups import role_of
from tracelens.model import result
from tracelens.model.trace import NONE
from tracelens.notices import notice
from tracelens.operations import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.collectives import Roles
    from tracelens.links import Peaks
    from tracelens.model.result import Confidence, Notice
    from tracelens.nodes import Nodes
    from tracelens.operations_table import OperationsTable
    from tracelens.run import RankRun, Run

DIMENSIONS = ("dp", "tp", "pp", "ep", "cp")
_AXES = ("pp", "dp", "replicate", "shard", "ep", "cp", "tp")  # as reports write them
_SURE: tuple[Confidence, ...] = ("unknown", "low", "medium", "high", "exact")

Ranks = tuple[int, ...]


@dataclass(slots=True)
class Axis:
    """One dimension of the layout.

    Attributes:
        name: dp, tp, pp, ep, cp, or HSDP's replicate and shard.
        of_rank: The place of each rank; ranks of no known group are missing.
        groups: The rank lists it was read from.
        confidence: That of the least certain of them.
        size: Ranks along it.
        inferred: Ranks placed by regularity only.
    """

    name: str
    of_rank: dict[int, int]
    groups: list[Ranks]
    confidence: Confidence
    size: int
    inferred: set[int] = field(default_factory=set)


def axes(run: Run, table: OperationsTable, roles: Roles) -> dict[str, Axis]:
    """Return the dimensions of more than one rank."""
    groups = _groups(run, table, roles)
    if not any(confidence == "high" for confidence in groups.get("pp", {}).values()):
        groups["pp"] = dict.fromkeys(_pipelines(table, roles), "medium")
    found = {name: _axis(name, groups.get(name, {})) for name in _AXES}
    known = _sizes_only(table, roles) | {name: axis for name, axis in found.items() if axis}
    for name in ("dp", "shard"):
        if name in known and "cp" in known:
            known[name] = _without(known[name], known["cp"])
    if "shard" in known or "replicate" in known:
        known["dp"] = _product(known.get("replicate"), known.get("shard"))
    for axis in known.values():
        _complete(axis, run)
    return {name: axis for name, axis in known.items() if axis.size > 1}


def sizes(found: Mapping[str, Axis], given: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each parallel dimension, 1 if no group shows it; options win."""
    return {**{name: found[name].size if name in found else 1 for name in DIMENSIONS}, **given}


def _groups(run: Run, table: OperationsTable, roles: Roles) -> dict[str, dict[Ranks, Confidence]]:
    """Return the rank lists of each role: of groups that carried something, and of listed ones."""
    found: dict[str, dict[Ranks, Confidence]] = {}
    for group in table.groups:
        if group.ranks is not None and len(group.ranks) > 1:
            of_role = found.setdefault(roles.role[group.index], {})
            of_role[group.ranks] = roles.confidence[group.index]
    for rank in run.counted:
        for listed in rank.cycles[0].info.process_groups:
            role, _ = role_of(listed.description)
            if listed.ranks and len(listed.ranks) == listed.size and len(listed.ranks) > 1:
                found.setdefault(role, {})[listed.ranks] = "high"
    return found


def _sizes_only(table: OperationsTable, roles: Roles) -> dict[str, Axis]:
    """Return dimensions whose groups' rank lists the traces cut off: only their size is known."""
    found: dict[str, Axis] = {}
    for group in table.groups:
        role, size = roles.role[group.index], group.size or 1
        if (
            role in _AXES
            and group.ranks is None
            and size > (found[role].size if role in found else 1)
        ):
            found[role] = Axis(role, {}, [], roles.confidence[group.index], size)
    return found


def _axis(name: str, groups: dict[Ranks, Confidence]) -> Axis | None:
    """Place each rank in the smallest of its groups: with context parallelism dp has two."""
    of_rank: dict[int, int] = {}
    used: list[Ranks] = []
    for ranks in sorted(groups, key=lambda ranks: (len(ranks), ranks)):
        if not of_rank.keys().isdisjoint(ranks):
            continue
        used.append(ranks)
        of_rank |= {rank: place for place, rank in enumerate(ranks)}
    if not used:
        return None
    confidence = min((groups[ranks] for ranks in used), key=_SURE.index)
    return Axis(name, of_rank, used, confidence, max(len(ranks) for ranks in used))


def _without(axis: Axis, other: Axis) -> Axis:
    """Take a dimension out of a group that spans it too: data-parallel groups hold cp groups."""
    inside = {rank: ranks for ranks in other.groups for rank in ranks}
    groups: list[Ranks] = []
    of_rank: dict[int, int] = {}
    for ranks in axis.groups:
        whole = set(ranks)
        if not all(rank in inside and whole.issuperset(inside[rank]) for rank in ranks):
            return axis
        blocks = list(dict.fromkeys(inside[rank] for rank in ranks))
        of_rank |= {rank: place for place, block in enumerate(blocks) for rank in block}
        groups += [tuple(block[i] for block in blocks) for i in range(other.size)]
    size = axis.size // other.size
    return Axis(axis.name, of_rank, groups, axis.confidence, size) if groups else axis


def _product(outer: Axis | None, inner: Axis | None) -> Axis:
    """Return HSDP's data-parallel dimension: shards inside, replicas outside."""
    present = [axis for axis in (outer, inner) if axis is not None]
    places = [axis.of_rank for axis in present]
    shards = inner.size if inner is not None else 1
    shared = set.intersection(*(set(of_rank) for of_rank in places))
    of_rank = {
        rank: (outer.of_rank[rank] if outer else 0) * shards + (inner.of_rank[rank] if inner else 0)
        for rank in shared
    }
    size = shards * (outer.size if outer is not None else 1)
    confidence = min((axis.confidence for axis in present), key=_SURE.index)
    return Axis(
        "dp", of_rank, _joined([g for axis in present for g in axis.groups]), confidence, size
    )


def _joined(groups: list[Ranks]) -> list[Ranks]:
    """Return the sets of ranks that overlapping groups connect."""
    sets: dict[int, set[int]] = {}
    for ranks in groups:
        joined = set(ranks).union(*(sets.get(rank, ()) for rank in ranks))
        sets |= dict.fromkeys(joined, joined)
    return sorted({tuple(sorted(joined)) for joined in sets.values()})


def _pipelines(table: OperationsTable, roles: Roles) -> list[Ranks]:
    """Return the sets of ranks that messages connect, on groups that are for nothing else."""
    frame = table.frame
    other = {index for index, role in roles.role.items() if role in ("cp", "ep", "tp")}
    messages = frame["op"].isin(MESSAGES) & ~frame["group"].isin(other)
    pairs = frame[messages & (frame["peer"] != NONE)][["rank", "peer"]].drop_duplicates()
    return _joined([(int(rank), int(peer)) for rank, peer in pairs.itertuples(index=False)])


def contradiction(run: Run, found: Mapping[str, Axis]) -> Notice | None:
    """Say if the groups of the ranks cannot be those of one run."""
    apart = [axis for axis in found.values() if axis.name not in ("ep", "replicate", "shard")]
    product = math.prod(axis.size for axis in apart)
    sure = all(axis.confidence == "high" for axis in apart)
    if run.world_size is not None and sure and product > run.world_size:
        sizes = " x ".join(f"{axis.name} {axis.size}" for axis in apart)
        return notice("groups-contradict", how=f"{sizes} in a world of {run.world_size}")
    listed = {rank.rank: _listed(rank) for rank in run.counted}
    for rank, groups in listed.items():
        for description, members in groups:
            for other in members:
                theirs = listed.get(other, set())
                same = {ranks for said, ranks in theirs if said == description}
                if same and members not in same:
                    how = f"rank {rank} has {other} in its group {description}, {other} does not"
                    return notice("groups-contradict", how=how)
    return None


def _listed(rank: RankRun) -> set[tuple[str, Ranks]]:
    """Return the groups with a role that any trace of a rank lists."""
    return {
        (group.description or "", group.ranks)
        for cycle in rank.cycles
        for group in cycle.info.process_groups
        if group.ranks and len(group.ranks) == group.size and role_of(group.description)[0] in _AXES
    }


# regularity --------------------------------------------------------------------------------------


def _complete(axis: Axis, run: Run) -> None:
    """Place the ranks of no known group, if (rank // stride) modulo size holds for all others."""
    world = run.world_size
    if world is None or len(axis.of_rank) >= world:
        return
    stride = stride_of(axis)
    if stride is None or world % (stride * axis.size):
        return
    for rank in range(world):
        if rank not in axis.of_rank:
            axis.inferred.add(rank)
            axis.of_rank[rank] = rank // stride % axis.size


def stride_of(axis: Axis) -> int | None:
    """Return how many ranks lie between neighbours on an axis; None if that differs."""
    steps = {after - before for ranks in axis.groups for before, after in pairwise(ranks)}
    stride = steps.pop() if len(steps) == 1 else 0
    places = axis.of_rank.items()
    if stride < 1 or any(rank // stride % axis.size != place for rank, place in places):
        return None
    return stride


# the result --------------------------------------------------------------------------------------


def describe(
    run: Run, found: Mapping[str, Axis], peaks: Peaks, pipeline: result.Pipeline | None
) -> result.Topology:
    """Build the result's `topology`.

    Args:
        run: All ranks.
        found: The dimensions, from `axes`.
        peaks: The links, and the machine of each rank.
        pipeline: What the messages showed; its stages are measured, so they win.
    """
    nodes = peaks.nodes
    # Rings of context parallelism send messages too, and have no stages.
    stages = pipeline.stage_of_rank if pipeline is not None and "pp" in found else {}
    shown = [found[name] for name in _AXES if name in found]
    ranks = sorted({*range(run.world_size or 0), *(rank.rank for rank in run.ranks)})
    positions = []
    for rank in ranks:
        at = {axis.name: axis.of_rank[rank] for axis in shown if rank in axis.of_rank}
        if rank in stages:
            at["pp"] = stages[rank]
        stage = stages.get(rank, at.get("pp"))
        positions.append(result.RankPosition(rank, at, stage, nodes.of_rank.get(rank)))
    return result.Topology(
        nodes=_nodes(nodes),
        nodes_source=nodes.source,
        axes=[_axis_result(axis, nodes, run.world_size) for axis in shown],
        positions=positions,
        links=peaks.described(),
    )


def _nodes(nodes: Nodes) -> list[result.Node] | None:
    if nodes.source is None:
        return None
    members: list[list[int]] = [[] for _ in nodes.names]
    for rank, node in sorted(nodes.of_rank.items()):
        members[node].append(rank)
    return [result.Node(name, ranks) for name, ranks in zip(nodes.names, members, strict=True)]


def _axis_result(axis: Axis, nodes: Nodes, world: int | None) -> result.Axis:
    spans = [nodes.of(ranks) for ranks in axis.groups]
    known = [len(span) for span in spans if span is not None]
    whole = bool(spans) and len(known) == len(spans)
    return result.Axis(
        name=axis.name,
        size=axis.size,
        groups=_in_all(axis, world),
        stride=stride_of(axis),
        first_group=list(min(axis.groups)) if axis.groups else None,
        nodes_per_group=max(known) if whole else None,
        confidence=axis.confidence,
    )


def _in_all(axis: Axis, world: int | None) -> int:
    """Count the groups of the dimension in the whole run, those without a trace too."""
    ranks = world if world is not None else len(axis.of_rank)
    return max(ranks // axis.size, 1)

"""The layout: each rank's place on each dimension, also of ranks without a trace."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from builders import Group, Trace
from samples import analysis as sample

import tracelens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.model.result import Axis, Topology

Mesh = dict[str, int]  # sizes by dimension, the outermost first
MEGATRON = {
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
}


def places(mesh: Mesh) -> list[dict[str, int]]:
    """Return the coordinates of each rank, the last dimension changing fastest."""
    sizes = [range(size) for size in mesh.values()]
    return [dict(zip(mesh, at, strict=True)) for at in itertools.product(*sizes)]


def lines(mesh: Mesh, *along: str) -> list[tuple[int, ...]]:
    """Return the sets of ranks that differ in nothing but some dimensions."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, at in enumerate(places(mesh)):
        found.setdefault(tuple(at[d] for d in mesh if d not in along), []).append(rank)
    return [tuple(ranks) for ranks in found.values()]


def listed(mesh: Mesh, names: dict[str, str]) -> list[Group]:
    return [
        Group(ranks, description=names[dimension])
        for dimension in mesh
        if dimension in names
        for ranks in lines(mesh, dimension)
    ]


def topology(folder: Path, world: int, present: Sequence[int], groups: list[Group]) -> Topology:
    """Analyse traces that list the groups of their rank, and otherwise run one kernel."""
    for rank in present:
        mine = [g for g in groups if rank in g.ranks]
        named = tuple(Group(g.ranks, str(i), g.description) for i, g in enumerate(mine))
        trace = Trace(rank=rank, world=world, groups=named).step(1, 0, 1000)
        trace.kernel("gemm", 100, 50).write(folder / f"rank{rank}.json")
    analysis = tracelens.analyze(folder)
    assert "groups-contradict" not in {notice.code for notice in analysis.notices}
    assert analysis.topology is not None
    return analysis.topology


def axes_of(found: Topology) -> dict[str, Axis]:
    return {axis.name: axis for axis in found.axes}


@pytest.mark.parametrize(
    "mesh",
    [
        {"pp": 2, "dp": 2, "tp": 2},
        {"pp": 4, "dp": 2, "cp": 2, "tp": 2},
        {"dp": 4, "pp": 2, "tp": 2},  # DeepSpeed's order
        {"tp": 2, "dp": 4},  # tensor parallelism outside
        {"dp": 16},
    ],
)
@pytest.mark.parametrize("present", [[0], [1, 2], None])
def test_every_rank_is_placed(tmp_path: Path, mesh: Mesh, present: list[int] | None) -> None:
    truth = places(mesh)
    found = topology(tmp_path, len(truth), present or range(len(truth)), listed(mesh, MEGATRON))

    assert [p.coordinates for p in found.positions] == truth
    assert [p.stage for p in found.positions] == [at.get("pp") for at in truth]
    for name, axis in axes_of(found).items():
        assert (axis.size, axis.groups) == (mesh[name], len(truth) // mesh[name])
        assert axis.confidence == "high"
        assert axis.first_group is not None
        assert tuple(axis.first_group) in lines(mesh, name)


def test_the_stride_is_how_far_neighbours_are_apart(tmp_path: Path) -> None:
    mesh = {"pp": 2, "dp": 3, "tp": 4}
    found = axes_of(topology(tmp_path, 24, [0], listed(mesh, MEGATRON)))
    assert {name: axis.stride for name, axis in found.items()} == {"pp": 12, "dp": 4, "tp": 1}


def test_data_parallel_groups_that_hold_context_parallel_ones(tmp_path: Path) -> None:
    """Gradients are reduced over both, so only that group may have a name and traffic."""
    mesh = {"dp": 2, "cp": 2, "tp": 2}
    groups = listed(mesh, {"cp": MEGATRON["cp"], "tp": MEGATRON["tp"]})
    groups += [Group(r, description="DATA_PARALLEL_GROUP_WITH_CP") for r in lines(mesh, "dp", "cp")]
    found = topology(tmp_path, 8, range(8), groups)
    assert [p.coordinates for p in found.positions] == places(mesh)


def test_of_two_data_parallel_groups_the_one_without_context_counts(tmp_path: Path) -> None:
    mesh = {"dp": 2, "cp": 2}
    groups = listed(mesh, MEGATRON)
    groups += [Group(r, description="DATA_PARALLEL_GROUP_WITH_CP") for r in lines(mesh, "dp", "cp")]
    found = topology(tmp_path, 4, range(4), groups)
    assert [p.coordinates for p in found.positions] == places(mesh)


def test_shards_inside_replicas_are_data_parallelism(tmp_path: Path) -> None:
    mesh = {"replicate": 2, "shard": 2, "tp": 2}
    names = {"replicate": "mesh_dp_replicate", "shard": "mesh_dp_shard", "tp": "mesh_tp"}
    found = topology(tmp_path, 8, range(8), listed(mesh, names))
    for position, at in zip(found.positions, places(mesh), strict=True):
        assert position.coordinates == {**at, "dp": 2 * at["replicate"] + at["shard"]}
    dp = axes_of(found)["dp"]
    assert (dp.size, dp.stride, dp.first_group) == (4, 2, [0, 2, 4, 6])


def test_experts_share_the_data_parallel_ranks(tmp_path: Path) -> None:
    groups = [
        Group(tuple(range(8)), description="DATA_PARALLEL_GROUP"),
        *(
            Group(r, description="EXPERT_MODEL_PARALLEL_GROUP")
            for r in ((0, 1, 2, 3), (4, 5, 6, 7))
        ),
        *(Group((i, i + 4), description="EXPERT_DATA_PARALLEL_GROUP") for i in range(4)),
    ]
    found = topology(tmp_path, 8, range(8), groups)
    assert [p.coordinates for p in found.positions] == [{"dp": r, "ep": r % 4} for r in range(8)]


def test_irregular_groups_place_only_their_own_ranks(tmp_path: Path) -> None:
    """Ranks 0, 3 and 5 are no regular line: where the others sit is not made up."""
    groups = [Group((0, 3, 5), description="mesh_tp")]
    found = topology(tmp_path, 6, [0], groups)
    assert {p.rank: p.coordinates for p in found.positions if p.coordinates} == {
        0: {"tp": 0},
        3: {"tp": 1},
        5: {"tp": 2},
    }
    assert axes_of(found)["tp"].stride is None


def test_messages_show_pipelines_on_a_group_of_all(tmp_path: Path) -> None:
    """Two pipelines that send over the world's group: 0 to 1, and 2 to 3."""
    for rank in range(4):
        kind, peer = ("send", rank + 1) if rank % 2 == 0 else ("recv", rank - 1)
        trace = Trace(rank=rank, world=4).step(1, 0, 10_000)
        trace.collective(kind, 100, 50, 1 << 20, 1 << 20, peer=peer)
        trace.write(tmp_path / f"rank{rank}.json")
    result = tracelens.analyze(tmp_path)
    assert result.topology is not None
    assert [p.coordinates["pp"] for p in result.topology.positions] == [0, 1, 0, 1]
    assert result.parallelism.dims["pp"] == 2


def test_ranks_of_two_runs_contradict_each_other_in_their_groups(tmp_path: Path) -> None:
    for rank, group in ((0, (0, 1)), (1, (1, 2)), (2, (2, 3))):
        groups = (Group(group, "1", "mesh_tp"),)
        trace = Trace(rank=rank, world=4, groups=groups).step(1, 0, 1000)
        trace.kernel("gemm", 100, 50).write(tmp_path / f"rank{rank}.json")
    [said] = [one for one in tracelens.analyze(tmp_path).notices if one.code == "groups-contradict"]
    assert "rank 0 has 1 in its group mesh_tp, 1 does not" in said.message


def test_ranks_of_two_runs_make_a_larger_world(tmp_path: Path) -> None:
    for rank, groups in ((0, {"tp": 2, "dp": 2}), (3, {"cp": 2, "pp": 2})):
        listed_groups = [
            Group(ranks, str(i), MEGATRON[name])
            for i, name in enumerate(groups)
            for ranks in lines(groups, name)
            if rank in ranks
        ]
        trace = Trace(rank=rank, world=4, groups=tuple(listed_groups)).step(1, 0, 1000)
        trace.kernel("gemm", 100, 50).write(tmp_path / f"rank{rank}.json")
    [said] = [one for one in tracelens.analyze(tmp_path).notices if one.code == "groups-contradict"]
    assert "pp 2 x dp 2 x cp 2 x tp 2 in a world of 4" in said.message


def test_a_run_without_groups_has_positions_without_coordinates(tmp_path: Path) -> None:
    found = topology(tmp_path, 2, range(2), [])
    assert found.axes == []
    assert [(p.rank, p.coordinates) for p in found.positions] == [(0, {}), (1, {})]


@pytest.mark.parametrize(
    ("name", "mesh"),
    [("3d-pp2-dp2-tp2", {"pp": 2, "dp": 2, "tp": 2}), ("pipeline-1f1b", {"pp": 4}),
     ("tp2", {"tp": 2}), ("ddp", {"dp": 4})],
)  # fmt: skip
def test_recorded_runs(name: str, mesh: Mesh) -> None:
    found = sample(name).topology
    assert found is not None
    assert [p.coordinates for p in found.positions] == places(mesh)
    assert [p.node for p in found.positions] == [0] * len(places(mesh))


@pytest.mark.parametrize("name", ["3d-pp2-dp2-tp2", "hsdp-2x2", "fsdp2", "tp2", "pipeline-gpipe"])
def test_both_splits_of_exposed_time_sum_to_the_same(name: str) -> None:
    for rank in sample(name).ranks:
        for device in rank.devices:
            steps = device.breakdown
            assert steps is not None
            transfer, unsplit = steps.transfer_by_op_ns, steps.exposed_unsplit_by_op_ns
            assert sum((steps.transfer_by_dimension_ns or {}).values()) == sum(
                (transfer or {}).values()
            )
            assert (steps.transfer_by_dimension_ns is None) == (transfer is None)
            assert steps.exposed_unsplit_by_dimension_ns is not None
            assert sum(steps.exposed_unsplit_by_dimension_ns.values()) == sum(unsplit.values())


def test_a_recorded_3d_run_by_dimension() -> None:
    """DTensor all-reduces activations, FSDP gathers and scatters, the pipeline sends."""
    for rank in sample("3d-pp2-dp2-tp2").ranks:
        steps = rank.devices[0].breakdown
        assert steps is not None
        assert steps.transfer_by_op_ns is not None
        assert steps.transfer_by_dimension_ns is not None
        dimension = steps.transfer_by_dimension_ns
        ops = steps.transfer_by_op_ns
        assert dimension["dp"] == ops["all_gather"] + ops["reduce_scatter"]
        assert dimension["tp"] == ops["all_reduce"]
        assert dimension.get("pp", 0) == ops.get("send", 0) + ops.get("recv", 0)

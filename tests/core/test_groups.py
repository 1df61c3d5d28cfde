"""Process groups: identity by rank list, roles by description, gloo's by ratio and use."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.communication import Operation
from tracelens.groups import UNKNOWN_GROUP, Groups, role_of
from tracelens.model.trace import ProcessGroup, RankInfo

MESH = (
    ProcessGroup("0", "default_pg", 8, tuple(range(8))),
    ProcessGroup("1", "mesh_pp", 2, (0, 4)),
    ProcessGroup("2", "mesh_dp", 2, (0, 2)),
    ProcessGroup("3", "mesh_tp", 2, (0, 1)),
)


def groups_of(*listed: ProcessGroup, world: int | None = 8) -> Groups:
    return Groups(RankInfo("trace.json", "kineto", rank=0, world_size=world, process_groups=listed))


def operation(op: str = "all_reduce", **known: Any) -> Operation:
    return Operation(op=op, source="args", **known)


@pytest.mark.parametrize(
    ("description", "role"),
    [
        ("mesh_pp", "pp"), ("mesh_dp", "dp"), ("mesh_tp", "tp"), ("mesh_cp", "cp"),
        ("mesh_ep", "ep"),
        ("mesh_dp_shard", "shard"), ("mesh_dp_replicate", "replicate"), ("mesh_fsdp", "shard"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP", "dp"), ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"), ("EMBEDDING_GROUP", "embedding"),
        ("POSITION_EMBEDDING_GROUP", "embedding"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "shard"),
        ("INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "replicate"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "dp"),
        ("INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "etp"), ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "unknown"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "unknown"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "unknown"), ("MODEL_PARALLEL_GROUP", "unknown"),
        ("HIERARCHICAL_CONTEXT_PARALLEL_GROUPS_1", "cp"),
        ("mesh_dp_shard_cp", "shard"), ("mesh_dp_shard_mod_ep", "edp"), ("mesh_efsdp", "edp"),
        ("mesh_dp_shard_in_ep", "unknown"), ("mesh_etp", "etp"),
        ("default_pg", "unknown"), ("undefined", "unknown"), ("", "unknown"), (None, "unknown"),
    ],
)  # fmt: skip
def test_roles(description: str | None, role: str) -> None:
    found, confidence = role_of(description)
    assert found == role
    assert confidence == ("unknown" if role == "unknown" else "high")


class TestRecordedGroups:
    def test_by_name_from_the_header(self) -> None:
        group = groups_of(*MESH).of(operation(group_name="2", group_size=2, group_ranks="[]"))
        assert (group.ranks, group.role) == ((0, 2), "dp")

    def test_the_rank_list_on_the_operation(self) -> None:
        group = groups_of().of(operation(group_ranks="[1, 3, 5]", group_size=3))
        assert (group.ranks, group.size) == ((1, 3, 5), 3)

    def test_a_truncated_list_is_unknown_but_its_size_is_kept(self) -> None:
        ranks = ", ".join(str(rank) for rank in range(0, 60, 2))
        group = groups_of(world=80).of(operation(group_ranks=f"[{ranks}, ...]", group_size=40))
        assert (group.ranks, group.size) == (None, 40)

    def test_a_truncated_list_of_unknown_size(self) -> None:
        cut = operation(group_ranks="[0, 1, ...]")
        assert groups_of(world=None).of(cut) is UNKNOWN_GROUP

    def test_a_list_of_another_length_is_not_believed(self) -> None:
        assert groups_of().of(operation(group_ranks="[0, 1, 2]", group_size=4)).ranks is None

    def test_a_truncated_list_of_the_whole_world_is_the_world(self) -> None:
        ranks = ", ".join(str(rank) for rank in range(30))
        group = groups_of(world=64).of(operation(group_ranks=f"[{ranks}, ...]", group_size=64))
        assert group.ranks == tuple(range(64))

    def test_the_header_completes_a_truncated_list(self) -> None:
        whole = ProcessGroup("5", "mesh_dp", 40, tuple(range(0, 80, 2)))
        cut = operation(group_name="5", group_ranks="[0, 2, ...]", group_size=40)
        assert groups_of(whole, world=80).of(cut).ranks == whole.ranks

    def test_a_cut_header_list_is_not_believed(self) -> None:
        listed = ProcessGroup("5", "mesh_dp", 40, tuple(range(30)))
        group = groups_of(listed, world=80).of(operation(group_name="5", group_size=40))
        assert (group.ranks, group.size, group.role) == (None, 40, "dp")

    def test_the_description_on_the_operation_gives_the_role(self) -> None:
        described = operation(group_description="mesh_tp", group_ranks="[0, 1]", group_size=2)
        assert groups_of().of(described).role == "tp"

    def test_identity_is_the_rank_list_not_the_name(self) -> None:
        first = groups_of().of(operation(group_name="7", group_ranks="[0, 1]", group_size=2))
        second = groups_of().of(operation(group_name="9", group_ranks="[0, 1]", group_size=2))
        assert first.key == second.key
        other = groups_of().of(operation(group_name="7", group_ranks="[0, 2]", group_size=2))
        assert first.key != other.key

    def test_only_a_size_that_is_the_worlds(self) -> None:
        assert groups_of(world=8).of(operation(group_size=8)).ranks == tuple(range(8))
        assert groups_of(world=8).of(operation(group_size=4)).ranks is None


class TestUnrecordedGroups:
    """Gloo names no group: sizes and the way of calling narrow it down."""

    def test_one_group_of_a_fitting_size(self) -> None:
        listed = (
            ProcessGroup("0", "default_pg", 4, (0, 1, 2, 3)),
            ProcessGroup("1", "mesh_dp", 2, (0, 2)),
        )
        groups = groups_of(*listed, world=4)
        assert groups.of(operation("all_gather", in_elems=10, out_elems=40)).ranks == (0, 1, 2, 3)
        assert groups.of(operation("all_gather", in_elems=10, out_elems=20)).ranks == (0, 2)
        assert groups.of(operation("reduce_scatter", in_elems=20, out_elems=10)).ranks == (0, 2)
        assert groups.guessed == 0

    def test_uneven_sizes_have_no_ratio(self) -> None:
        listed = (
            ProcessGroup("0", "default_pg", 4, (0, 1, 2, 3)),
            ProcessGroup("1", "undefined", 2, (0, 2)),
        )
        uneven = operation("all_gather", in_elems=10, out_elems=25)
        assert groups_of(*listed, world=4).of(uneven) is UNKNOWN_GROUP

    @pytest.mark.parametrize(
        ("op", "functional", "role"),
        [("send", False, "pp"), ("recv", False, "pp"), ("all_reduce", True, "tp"),
         ("all_reduce", False, "dp")],
    )  # fmt: skip
    def test_by_the_way_it_was_called(self, op: str, functional: bool, role: str) -> None:
        groups = groups_of(*MESH)
        assert groups.of(operation(op, functional=functional)).role == role
        assert groups.guessed == 1

    @pytest.mark.parametrize("source", ["name", "rule"])
    def test_a_kernel_of_which_only_the_name_is_known_is_any_groups(self, source: str) -> None:
        """Launched before the recording: a guess would match it with another group's collective."""
        groups = groups_of(*MESH)
        assert groups.of(Operation(op="all_reduce", source=source)) is UNKNOWN_GROUP
        assert groups.guessed == 0

    def test_fsdp_gathers_on_the_shard_group(self) -> None:
        hsdp = (
            ProcessGroup("0", "default_pg", 4, (0, 1, 2, 3)),
            ProcessGroup("1", "mesh_replicate", 2, (0, 2)),
            ProcessGroup("2", "mesh_shard", 2, (0, 1)),
        )
        groups = groups_of(*hsdp, world=4)
        assert groups.of(operation("all_gather", in_elems=5, out_elems=10)).role == "shard"
        assert groups.of(operation("all_reduce", in_elems=5, out_elems=5)).role == "replicate"

    def test_a_ratio_no_group_has(self) -> None:
        group = groups_of(*MESH).of(operation("all_gather", in_elems=10, out_elems=30))
        assert (group.size, group.ranks) == (3, None)

    def test_only_the_world(self) -> None:
        assert groups_of(world=4).of(operation()).ranks == (0, 1, 2, 3)

    def test_nothing_known(self) -> None:
        assert groups_of(world=None).of(operation()) is UNKNOWN_GROUP
        assert groups_of(world=1).of(operation()) is UNKNOWN_GROUP

    def test_groups_of_one_rank_are_no_candidates(self) -> None:
        alone = (
            ProcessGroup("0", "mesh_tp", 1, (0,)),
            ProcessGroup("1", "mesh_dp", 4, (0, 1, 2, 3)),
        )
        groups = groups_of(*alone, world=4)
        assert groups.of(operation()).role == "dp"
        assert groups.guessed == 0

    def test_twins_with_one_rank_list_are_one_group(self) -> None:
        twins = (
            ProcessGroup("0", "default_pg", 2, (0, 1)),
            ProcessGroup("1", "mesh_tp", 2, (0, 1)),
        )
        group = groups_of(*twins, world=2).of(operation())
        assert (group.ranks, group.role) == ((0, 1), "tp")

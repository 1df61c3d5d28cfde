"""Ranks and process groups as Megatron makes them."""

from __future__ import annotations

import pytest

from tracelens.errors import OptionError
from tracelens.groups import role_of
from tracelens.simulate.layout import Layout, Place, ProcessGroups, parse


def test_order_of_ranks() -> None:
    layout = Layout(dp=2, tp=2, pp=2, cp=2)
    assert layout.world == 16
    assert layout.place(0) == Place(0, 0, 0, 0)
    assert layout.place(1) == Place(tp=1, cp=0, dp=0, pp=0)
    assert layout.place(2) == Place(tp=0, cp=1, dp=0, pp=0)
    assert layout.place(4) == Place(tp=0, cp=0, dp=1, pp=0)
    assert layout.place(8) == Place(tp=0, cp=0, dp=0, pp=1)
    assert [layout.rank(layout.place(rank)) for rank in range(16)] == list(range(16))


@pytest.mark.parametrize(
    ("kind", "rank", "ranks"),
    [
        ("world", 5, tuple(range(16))),
        ("tp", 5, (4, 5)),
        ("cp", 5, (5, 7)),
        ("dp", 5, (1, 5)),
        ("dp_cp", 5, (1, 3, 5, 7)),
        ("pp", 5, (5, 13)),
        ("model", 5, (4, 5, 12, 13)),
        ("embedding", 5, (5, 13)),
    ],
)
def test_groups_of_a_rank(kind: str, rank: int, ranks: tuple[int, ...]) -> None:
    assert ProcessGroups(Layout(dp=2, tp=2, pp=2, cp=2)).ranks(kind, rank) == ranks


def test_expert_groups_lie_inside_the_data_parallel_dimension() -> None:
    groups = ProcessGroups(Layout(dp=4, tp=2, ep=2))
    assert groups.ranks("dp", 0) == (0, 2, 4, 6)
    assert groups.ranks("ep", 0) == (0, 2)
    assert groups.ranks("ep", 4) == (4, 6)
    assert groups.ranks("edp", 0) == (0, 4)
    assert groups.ranks("edp", 2) == (2, 6)


def test_groups_of_one_rank_are_not_made() -> None:
    groups = ProcessGroups(Layout(tp=4))
    assert groups.of("dp", 0) is None
    assert groups.of("edp", 0) is None
    assert {len(group.ranks) for group in groups.listed} == {4}
    assert [group.name for group in groups.listed] == [str(i) for i in range(len(groups.listed))]


def test_every_kind_has_one_group_a_rank() -> None:
    layout = Layout(dp=4, tp=2, pp=2, ep=2, cp=2)
    groups = ProcessGroups(layout)
    for kind in ("dp", "dp_cp", "tp", "pp", "cp", "ep", "edp", "model"):
        members = {groups.ranks(kind, rank) for rank in range(layout.world)}
        assert sorted(rank for one in members for rank in one) == list(range(layout.world))


def test_descriptions_say_what_groups_are_for() -> None:
    groups = ProcessGroups(Layout(dp=4, tp=2, pp=2, ep=2, cp=2))
    roles = {group.description: role_of(group.description)[0] for group in groups.listed}
    assert roles["TENSOR_MODEL_PARALLEL_GROUP"] == "tp"
    assert roles["PIPELINE_MODEL_PARALLEL_GROUP"] == "pp"
    assert roles["DATA_PARALLEL_GROUP_WITH_CP"] == "dp"
    assert roles["EXPERT_MODEL_PARALLEL_GROUP"] == "ep"
    assert roles["EXPERT_DATA_PARALLEL_GROUP"] == "edp"
    assert roles["EMBEDDING_GROUP"] == "embedding"


def test_parse() -> None:
    assert parse("dp=2, tp=4,PP=8") == Layout(dp=2, tp=4, pp=8)
    assert str(parse("dp=4,ep=2")) == "dp=4,ep=2"
    assert str(parse("dp=1")) == "dp=1"


@pytest.mark.parametrize("text", ["", "dp", "dp=0", "dp=x", "zero=3", "dp=2,dp=4", "dp=4,ep=3"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse(text)

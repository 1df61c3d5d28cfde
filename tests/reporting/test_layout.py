"""The layout section: every rank once, marked where something is odd, readable at any size."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import analysis_builder
import pytest
from analysis_parts import topology

from tracelens.reporting.layout import layout_section, rank_grid, summary_line

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Topology
    from tracelens.reporting.content import Grid

MESH = {"pp": 2, "dp": 2, "tp": 2}


def laid_out(found: Topology, **run: Any) -> Analysis:
    base = analysis_builder.fsdp2(len(found.positions))
    facts = dataclasses.replace(base.run, **run)
    return dataclasses.replace(base, topology=found, run=facts, stragglers=[])


def grid_of(found: Topology, **run: Any) -> Grid:
    return rank_grid(laid_out(found, **run), found)


def drawn(grid: Grid) -> list[tuple[str, str, list[str]]]:
    return [
        (band.label, unit.label, [place.label for place in unit.places])
        for band in grid.bands
        for unit in band.units
    ]


def test_on_one_machine_a_stage_is_cut_by_replica() -> None:
    assert drawn(grid_of(topology(MESH))) == [
        ("stage 0", "dp 0", ["0", "1"]),
        ("stage 0", "dp 1", ["2", "3"]),
        ("stage 1", "dp 0", ["4", "5"]),
        ("stage 1", "dp 1", ["6", "7"]),
    ]


def test_on_several_machines_a_stage_is_cut_by_machine() -> None:
    assert drawn(grid_of(topology(MESH, per_node=4))) == [
        ("stage 0", "gpu-a1", ["0", "1", "2", "3"]),
        ("stage 1", "gpu-a2", ["4", "5", "6", "7"]),
    ]
    [unit] = grid_of(topology(MESH, per_node=4)).bands[0].units
    assert [place.apart for place in unit.places] == [False, False, True, False]


def test_machines_that_hold_parts_of_two_stages_are_in_both() -> None:
    mesh = {"pp": 3, "dp": 4}
    machines = [(band, unit) for band, unit, _ in drawn(grid_of(topology(mesh, per_node=6)))]
    assert machines == [
        ("stage 0", "gpu-a1"),
        ("stage 1", "gpu-a1"),
        ("stage 1", "gpu-a2"),
        ("stage 2", "gpu-a2"),
    ]


def test_pure_data_parallelism_is_one_unit() -> None:
    assert drawn(grid_of(topology({"dp": 4}))) == [("", "", ["0", "1", "2", "3"])]


def test_a_place_says_where_it_is_and_what_is_odd() -> None:
    found = topology(MESH)
    analysis = dataclasses.replace(
        laid_out(found, ranks_missing=[5]), stragglers=analysis_builder.fsdp2().stragglers
    )
    grid = rank_grid(analysis, found)
    places = {p.label: p for band in grid.bands for unit in band.units for p in unit.places}
    assert places["5"].detail == "dp0 tp1"
    assert places["5"].title == "rank 5: pp 1, dp 0, tp 1; gpu-a1; no trace"
    assert (places["5"].marks, places["3"].marks, places["0"].marks) == (
        ("missing",),
        ("late",),
        (),
    )
    assert grid.legend == [("○", "no trace"), ("▲", "the others wait for it")]


def test_hsdps_two_parts_stand_for_data_parallelism() -> None:
    base = topology({"replicate": 2, "shard": 2})
    positions = [
        dataclasses.replace(p, coordinates={**p.coordinates, "dp": p.rank}) for p in base.positions
    ]
    dp = dataclasses.replace(base.axes[0], name="dp", size=4)
    found = dataclasses.replace(base, axes=[dp, *base.axes], positions=positions)
    [place, *_] = grid_of(found).bands[0].units[0].places
    assert place.detail == "replicate0 shard0"
    assert layout_section(laid_out(found)).lead.startswith(
        "4 ranks: replicate 2 × shard 2 on 1 node."
    )


@pytest.mark.parametrize("number", [8, 64, 256, 1024])
def test_every_rank_is_drawn_once_and_in_not_too_many_places(number: int) -> None:
    grid = grid_of(topology({"pp": 4, "dp": number // 8, "tp": 2}))
    labels = [label for _, _, places in drawn(grid) for label in places]
    ranks = [rank for label in labels for rank in _ranks(label)]
    assert sorted(ranks) == list(range(number))
    assert len(labels) <= 256
    assert len(grid.compact.rows) <= 32


def _ranks(label: str) -> list[int]:
    low, _, high = label.partition("–")
    return list(range(int(low), int(high or low) + 1))


def test_folded_places_keep_the_marks_of_their_ranks() -> None:
    grid = grid_of(topology({"dp": 512, "tp": 2}), ranks_missing=[9], ranks_partial=[10])
    place = grid.bands[0].units[1].places[0]
    assert (place.label, place.marks) == ("8–15", ("missing", "partial"))
    assert place.title == "ranks 8–15; no trace: 9; read in part: 10"
    assert grid.compact.rows[0][3].text == "no trace: 9; read in part: 10"


def test_many_ranks_on_unknown_machines_are_cut_all_the_same() -> None:
    places = drawn(grid_of(topology({"dp": 512}, per_node=None)))[0][2]
    assert places[:2] == ["0–15", "16–31"]
    assert len(places) == 32


def test_the_lead_says_what_crosses_machines() -> None:
    section = layout_section(laid_out(topology({"pp": 4, "dp": 8, "tp": 2})))
    assert section.lead == (
        "64 ranks: pp 4 × dp 8 × tp 2 on 8 nodes. Groups of tp stay inside a node. "
        "Groups of dp span 2 nodes. Groups of pp span 4 nodes."
    )
    assert section.notes == ["Nodes are told by host names."]


def test_what_is_unknown_is_said() -> None:
    base = topology({"tp": 4}, per_node=None)
    axis = dataclasses.replace(base.axes[0], confidence="medium", stride=None, first_group=None)
    positions = [dataclasses.replace(base.positions[0], coordinates={}), *base.positions[1:]]
    section = layout_section(laid_out(dataclasses.replace(base, axes=[axis], positions=positions)))
    assert "Give `--gpus-per-node`" in section.notes[0]
    assert "No trace names the groups of tp" in section.notes[1]
    assert section.notes[2].startswith("Not every coordinate of 1 rank is known")
    assert [cell.text for cell in section.blocks[0].table.rows[0]] == [
        "tp, tensor parallel", "4", "1", "unknown", "unknown", "unknown", "medium",
    ]  # fmt: skip


def test_long_groups_are_written_as_a_progression() -> None:
    rows = layout_section(laid_out(topology({"dp": 8, "tp": 8}))).blocks[0].table.rows
    assert [row[4].text for row in rows] == ["0, 8, 16 … 56", "0–7"]


def test_every_coordinate_stands_in_the_table() -> None:
    table = layout_section(laid_out(topology(MESH))).blocks[1].table
    assert [column.title for column in table.columns] == [
        "Rank", "pp", "dp", "tp", "Stage", "Node", "Remarks",
    ]  # fmt: skip
    assert [cell.text for cell in table.rows[6]] == ["6", "1", "1", "0", "1", "gpu-a1", "–"]


def test_no_layout_is_no_section() -> None:
    base = analysis_builder.fsdp2()
    nothing = dataclasses.replace(base, topology=None)
    assert layout_section(nothing).empty
    assert summary_line(nothing) is None


def test_one_dimension_on_one_machine_needs_no_line() -> None:
    assert summary_line(laid_out(topology({"dp": 8}))) is None
    assert summary_line(laid_out(topology({"dp": 16}))) == (
        "Layout: dp 16 on 2 nodes; groups of dp span 2 nodes"
    )


def test_experts_alone_are_a_dimension() -> None:
    """Without data parallelism nothing stands for the experts' ranks."""
    found = topology({"ep": 16})
    assert summary_line(laid_out(found)) == "Layout: ep 16 on 2 nodes; groups of ep span 2 nodes"


def test_the_summary_line() -> None:
    analysis = laid_out(topology({"dp": 4, "tp": 2}, per_node=4), ranks_missing=[5, 6, 7])
    assert summary_line(analysis) == (
        "Layout: dp 4 × tp 2 on 2 nodes; groups of tp stay inside a node; "
        "groups of dp span 2 nodes; missing: 5–7"
    )

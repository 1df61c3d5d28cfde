"""Layouts, links and contention of simulated runs, held against what was simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import tracelens
from tracelens.engine import Options as Wanted
from tracelens.simulate import Layout, Machine, Model, Options, kineto, simulate
from tracelens.strategy.inference import Given

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis
    from tracelens.simulate.recording import Recording

_MODEL = Model(layers=4, hidden=512, vocabulary=2048, sequence=512)
_RUN = Options(Layout(dp=2), _MODEL, Machine(), steps=2)
_AXES = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "DATA_PARALLEL_GROUP": "dp",
}


def analysed(
    options: Options, folder: Path, given: Given | None = None
) -> tuple[Recording, Analysis]:
    recording = simulate(options)
    kineto.write(recording, folder, torch="2.12")
    return recording, tracelens.analyze(folder, Wanted(given=given or Given()))


LAYOUTS = {
    "two machines": (Layout(dp=2, tp=2, pp=2), 4),
    "a pipeline over four": (Layout(dp=2, pp=4), 2),
    "context": (Layout(dp=2, cp=2, tp=2), 8),
    "experts": (Layout(dp=4, ep=2), 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_rank_sits_where_it_was_simulated(name: str, tmp_path: Path) -> None:
    layout, per_node = LAYOUTS[name]
    model = replace(_MODEL, experts=4) if layout.ep > 1 else _MODEL
    options = replace(
        _RUN, layout=layout, model=model, machine=Machine(gpus_per_node=per_node), micro_batches=4
    )
    recording, analysis = analysed(options, tmp_path)
    assert analysis.topology is not None
    nodes = [node.name for node in analysis.topology.nodes or []]
    for position, rank in zip(analysis.topology.positions, recording.ranks, strict=True):
        assert position.rank == rank.rank
        assert position.node is not None
        assert nodes[position.node] == rank.host
        for group in recording.groups:
            axis = _AXES.get(group.description)
            if axis is not None and rank.rank in group.ranks and len(group.ranks) > 1:
                assert position.coordinates[axis] == group.ranks.index(rank.rank)
    hosts = {rank.rank: rank.host for rank in recording.ranks}
    for found in analysis.groups:
        assert found.ranks is not None
        assert set(found.node_names or []) == {hosts[rank] for rank in found.ranks}


def test_tensor_parallelism_across_machines_is_found(tmp_path: Path) -> None:
    """It costs what the breakdown says of tp, though a slow rank makes the others wait."""
    machine = Machine(gpus_per_node=2, slow={3: 1.8})
    options = replace(_RUN, layout=Layout(tp=4, dp=2), machine=machine)
    _, analysis = analysed(options, tmp_path, Given(inter_gbps=45.0))
    [found] = [one for one in analysis.findings if one.id == "tp-across-nodes"]
    assert found.evidence["groups_across_nodes"] == found.evidence["groups"] == 2
    assert found.evidence["first"] == "0, 1, 2, 3"
    assert found.saving_ns_per_step is not None
    splits = [rank.devices[0].breakdown for rank in analysis.ranks]
    transfers = [one.transfer_by_dimension_ns for one in splits if one is not None]
    cost = sum((one or {})["tp"] for one in transfers) / len(transfers)
    assert found.evidence["exposed_ns_per_step"] == pytest.approx(cost, abs=2)
    assert 0 < found.saving_ns_per_step < cost
    roles = {group.id: group.role for group in analysis.groups}
    across = [c for c in analysis.collectives if roles[c.group] == "tp" and c.link_peak_gbps]
    assert {c.link_peak_gbps for c in across} == {90.0}  # two rings, each over its own adapter


def test_inside_a_machine_nothing_is_said(tmp_path: Path) -> None:
    _, analysis = analysed(replace(_RUN, layout=Layout(tp=4, dp=2)), tmp_path)
    assert not [one for one in analysis.findings if one.id.endswith("across-nodes")]
    assert {c.link_peak_gbps for c in analysis.collectives} == {450.0}


def test_the_half_bandwidth_size_is_the_links(tmp_path: Path) -> None:
    """12 us and 300 GB/s: calls of less than 3.6 MB on the wire are bound by latency."""
    model = replace(_MODEL, hidden=1024, sequence=4096, batch=4)
    _, analysis = analysed(replace(_RUN, layout=Layout(tp=4), model=model), tmp_path)
    layers = max(analysis.collectives, key=lambda one: one.wire_bytes or 0)
    assert layers.half_bandwidth_bytes == pytest.approx(3_600_000, rel=0.1)
    size = (layers.wire_bytes or 0) / layers.calls
    assert layers.large_busbw_gbps == pytest.approx(300 * size / (size + 3_600_000), rel=0.02)
    assert layers.latency_bound_calls_pct == 0
    assert layers.busbw_of_link_pct == pytest.approx(100 * (layers.busbw_gbps or 0) / 450, rel=1e-9)


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_contention_is_what_was_simulated(factor: float, tmp_path: Path) -> None:
    machine = Machine(contention=factor)
    model = replace(_MODEL, layers=8, hidden=1024, sequence=1024)
    options = replace(
        _RUN, layout=Layout(dp=4), model=model, machine=machine, strategy="zero3", steps=3
    )
    _, analysis = analysed(options, tmp_path)
    assert analysis.contention is not None
    assert analysis.contention.slowdown == pytest.approx(factor, rel=0.01)
    assert analysis.contention.gemm_slowdown == pytest.approx(factor, rel=0.01)
    said = [one for one in analysis.findings if one.id == "overlap-contention"]
    assert bool(said) == (factor > 1)

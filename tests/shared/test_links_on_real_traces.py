"""Machines, links and contention of real runs (`TRACELENS_TRACES`)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared


@functools.cache
def analysed(traces_folder: Path, name: str) -> tracelens.Analysis:
    return tracelens.analyze(traces_folder / "kineto" / name)


@pytest.mark.parametrize("name", ["tp8-megatron-8xa100", "zero2-nanogpt-8xh100"])
def test_eight_ranks_on_eight_devices_share_a_machine(traces_folder: Path, name: str) -> None:
    """No trace names a host; rank r drives device r of eight."""
    found = analysed(traces_folder, name).topology
    assert found is not None
    assert found.nodes is not None
    assert [node.ranks for node in found.nodes] == [list(range(8))]
    assert found.nodes_source == "devices"
    assert "nodes-from-devices" in {notice.code for notice in analysed(traces_folder, name).notices}


@pytest.mark.parametrize(
    "name", ["ddp-resnet50-2xa100", "ddp-resnet18-8xmi300", "ep2-moe-b200", "ddp-a2a-2xv100"]
)
def test_one_rank_does_not_tell_where_the_others_are(traces_folder: Path, name: str) -> None:
    result = analysed(traces_folder, name)
    assert result.topology is not None
    assert result.topology.nodes is None
    assert {group.nodes for group in result.groups} == {None}
    assert {one.link_peak_gbps for one in result.collectives} == {None}


def test_all_reduces_of_activations_get_two_thirds_of_nvlink(traces_folder: Path) -> None:
    """[2048, 4, 4096] fp16 over eight A100: 191 of 300 GB/s, as nccl-tests on this size."""
    rows = [
        one
        for one in analysed(traces_folder, "tp8-megatron-8xa100").collectives
        if one.dtype == "float16"
    ]
    [activations] = rows
    assert activations.link_peak_gbps == 300
    assert activations.busbw_of_link_pct == pytest.approx(63.7, abs=0.2)
    assert activations.half_bandwidth_bytes is None  # two sizes make no line


def test_half_bandwidth_sizes_of_a_sharded_optimizer(traces_folder: Path) -> None:
    """8 H100: some 20 us and 300 GB/s, so 6 to 7 MB; tuning.cc's model says 11 to 13."""
    rows = analysed(traces_folder, "zero2-nanogpt-8xh100").collectives
    sizes = {one.op: one.half_bandwidth_bytes for one in rows if one.half_bandwidth_bytes}
    assert set(sizes) == {"all_gather", "reduce_scatter"}
    assert all(5e6 < size < 8e6 for size in sizes.values())
    small = [one for one in rows if one.kind == "other" and one.latency_bound_calls_pct is not None]
    assert small
    assert {one.latency_bound_calls_pct for one in small} == {100.0}
    assert not [
        f for f in analysed(traces_folder, "zero2-nanogpt-8xh100").findings if "bandwidth" in f.id
    ]


def test_muons_matrix_multiplications_beside_nccl(traces_folder: Path) -> None:
    """Equal iterations, twice as long while NCCL runs: seen in the durations one by one too."""
    found = analysed(traces_folder, "zero2-nanogpt-8xh100").contention
    assert found is not None
    slowed = {kernel.name: kernel for kernel in found.kernels}
    iteration = slowed["nvjet_tst_192x192_64x3_2x1_v_bx_coopB_NNN"]
    assert iteration.is_gemm
    assert iteration.alone_ns == pytest.approx(17_800, rel=0.02)
    assert iteration.slowdown > 1.5
    assert found.gemm_slowdown is not None
    assert found.gemm_slowdown > 1.15


@pytest.mark.parametrize("name", ["tp8-megatron-8xa100", "ns-resolution-v100", "gloo-cpu"])
def test_without_equal_work_on_both_sides_nothing_is_compared(
    traces_folder: Path, name: str
) -> None:
    assert analysed(traces_folder, name).contention is None

"""Public GPU traces as a user passes them: what the report must say about each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tracelens
from tracelens.engine import Options
from tracelens.strategy.inference import Given
from tracelens.theory.transformer import describe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared

FOLDERS = (
    "ddp-resnet50-2xa100",
    "ddp-resnet18-8xmi300",
    "ddp-a2a-2xv100",
    "zero2-nanogpt-8xh100",
    "tp8-megatron-8xa100",
    "ns-resolution-v100",
    "ep2-moe-b200",
    "gloo-cpu",
    "old-schemas",
)


def analysed(traces: Path, name: str) -> tracelens.Analysis:
    return tracelens.analyze(traces / "kineto" / name)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_partition_closes(traces_folder: Path, name: str) -> None:
    for rank in analysed(traces_folder, name).ranks:
        for device in rank.devices:
            whole = [device.total, *(s.partition for s in device.steps)]
            for part in [*whole, *([device.mean_step] if device.mean_step else [])]:
                parts = part.compute_ns + part.exposed_comm_ns + part.exposed_copy_ns
                assert parts == part.busy_ns
                assert parts + part.idle_ns == part.window_ns
                assert sum(part.exposed_by_op_ns.values()) == part.exposed_comm_ns


@pytest.mark.parametrize(
    ("name", "parameters", "item", "ranks"),
    [("ddp-resnet50-2xa100", 25_557_032, 4, 2), ("ddp-resnet18-8xmi300", 11_689_512, 2, 8)],
)
def test_ddp_moves_two_psi_of_the_published_model(
    traces_folder: Path, name: str, parameters: int, item: int, ranks: int
) -> None:
    result = analysed(traces_folder, name)
    assert result.parallelism.strategy == "ddp"
    assert result.parallelism.parameters.count == parameters
    per_step = result.volumes.per_step
    assert per_step.message_elements == 2 * parameters
    assert per_step.message_bytes == 2 * parameters * item
    assert per_step.wire_bytes == 2 * parameters * item * (ranks - 1) // ranks
    assert result.volumes.verdict == "as expected"
    [broadcast, _] = [c for c in result.collectives if c.op == "broadcast"]
    assert broadcast.kind == "other"


def test_rccl_generic_kernels_without_arguments_are_unknown_not_zero(traces_folder: Path) -> None:
    result = analysed(traces_folder, "ddp-resnet18-8xmi300")
    [unknown] = [c for c in result.collectives if c.op == "unknown"]
    assert (unknown.calls, unknown.calls_without_bytes) == (5, 5)
    assert unknown.message_bytes is None
    [reduced] = [c for c in result.collectives if c.op == "all_reduce"]
    assert (reduced.calls, reduced.time_ns) == (6, 47_137_038)


def test_a_sharded_optimizer_that_alternates_has_no_single_psi(traces_folder: Path) -> None:
    result = analysed(traces_folder, "zero2-nanogpt-8xh100")
    assert result.parallelism.strategy == "zero1-or-2"
    assert result.parallelism.parameters.count is None
    assert result.volumes.verdict == "unknown"
    assert "differs from step to step" in result.parallelism.evidence[0]
    assert result.run.ranks_present == list(range(8))
    for op in ("reduce_scatter", "all_gather"):
        parameters = [c for c in result.collectives if c.op == op and c.kind == "parameters"]
        by_dtype = {c.dtype: c.message_elements_per_step for c in parameters}
        # Odd steps move 193,167,360 bf16 elements more; four steps in all.
        assert by_dtype["float32"] == 75_497_472
        assert by_dtype["bfloat16"] == pytest.approx(193_168_512 / 2, rel=1e-4)
    # 20 to 28 NCCL kernels a rank were launched before the window, and no step claims them.
    early = [d.before_first_step for r in result.ranks for d in r.devices]
    assert min(early) >= 20


def test_tensor_parallel_forward_is_predicted_to_the_byte(traces_folder: Path) -> None:
    """Layers, embedding and loss of a real Megatron; attention kernels count one micro-batch."""
    said = describe("layers=40,hidden=4096,sequence=2048,batch=4,dtype=fp16")
    folder = traces_folder / "kineto" / "tp8-megatron-8xa100"
    [row] = tracelens.analyze(folder, Options(given=Given(model=said))).volumes.dimensions
    assert (row.dimension, row.verdict) == ("tp", "as expected")
    assert row.observed.message == row.predicted.message == 10_871_832_576
    [unknown] = analysed(traces_folder, "tp8-megatron-8xa100").volumes.dimensions
    assert unknown.predicted.message is None


def test_experts_are_not_predicted_without_their_model(traces_folder: Path) -> None:
    [row] = analysed(traces_folder, "ep2-moe-b200").volumes.dimensions
    assert (row.dimension, row.observed.message) == ("ep", 2_348_810_240)
    assert row.explanation == "needs the experts of a token: give --model with top_k"


def test_tensor_parallel_forward_is_no_data_parallel_traffic(traces_folder: Path) -> None:
    result = analysed(traces_folder, "tp8-megatron-8xa100")
    assert result.parallelism.strategy == "tp"
    assert result.parallelism.dims["tp"] == 8
    half = next(c for c in result.collectives if c.dtype == "float16")
    assert half.kind == "activations"
    assert (half.calls, half.calls_without_bytes) == (81, 0)
    assert half.message_bytes == 81 * 2 * 2048 * 4 * 4096 * 2
    single = next(c for c in result.collectives if c.dtype == "float32")
    assert (single.calls, single.message_bytes) == (3, 3 * 2 * 4 * 2048 * 4)


def test_all_to_all_v_counts_no_waits(traces_folder: Path) -> None:
    result = analysed(traces_folder, "ep2-moe-b200")
    sent = next(c for c in result.collectives if c.dtype == "bfloat16")
    assert (sent.op, sent.calls, sent.message_bytes) == ("all_to_all", 20, 2_348_810_240)
    counts = next(c for c in result.collectives if c.dtype == "int64")
    assert counts.calls == 10


def test_a_single_rank_run_communicates_nothing(traces_folder: Path) -> None:
    result = analysed(traces_folder, "ns-resolution-v100")
    total = result.ranks[0].devices[0].total
    assert total.comm_ns == 0
    assert total.overlap_pct is None
    assert total.copy_ns == 4_300_839
    assert result.run.world_size == 1


def test_a_cpu_run_of_300_ranks_names_the_missing_ones(traces_folder: Path) -> None:
    result = analysed(traces_folder, "gloo-cpu")
    assert len(result.run.ranks_missing) == 299
    [missing] = [n for n in result.notices if n.code == "missing-ranks"]
    assert "(0-33, 35-299)" in missing.message


def test_latency_and_bandwidth_of_nvlink(traces_folder: Path) -> None:
    """8 x H100: one way 450 GB/s at most, and some 20 us until the first byte."""
    for collective in analysed(traces_folder, "zero2-nanogpt-8xh100").collectives:
        assert collective.alpha_us is not None
        assert collective.beta_gbps is not None
        assert 10 < collective.alpha_us < 40
        assert 200 < collective.beta_gbps < 450
    for collective in analysed(traces_folder, "tp8-megatron-8xa100").collectives:
        assert collective.alpha_us is None  # two sizes are no line


def test_hosts_that_launch_late_are_named(traces_folder: Path) -> None:
    late = analysed(traces_folder, "tp8-megatron-8xa100")
    assert [(s.rank, s.cause) for s in late.stragglers] == [(0, "host"), (6, "host")]
    assert late.findings[0].id == "waiting-for-late-ranks"
    alone = analysed(traces_folder, "ddp-resnet50-2xa100")
    assert alone.findings[0].id == "waiting-for-the-host"
    assert alone.ranks[0].clock_offset_ns is None

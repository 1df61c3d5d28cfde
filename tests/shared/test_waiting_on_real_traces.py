"""Waiting, stragglers and clocks of public GPU traces, against what is known of each run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tracelens
from tracelens import operations_table, waiting
from tracelens.model.trace import NONE
from tracelens.reduction import reduce_rank
from tracelens.run import assemble

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Breakdown
    from tracelens.waiting import Waiting

pytestmark = pytest.mark.shared

TP8, NANOGPT = "tp8-megatron-8xa100", "zero2-nanogpt-8xh100"
ALONE = (
    "ddp-resnet50-2xa100",
    "ddp-resnet18-8xmi300",
    "ddp-a2a-2xv100",
    "ns-resolution-v100",
    "ep2-moe-b200",
)
MS, US = 10**6, 1000


@cache
def analysed(traces: Path, name: str) -> tracelens.Analysis:
    return tracelens.analyze(traces / "kineto" / name)


@cache
def observed(traces: Path, name: str) -> Waiting:
    run = assemble([reduce_rank(trace) for trace in tracelens.load(traces / "kineto" / name)])
    return waiting.observe(run, operations_table.build(run))


def breakdowns(analysis: tracelens.Analysis) -> list[Breakdown]:
    found = [device.breakdown for rank in analysis.ranks for device in rank.devices]
    return [breakdown for breakdown in found if breakdown is not None]


def test_tensor_parallel_stragglers(traces_folder: Path) -> None:
    first, second = analysed(traces_folder, TP8).stragglers
    assert (first.rank, second.rank) == (0, 6)
    assert first.wait_caused_ns == pytest.approx(1534 * MS, abs=MS)
    assert second.wait_caused_ns == pytest.approx(1221 * MS, abs=MS)
    for straggler in (first, second):
        whole = 2941 * MS
        share = 100 * straggler.wait_caused_ns / whole
        assert straggler.share_of_wait_pct == pytest.approx(share, abs=0.05)


def test_tensor_parallel_waiting_in_all(traces_folder: Path) -> None:
    seen = observed(traces_folder, TP8)
    assert seen.wait_ns.sum() == pytest.approx(2941 * MS, abs=MS)
    assert (seen.wait_ns != NONE).all()
    assert seen.incomplete == 0


def test_the_stragglers_wait_least(traces_folder: Path) -> None:
    waits = {r.rank: r.devices[0].breakdown for r in analysed(traces_folder, TP8).ranks}
    by_wait = sorted(waits, key=lambda rank: (b.wait_ns or 0) if (b := waits[rank]) else 0)
    assert by_wait[:2] == [0, 6]


def test_zero_straggler(traces_folder: Path) -> None:
    [slow] = analysed(traces_folder, NANOGPT).stragglers
    assert slow.rank == 1
    assert slow.wait_caused_ns == pytest.approx(226 * MS, abs=MS)


@pytest.mark.parametrize("name", [TP8, NANOGPT])
def test_ends_agree_after_alignment(traces_folder: Path, name: str) -> None:
    residual = observed(traces_folder, name).clocks.residual_ns
    assert len(residual) > 50
    assert np.median(residual) < 30 * US
    assert np.percentile(residual, 95) < 150 * US
    if name == TP8:
        assert residual.max() <= 50 * US


@pytest.mark.parametrize("name", [TP8, NANOGPT])
def test_offsets_of_one_host_are_small(traces_folder: Path, name: str) -> None:
    """All ranks ran on one machine: only the drivers' calibrations differ."""
    clocks = observed(traces_folder, name).clocks
    assert sorted(clocks.offset_ns) == list(range(8))
    assert clocks.offset_ns[0] == 0
    assert max(abs(offset) for offset in clocks.offset_ns.values()) < 50 * US
    assert set(clocks.component.values()) == {0}


@pytest.mark.parametrize("name", [TP8, NANOGPT])
def test_every_exposed_nanosecond_is_split(traces_folder: Path, name: str) -> None:
    analysis = analysed(traces_folder, name)
    found = breakdowns(analysis)
    assert len(found) == 8
    for got in found:
        assert got.exposed_unsplit_by_op_ns == {}
        exposed = sum((got.transfer_by_op_ns or {}).values()) + (got.wait_ns or 0)
        idle = (got.idle_host_ns or 0) + (got.idle_dependency_ns or 0) + got.idle_unknown_ns
        parts = got.compute_ns + exposed + got.exposed_copy_ns + idle + (got.bubble_ns or 0)
        assert parts == got.window_ns


@pytest.mark.parametrize("name", [TP8, NANOGPT])
def test_transfers_take_the_same_time_on_all_ranks(traces_folder: Path, name: str) -> None:
    """Waiting differs several fold between ranks; what is left must not."""
    totals = [
        sum((b.transfer_by_op_ns or {}).values()) for b in breakdowns(analysed(traces_folder, name))
    ]
    assert max(totals) < 1.15 * min(totals)


@pytest.mark.parametrize(
    ("name", "op", "dtype", "low", "high"),
    [(TP8, "all_reduce", "float16", 150, 300), (NANOGPT, "all_gather", "float32", 200, 450)],
)
def test_bandwidth_is_that_of_nvlink(
    traces_folder: Path, name: str, op: str, dtype: str, low: int, high: int
) -> None:
    """A100 moves 300 GB/s each way, H100 450; whole durations would give a fraction of these."""
    rows = [c for c in analysed(traces_folder, name).collectives if c.op == op and c.dtype == dtype]
    largest = max(rows, key=lambda c: c.message_bytes or 0)
    assert largest.busbw_gbps is not None
    assert low < largest.busbw_gbps < high


@pytest.mark.parametrize("rank", [0, 3, 6])
def test_one_rank_alone_estimates_transfer(traces_folder: Path, rank: int) -> None:
    """Of 81 equal calls the fastest tell the transfer that all eight ranks together know."""
    [whole] = [c for c in analysed(traces_folder, TP8).collectives if c.dtype == "float16"]
    file = analysed(traces_folder, TP8).ranks[rank].files[0]
    alone = tracelens.analyze(traces_folder / "kineto" / TP8 / file)
    [row] = [c for c in alone.collectives if c.dtype == "float16"]
    assert row.transfer_estimate_ns == pytest.approx(whole.transfer_ns, rel=0.06)
    assert row.busbw_estimate_gbps == pytest.approx(whole.busbw_gbps, rel=0.06)
    assert (row.wait_ns, row.transfer_ns, row.busbw_gbps) == (None, None, None)


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_alone_knows_no_waiting(traces_folder: Path, name: str) -> None:
    analysis = analysed(traces_folder, name)
    assert all(c.wait_ns is None and c.transfer_ns is None for c in analysis.collectives)
    assert all(b.wait_ns is None for b in breakdowns(analysis))
    assert all(b.transfer_by_op_ns is None for b in breakdowns(analysis))
    assert "wait-unknown" in {n.code for n in analysis.notices}
    assert not {"clocks-aligned", "wait-lower-bound"} & {n.code for n in analysis.notices}
    assert (analysis.stragglers, analysis.lateness) == ([], None)
    assert [rank.clock_offset_ns for rank in analysis.ranks] == [None]

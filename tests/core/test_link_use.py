"""Samples of links: cut by steps and by communication, mapped to ranks, never guessed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight_exports import Export
from simulated_runs import recorded

import tracelens
from tracelens.engine import Options
from tracelens.intervals import union
from tracelens.link_use import Metric, _Samples, _use, metric
from tracelens.reporting.volumes import link_table
from tracelens.simulate import nsight
from tracelens.simulate.nsight.metrics import BUSY
from tracelens.strategy.inference import Given

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis, LinkUse

KINDS = ("Requests User", "Requests Protocol", "Responses User", "Responses Protocol")
TYPE = 0x0101_0000_0000_0000
STEP, SAMPLE = 10_000, 100
COMMUNICATING = (5_000, 8_000)  # of each step
H100 = "NVIDIA H100 80GB HBM3"


class Gpus(Export):
    """Two steps of a rank or more; each communicates on the stretch above."""

    def rank(self, rank: int, gpu: int, name: str = H100, ordinal: int = 0) -> Gpus:
        pid = 4000 + rank
        self.gpu(gpu, name, pid=pid, ordinal=ordinal).mark(pid, rank=rank, world=2)
        for step in (1, 2):
            begin = STEP * step
            self.step(step, begin, begin + STEP, pid)
            self.kernel("gemm", begin, 4_000, pid=pid, device=ordinal)
            low, high = (begin + offset for offset in COMMUNICATING)
            self.collective(
                "ncclAllReduce", low, high - low, pid=pid, device=ordinal, comm=7, size=1000
            )
            self.kernel("adam", begin + 9_000, 1_000, pid=pid, device=ordinal)
        return self

    def counter(self, name: str, gpu: int, number: int) -> Gpus:
        self.add(
            "TARGET_INFO_GPU_METRICS", typeId=TYPE | gpu, sourceId=TYPE, typeName="GPU Metrics",
            metricId=number, metricName=f"{name} [Throughput %]",
        )  # fmt: skip
        return self

    def sample(self, gpu: int, number: int, moment: int, value: int) -> Gpus:
        self.add("GPU_METRICS", timestamp=moment, typeId=TYPE | gpu, metricId=number, value=value)
        return self

    def sent(self, gpu: int, *, busy: int = 40, first: int = 0, kinds: tuple[str, ...] = KINDS,
             period: int = SAMPLE, until: int = 4 * STEP) -> Gpus:  # fmt: skip
        """Sample what a GPU sends: each kind busy while it communicates, idle else."""
        for number, kind in enumerate(kinds, first):
            self.counter(f"NVLink TX {kind} Data", gpu, number)
            for moment in range(0, until, period):
                inside = COMMUNICATING[0] < moment % STEP <= COMMUNICATING[1]
                self.sample(gpu, number, moment, busy // len(KINDS) if inside else 0)
        return self


def analysed(export: Export, folder: Path, intra_gbps: float | None = None) -> Analysis:
    options = Options(given=Given(intra_gbps=intra_gbps))
    path = folder / "node.sqlite"
    path.unlink(missing_ok=True)
    return tracelens.analyze(export.write(path), options)


def only(analysis: Analysis) -> LinkUse:
    (found,) = analysis.volumes.link_use
    return found


def test_in_the_step_and_while_it_communicates(tmp_path: Path) -> None:
    found = only(analysed(Gpus().rank(0, gpu=3).sent(3), tmp_path))
    assert (found.rank, found.device, found.link, found.direction) == (0, 0, "NVLink", "sent")
    assert found.sample_ns == SAMPLE
    assert found.mean_percent == pytest.approx(40 * 3_000 / STEP)
    assert found.payload_percent == pytest.approx(20 * 3_000 / STEP)
    assert found.peak_percent == 40
    assert (found.communicating_mean_percent, found.communicating_peak_percent) == (40, 40)


def test_a_link_that_idles_while_members_wait(tmp_path: Path) -> None:
    export = Gpus().rank(0, gpu=0)
    for number, kind in enumerate(KINDS):
        export.counter(f"NVLink RX {kind} Data", 0, number)
        for moment in range(0, 4 * STEP, SAMPLE):  # the last third of each collective transfers
            export.sample(0, number, moment, 20 if 7_000 < moment % STEP <= 8_000 else 0)
    found = only(analysed(export, tmp_path))
    assert found.direction == "received"
    assert found.communicating_mean_percent == pytest.approx(80 / 3)
    assert found.communicating_peak_percent == 80


def test_each_rank_has_its_own_gpu(tmp_path: Path) -> None:
    """Ids of counters and rates differ between GPUs; each process calls its only one 0."""
    export = Gpus().rank(0, gpu=5).rank(1, gpu=2)
    export.sent(5, busy=80).sent(2, busy=40, first=11, period=50).sent(7, busy=20)
    found = {one.rank: one for one in analysed(export, tmp_path).volumes.link_use}
    assert {rank: one.communicating_mean_percent for rank, one in found.items()} == {0: 80, 1: 40}
    assert {rank: one.sample_ns for rank, one in found.items()} == {0: 100, 1: 50}


@pytest.mark.parametrize(
    ("name", "gbps"), [(H100, 450), ("NVIDIA H100 PCIe", None), ("NVIDIA A100-SXM4-80GB", 300)]
)
def test_bytes_take_a_peak(name: str, gbps: int | None, tmp_path: Path) -> None:
    found = only(analysed(Gpus().rank(0, 0, name).sent(0), tmp_path))
    expected = None if gbps is None else round(0.2 * 3_000 * gbps)
    assert found.estimated_payload_bytes_per_step == expected


def test_the_peak_that_is_given_wins(tmp_path: Path) -> None:
    found = only(analysed(Gpus().rank(0, 0).sent(0), tmp_path, intra_gbps=100))
    assert found.estimated_payload_bytes_per_step == round(0.2 * 3_000 * 100)


def test_a_kind_that_was_not_sampled_makes_the_sum_unknown(tmp_path: Path) -> None:
    found = only(analysed(Gpus().rank(0, 0).sent(0, kinds=(KINDS[0], KINDS[2])), tmp_path))
    assert (found.mean_percent, found.peak_percent) == (None, None)
    assert found.communicating_mean_percent is None
    assert found.payload_percent == pytest.approx(20 * 3_000 / STEP)


def test_samples_that_end_early_say_nothing(tmp_path: Path) -> None:
    found = only(analysed(Gpus().rank(0, 0).sent(0, until=2 * STEP), tmp_path))
    assert (found.mean_percent, found.payload_percent) == (None, None)
    assert found.communicating_mean_percent == 40, "of the first step alone: half of it all"


def test_kernels_shorter_than_samples_say_nothing(tmp_path: Path) -> None:
    found = only(analysed(Gpus().rank(0, 0).sent(0, period=4_000), tmp_path))
    assert found.sample_ns == 4_000
    assert found.communicating_mean_percent is None
    assert found.mean_percent is not None


def test_pcie_counts_data_and_protocol_in_one(tmp_path: Path) -> None:
    export = Gpus().rank(0, 0, "NVIDIA L40S")
    names = ("PCIe Read Bandwidth", "PCIe TX Throughput", "PCIe Read Requests to BAR1", "SM Active")
    for number, name in enumerate(names):
        export.counter(name, 0, number)
        for moment in range(0, 4 * STEP, SAMPLE):
            export.sample(0, number, moment, 7 + number)
    read, sent = analysed(export, tmp_path).volumes.link_use
    assert (read.link, read.direction, read.mean_percent) == ("PCIe", "received", 7)
    assert (sent.link, sent.direction, sent.mean_percent) == ("PCIe", "sent", 8)
    assert read.payload_percent is None
    assert read.estimated_payload_bytes_per_step is None


def test_whose_gpu_is_never_guessed(tmp_path: Path) -> None:
    export = Gpus().rank(0, 0).sent(0).drop("TARGET_INFO_GPU").drop("TARGET_INFO_CUDA_DEVICE")
    analysis = analysed(export, tmp_path)
    assert analysis.volumes.link_use == []
    (said,) = [one for one in analysis.notices if one.code == "link-samples-unassigned"]
    assert said.rank == 0


def test_without_samples_there_is_nothing(tmp_path: Path) -> None:
    assert analysed(Gpus().rank(0, 0), tmp_path).volumes.link_use == []
    others = Gpus().rank(0, 0).counter("SM Active", 0, 1).sample(0, 1, 5, 5)
    assert analysed(others, tmp_path).volumes.link_use == []


def test_a_session_start_that_was_added_is_taken_off_again(tmp_path: Path) -> None:
    plain = only(analysed(Gpus().rank(0, 0).sent(0), tmp_path))
    shifted = Gpus().rank(0, 0).sent(0)
    start = 10**15
    shifted.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=start)
    shifted.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value="true")
    for rows in shifted.rows.values():
        for row in rows:
            row.update({k: row[k] + start for k in ("start", "end", "timestamp") if row.get(k)})
    for row in shifted.rows["GPU_METRICS"]:
        row["timestamp"] = row["timestamp"] or start
    assert only(analysed(shifted, tmp_path)) == plain


def test_reports_show_them(tmp_path: Path) -> None:
    (row,) = link_table(analysed(Gpus().rank(0, 3).sent(3), tmp_path).volumes).rows
    assert [cell.text for cell in row] == [
        "0", "NVLink", "sent", "12.0 %", "40.0 %", "6.00 %", "40.0 %", "40.0 %", "≈ 270 kB",
    ]  # fmt: skip


def test_a_simulated_run_is_as_busy_as_it_transfers(tmp_path: Path) -> None:
    nsight.write(recorded("zero-2"), tmp_path, options=nsight.Options(links=True))
    analysis = tracelens.analyze(tmp_path)
    assert {(one.rank, one.link, one.direction) for one in analysis.volumes.link_use} == {
        (rank, link, way)
        for rank in (0, 1) for link in ("NVLink", "PCIe") for way in ("sent", "received")
    }  # fmt: skip
    for one in analysis.volumes.link_use:
        top = sum(BUSY.values()) if one.link == "NVLink" else 0
        assert one.mean_percent is not None
        assert one.mean_percent <= top
        assert (one.mean_percent > 0) == (top > 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVLink TX Responses User Data [Throughput %]", Metric("NVLink", "sent", True)),
        ("NVLink RX Requests Protocol Data [Throughput %]", Metric("NVLink", "received", False)),
        ("PCIe RX Throughput [Throughput %]", Metric("PCIe", "received", False)),
        ("PCIe Write Bandwidth", Metric("PCIe", "sent", False)),
        ("PCIe Write Requests to BAR1 [Requests]", None),
        ("NVLink RX", None),
        ("DRAM Read Bandwidth [Throughput %]", None),
    ],
)
def test_names_of_counters(name: str, expected: Metric | None) -> None:
    assert metric(name) == expected


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=5)


@given(
    spans,
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 100)), max_size=8),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_samples_are_weighed_by_what_lies_inside(
    times: list[tuple[int, int]], samples: list[tuple[int, int]], inside: float
) -> None:
    """Against a twin that looks at each nanosecond."""
    asked = {t for low, length in times for t in range(low, low + length)}
    covered = total = at = 0
    peak = -1
    bounds = [0, *np.cumsum([length for length, _ in samples]).tolist()]
    for (length, value), at in zip(samples, bounds, strict=False):
        within = len(asked & set(range(at, at + length)))
        if not within or within < math.floor(inside * length * 1e9) / 1e9:
            continue
        covered, total = covered + within, total + within * value
        peak = max(peak, value) if 2 * within >= length else peak
    made = _Samples(
        np.array(bounds[:-1], np.int64), np.array(bounds[1:], np.int64),
        np.array([value for _, value in samples], np.int64),
    )  # fmt: skip
    lows = np.array([low for low, _ in times], np.int64)
    lengths = np.array([length for _, length in times], np.int64)
    found = _use(made, union(lows, lows + lengths), inside)
    assert found == (len(asked), covered, total, peak)

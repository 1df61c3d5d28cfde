"""Real exports of Nsight Systems, and simulated ones: the known values of traces/README.md.

Counts are held against plain SQL over the same file, which shares nothing with the parser.
"""

from __future__ import annotations

import functools
import sqlite3
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tracelens
from tracelens.communication import identify
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS
from tracelens_nsight import NsightParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis, CollectiveResult
    from tracelens.model.trace import RankTrace

pytestmark = pytest.mark.shared

BEFORE = "nsight/a2a-2xh100-before-after/before.sqlite"
AFTER = "nsight/a2a-2xh100-before-after/after.sqlite"
GRAPH = "nsight/cuda-graph-2025.5/run.sqlite"
OLD = "nsight/schema-2022/run.sqlite"
NODE = "nsight_synthetic/tp2-pp2-dp2-1f1b"
PER_RANK = "nsight_synthetic/dp4-zero2-per-rank"
MIB = 1 << 20


@functools.cache
def parsed(path: Path) -> list[RankTrace]:
    traces = list(NsightParser().parse(path))
    for trace in traces:
        trace.validate()
    return traces


@functools.cache
def analysed(path: Path) -> Analysis:
    return tracelens.analyze(path)


def query(path: Path, text: str) -> list[tuple[int, ...]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    return connection.execute(text).fetchall()


def kernels(trace: RankTrace) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (trace.device_events["kind"] == "kernel").to_numpy()


def named(analysis: Analysis, op: str) -> list[CollectiveResult]:
    return [one for one in analysis.collectives if one.op == op]


def codes(analysis: Analysis) -> set[str]:
    return {notice.code for notice in analysis.notices}


class TestTwoProcessesInOneFile:
    @pytest.mark.parametrize(
        ("name", "all_of_them", "linked"), [(BEFORE, 4010, 3986), (AFTER, 3587, 3577)]
    )
    def test_kernels_are_joined_within_their_process(
        self, traces_folder: Path, name: str, all_of_them: int, linked: int
    ) -> None:
        traces = parsed(traces_folder / name)
        found = [trace.device_events[kernels(trace)] for trace in traces]
        assert sum(map(len, found)) == all_of_them
        assert sum(int((table["launch"] != NONE).sum()) for table in found) == linked

    def test_a_join_without_the_process_would_give_more(self, traces_folder: Path) -> None:
        joined = query(
            traces_folder / BEFORE,
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON k.correlationId = r.correlationId",
        )
        assert joined == [(4280,)], "the trap this file holds"

    def test_no_device_time_is_lost(self, traces_folder: Path) -> None:
        for trace in parsed(traces_folder / BEFORE):
            events = trace.device_events
            total = int((events["end"] - events["start"]).sum())
            tables = ("KERNEL", "MEMCPY", "MEMSET")
            expected = sum(
                query(
                    traces_folder / BEFORE,
                    f'SELECT sum("end" - start) FROM CUPTI_ACTIVITY_KIND_{table} '
                    f"WHERE (globalPid >> 24) & 0xffffff = {trace.info.process}",
                )[0][0]
                for table in tables
            )
            assert total == expected

    @pytest.mark.parametrize(("name", "count"), [(BEFORE, 33), (AFTER, 31)])
    def test_send_recv_kernels_are_all_to_alls(
        self, traces_folder: Path, name: str, count: int
    ) -> None:
        for trace in parsed(traces_folder / name):
            found = identify(trace)
            names = trace.device_events["name"].astype(object).to_numpy()
            of_nccl = np.array(["SendRecv" in str(text) for text in names])
            linked = (trace.device_events["launch"] != NONE).to_numpy()
            ops = {OPERATIONS[code] for code in found.event_op[of_nccl & linked]}
            assert ops == {"all_to_all"}
            assert of_nccl.sum() == count

    def test_bytes_are_unknown_and_the_export_to_blame(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / BEFORE)
        (exchange,) = named(analysis, "all_to_all")
        assert exchange.message_bytes is None
        assert exchange.calls_without_bytes == exchange.calls
        notes = [n.message for n in analysis.notices if n.code == "payloads-not-exported"]
        assert all("--include-blobs=true" in text for text in notes)
        assert len(notes) == 2

    def test_nothing_of_the_environment_is_in_the_result(self, traces_folder: Path) -> None:
        secrets = query(
            traces_folder / BEFORE,
            "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE'",
        )
        text = analysed(traces_folder / BEFORE).to_json()
        values = {str(value).partition("=")[2].strip('"') for (value,) in secrets}
        assert len(values) > 50
        assert not [value for value in values if len(value) > 6 and value in text]


class TestGraphsRecordedWhole:
    def test_a_graph_is_busy_and_said_to_be_unknown(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / GRAPH)
        (device,) = analysis.ranks[0].devices
        ((spent,),) = query(
            traces_folder / GRAPH,
            'SELECT sum("end" - start) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE',
        )
        kernel = next(k for k in analysis.ranks[0].top_kernels if k.name.startswith("CUDA graph"))
        assert (kernel.count, kernel.total_ns) == (2, spent)
        assert device.total.kernels == 3 + 2
        assert "opaque-graphs" in codes(analysis)

    def test_the_launch_that_was_captured_is_not_lost(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / GRAPH)
        assert analysis.ranks[0].devices[0].total.launches_without_record == 0


class TestOldSchema:
    def test_five_kernels_with_the_outermost_launch(self, traces_folder: Path) -> None:
        (trace,) = parsed(traces_folder / OLD)
        found = trace.device_events[kernels(trace)]
        outermost = query(
            traces_folder / OLD,
            'SELECT min(r.start), max(r."end") FROM CUPTI_ACTIVITY_KIND_KERNEL k '
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId "
            "GROUP BY k.correlationId ORDER BY k.start",
        )
        launches = list(zip(found["launch"], found["launch_end"], strict=True))
        assert launches == outermost
        assert len(found) == 5


class TestOneFileOfANode:
    """TP2 PP2 DP2 with 1F1B: eight processes in one file."""

    def test_ranks_follow_the_devices(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / NODE)
        assert analysis.run.ranks_present == list(range(8))
        assert analysis.run.world_size == 8
        assert [rank.devices[0].process for rank in analysis.ranks] == list(range(4000, 4092, 13))

    def test_tensor_parallel_all_reduces(self, traces_folder: Path) -> None:
        found = [
            one
            for one in named(analysed(traces_folder / NODE), "all_reduce")
            if one.dtype == "bfloat16"
        ]
        assert [one.calls_per_step for one in found] == [128.0] * 4
        assert {one.bytes_per_step.message for one in found} == {2 * 128 * 16 * MIB}
        assert {one.bytes_per_step.wire for one in found} == {128 * 16 * MIB}

    def test_data_parallel_all_reduces(self, traces_folder: Path) -> None:
        found = [
            one
            for one in named(analysed(traces_folder / NODE), "all_reduce")
            if one.dtype == "float32"
        ]
        assert [one.calls_per_step for one in found] == [4.0] * 4
        assert {one.bytes_per_step.message for one in found} == {2 * 1536 * MIB}

    def test_groups_are_those_of_the_layout(self, traces_folder: Path) -> None:
        groups = {tuple(one.ranks or ()) for one in analysed(traces_folder / NODE).groups}
        tensor = {(0, 1), (2, 3), (4, 5), (6, 7)}
        data = {(0, 2), (1, 3), (4, 6), (5, 7)}
        pipeline = {(0, 4), (1, 5), (2, 6), (3, 7)}
        assert groups == tensor | data | pipeline

    def test_the_pipeline(self, traces_folder: Path) -> None:
        pipeline = analysed(traces_folder / NODE).pipeline
        assert pipeline is not None
        assert (pipeline.stages, pipeline.microbatches) == (2, 8)
        assert pipeline.schedule == "1f1b"
        shares = [share for share in pipeline.bubble.by_rank.values() if share is not None]
        assert len(shares) == 8
        assert min(shares) == pytest.approx(0.122, abs=0.005)
        assert max(shares) == pytest.approx(0.122, abs=0.005)
        assert pipeline.bubble.theory == pytest.approx(1 / 9)

    def test_the_bubble_is_none_of_what_looks_idle(self, traces_folder: Path) -> None:
        """Receive kernels spin through it: a reader of idle time says 0.0 %."""
        analysis = analysed(traces_folder / NODE)
        assert analysis.pipeline is not None
        bubble = analysis.pipeline.bubble
        assert bubble.by_rank.keys() == set(range(8))
        assert all(value == pytest.approx(0.122, abs=0.005) for value in bubble.by_rank.values())
        assert bubble.measured == pytest.approx(0.122, abs=0.005)
        assert bubble.theory == pytest.approx(1 / 9)
        mean = analysis.ranks[0].devices[0].mean_step
        assert mean is not None
        assert mean.idle_ns / mean.window_ns < 0.02

    def test_roles_follow_from_the_traffic(self, traces_folder: Path) -> None:
        dims = analysed(traces_folder / NODE).parallelism.dims
        assert dims == {"dp": 2, "tp": 2, "pp": 2, "ep": 1, "cp": 1}


class TestOneFileARank:
    """DP4 with ZeRO-2: four files; payloads state bytes, not types."""

    def test_ranks_come_from_the_names(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / PER_RANK)
        assert analysis.run.ranks_present == [0, 1, 2, 3]
        assert [file.rank for file in analysis.source.files] == [0, 1, 2, 3]

    def test_one_communicator_of_all(self, traces_folder: Path) -> None:
        (group,) = analysed(traces_folder / PER_RANK).groups
        assert (group.size, group.ranks) == (4, [0, 1, 2, 3])

    def test_bytes(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / PER_RANK)
        (scattered,), (gathered,) = named(analysis, "reduce_scatter"), named(analysis, "all_gather")
        assert (scattered.calls_per_step, gathered.calls_per_step) == (8.0, 1.0)
        assert scattered.bytes_per_step.message == 6_442_450_944
        assert gathered.bytes_per_step.message == 3_221_225_472
        assert (scattered.dtype, gathered.dtype) == ("float32", None)
        assert scattered.message_elements_per_step == 6_442_450_944 / 4
        assert gathered.message_elements_per_step == 3_221_225_472 / 2

    def test_the_size_of_gathered_elements_is_concluded_and_said(self, traces_folder: Path) -> None:
        analysis = analysed(traces_folder / PER_RANK)
        assert analysis.volumes.per_step.multiple_of_parameters == 2.0
        assert analysis.volumes.verdict == "as expected"
        assert "type-concluded" in codes(analysis)

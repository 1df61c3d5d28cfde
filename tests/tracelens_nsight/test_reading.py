"""What an export's rows become: device events, launches, ranges, and what is odd about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight_exports import EVENTS, GRAPH, KERNEL, MEMCPY, MEMSET, PID, RUNTIME, Export

from tracelens.errors import UnreadableTrace
from tracelens.model.trace import NONE
from tracelens.reduction import reduce_rank
from tracelens_nsight import NsightParser, calls
from tracelens_nsight.device import OPAQUE_GRAPH

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace


def only(export: Export, path: Path) -> RankTrace:
    (trace,) = export.traces(path / "x.sqlite")
    return trace


class TestDeviceEvents:
    def test_a_kernel(self, tmp_path: Path) -> None:
        trace = only(Export().kernel("gemm", 1_000, 300, device=2, stream=7), tmp_path)
        (row,) = trace.device_events.to_dict("records")
        shown = [row[c] for c in ("process", "device", "stream", "start", "end", "name", "kind")]
        assert shown == [PID, 2, 7, 1_000, 1_300, "gemm", "kernel"]
        assert (row["launch"], row["launch_end"], row["launch_thread"]) == (900, 950, PID)
        assert row["graph"] == NONE

    @pytest.mark.parametrize(
        ("kind", "source", "target", "name"),
        [
            (1, 0, 2, "Memcpy HtoD (Pageable -> Device)"),
            (2, 2, 1, "Memcpy DtoH (Device -> Pinned)"),
            (10, 2, 2, "Memcpy PtoP (Device -> Device)"),
            (99, 77, 2, "Memcpy Unknown (Unknown -> Device)"),
            (8, None, None, "Memcpy DtoD"),
        ],
    )
    def test_copies_are_called_as_kineto_calls_them(
        self, kind: int, source: int | None, target: int | None, name: str, tmp_path: Path
    ) -> None:
        export = Export().device(
            MEMCPY, 1_000, bytes=64, copyKind=kind, srcKind=source, dstKind=target
        )
        (row,) = only(export, tmp_path).device_events.to_dict("records")
        assert (row["name"], row["kind"], row["copy_bytes"]) == (name, "copy", 64)

    def test_a_memset(self, tmp_path: Path) -> None:
        export = Export().device(MEMSET, 1_000, bytes=32, memKind=2)
        (row,) = only(export, tmp_path).device_events.to_dict("records")
        assert (row["name"], row["kind"], row["copy_bytes"]) == ("Memset (Device)", "memset", 32)

    def test_events_are_sorted_whatever_their_table(self, tmp_path: Path) -> None:
        export = Export().kernel("b", 3_000).device(MEMCPY, 2_000, copyKind=1).kernel("a", 1_000)
        assert only(export, tmp_path).device_events["start"].tolist() == [1_000, 2_000, 3_000]

    def test_events_without_times_are_counted_and_their_launches_not_lost(
        self, tmp_path: Path
    ) -> None:
        export = Export().kernel("good", 1_000).kernel("no end", 2_000)
        export.rows[KERNEL][-1]["end"] = None
        export.kernel("nothing", 0, 0, at=50).kernel("backwards", 3_000, -5)
        export.device(MEMCPY, 4_000, 0, copyKind=1)  # a copy can be that short
        trace = only(export, tmp_path)
        assert len(trace.device_events) == 2
        assert trace.info.untimed == {(PID, 0): 3}
        (said,) = trace.info.notices
        assert (said.code, said.count) == ("untimed-events", 3)
        assert reduce_rank(trace).lost == 0

    def test_a_kernel_without_a_name_is_in_no_number(self, tmp_path: Path) -> None:
        """Compute or communication: nothing says it."""
        export = Export().kernel("gemm", 1_000).kernel("lost", 2_000).kernel("short(int)", 3_000)
        export.rows[KERNEL][1].update(demangledName=77, shortName=78)
        export.rows[KERNEL][2]["demangledName"] = 77
        trace = only(export, tmp_path)
        assert trace.device_events["name"].tolist() == ["gemm", "short"]
        assert (trace.info.unknown_device_events, trace.info.untimed) == (1, {})
        assert trace.info.lacks_device_events
        (said,) = trace.info.notices
        assert (said.code, said.count) == ("unread-device-events", 1)
        assert reduce_rank(trace).lost == 0

    def test_nor_are_any_if_strings_are_missing(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).collective("ncclAllReduce", 2_000, size=64)
        export.device(MEMCPY, 4_000, copyKind=1)
        export._strings.clear()
        trace = only(export, tmp_path)
        assert trace.device_events["kind"].tolist() == ["copy"]
        assert [(n.code, n.count) for n in trace.info.notices] == [("unread-device-events", 2)]

    @pytest.mark.parametrize("end", [7_200_000_000_000, 1 << 62, (1 << 63) - 1])
    def test_a_kernel_that_never_ends_has_no_time(self, end: int, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).kernel("endless", 2_000).kernel("gemm", 3_000)
        export.rows[KERNEL][1]["end"] = end
        trace = only(export, tmp_path)
        assert trace.device_events["start"].tolist() == [1_000, 3_000]
        assert [(n.code, n.count) for n in trace.info.notices] == [("untimed-events", 1)]
        assert reduce_rank(trace).lost == 0

    def test_one_that_lasts_far_through_the_next_is_cut(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000, 9_000_000).kernel("gemm", 3_000)
        trace = only(export, tmp_path)
        assert trace.device_events["end"].tolist() == [3_000, 3_100]
        assert [(n.code, n.count) for n in trace.info.notices] == [("clipped-durations", 1)]

    def test_a_graph_recorded_whole_is_a_kernel_of_its_own_name(self, tmp_path: Path) -> None:
        export = Export().device(GRAPH, 1_000, 400, call="cudaGraphLaunch_v10000", graphId=3)
        trace = only(export, tmp_path)
        (row,) = trace.device_events.to_dict("records")
        assert (row["name"], row["kind"], row["graph"]) == (OPAQUE_GRAPH, "kernel", 3)
        (said,) = trace.info.notices
        assert (said.code, said.count) == ("opaque-graphs", 1)
        reduction = reduce_rank(trace)
        assert reduction.devices[0].total.idle_ns == 0
        assert reduction.lost == 0

    def test_kernels_of_a_graph_recorded_node_by_node(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000, graphId=None, graphNodeId=0)
        export.kernel("gemm", 2_000, graphId=None, graphNodeId=77).kernel("gemm", 3_000, graphId=5)
        assert only(export, tmp_path).device_events["graph"].tolist() == [NONE, 77, 5]

    def test_the_name_of_the_gpu_a_process_sees(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000, device=0).gpu(3, "H100", ordinal=0)
        export.gpu(0, "another")  # of no ordinal this process uses
        export.rows["TARGET_INFO_CUDA_DEVICE"][-1]["pid"] = 1
        assert only(export, tmp_path).info.device_names == {0: "H100"}

    def test_gpus_may_be_unknown(self, tmp_path: Path) -> None:
        trace = only(Export().kernel("gemm", 1_000), tmp_path)
        assert trace.info.device_names == {}
        assert trace.info.device_kind == "cuda"

    def test_before_2023_ordinals_are_the_gpus_own(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).gpu(0, "A100").drop("TARGET_INFO_CUDA_DEVICE")
        assert only(export, tmp_path).info.device_names == {0: "A100"}

    def test_one_process_with_two_devices_stays_one_rank(self, tmp_path: Path) -> None:
        export = Export().kernel("a", 1_000, device=0).kernel("b", 1_000, device=1)
        reduction = reduce_rank(only(export, tmp_path))
        assert [device.device for device in reduction.devices] == [0, 1]


class TestLaunches:
    def test_the_outermost_of_nested_calls(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000, at=880)
        export.runtime("cudaLaunchKernel", 870, 990, correlation=1)
        export.runtime("cuLaunchKernel", 885, 900, correlation=1)
        (row,) = only(export, tmp_path).device_events.to_dict("records")
        assert (row["launch"], row["launch_end"]) == (870, 990)

    def test_a_kernel_without_one_is_kept(self, tmp_path: Path) -> None:
        export = Export().kernel("early", 500, at=None).kernel("gemm", 1_000)
        assert only(export, tmp_path).device_events["launch"].tolist() == [NONE, 900]

    def test_correlation_ids_are_those_of_a_process(self, tmp_path: Path) -> None:
        export = Export()
        for pid, begin in ((4000, 1_000), (4001, 5_000)):
            export._correlation = 0
            export.kernel("gemm", begin, pid=pid)
        first, second = export.traces(tmp_path / "x.sqlite")
        assert first.device_events["launch"].tolist() == [900]
        assert second.device_events["launch"].tolist() == [4_900]
        assert (first.info.process, second.info.process) == (4000, 4001)

    def test_calls_while_a_graph_is_captured_launch_nothing(self, tmp_path: Path) -> None:
        export = Export().runtime("cudaStreamBeginCapture_v10000", 100, 110)
        export.runtime("cudaLaunchKernel_v7000", 200, 210)
        export.runtime("cudaLaunchKernel_v7000", 200, 210, tid=9)  # another thread launches on
        export.runtime("cudaStreamEndCapture_v10000", 300, 310)
        export.runtime("cudaLaunchKernel_v7000", 400, 410).kernel("gemm", 1_000)
        assert reduce_rank(only(export, tmp_path)).lost == 2

    def test_a_launch_whose_kernel_was_not_recorded_is_lost(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).runtime("cudaLaunchKernel_v7000", 1_200, 1_300)
        assert reduce_rank(only(export, tmp_path)).lost == 1


spans = st.tuples(st.integers(0, 30), st.integers(0, 10))


@given(
    st.lists(st.tuples(st.integers(0, 6), spans), max_size=12),
    st.lists(st.integers(-1, 8), max_size=8),
)
def test_launching_is_the_outermost_call_of_the_id(
    made: list[tuple[int, tuple[int, int]]], wanted: list[int]
) -> None:
    correlation = np.array([one for one, _ in made], np.int64)
    start = np.array([s for _, (s, _) in made], np.int64)
    end = start + np.array([length for _, (_, length) in made], np.int64)
    zeros = np.zeros(len(made), np.int64)
    table = calls.Calls(start, end, zeros, correlation, zeros, ["x"], zeros, ["launch"])
    found = calls.launching(table, np.array(wanted, np.int64))
    for one, row in zip(wanted, found.tolist(), strict=True):
        rows = [r for r in range(len(made)) if correlation[r] == one and one > 0]
        expected = min(rows, key=lambda r: (start[r], -end[r]), default=None)
        if expected is None:
            assert row == -1
        else:
            assert (start[row], end[row], correlation[row]) == (start[expected], end[expected], one)


class TestRanges:
    def test_torch_suffixes_are_taken_off(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000)
        export.range("Optimizer.step#Adam.step, op_id = 7", 100, 200)
        export.range("FSDP::pre_forward (layers.3), op_id = 12, sizes = [[2, 3]]", 300, 400)
        names = only(export, tmp_path).marks["name"].tolist()
        assert names == ["Optimizer.step#Adam.step", "FSDP::pre_forward (layers.3)"]

    def test_operators_are_dropped(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).range("mine", 50, 60)
        for name in (
            "aten::mm, op_id = 1",
            "aten::mm",
            "AddmmBackward0, seq = 3, op_id = 2",
            "autograd::engine::evaluate_function: MulBackward0, op_id = 3",
            "record_param_comms, op_id = 4",
        ):
            export.range(name, 100, 200)
        assert only(export, tmp_path).marks["name"].tolist() == ["mine"]

    def test_ranges_of_the_process_group_are_communications(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000)
        export.range("nccl:all_to_all, op_id = 1", 100, 200)
        export.range("c10d::alltoall_base_, op_id = 2", 90, 210)
        export.range("_c10d_functional::all_reduce, op_id = 3", 80, 220)
        trace = only(export, tmp_path)
        found = trace.communications[["source", "name"]].to_numpy().tolist()
        assert found == [["operator", "c10d::alltoall_base_"], ["annotation", "nccl:all_to_all"]]
        outer = trace.host_calls[trace.host_calls["kind"] == "outer"]
        assert outer["name"].tolist() == ["_c10d_functional::all_reduce"]
        assert not len(trace.marks)

    def test_ranges_cut_by_the_recording_are_no_ranges(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).range("open at the end", 500, None)
        export.range("open since before", -500, 600).range("whole", 10, 20)
        export.range("ends before it starts", 50, 0)
        assert only(export, tmp_path).marks["name"].tolist() == ["whole"]

    def test_marks_have_no_length(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).range("here", 40, None, kind=34)
        assert only(export, tmp_path).marks[["start", "end"]].to_numpy().tolist() == [[40, 40]]

    def test_domain_ids_are_those_of_a_process(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).kernel("gemm", 1_000, pid=4001)
        export.range("NCCL", 0, None, kind=75, domain=1).range(
            "MPI", 0, None, pid=4001, kind=75, domain=1
        )
        export.range("AllReduce", 100, 200, domain=1).range(
            "MPI_Wait", 100, 200, pid=4001, domain=1
        )
        first, second = export.traces(tmp_path / "x.sqlite")
        assert not len(first.marks), "NCCL's own"
        assert second.marks["name"].tolist() == ["MPI_Wait"]

    def test_nccl_is_known_by_its_names_where_its_domain_is_not(self, tmp_path: Path) -> None:
        export = Export().collective("ncclAllReduce", 5_000, comm=1, size=64)
        export.rows["NVTX_EVENTS"] = [r for r in export.rows["NVTX_EVENTS"] if r["eventType"] != 75]
        (row,) = only(export, tmp_path).communications.to_dict("records")
        assert row["buffer_bytes"] == 64

    def test_steps_of_every_spelling(self, tmp_path: Path) -> None:
        export = Export()
        for number in range(3):
            export.range(f"tracelens.step {number}", 1_000 * number, 1_000 * number + 900)
            export.kernel("gemm", 1_000 * number + 500)
        reduction = reduce_rank(only(export, tmp_path))
        assert reduction.recorded_steps == [0, 1, 2]

    @pytest.mark.parametrize("missing", [None, 0])  # as before 2022
    def test_steps_that_were_never_popped_end_where_the_next_begins(
        self, missing: int | None, tmp_path: Path
    ) -> None:
        export = Export()
        for number in range(1, 4):
            export.range(f"step {number}", 1_000 * number, missing)
            export.kernel("gemm", 1_000 * number + 500)
        trace = only(export, tmp_path)
        assert trace.marks["end"].tolist() == [2_000, 3_000], "the last one was cut by the end"
        assert reduce_rank(trace).recorded_steps == [1, 2]

    def test_others_were_open_at_the_end(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000)
        export.range("load", 1_000, None).range("load", 2_000, 2_500).range("epoch 1", 0, None)
        assert only(export, tmp_path).marks["start"].tolist() == [2_000]


class TestTime:
    def start(self, export: Export) -> Export:
        return export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000 * 10**9)

    def test_events_count_from_the_start_of_the_session(self, tmp_path: Path) -> None:
        trace = only(self.start(Export().kernel("gemm", 1_000)), tmp_path)
        assert trace.info.base_ns == 1_700_000_000 * 10**9
        assert trace.device_events["start"].tolist() == [1_000]

    @pytest.mark.parametrize("value", ["true", "false"])
    def test_unless_the_export_added_it(self, value: str, tmp_path: Path) -> None:
        epoch = 1_700_000_000 * 10**9
        added = epoch if value == "true" else 0
        export = self.start(Export().kernel("gemm", added + 1_000).step(0, added + 10, added + 20))
        export.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value=value)
        trace = only(export, tmp_path)
        assert trace.info.base_ns == epoch
        assert trace.device_events[["start", "launch"]].to_numpy().tolist() == [[1_000, 900]]
        assert trace.marks["start"].tolist() == [10]

    def test_a_session_without_a_start_has_no_date(self, tmp_path: Path) -> None:
        assert only(Export().kernel("gemm", 1_000), tmp_path).info.base_ns == 0


class TestOldSchemas:
    def test_tables_with_a_version_in_their_names(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).rename(KERNEL, f"{KERNEL}_V2")
        export.rename(RUNTIME, f"{RUNTIME}_V3")
        (row,) = only(export, tmp_path).device_events.to_dict("records")
        assert (row["name"], row["launch"]) == ("gemm", 900)

    def test_a_kernel_of_2019_belongs_to_the_one_process(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).drop(KERNEL, "globalPid")
        trace = only(export, tmp_path)
        assert trace.info.process == PID
        assert trace.device_events["launch"].tolist() == [900]

    def test_or_to_nobody_if_there_are_two(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).kernel("gemm", 1_000, pid=4001)
        path = export.drop(KERNEL, "globalPid").write(tmp_path / "x.sqlite")
        with pytest.raises(UnreadableTrace, match="2 processes that does not say whose"):
            list(NsightParser().parse(path))

    def test_nor_if_one_table_does_not_say_it(self, tmp_path: Path) -> None:
        export = Export().kernel("a", 1_000).kernel("b", 1_000, pid=4001)
        export.device(MEMCPY, 4_000, copyKind=1).drop(KERNEL, "globalPid")
        with pytest.raises(UnreadableTrace, match="2 processes that does not say whose"):
            export.traces(tmp_path / "x.sqlite")

    def test_ranges_that_name_no_process_are_nobodys_of_two(self, tmp_path: Path) -> None:
        export = Export().kernel("a", 1_000).kernel("b", 1_000, pid=4001).step(1, 900, 2_000)
        export.drop(EVENTS, "globalTid")
        assert [len(t.marks) for t in export.traces(tmp_path / "x.sqlite")] == [0, 0]

    def test_ranges_without_domains(self, tmp_path: Path) -> None:
        export = Export().step(1, 900, 2_000).collective("ncclAllReduce", 1_000, size=64)
        (trace,) = export.drop(EVENTS, "domainId").traces(tmp_path / "x.sqlite")
        assert trace.marks["name"].tolist() == ["step 1"]
        assert trace.communications["name"].tolist() == ["ncclAllReduce"]

    def test_kernels_alone_are_an_export(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000, at=None).drop("META_DATA_EXPORT")
        path = export.write(tmp_path / "x.sqlite")
        assert NsightParser().recognise(path, path.read_bytes()[:16]) == "nsight-sqlite"

    def test_the_old_name_of_the_facts(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).rename("META_DATA_EXPORT", "EXPORT_META_DATA")
        path = export.write(tmp_path / "x.sqlite")
        assert NsightParser().recognise(path, path.read_bytes()[:100]) == "nsight-sqlite"

    def test_defaults_where_null_came_later(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000, graphId=0, graphNodeId=0)
        export.range("", 100, 200, textId=export.string("registered"), jsonText="")
        trace = only(export, tmp_path)
        assert trace.marks["name"].tolist() == ["registered"]
        assert trace.device_events["graph"].tolist() == [NONE]


@pytest.mark.parametrize("kept", [0, 1 << 30])
def test_tables_too_large_to_keep_are_read_for_each_process(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_nsight.export._KEPT_BYTES", kept)
    export = Export()
    for pid in (4000, 4001):
        export.mark(pid, rank=pid - 4000, world=2).step(1, 900, 9_000, pid)
        export.kernel(f"gemm {pid}", 1_000, pid=pid)
        export.collective("ncclAllReduce", 5_000, pid=pid, comm=7, size=pid)
    for pid, trace in zip((4000, 4001), export.traces(tmp_path / "x.sqlite"), strict=True):
        assert trace.info.rank == pid - 4000
        assert trace.device_events["name"].tolist()[0] == f"gemm {pid}"
        assert trace.communications["buffer_bytes"].tolist() == [pid]
        assert trace.marks["name"].tolist()[-1] == "step 1"

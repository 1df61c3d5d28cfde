"""Recognise, inspect and parse whole files."""

from __future__ import annotations

import dataclasses
import gzip
import json
from typing import TYPE_CHECKING

import pytest
from builders import EPOCH_US, RING, Group, Schema, Trace, parse_bytes

from tracelens.errors import UnreadableTrace
from tracelens.model.trace import NONE
from tracelens_kineto.parser import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.reduced import RankReduction, StepReduction
    from tracelens.registry import Parser

HEAD = 1 << 16


def small_trace(schema: Schema | None = None) -> Trace:
    trace = Trace(rank=1, schema=schema or Schema())
    trace.step(7, 0, 1000).step(8, 1000, 1000)
    return trace.kernel("gemm", 100, 50).all_reduce(200, 50).copy(300, 5).memset(320, 1)


def codes(trace: Trace) -> list[str]:
    return [notice.code for notice in trace.parse().info.notices]


class TestRecognise:
    @pytest.mark.parametrize(
        "schema",
        [
            Schema(),
            Schema(root="array"),
            Schema(info="after"),
            Schema(minified=True),
            Schema(capitals=True),
        ],
    )
    def test_traces(self, schema: Schema, tmp_path: Path) -> None:
        head = small_trace(schema).bytes()[:HEAD]
        assert KinetoParser().recognise(tmp_path / "any.name", head) == "kineto"
        assert KinetoParser().recognise(tmp_path / "x", b"\xef\xbb\xbf \n" + head) == "kineto"

    @pytest.mark.parametrize(
        "head",
        [
            b"", b"  ", b"{}", b"[]", b"[1, 2]", b'{"rank": 0}', b"SQLite format 3\0", b"ph: X",
            b'{"schema": "1.1", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch]", "ph": "x"}]}',
            b'{"train_batch_size": 8, "zero_optimization": {"stage": 2}}',
        ],
    )  # fmt: skip
    def test_other_files(self, head: bytes, tmp_path: Path) -> None:
        assert KinetoParser().recognise(tmp_path / "trace.json", head) is None


class TestInspect:
    @pytest.mark.parametrize("gz", [False, True])
    @pytest.mark.parametrize("info", ["before", "after"])
    def test_facts(self, info: str, gz: bool, tmp_path: Path) -> None:
        trace = small_trace(Schema(info=info))  # type: ignore[arg-type]
        trace.keys["host_name"] = "gpu-a1"
        facts = KinetoParser().inspect(trace.write(tmp_path / "trace", gz=gz))
        assert (facts.rank, facts.rank_source, facts.world_size) == (1, "distributedInfo", 2)
        assert (facts.host, facts.backend, facts.steps) == ("gpu-a1", "nccl", (7, 8))
        assert facts.device_events == 4
        assert facts.complete

    def test_a_cut_file(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        data = small_trace().bytes()
        path.write_bytes(data[: len(data) // 2])
        assert not KinetoParser().inspect(path).complete
        path.write_bytes(gzip.compress(data)[:-20])
        facts = KinetoParser().inspect(path)
        assert not facts.complete
        assert facts.note is not None

    @pytest.mark.parametrize("size", [40, 101, 1000])
    def test_nothing_is_missed_between_blocks(
        self, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tracelens_kineto.inflate.BLOCK", size)
        monkeypatch.setattr("tracelens_kineto.inflate._READ", size)
        facts = KinetoParser().inspect(small_trace().write(tmp_path / "trace.json"))
        assert facts.device_events == 4
        assert facts.steps == (7, 8)


class TestRank:
    @pytest.mark.parametrize(
        ("name", "rank"),
        [
            ("rank0_trace.json", 0), ("rank-12.pt.trace.json", 12), ("trace_rank_3.json", 3),
            ("Rank 4.json", 4), ("run-r5.json", 5), ("r6_trace.json", 6),
            ("megatron.rank7.json", 7),
            ("host_4012.1767225600111.pt.trace.json", None), ("bar5.json", None),
            ("frank3.json", None), ("worker0.pt.trace.json", None), ("trace.json", None),
        ],
    )  # fmt: skip
    def test_from_the_file_name(self, name: str, rank: int | None) -> None:
        trace = parse_bytes(Trace(rank=None).kernel("gemm", 1, 1).bytes(), name)
        assert trace.info.rank == rank
        assert trace.info.rank_source == (None if rank is None else "file name")

    def test_from_the_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "rank3"
        folder.mkdir()
        path = Trace(rank=None).kernel("gemm", 1, 1).write(folder / "trace.json")
        assert KinetoParser().parse(path)[0].info.rank == 3

    def test_the_file_itself_knows_better(self) -> None:
        info = parse_bytes(Trace(rank=1).kernel("gemm", 1, 1).bytes(), "rank7.json").info
        assert (info.rank, info.rank_source) == (1, "distributedInfo")


class TestDeviceEvents:
    def test_columns(self) -> None:
        trace = Trace().kernel(
            "gemm", "100.001", "50.002", stream=9, launch=70, args={"External id": 12}
        )
        table = trace.parse().device_events
        (row,) = table.to_dict("records")
        assert (row["start"], row["end"], row["kind"], row["name"]) == (
            100_001,
            150_003,
            "kernel",
            "gemm",
        )
        assert (row["process"], row["device"], row["stream"]) == (4012, 0, 9)
        assert (row["launch"], row["launch_thread"], row["external_id"]) == (70_000, 1, 12)
        assert (row["copy_bytes"], row["graph"]) == (NONE, NONE)

    def test_kinds_and_bytes_of_copies(self) -> None:
        table = (
            Trace()
            .copy(100, 5, args={"bytes": 4096})
            .memset(200, 1)
            .kernel("gemm", 300, 5)
            .parse()
            .device_events
        )
        assert table["kind"].tolist() == ["copy", "memset", "kernel"]
        assert table["copy_bytes"].tolist() == [4096, 64, NONE]

    def test_sorted_by_start_and_arguments_stay_with_their_kernel(self) -> None:
        trace = Trace().all_reduce(900, 5, 9).kernel("gemm", 100, 5).all_reduce(500, 5, 7).parse()
        assert trace.device_events["start"].tolist() == [100_000, 500_000, 900_000]
        args = trace.communications[trace.communications["source"] == "args"]
        by_elems = dict(zip(args["in_elems"], args["event"], strict=True))
        assert by_elems == {9: 2, 7: 1}

    def test_annotations_and_flows_are_no_device_work(self) -> None:
        trace = Trace().kernel("gemm", 100, 50)
        trace.gpu_annotation("nccl:all_reduce", "99.999", "50.002").gpu_annotation(
            "ProfilerStep#1", 90, 90
        )
        trace.event(
            "cuda_sync", "Stream Synchronize", 0, 500, pid=0, args={"stream": 7, "device": 0}
        )
        trace.event("overhead", "Activity Buffer Request", 0, 500, pid=-1)
        trace.raw(
            '{"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"}'
        )
        trace.raw(
            '{"ph": "i", "s": "g", "name": "Record Window End", "ts": 9000000000000, "pid": ""}'
        )
        trace.operator("triton_poi_fused_add_0", 0, 500, args={"stream": 7})
        got = trace.parse()
        assert got.device_events["name"].astype(object).tolist() == ["gemm"]
        assert len(got.marks) == 0

    def test_a_correlation_of_64_bits(self) -> None:
        big = (1 << 63) + 12345
        trace = Trace().kernel("gemm", 100, 5, launch=50, correlation=big)
        trace.kernel("other", 200, 5, launch=60, correlation=big + 1)
        assert trace.parse().device_events["launch"].tolist() == [50_000, 60_000]

    def test_ids_beyond_2_to_53(self) -> None:
        trace = (
            Trace().kernel("a", 100, 5, stream=(1 << 60) + 1).kernel("b", 200, 5, stream=1 << 60)
        )
        assert trace.parse().device_events["stream"].tolist() == [(1 << 60) + 1, 1 << 60]

    def test_unlinked_kernels_are_kept(self) -> None:
        table = (
            Trace()
            .kernel("gemm", 100, 5, launch=None)
            .call("cudaLaunchKernel", 50, 5, 7)
            .parse()
            .device_events
        )
        assert table["launch"].tolist() == [NONE]

    def test_without_correlation_the_external_id_does_not_invent_a_launch(self) -> None:
        trace = Trace().kernel("gemm", 100, 5, launch=None, correlation=0)
        trace.call("cudaDeviceSynchronize", 50, 5, 0)
        assert trace.parse().device_events["launch"].tolist() == [NONE]

    def test_missing_arguments(self) -> None:
        trace = Trace().raw(
            '{"ph":"X","cat":"kernel","name":"gemm","pid":3,"tid":7,"ts":5,"dur":2}'
        )
        (row,) = trace.parse().device_events.to_dict("records")
        assert (row["device"], row["stream"], row["correlation"]) == (3, 7, NONE)

    def test_graph_kernels(self) -> None:
        trace = Trace().graph(50, [("a", 100, 5), ("b", 110, 5)], graph=3).parse()
        assert trace.device_events["launch"].tolist() == [50_000, 50_000]
        assert trace.device_events["graph"].tolist() == [3, 3]

    def test_grids_tell_kernels_of_one_name_apart(self) -> None:
        trace = Trace()
        for start, grid in ((100, [4, 1, 1]), (200, [8, 1, 1]), (300, [4, 1, 1]), (400, None)):
            trace.kernel("gemm", start, 50, args={} if grid is None else {"grid": grid})
        first, second, third, fourth = trace.parse().device_events["grid"].astype(object)
        assert first == third != second
        assert fourth == ""


class TestUntimed:
    def test_each_reason_is_counted(self) -> None:
        trace = Trace().kernel("good", 100, 50)
        trace.kernel("a", 0, 0).kernel("b", 0, 0).kernel("c", 300, -5).kernel("d", 400, None)
        got = trace.parse()
        assert got.device_events["name"].astype(object).tolist() == ["good"]
        assert got.info.untimed == {(4012, 0): 4}
        (notice,) = got.info.notices
        assert notice.count == 4
        for text in ("2 without times", "1 with a negative duration", "1 without a duration"):
            assert text in notice.message

    def test_a_copy_can_be_that_short(self) -> None:
        assert len(Trace().copy(100, 0).kernel("gemm", 200, 0).parse().device_events) == 1

    def test_per_device(self) -> None:
        trace = (
            Trace()
            .kernel("a", 0, 0, device=0)
            .kernel("b", 0, 0, device=1)
            .kernel("c", 0, 0, device=1)
        )
        assert trace.parse().info.untimed == {(4012, 0): 1, (4012, 1): 2}

    def test_an_unfinished_host_operator_is_no_time(self) -> None:
        trace = Trace().operator("aten::mm", 100, -1).operator("aten::add", 200, 5).parse()
        assert (trace.operators["end"] - trace.operators["start"]).tolist() == [5000]


SCHEMAS = {
    "bare array": Schema(root="array", times="epoch"),
    "info after the events": Schema(info="after"),
    "epoch microseconds": Schema(times="epoch"),
    "times as text": Schema(times="text"),
    "epoch times as text": Schema(times="epoch text"),
    "exponents": Schema(times="exponent"),
    "categories in capitals": Schema(capitals=True),
    "external id": Schema(lower_external=True),
    "ids as text": Schema(text_ids=True),
    "minified": Schema(minified=True),
    "ROCm": Schema(rocm=True),
    "2020": Schema(torch="2.1", root="array", times="epoch", capitals=True, lower_external=True),
    "2022": Schema(torch="2.1", times="epoch", info="after"),
    "2.2": Schema(torch="2.2", times="epoch"),
    "2.3": Schema(torch="2.3", info="after"),
    "2.4": Schema(torch="2.4"),
    "2.5": Schema(torch="2.5"),
    "2026": Schema(torch="2.12", minified=True),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_gives_the_same_times(name: str) -> None:
    schema = SCHEMAS[name]
    reference = small_trace().reduce()
    reduction = small_trace(schema).reduce()
    (device,) = reduction.devices
    assert device.total == reference.devices[0].total
    assert absolute(reduction) == absolute(reference)
    moment = EPOCH_US * 1000 + 100_000
    assert reduction.first_ns == moment
    assert reduction.info.rank == (None if schema.root == "array" else 1)
    assert reduction.info.device_kind == ("rocm" if schema.rocm else "cuda")
    assert reduction.info.notices == ()
    assert reduction.info.events == len(small_trace(schema).events)


def absolute(reduction: RankReduction) -> list[StepReduction]:
    """Return the steps with their windows and their work in absolute time."""
    base = reduction.info.base_ns
    moved = []
    for step in reduction.devices[0].steps:
        work = step.work and dataclasses.replace(
            step.work, first=step.work.first + base, last=step.work.last + base
        )
        moved.append(
            dataclasses.replace(step, low=step.low + base, high=step.high + base, work=work)
        )
    return moved


@pytest.mark.parametrize("link", ["args", "external", "time"])
@pytest.mark.parametrize("torch", ["2.2", "2.3", "2.4", "2.5", "2.12"])
def test_every_release_gives_the_same_bytes(torch: str, link: str) -> None:
    trace = Trace(world=4, schema=Schema(torch=torch))  # type: ignore[arg-type]
    trace.all_reduce(500, 60, 9, link=link).all_gather(600, 60, 8, link=link)
    rows = trace.reduce().operations
    assert rows["message_bytes"].tolist() == [36, 64]
    assert rows["wire_bytes"].tolist() == [27, 48]


class TestCollectiveArguments:
    def test_columns(self) -> None:
        group = Group((0, 2, 4, 6), "3", "mesh_dp")
        trace = Trace(world=8).collective(
            "all_to_allv", 500, 60, 40, 48, group=group, in_splits=[10, 10, 10, 10], seq=17
        )
        table = trace.parse().communications
        for _, row in table[table["source"] != "annotation"].iterrows():
            assert (row["name"], row["group_name"], row["group_description"]) == (
                "all_to_allv",
                "3",
                "mesh_dp",
            )
            assert (row["group_ranks"], row["group_size"], row["dtype"]) == (
                "[0, 2, 4, 6]",
                4,
                "BFloat16",
            )
            assert (row["in_elems"], row["out_elems"], row["seq"]) == (40, 48, 17)
            assert row["in_splits"] == "[10, 10, 10, 10]"

    def test_lists_instead_of_texts(self) -> None:
        args = Trace().comm_args("all_to_allv", 40, 40) | {
            "Process Group Ranks": [0, 1],
            "In split size": [30, 10],
            "Group size": "2",
        }
        trace = Trace().kernel(RING, 500, 60, args=args)
        (row,) = trace.parse().communications.to_dict("records")
        assert (row["group_ranks"], row["in_splits"], row["group_size"]) == (
            "[0, 1]",
            "[30, 10]",
            2,
        )

    def test_old_records_have_only_shapes(self) -> None:
        trace = Trace(schema=Schema(torch="2.1"))
        trace.record("allreduce", 400, args={"Input Dims": [[2, 3]], "Input type": ["c10::Half"]})
        (row,) = trace.parse().communications.to_dict("records")
        assert (row["in_elems"], row["dtype"], row["dimensions"]) == (6, "c10::Half", 2)

    def test_pseudo_records_have_no_sizes(self) -> None:
        for name in ("wait", "init", "barrier"):
            (row,) = Trace().record(name, 400).parse().communications.to_dict("records")
            assert (row["name"], row["in_elems"]) == (name, 0)


class TestUnreadable:
    @pytest.mark.parametrize(
        "data", [b"", b"{}", b'{"schemaVersion": 1}', b"not json", b"\x1f\x8bx", b"\0" * 100]
    )
    def test_one_clear_error(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        path.write_bytes(data)
        with pytest.raises(UnreadableTrace) as error:
            KinetoParser().parse(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableTrace):
            KinetoParser().parse(tmp_path / "nowhere.json")

    def test_no_events_are_no_error(self) -> None:
        trace = Trace().parse()
        assert len(trace.device_events) == 0
        assert trace.info.device_kind == "cpu"


def test_the_parser_fits_the_protocol() -> None:
    parser: Parser = KinetoParser()
    assert parser.formats == ("kineto",)


def test_operators_that_are_all_ranges() -> None:
    """Until torch 1.11 ranges are operators; the profiler's steps can be all there are."""
    trace = Trace(schema=Schema(torch="2.1", capitals=True)).step(3, 100, 50).parse()
    assert trace.marks["name"].tolist() == ["ProfilerStep#3"]


def test_everything_at_once_is_valid() -> None:
    trace = small_trace(Schema(capitals=True, text_ids=True))
    trace.graph(400, [(RING, 500, 5)]).point_to_point(1500, 20, [("send", 0, 64), ("recv", 0, 64)])
    trace.gloo("allreduce_", 1700, 5, [[[3]]], annotated="all_reduce")
    trace.raw('{"ph": "X", "cat": "Kernel", "name": "a "b"", "ts": 1800, "dur": 5, "args": {}}')
    got = trace.parse()  # validates
    assert len(got.device_events) == 7
    assert codes(trace) == ["damaged-events"]


def test_kinds_of_events_are_counted() -> None:
    trace = small_trace().operator("aten::mm", 100, 10).event("cuda_sync", "Event Sync", 130, 5)
    for start in (140, 150, 160):
        trace.event("python_function", "train.py(7): step", start, 5)
    trace.event("overhead", "Unrecognized", 170, 5).gpu_annotation("ProfilerStep#7", 100, 200)
    assert trace.parse().info.recorded == {
        "mark": 2, "kernel": 2, "copy": 1, "memset": 1, "call": 4, "operator": 2, "frame": 3,
        "sync": 1,
    }  # fmt: skip


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    path = small_trace().write(tmp_path / "trace.json")
    before = path.read_bytes()
    KinetoParser().parse(path)
    assert path.read_bytes() == before
    assert json.loads(before)["traceEvents"]

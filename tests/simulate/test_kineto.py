"""What the Kineto writer writes, the Kineto parser reads back, to the nanosecond."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import Run
from simulated_runs import recorded
from whole_run import everything

import tracelens
from tracelens.communication import identify
from tracelens.groups import Groups
from tracelens.model.trace import NONE
from tracelens.operation_rows import _peer
from tracelens.simulate import clocks, kineto
from tracelens.simulate.kineto.arguments import cut
from tracelens.simulate.kineto.text import BASE_NS, microseconds
from tracelens.simulate.nesting import Span, innermost
from tracelens.simulate.recording import Group
from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace
    from tracelens.simulate.recording import RecordedRank, Recording


def written(recording: Recording, folder: Path, torch: str) -> list[RankTrace]:
    traces = []
    for path in kineto.write(recording, folder, torch=torch):
        (trace,) = KinetoParser().parse(path)
        trace.validate()
        traces.append(trace)
    return traces


def absolute(trace: RankTrace, values: Any) -> list[int | None]:
    return [None if value == NONE else int(value) + trace.info.base_ns for value in values]


def on_clock(rank: RecordedRank, true_ns: int) -> int:
    return clocks.EPOCH_NS + clocks.reading(rank.clock, true_ns)


@pytest.fixture(scope="module", params=kineto.SCHEMAS)
def torch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return everything()


@pytest.fixture(scope="module", params=["by hand", "interleaved", "zero-3", "experts", "context"])
def any_recording(request: pytest.FixtureRequest) -> Recording:
    return everything() if request.param == "by hand" else recorded(request.param)


@pytest.fixture(scope="module")
def traces(
    any_recording: Recording, torch: str, tmp_path_factory: pytest.TempPathFactory
) -> list[RankTrace]:
    return written(any_recording, tmp_path_factory.mktemp("kineto"), torch)


def test_device_events_come_back_exactly(any_recording: Recording, traces: list[RankTrace]) -> None:
    for rank, trace in zip(any_recording.ranks, traces, strict=True):
        launches = {launch.correlation: launch for launch in rank.launches}
        expected = [
            (
                event.kind, event.name, event.stream, rank.device, event.correlation,
                on_clock(rank, event.start), on_clock(rank, event.end), event.copy_bytes,
                on_clock(rank, launches[event.correlation].start),
                on_clock(rank, launches[event.correlation].end),
                rank.thread_id(launches[event.correlation].thread),
            )
            for event in rank.device_events
        ]  # fmt: skip
        table = trace.device_events
        found = zip(
            table["kind"], table["name"], table["stream"], table["device"], table["correlation"],
            absolute(trace, table["start"]), absolute(trace, table["end"]),
            [None if value == NONE else value for value in table["copy_bytes"]],
            absolute(trace, table["launch"]), absolute(trace, table["launch_end"]),
            table["launch_thread"], strict=True,
        )  # fmt: skip
        assert sorted(found) == sorted(expected)


def test_operations_come_back_exactly(
    any_recording: Recording, traces: list[RankTrace], torch: str
) -> None:
    for rank, trace in zip(any_recording.ranks, traces, strict=True):
        groups = Groups(trace.info)
        found = []
        for one in identify(trace).operations:
            group = groups.of(one)
            found.append(
                (
                    one.launch, one.op, group.ranks, group.description, one.in_elems,
                    one.out_elems, one.dtype, one.in_splits, one.seq, _peer(one, group),
                )
            )  # fmt: skip
        assert sorted(found) == sorted(expected_operations(rank, any_recording, trace, torch))


def expected_operations(
    rank: RecordedRank, recording: Recording, trace: RankTrace, torch: str
) -> list[tuple[Any, ...]]:
    launches = {launch.correlation: launch.start for launch in rank.launches}
    expected = []
    for event in rank.device_events:
        for one in (rank.communications[index] for index in event.communications):
            group = recording.groups[one.group]
            launch = on_clock(rank, launches[event.correlation]) - trace.info.base_ns
            splits = "[]" if one.in_splits is None else cut(one.in_splits)
            expected.append(
                (
                    launch, one.op, group.ranks, group.description, one.in_elems, one.out_elems,
                    one.dtype, splits, None if torch == "2.4" else one.seq, one.peer,
                )
            )  # fmt: skip
    return expected


def test_every_communication_kernel_has_its_operation(
    any_recording: Recording, traces: list[RankTrace]
) -> None:
    for rank, trace in zip(any_recording.ranks, traces, strict=True):
        found = identify(trace)
        carrying = [event for event in rank.device_events if event.communications]
        assert (found.owner >= 0).sum() == len(carrying)
        assert len(found.operations) == len(rank.communications)
        assert found.without_device_time == 0


def test_marks_and_facts_come_back(
    any_recording: Recording, traces: list[RankTrace], torch: str
) -> None:
    for rank, trace in zip(any_recording.ranks, traces, strict=True):
        marks = [one for one in rank.ranges if one.kind != "operator"]
        expected = [(m.name, on_clock(rank, m.start), on_clock(rank, m.end)) for m in marks]
        table = trace.marks
        found = zip(
            table["name"], absolute(trace, table["start"]), absolute(trace, table["end"]),
            strict=True,
        )  # fmt: skip
        assert sorted(found) == sorted(expected)
        info = trace.info
        assert (info.rank, info.process) == (rank.rank, rank.process)
        assert info.world_size == len(any_recording.ranks)
        assert info.base_ns == BASE_NS
        assert (info.backend, info.device_kind) == ("nccl", "cuda")
        here = {other.device for other in any_recording.ranks if other.host == rank.host}
        assert info.device_names == dict.fromkeys(here, any_recording.device_name)
        listed = {(g.name, g.description, g.ranks) for g in info.process_groups}
        assert listed == {
            (g.name, g.description, g.ranks) for g in any_recording.groups if rank.rank in g.ranks
        }
        assert not info.truncated
        assert info.damaged_device_events == 0


def test_the_engine_sees_one_run(recording: Recording, torch: str, tmp_path: Path) -> None:
    kineto.write(recording, tmp_path, torch=torch)
    analysis = tracelens.analyze(tmp_path)
    assert [rank.rank for rank in analysis.ranks] == [0, 1, 2, 3]
    assert [step.step for step in analysis.ranks[0].devices[0].steps] == [5, 6]
    assert [n.code for n in analysis.notices if n.level == "warning"] == []
    (mark,) = [n for n in analysis.notices if n.code == "simulated"]
    assert mark.message.startswith("4 files written by a simulator")


# layout ------------------------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return dict(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


def arguments(document: dict[str, Any], category: str, name: str) -> list[dict[str, Any]]:
    return [
        event["args"]
        for event in document["traceEvents"]
        if event.get("cat") == category and event["name"].startswith(name)
    ]


COPIED_2_4 = [
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size",
    "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks",
]  # fmt: skip


def test_arguments_of_each_release(recording: Recording, tmp_path: Path) -> None:
    old, new = (
        load(kineto.write(recording, tmp_path / torch, torch=torch)[0]) for torch in ("2.4", "2.12")
    )
    for document, more in ((old, []), (new, ["Seq", "Comms Id"])):
        copied = arguments(document, "kernel", "ncclDevKernel_AllGather")[0]
        assert list(copied)[-len(COPIED_2_4 + more) :] == COPIED_2_4 + more
    record = {a["Collective name"]: a for a in arguments(new, "cpu_op", "record_param_comms")}
    assert record["send"]["Dst Rank"] == 2
    assert record["recv"]["Src Rank"] == 2
    assert record["broadcast"]["Rank"] == 0
    assert record["all_to_allv"]["In split size"] == "[1, 2, 3, 4]"
    assert record["all_to_allv"]["Out split size"] == "[1, 5, 0, 4]"
    assert "Rank" not in arguments(old, "cpu_op", "record_param_comms")[0]
    assert [key for key in old if key != "INFO"] == [
        "schemaVersion", "deviceProperties", "distributedInfo", "simulated", "traceEvents",
        "traceName", "displayTimeUnit", "baseTimeNanoseconds",
    ]  # fmt: skip


def test_kernels_of_batches_say_nothing(recording: Recording, tmp_path: Path, torch: str) -> None:
    document = load(kineto.write(recording, tmp_path, torch=torch)[0])
    carriers = [event for event in recording.ranks[0].device_events if event.communications]
    batched = [
        event.correlation
        for event in carriers
        if recording.ranks[0].communications[event.communications[0]].batch is not None
    ]
    silent = [
        args["correlation"]
        for args in arguments(document, "kernel", "nccl")
        if "Collective name" not in args and "External id" not in args
    ]
    assert sorted(silent) == sorted(batched)
    assert len(batched) == 4


def test_ranges_on_streams_are_wider_than_their_kernels(
    recording: Recording, tmp_path: Path
) -> None:
    document = load(kineto.write(recording, tmp_path)[0])
    kernels = {
        (e["tid"], round(e["ts"] * 1000), round(e["dur"] * 1000))
        for e in document["traceEvents"]
        if e.get("cat") == "kernel"
    }
    twins = [
        (e["tid"], round(e["ts"] * 1000) + 1, round(e["dur"] * 1000) - 2)
        for e in document["traceEvents"]
        if e.get("cat") == "gpu_user_annotation" and e["name"].startswith("nccl:")
    ]
    communications = recording.ranks[0].communications
    assert len(twins) == len(
        {(c.batch, i * (c.batch is None)) for i, c in enumerate(communications)}
    )
    assert set(twins) <= kernels


def test_arrows_join_each_launch_to_its_kernel(recording: Recording, tmp_path: Path) -> None:
    document = load(kineto.write(recording, tmp_path)[0])
    tails = Counter(e["id"] for e in document["traceEvents"] if e["ph"] == "s")
    heads = Counter(e["id"] for e in document["traceEvents"] if e["ph"] == "f")
    launched = {event.correlation for event in recording.ranks[0].device_events}
    assert set(tails) == launched
    assert launched <= set(heads)
    assert set(tails.values()) == {1}


def test_irregular_groups_list_no_ranks_and_long_ones_are_cut(tmp_path: Path) -> None:
    irregular = Group("1", "mesh_odd", (0, 1, 5))
    run = Run(40, [irregular]).collective("all_reduce").collective("all_reduce", group=1)
    document = load(kineto.write(run.recording(), tmp_path)[0])
    first, second = arguments(document, "kernel", "nccl")
    assert first["Process Group Ranks"] == f"[{', '.join(map(str, range(30)))}, ...]"
    assert second["Process Group Ranks"] == "[]"
    (record,) = arguments(document, "cpu_op", "record_param_comms")[1:]
    assert (record["Global rank start"], record["Global rank stride"]) == (0, -1)


def test_comms_id_is_equal_on_all_members_and_nowhere_else(tmp_path: Path) -> None:
    other = Group("1", "mesh_dp", (0, 1))
    run = Run(2, [other]).collective("all_reduce").collective("all_reduce")
    recording = run.collective("all_reduce", group=1).message(0, 1).recording()
    ids = [
        [a["Comms Id"] for a in arguments(load(path), "cpu_op", "record_param_comms")]
        for path in kineto.write(recording, tmp_path)
    ]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4


def test_files_are_named_like_real_ones_and_equal_each_time(tmp_path: Path) -> None:
    recording = everything()
    first = kineto.write(recording, tmp_path / "one")
    second = kineto.write(recording, tmp_path / "two")
    assert [path.name.split(".")[0] for path in first] == [
        "node0_4000", "node0_4007", "node1_4014", "node1_4021",
    ]  # fmt: skip
    assert all(path.name.endswith(".pt.trace.json.gz") for path in first)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    plain = kineto.write(recording, tmp_path / "plain", compress=False)
    assert plain[0].read_bytes() == gzip.decompress(first[0].read_bytes())


def test_files_say_that_they_are_simulated(recording: Recording, tmp_path: Path) -> None:
    mark = load(kineto.write(recording, tmp_path)[0])["simulated"]
    assert mark == {"by": "tracelens", "seed": 3, "options": {"layout": "by hand"}}


def test_unknown_schema(recording: Recording, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Kineto schema of torch 9"):
        kineto.write(recording, tmp_path, torch="9")


def test_what_was_lost_is_lost_in_the_file_too(tmp_path: Path) -> None:
    run = Run(2).compute().collective("all_reduce").compute()
    recording = run.recording()
    rank = recording.ranks[0]
    del rank.launches[0], rank.device_events[-1]
    trace = written(recording, tmp_path, "2.12")[0]
    assert list(trace.device_events["launch"] == NONE) == [True, False]
    assert len(trace.host_calls[trace.host_calls["kind"] == "launch"]) == 2


# parts -------------------------------------------------------------------------------------------


@given(st.integers(-(10**19), 10**19))
def test_microseconds_are_exact(ns: int) -> None:
    whole, point = microseconds(ns).split(".")
    assert len(point) == 3
    assert int(whole + point) == ns


@given(st.integers(0, 2**32))
def test_innermost_span(seed: int) -> None:
    chance = random.Random(seed)
    spans: list[Span] = []

    def nest(thread: int, start: int, end: int) -> None:
        while start < end and chance.random() < 0.7:
            low = chance.randint(start, end)
            high = chance.randint(low, end)
            spans.append(Span(thread, low, high, len(spans)))
            nest(thread, low + 1, high - 1)
            start = high + 1

    for thread in (1, 2):
        nest(thread, 0, 40)
    instants = [(thread, at) for thread in (0, 1, 2) for at in range(42)]
    found = innermost(spans, instants)
    for thread, at in instants:
        around = [s for s in spans if s.thread == thread and s.start <= at <= s.end]
        # Of nested spans the one that was opened last is inside.
        assert found.get((thread, at)) == (max(s.key for s in around) if around else None)


def test_clocks_begin_where_they_are_told() -> None:
    recording = everything()
    shown = clocks.read(recording, 7)
    rank = recording.ranks[1]
    assert shown.ranks[1].ranges[0].start == 7 + clocks.reading(rank.clock, rank.ranges[0].start)

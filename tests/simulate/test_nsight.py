"""What the Nsight writer writes holds what a real export holds, read with plain SQL.

The decoding here is written apart from the writer's: by the file's own schema tables.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import struct
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from recordings import Run
from simulated_runs import recorded
from whole_run import everything

from tracelens.dtypes import item_size
from tracelens.simulate import clocks, nsight
from tracelens.simulate.host_events import Links, batches
from tracelens.simulate.nsight import tables
from tracelens.simulate.nsight.payloads import Nccl
from tracelens.simulate.recording import Group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.simulate.recording import Communication, RecordedRank, Recording

Row = dict[str, Any]
DEVICE_TABLES = ("KERNEL", "MEMCPY", "MEMSET")


def query(path: Path, sql: str, *values: object) -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, values)]


@functools.cache
def ranges(path: Path) -> list[Row]:
    sql = (
        "SELECT e.*, coalesce(text, value) AS name FROM NVTX_EVENTS e"
        ' LEFT JOIN StringIds s ON s.id = textId WHERE e."end" IS NOT NULL ORDER BY start, -"end"'
    )
    return query(path, sql)


@functools.cache
def layouts(path: Path) -> dict[int, tuple[int, dict[str, tuple[str, int]]]]:
    """Return size and fields (type and place by name) of each payload, by the file's tables."""
    kinds = {5: "<i", 18: "<Q", 22: "<Q"}  # the rest are enums
    sizes = {
        row["schemaId"]: row["payloadSize"]
        for row in query(path, "SELECT * FROM NVTX_PAYLOAD_SCHEMAS")
    }
    fields: dict[int, dict[str, tuple[str, int]]] = {schema: {} for schema in sizes}
    for row in query(path, "SELECT * FROM NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        fields[row["schemaId"]][row["name"]] = (kinds.get(row["type"], "<i"), row["offset"] or 0)
    return {schema: (size, fields[schema]) for schema, size in sizes.items()}


def decoded(path: Path, blob: bytes) -> dict[str, int]:
    """Decode a payload by the names and places the file's own tables give."""
    domain, schema, size, _ = struct.unpack_from("<4Q", blob)
    about, fields = layouts(path)[schema]
    assert (domain, size, len(blob)) == (1, about, 32 + about)
    return {name: struct.unpack_from(kind, blob, 32 + at)[0] for name, (kind, at) in fields.items()}


def process_of(rank: RecordedRank) -> int:
    return 1 << 48 | rank.process << 24


def on_clock(rank: RecordedRank, true_ns: int) -> int:
    return clocks.EPOCH_NS + clocks.reading(rank.clock, true_ns)


@functools.cache
def session(path: Path) -> int:
    (row,) = query(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    return int(row["utcEpochNs"])


@pytest.fixture(scope="module")
def recording() -> Recording:
    return everything()


@pytest.fixture(scope="module", params=["by hand", "interleaved", "zero-3", "experts", "context"])
def any_recording(request: pytest.FixtureRequest) -> Recording:
    return everything() if request.param == "by hand" else recorded(request.param)


@pytest.fixture(scope="module", params=[True, False], ids=["per node", "per rank"])
def per_node(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def files(
    any_recording: Recording, per_node: bool, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    return nsight.write(any_recording, tmp_path_factory.mktemp("nsight"), per_node=per_node)


def processes(recording: Recording, files: list[Path]) -> Iterator[tuple[RecordedRank, Path]]:
    """Return each rank with the file that must hold it."""
    by_name = {path.stem: path for path in files}
    for rank in recording.ranks:
        stem = f"run_{rank.host}"
        yield rank, by_name.get(stem) or by_name[f"{stem}_{rank.rank}"]


# times and links ---------------------------------------------------------------------------------


def test_one_file_a_node_or_a_rank(recording: Recording, per_node: bool, tmp_path: Path) -> None:
    files = nsight.write(recording, tmp_path, per_node=per_node)
    ranks = ["run_node0_0", "run_node0_1", "run_node1_2", "run_node1_3"]
    assert [path.stem for path in files] == (["run_node0", "run_node1"] if per_node else ranks)
    counts = [len(query(path, "SELECT * FROM PROCESSES")) for path in files]
    assert counts == ([2, 2] if per_node else [1] * 4)


def test_device_events_have_their_absolute_times(
    any_recording: Recording, files: list[Path]
) -> None:
    for rank, path in processes(any_recording, files):
        found = []
        for table in DEVICE_TABLES:
            sql = f"SELECT * FROM CUPTI_ACTIVITY_KIND_{table} WHERE globalPid = ?"
            for row in query(path, sql, process_of(rank)):
                times = (session(path) + row["start"], session(path) + row["end"])
                found.append((*times, row["streamId"], row["correlationId"], row["deviceId"]))
        expected = [
            (
                on_clock(rank, event.start), on_clock(rank, event.end),
                event.stream, event.correlation, rank.device,
            )
            for event in rank.device_events
        ]  # fmt: skip
        assert sorted(found) == sorted(expected)


def test_nothing_overlaps_on_a_stream(files: list[Path]) -> None:
    for path in files:
        parts = [
            f"SELECT globalPid, streamId, start, end FROM CUPTI_ACTIVITY_KIND_{table}"
            for table in DEVICE_TABLES
        ]
        rows = query(path, " UNION ALL ".join(parts) + " ORDER BY 1, 2, 3")
        for before, after in pairwise(rows):
            same = before["globalPid"], before["streamId"]
            if same == (after["globalPid"], after["streamId"]):
                assert before["end"] <= after["start"]


def test_every_correlation_has_one_launch_before_its_work(files: list[Path]) -> None:
    for path in files:
        for table in DEVICE_TABLES:
            sql = (
                "SELECT d.start, count(r.start) AS launches, min(r.start) AS launch"
                f" FROM CUPTI_ACTIVITY_KIND_{table} d LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
                " ON r.correlationId = d.correlationId AND r.globalTid & ~0xFFFFFF = d.globalPid"
                " GROUP BY d.globalPid, d.correlationId"
            )
            rows = query(path, sql)
            assert rows or table != "KERNEL"
            assert all(row["launches"] == 1 and row["launch"] <= row["start"] for row in rows)


def test_correlations_restart_in_each_process(recording: Recording, tmp_path: Path) -> None:
    (path, *_) = nsight.write(recording, tmp_path)
    rows = query(
        path,
        "SELECT globalTid & ~0xFFFFFF AS process, min(correlationId) AS first"
        " FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY 1",
    )
    assert [row["first"] for row in rows] == [1, 1]


# NCCL --------------------------------------------------------------------------------------------


def planned(
    rank: RecordedRank, recording: Recording
) -> list[tuple[str, int, int | None, tuple[int, ...]]]:
    """Return (call, bytes, peer's place, members of the communicator) of each NCCL call, sorted."""
    found: list[tuple[str, int, int | None, tuple[int, ...]]] = []
    for one in rank.communications:
        members = recording.groups[one.group].ranks
        each = item_size(one.dtype) or 0
        if one.op == "all_to_all":
            sent, received = parts_of(one, members), received_by(rank, one, recording)
            for name, parts in (("ncclSend", sent), ("ncclRecv", received)):
                found += [(name, n * each, peer, members) for peer, n in enumerate(parts) if n]
        elif one.peer is not None:
            if one.batch is None:
                members = tuple(sorted((rank.rank, one.peer)))
            name = {"send": "ncclSend", "recv": "ncclRecv"}[one.op]
            found.append((name, one.in_elems * each, members.index(one.peer), members))
        else:
            name = {
                "all_reduce": "ncclAllReduce", "all_gather": "ncclAllGather",
                "reduce_scatter": "ncclReduceScatter", "broadcast": "ncclBroadcast",
            }[one.op]  # fmt: skip
            size = min(one.in_elems, one.out_elems)
            found.append((name, size * each, None, members))
    return sorted(found, key=str)


def parts_of(one: Communication, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return what a rank sends to each member of an all-to-all."""
    return one.in_splits or (one.in_elems // len(members),) * len(members)


def received_by(rank: RecordedRank, one: Communication, recording: Recording) -> tuple[int, ...]:
    members = recording.groups[one.group].ranks
    sent = {
        other.rank: parts_of(c, members)
        for other in recording.ranks
        for c in other.communications
        if c.instance == one.instance
    }
    return tuple(sent[member][members.index(rank.rank)] for member in members)


def nccl_calls(path: Path, rank: RecordedRank) -> list[Row]:
    process = process_of(rank)
    calls = [
        row for row in ranges(path)
        if row["domainId"] == 1 and row["globalTid"] & ~0xFFFFFF == process
    ]  # fmt: skip
    assert all(call["text"] is None and call["textId"] is not None for call in calls)
    return calls


def communicators(path: Path, rank: RecordedRank) -> dict[int, dict[str, int]]:
    made = [
        decoded(path, call["binaryData"])
        for call in nccl_calls(path, rank)
        if call["name"] == "ncclCommInitRankConfig"
    ]
    return {values["NCCL communicator ID"]: values for values in made}


def test_every_call_says_what_was_planned(any_recording: Recording, files: list[Path]) -> None:
    members: dict[int, set[tuple[int, int]]] = {}
    for rank, path in processes(any_recording, files):
        for number, values in communicators(path, rank).items():
            members.setdefault(number, set()).add((values["Rank"], rank.rank))
    lists = {number: tuple(r for _, r in sorted(places)) for number, places in members.items()}
    for rank, path in processes(any_recording, files):
        found = []
        for call in nccl_calls(path, rank):
            if "Comm" in call["name"] or "Group" in call["name"]:
                continue
            values = decoded(path, call["binaryData"])
            group = lists[values["NCCL communicator ID"]]
            size, peer = values["Message size [bytes]"], values.get("Peer rank")
            found.append((call["name"], size, peer, group))
        assert sorted(found, key=str) == planned(rank, any_recording)


def test_communicators_say_size_place_and_device(
    any_recording: Recording, files: list[Path]
) -> None:
    for rank, path in processes(any_recording, files):
        made = communicators(path, rank)
        used = {any_recording.groups[c.group].ranks for c in rank.communications}
        sizes = {values["No. of ranks"] for values in made.values()}
        assert sizes >= {len(ranks) for ranks in used}
        assert {values["CUDA device"] for values in made.values()} == {rank.device}


def test_kernels_of_groups_are_launched_where_the_group_ends(
    any_recording: Recording, files: list[Path]
) -> None:
    for rank, path in processes(any_recording, files):
        calls = nccl_calls(path, rank)
        links = Links.of(rank)
        begin = clocks.EPOCH_NS - session(path)
        carried = {indices[0]: len(indices) for indices in batches(rank).values()}
        for index, one in enumerate(rank.communications):
            if one.op == "all_to_all":
                received = received_by(rank, one, any_recording)
                sent = parts_of(one, any_recording.groups[one.group].ranks)
                carried[index] = sum(n > 0 for n in (*sent, *received))
        for index, count in carried.items():
            launch = links.launch_of(index)
            assert launch is not None
            at = begin + clocks.reading(rank.clock, launch.start)
            back = begin + clocks.reading(rank.clock, launch.end)
            thread = process_of(rank) | rank.thread_id(launch.thread)
            (end,) = [
                c
                for c in calls
                if c["globalTid"] == thread and c["start"] <= at and back <= c["end"]
            ]
            assert end["name"] == "ncclGroupEnd"
            before = [c for c in calls if c["globalTid"] == thread and c["start"] < end["start"]]
            start = max(c["start"] for c in before if c["name"] == "ncclGroupStart")
            inside = [c for c in before if c["start"] >= start and c["name"] != "ncclGroupStart"]
            assert len(inside) == count
            assert {c["name"] for c in inside} <= {"ncclSend", "ncclRecv"}


def test_other_kernels_are_launched_in_their_own_call(
    any_recording: Recording, files: list[Path]
) -> None:
    for rank, path in processes(any_recording, files):
        calls = nccl_calls(path, rank)
        links = Links.of(rank)
        for index, one in enumerate(rank.communications):
            if one.batch is not None or one.op == "all_to_all":
                continue
            launch = links.launch_of(index)
            assert launch is not None
            at = clocks.EPOCH_NS - session(path) + clocks.reading(rank.clock, launch.start)
            thread = process_of(rank) | rank.thread_id(launch.thread)
            mine = [c for c in calls if c["globalTid"] == thread]
            around = [c["name"] for c in mine if c["start"] <= at <= c["end"]]
            assert [name.lower() for name in around] == ["nccl" + one.op.replace("_", "")]


def test_ranges_of_a_thread_nest(files: list[Path]) -> None:
    for path in files:
        open_until: dict[int, list[int]] = {}
        for row in ranges(path):
            stack = open_until.setdefault(row["globalTid"], [])
            while stack and stack[-1] <= row["start"]:
                stack.pop()
            assert not stack or row["end"] <= stack[-1], row["name"]
            stack.append(row["end"])


# 2.16 to 2.30: (call, payload size, name of the size, place of the peer or reduction)
LAYOUTS: dict[str, list[tuple[str, int, str | None]]] = {
    "2.16": [("ncclAllGather", 8, "Message size [bytes]"), ("ncclSend", 16, "Bytes"),
             ("ncclAllReduce", 16, "Message size [bytes]"), ("ncclBroadcast", 16, "Bytes"),
             ("ncclCommInitRank", 12, None)],
    "2.24": [("ncclRecv", 16, "Bytes"), ("ncclCommInitRankConfig", 12, None)],
    "2.25": [("ncclAllGather", 16, "Message size [bytes]"), ("ncclCommInitRankConfig", 24, None),
             ("ncclSend", 24, "Message size [bytes]"),
             ("ncclReduceScatter", 24, "Message size [bytes]")],
    "2.30": [("ncclBroadcast", 24, "Message size [bytes]")],
}  # fmt: skip


@pytest.mark.parametrize("version", LAYOUTS)
def test_payloads_of_each_release(version: str) -> None:
    for call, size, name in LAYOUTS[version]:
        layout = Nccl(version).layout(call)
        assert layout is not None
        assert layout.size == size
        names = [entry.name for entry in layout.entries]
        assert name is None or name in names
        assert (names[0] == "NCCL communicator ID") == (version >= "2.25")


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("2.16", 11),
        ("2.23", 14),
        ("2.25", 14),
        ("2.26", 15),
        ("2.27", 16),
        ("2.28", 20),
        ("2.30", 24),
    ],
)
def test_the_enum_of_reductions_moves(version: str, number: int) -> None:
    assert Nccl(version).reduction_id == (1 << 24) + number


def test_old_releases_say_less(tmp_path: Path) -> None:
    recording = Run(2).collective("all_reduce").recording()

    def calls(version: str) -> list[Row]:
        options = nsight.Options(nccl=version, torch="none")
        (path,) = nsight.write(recording, tmp_path / version, options=options)
        return [row for row in ranges(path) if row["domainId"] == 1]

    assert calls("2.7") == []
    assert {(c["name"], c["binaryData"]) for c in calls("2.15")} == {
        ("ncclCommInitRank", None), ("ncclAllReduce", None),
    }  # fmt: skip
    assert all(call["binaryData"] is not None for call in calls("2.16"))


# the file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", nsight.SCHEMAS)
def test_every_schema_holds_the_run(recording: Recording, schema: str, tmp_path: Path) -> None:
    options = nsight.Options(schema=schema)
    (path, *_) = nsight.write(recording, tmp_path, options=options)
    kernels = sum(
        event.kind == "kernel" for rank in recording.ranks[:2] for event in rank.device_events
    )
    assert len(query(path, "SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")) == kernels
    table = "META_DATA_EXPORT" if schema >= "3" else "EXPORT_META_DATA"
    facts = {row["name"]: row["value"] for row in query(path, f"SELECT * FROM {table}")}
    assert facts["EXPORT_SCHEMA_VERSION"] == schema
    assert facts["SYNTHETIC"].startswith("true: written by tracelens")
    if schema >= "3.28":
        numbers = [row["eventId"] for row in query(path, "SELECT eventId FROM NVTX_EVENTS")]
        assert numbers == list(range(1, len(numbers) + 1))


REAL = {
    "3.25.0": "nsight/a2a-2xh100-before-after/before.sqlite",
    "3.24.0": "nsight/cuda-graph-2025.5/run.sqlite",
    "2.9.1": "nsight/schema-2022/run.sqlite",
}
SHORTENED = ("TARGET_INFO_GPU",)  # no parser needs its forty columns


@pytest.mark.shared
@pytest.mark.parametrize("schema", REAL)
def test_columns_are_those_of_real_exports(
    schema: str, traces_folder: Path, tmp_path: Path
) -> None:
    (path,) = nsight.write(
        Run(1).compute().recording(), tmp_path, options=nsight.Options(schema=schema)
    )
    real = columns(traces_folder / REAL[schema])
    compared = 0
    for table, ours in columns(path).items():
        if table in SHORTENED and table in real:
            assert [column for column in real[table] if column in ours] == ours
        elif table in real:
            # A tool that made the fixture from the export has added a column of its own.
            assert [c for c in real[table] if c[0] != "name" or c in ours] == ours, table
            compared += 1
    assert compared >= 12


def columns(path: Path) -> dict[str, list[tuple[str, str]]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        names = [
            r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        return {
            name: [(r[1], r[2]) for r in connection.execute(f"PRAGMA table_info({name})")]
            for name in names
        }


def test_without_blobs_the_schemas_stay(recording: Recording, tmp_path: Path) -> None:
    (path, *_) = nsight.write(recording, tmp_path, options=nsight.Options(blobs=False))
    assert {row["binaryData"] for row in ranges(path)} == {None}
    assert query(path, "SELECT * FROM NVTX_PAYLOAD_SCHEMAS")
    facts = {r["name"]: r["value"] for r in query(path, "SELECT * FROM META_DATA_EXPORT")}
    assert facts["EXPORT_PARAM_INCLUDE_BLOBS"] == "false"


def test_payloads_as_json_say_the_same(recording: Recording, tmp_path: Path) -> None:
    (path, *_) = nsight.write(recording, tmp_path, options=nsight.Options(json=True))
    with_payload = [row for row in ranges(path) if row["binaryData"] is not None]
    assert with_payload
    for row in with_payload:
        shown = json.loads(row["jsonText"])
        if "Reduction operation" in shown:
            assert shown.pop("Reduction operation") == "Sum"
            shown["Reduction operation"] = 0
        assert shown == decoded(path, row["binaryData"])


@pytest.mark.parametrize("style", ["emit_nvtx", "names", "none"])
def test_ranges_of_torch(recording: Recording, style: str, tmp_path: Path) -> None:
    (path, *_) = nsight.write(recording, tmp_path, options=nsight.Options(torch=style))
    names = {row["name"].partition(",")[0] for row in ranges(path) if row["domainId"] == 0}
    assert {"tracelens.step 5", "tracelens.step 6"} <= names
    assert ("aten::mm" in names) == (style == "emit_nvtx")
    assert ("nccl:all_to_all" in names) == (style != "none")
    numbered = {", op_id = " in row["name"] for row in ranges(path) if "nccl:" in row["name"]}
    assert numbered == {"emit_nvtx": {True}, "names": {False}, "none": set()}[style]


def test_a_mark_says_who_the_process_is(recording: Recording, tmp_path: Path) -> None:
    paths = nsight.write(recording, tmp_path, per_node=False)
    (row,) = query(paths[2], "SELECT * FROM NVTX_EVENTS WHERE eventType = 34")
    said = json.loads(row["text"])
    assert (said["tracelens"], said["rank"], said["world"]) == (1, 2, 4)
    assert said["groups"][1] == {
        "name": "1", "description": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 2],
    }  # fmt: skip
    assert "dtype" not in said  # there are several
    (path,) = nsight.write(recorded("zero-3"), tmp_path / "one type")
    rows = query(path, "SELECT text FROM NVTX_EVENTS WHERE eventType = 34")
    assert {json.loads(row["text"])["dtype"] for row in rows} == {"bfloat16"}
    (path, *_) = nsight.write(recording, tmp_path, options=nsight.Options(mark=False))
    assert query(path, "SELECT * FROM NVTX_EVENTS WHERE eventType = 34") == []


def test_the_environment_names_the_rank_of_a_file_of_one(
    recording: Recording, tmp_path: Path
) -> None:
    sql = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'PROCESS_0:ENVIRONMENT_VARIABLE'"
    paths = nsight.write(recording, tmp_path, per_node=False)
    said = {row["value"] for row in query(paths[3], sql)}
    assert {'RANK="3"', 'WORLD_SIZE="4"'} <= said
    (path, *_) = nsight.write(recording, tmp_path)
    assert query(path, sql) == []


def test_setup_before_the_capture_leaves_communicators_unexplained(
    recording: Recording, tmp_path: Path
) -> None:
    (path, *_) = nsight.write(recording, tmp_path, options=nsight.Options(setup=False))
    assert not [row for row in ranges(path) if "CommInit" in row["name"]]


def test_members_that_were_not_recorded_leave_even_parts(tmp_path: Path) -> None:
    run = Run(2).collective("all_to_all", splits=[[1, 5], [2, 8]])
    recording = run.recording()
    (path,) = nsight.write(replace(recording, ranks=recording.ranks[:1]), tmp_path)
    calls = [c for c in nccl_calls(path, recording.ranks[0]) if c["name"] == "ncclRecv"]
    sizes = [decoded(path, c["binaryData"])["Message size [bytes]"] for c in calls]
    assert sizes == [2, 2]


def test_files_are_equal_each_time(recording: Recording, tmp_path: Path) -> None:
    first = nsight.write(recording, tmp_path / "one")
    second = nsight.write(recording, tmp_path / "two")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_unknown_options() -> None:
    with pytest.raises(ValueError, match="no Nsight Systems schema 9"):
        nsight.Options(schema="9")
    with pytest.raises(ValueError, match="no ranges of the kind all"):
        nsight.Options(torch="all")


def test_a_group_of_one_and_a_large_world(tmp_path: Path) -> None:
    run = Run(40, [Group("1", "mesh_one", (3,))]).collective("all_to_all").collective("broadcast")
    paths = nsight.write(run.recording(), tmp_path)
    assert len(paths) == 5
    calls = [row["name"] for row in ranges(paths[0])]
    assert calls.count("ncclSend") == calls.count("ncclRecv") == 8 * 40


def test_columns_and_tables_of_other_schemas_are_left_out() -> None:
    new, old = tables.Database("3.28.1"), tables.Database("2.9.1")
    assert new.has("NVTX_EVENTS", "eventId")
    assert not tables.Database("3.25.0").has("NVTX_EVENTS", "eventId")
    assert new.has("META_DATA_EXPORT")
    assert not new.has("EXPORT_META_DATA")
    assert old.has("EXPORT_META_DATA")
    assert not old.has("NVTX_PAYLOAD_SCHEMAS")

"""NCCL's payloads, release by release, from each of the places an export may have them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from nsight_exports import NAMES, VERSIONS, Export

from tracelens.model.trace import NONE
from tracelens_nsight import layouts, payloads

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

COMM = 0x8A10BB22C215AD84  # above 2^63: ids keep their bits
NAME = f"{COMM:016x}"
SOURCES: dict[str, dict[str, Any]] = {
    "blobs": {},
    "blobs without schema tables": {"schemas": False},
    "JSON": {"blobs": False, "json": True},
    "tables": {"blobs": False, "tables": True},
}
BY_PART = ("ncclAllGather", "ncclReduceScatter", "ncclAlltoAll", "ncclGather", "ncclScatter")
CALLS = ("ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv", *BY_PART)
SINCE = {"ncclAlltoAll": "2.28", "ncclGather": "2.28", "ncclScatter": "2.28"}


def communications(export: Export, path: Path) -> pd.DataFrame:
    (trace,) = export.traces(path / "x.sqlite")
    return trace.communications


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("call", CALLS)
def test_sizes_and_peers(call: str, version: str, source: str, tmp_path: Path) -> None:
    if version < SINCE.get(call, ""):
        return
    export = Export(nccl=version, **SOURCES[source])
    name = NAMES.get(call, f"ncclDevKernel_{call.removeprefix('nccl')}_RING_LL")
    export.collective(call, 5_000, kernel=name, comm=COMM, size=4096, peer=3, root=2)
    (row,) = communications(export, tmp_path).to_dict("records")
    assert row["source"] == "payload"
    assert row["event"] == 0
    sizes = (row["buffer_bytes"], row["part_bytes"])
    assert sizes == ((NONE, 4096) if call in BY_PART else (4096, NONE))
    if call in ("ncclSend", "ncclRecv"):
        assert row["root"] == 3
    elif call in ("ncclBroadcast", "ncclReduce", "ncclGather", "ncclScatter"):
        assert row["root"] == 2
    assert row["group_name"] == (NAME if version >= "2.25" else "stream 20")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_making_a_communicator_says_its_size(version: str, source: str, tmp_path: Path) -> None:
    export = Export(nccl=version, **SOURCES[source])
    export.call("ncclCommInitRank", 1_000, comm=COMM, nranks=8, rank=5, device=5)
    export.collective("ncclAllReduce", 5_000, comm=COMM, size=64)
    (trace,) = export.traces(tmp_path / "x.sqlite")
    (group,) = trace.info.process_groups
    assert (group.size, group.place) == (8, 5)
    assert group.name == (NAME if version >= "2.25" else "the only communicator of 8")
    assert trace.communications["group_size"].tolist() == [8]


def test_a_split_names_the_new_communicator(tmp_path: Path) -> None:
    export = Export(nccl="2.27")
    values = {"comm": 7, "parent": 9, "nranks": 2, "rank": 1, "color": 3, "key": 4}
    export.call("ncclCommSplit", 1_000, **values)
    export.collective("ncclAllReduce", 5_000, comm=7, size=64)
    (trace,) = export.traces(tmp_path / "x.sqlite")
    (group,) = trace.info.process_groups
    assert (group.name, group.size, group.place) == ("0000000000000007", 2, 1)


def test_without_ids_two_communicators_are_told_by_their_streams(tmp_path: Path) -> None:
    export = Export(nccl="2.22")
    export.call("ncclCommInitRank", 1_000, nranks=8, rank=5)
    export.call("ncclCommInitRank", 2_000, nranks=2, rank=1)
    export.collective("ncclAllReduce", 5_000, stream=20, size=64)
    export.collective("ncclAllReduce", 7_000, stream=21, size=64)
    (trace,) = export.traces(tmp_path / "x.sqlite")
    assert trace.communications["group_name"].tolist() == ["stream 20", "stream 21"]
    assert trace.communications["group_size"].tolist() == [NONE, NONE], "which is which is open"


@pytest.mark.parametrize("version", [None, "2.27"])
def test_calls_without_payloads_say_what_they_are(version: str | None, tmp_path: Path) -> None:
    export = Export(nccl=version, blobs=False)
    export.collective("ncclAllReduce", 5_000, comm=COMM, size=64)
    (row,) = communications(export, tmp_path).to_dict("records")
    assert (row["name"], row["event"], row["buffer_bytes"]) == ("ncclAllReduce", 0, NONE)
    assert row["group_name"] == ""


@pytest.mark.parametrize(("version", "described"), [(None, False), ("2.27", True)])
def test_payloads_left_out_of_the_export_are_missed(
    version: str | None, described: bool, tmp_path: Path
) -> None:
    export = Export(nccl=version, blobs=False).collective("ncclAllReduce", 5_000, size=64)
    (trace,) = export.traces(tmp_path / "x.sqlite")
    assert ["payloads-not-exported" in n.code for n in trace.info.notices] == [True] * described


def damaged(blob: bytes, how: str) -> bytes:
    """Return a payload of which no size can be read: its header is domain, schema, size, offset."""
    return {
        "cut": blob[:-1],
        "another schema": blob[:8] + b"\xff" * 8 + blob[16:],
        "no length": blob[:16] + bytes(8) + blob[24:],
        "too large": blob[:40] + b"\xff" * 7 + b"\x7f" + blob[48:],
    }[how]


@pytest.mark.parametrize("how", ["cut", "another schema", "no length", "too large"])
def test_a_payload_that_cannot_be_read_is_not_called_missing(how: str, tmp_path: Path) -> None:
    export = Export().collective("ncclAllReduce", 5_000, comm=COMM, size=64)
    export.collective("ncclAllReduce", 6_000, comm=COMM, size=64)
    call = export.rows["NVTX_EVENTS"][-1]
    call["binaryData"] = damaged(call["binaryData"], how)
    (trace,) = export.traces(tmp_path / "x.sqlite")
    assert trace.communications["buffer_bytes"].tolist() == [64, NONE]
    assert [(n.code, n.count) for n in trace.info.notices] == [("payloads-unread", 1)]


@pytest.mark.parametrize("length", [0, None, 999])
def test_a_description_that_cannot_be_gives_way_to_what_is_known(
    length: int | None, tmp_path: Path
) -> None:
    export = Export().collective("ncclAllReduce", 5_000, comm=COMM, size=64)
    for row in export.rows["NVTX_PAYLOAD_SCHEMAS"]:
        row["payloadSize"] = length
    (trace,) = export.traces(tmp_path / "x.sqlite")
    assert trace.communications["buffer_bytes"].tolist() == [64]
    assert trace.info.notices == ()


def test_the_first_source_that_says_something_wins_and_damage_is_left_alone(tmp_path: Path) -> None:
    export = Export(json=True)
    export.collective("ncclAllReduce", 5_000, comm=COMM, size=64)
    call = export.rows["NVTX_EVENTS"][-1]
    call["binaryData"] = call["binaryData"][:40]  # cut
    (row,) = communications(export, tmp_path).to_dict("records")
    assert row["buffer_bytes"] == 64


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"Bytes": true}', '{"Bytes": "many"}', "[" * 9999]
)
def test_odd_texts_say_nothing(text: str, tmp_path: Path) -> None:
    export = Export(blobs=False, json=True).collective("ncclAllReduce", 5_000, size=64)
    export.rows["NVTX_EVENTS"][-1]["jsonText"] = text
    (row,) = communications(export, tmp_path).to_dict("records")
    assert row["buffer_bytes"] == NONE


def test_a_registered_json_text_counts_too(tmp_path: Path) -> None:
    export = Export(blobs=False).collective("ncclAllReduce", 5_000, size=64)
    text = '{"Message size [bytes]": 96}'
    export.rows["NVTX_EVENTS"][-1]["jsonTextId"] = export.string(text)
    (row,) = communications(export, tmp_path).to_dict("records")
    assert row["buffer_bytes"] == 96


@pytest.mark.parametrize(
    ("version", "shown"),
    [("2.24", None), ("2.25", "2.25"), ("2.26", "2.26"), ("2.27", "2.27"), ("2.28", "2.28"),
     ("2.30", None)],
)  # fmt: skip
def test_the_release_shows_in_the_schemas(version: str, shown: str | None, tmp_path: Path) -> None:
    export = Export(nccl=version).collective("ncclAllReduce", 5_000, comm=COMM, size=64)
    export.variable("NCCL_VERSION", "2.25.1-1")  # the container's, not torch's
    (trace,) = export.traces(tmp_path / "x.sqlite")
    assert trace.info.nccl_version == shown


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("Message size [bytes]", "size"), ("Bytes", "size"),
        ("NCCL communicator ID", "communicator"),
        ("Parent NCCL communicator ID", None), ("Peer rank", "peer"), ("Root", "root"),
        ("No. of ranks", "ranks"), ("Rank", "rank"), ("CUDA device", None), ("Color", None),
        ("Key", None), ("Reduction operation", None),
    ],
)  # fmt: skip
def test_fields_are_known_by_name(name: str, meaning: str | None) -> None:
    assert payloads.field_of(name) == meaning


def test_fields_that_do_not_fit_a_struct_are_left_out() -> None:
    entries = [("Rank", 5, 0), ("far", 18, 4), ("odd", 3000, 0), ("", 5, 0), ("behind", 5, -4)]
    assert layouts.of_types(entries, 8).names == ("Rank",)

"""The root's other keys: before or after the events, objects or texts, damaged or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens_kineto.header import Header, host_of, read

INFO = {
    "backend": "nccl",
    "rank": 3,
    "world_size": 8,
    "nccl_version": "2.27.5",
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": [0, 1, 2, 3, 4, 5, 6, 7]},
        {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [2, 3]},
    ],
}  # fmt: skip


def read_keys(before: dict[str, Any], after: dict[str, Any]) -> Header:
    head = json.dumps(before)[:-1] + (", " if before else "")
    foot = (", " if after else "") + json.dumps(after)[1:]
    return read(head.encode(), foot.encode())


def test_a_simulator_says_so() -> None:
    assert read_keys({"simulated": {"by": "tracelens", "seed": 0}}, {}).simulated
    assert not read_keys({"schemaVersion": 1}, {}).simulated


@pytest.mark.parametrize("number", [-1, 1 << 40, 4_611_686_018_427_387_000, 10**30])
def test_a_world_that_cannot_be(number: int) -> None:
    """Lists of all ranks are made: such a number would cost all memory."""
    group = {"pg_name": "0", "pg_size": number, "ranks": [0, number]}
    info = {"rank": number, "world_size": number, "pg_config": [group]}
    got = read_keys({"distributedInfo": info}, {})
    assert (got.rank, got.world_size) == (None, None)
    assert (got.groups[0].size, got.groups[0].ranks) == (None, None)


@pytest.mark.parametrize("where", ["before", "after"])
def test_all_facts(where: str) -> None:
    keys = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "ACME G90"}, {"id": 1, "name": "ACME G90"}],
        "distributedInfo": INFO,
        "baseTimeNanoseconds": 1_767_225_600_000_000_000,
        "record_shapes": 1,
        "host_name": "gpu-a1",
        "pytorch_version": "2.12.0",
    }
    got = read_keys(keys, {}) if where == "before" else read_keys({"schemaVersion": 1}, keys)
    assert (got.rank, got.world_size, got.backend, got.nccl_version) == (3, 8, "nccl", "2.27.5")
    assert got.base_ns == 1_767_225_600_000_000_000
    assert (got.host, got.framework_version, got.shapes_recorded) == ("gpu-a1", "2.12.0", True)
    assert got.devices == {0: "ACME G90", 1: "ACME G90"}
    assert not got.amd
    assert [(g.name, g.description, g.size, g.ranks) for g in got.groups] == [
        ("0", "default_pg", 8, tuple(range(8))),
        ("1", "mesh_tp", 2, (2, 3)),
    ]


def test_settings_of_the_profiler_that_are_on() -> None:
    keys = {"with_stack": 1, "record_shapes": 1, "profile_memory": 0, "with_flops": "1"}
    assert read_keys(keys, {}).settings == ("record_shapes", "with_stack", "with_flops")
    assert read_keys({"schemaVersion": 1}, keys).settings == read_keys(keys, {}).settings
    assert read_keys({"schemaVersion": 1}, {}).settings == ()
    torn = read(b'{"with_stack": 1, "distributedInfo": {"rank": ', b"")
    assert torn.settings == ("with_stack",)


def test_another_objects_rank_does_not_count() -> None:
    got = read_keys(
        {"job": {"rank": 5, "world_size": 64}, "distributedInfo": {"rank": 1, "world_size": 4}}, {}
    )
    assert (got.rank, got.world_size) == (1, 4)
    assert read_keys({"job": {"rank": 5}}, {}).rank is None


def test_numbers_and_lists_as_texts() -> None:
    info = {
        "rank": "2",
        "world_size": "4",
        "pg_config": json.dumps([{"pg_name": 7, "uid": "mesh_dp", "ranks": "[0, 2]"}]),
    }
    got = read_keys({"distributedInfo": info, "baseTimeNanoseconds": "5"}, {})
    assert (got.rank, got.world_size, got.base_ns) == (2, 4, 5)
    (group,) = got.groups
    assert (group.name, group.description, group.size, group.ranks) == ("7", "mesh_dp", 2, (0, 2))


def test_the_whole_info_as_text() -> None:
    assert read_keys({}, {"distributedInfo": json.dumps(INFO)}).rank == 3


@pytest.mark.parametrize("ranks", [[0, "x"], [0, None], [], "[0, 1, ...]", None, {"a": 1}])
def test_a_rank_list_that_is_none(ranks: Any) -> None:
    info = {"pg_config": [{"pg_name": "0", "pg_size": 4, "ranks": ranks}]}
    (group,) = read_keys({"distributedInfo": info}, {}).groups
    assert (group.size, group.ranks) == (4, None)


@pytest.mark.parametrize("rank", [-1, None, "", "x", 1.5, [], 1 << 70])
def test_a_rank_that_is_none(rank: Any) -> None:
    assert read_keys({"distributedInfo": {"rank": rank}}, {}).rank is None


def test_device_ids_in_any_order() -> None:
    devices = [{"id": 1, "name": "one"}, {"id": 0, "name": "zero"}, {"name": "two"}, "no device"]
    assert read_keys({"deviceProperties": devices}, {}).devices == {0: "zero", 1: "one", 2: "two"}


@pytest.mark.parametrize("device", [{"name": "AMD Instinct MI300X"}, {"name": "", "warpSize": 64}])
def test_amd(device: dict[str, Any]) -> None:
    assert read_keys({"deviceProperties": [device]}, {}).amd


def test_damage_costs_single_keys() -> None:
    head = b'{"note": "a "b" c", "distributedInfo": {"rank": 1, "world_size": 2}, '
    got = read(head + b'"deviceProperties": [{"id": 0, "name": cut', b', "host_name": "gpu-a1"}')
    assert (got.rank, got.world_size, got.host, got.devices) == (1, 2, "gpu-a1", {})


def test_a_cut_file_keeps_its_header() -> None:
    assert read(b'{"distributedInfo": {"rank": 1}, ', b"").rank == 1


@pytest.mark.parametrize(
    "text", [b"", b" ", b"\xef\xbb\xbf{", b"{", b"\xff\xfe", b"[[[[", b'{"a": ' + b"[" * 99_999]
)
def test_nothing_usable(text: bytes) -> None:
    assert read(text, b"") == Header()


def test_a_byte_order_mark() -> None:
    assert read(b'\xef\xbb\xbf{"distributedInfo": {"rank": 1}, ', b"}").rank == 1


@pytest.mark.parametrize(
    ("name", "inside", "host"),
    [
        ("gpu-a1_4012.1719242424242424242.pt.trace.json.gz", None, "gpu-a1"),
        ("gpu_a1_4012.1719242424242.pt.trace.json", None, "gpu_a1"),
        ("rank_0.1719242424242424242.pt.trace.json.gz", None, None),  # 0 is not the process
        ("worker_4012.json", None, None),
        ("gpu-a1_4012.1719242424242424242.pt.trace.json", "node-7", "node-7"),
    ],
)
def test_the_host_in_a_name_counts_only_beside_the_process(
    name: str, inside: str | None, host: str | None
) -> None:
    assert host_of(Header(host=inside), Path("traces") / name, 4012) == host


def test_no_world_has_no_ranks() -> None:
    got = read_keys({"distributedInfo": {"rank": 0, "world_size": 0}}, {})
    assert (got.rank, got.world_size) == (0, None)

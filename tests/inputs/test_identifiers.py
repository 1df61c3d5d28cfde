"""Ids that no double can hold: two that differ by one must stay two."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from builders import Group, Schema, Trace
from standard_run import BYTES, is_standard, rank

import tracelens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STARTS = {
    "2^53": 1 << 53,
    "2^62": (1 << 62) + 1,
    "across 2^63": (1 << 63) - 8,  # 2^63 itself stands for no id: not at the border of a step
    "below 2^64": (1 << 64) - 200,
}
SCHEMAS = {
    "numbers": Schema(),
    "strings": Schema(text_ids=True),
    "old strings": Schema(torch="2.4", text_ids=True, lower_external=True, times="epoch"),
}


def linked(number: int, link: Any, **options: Any) -> Trace:
    """Build a standard rank whose all-reduces are known through `link` alone."""
    trace = Trace(rank=number, **{"pid": 4000 + number, **options})
    for step in (0, 1):
        at = 1000 * step
        trace.step(10 + step, at, 1000).kernel("gemm", at + 100, 300).kernel("gelu", at + 400, 200)
        trace.all_reduce(at + 500, 300, link=link).kernel("norm", at + 700, 200)
    return trace


def is_whole(folder: Path) -> None:
    """Check times, bytes, and that every kernel is in the step that launched it."""
    result = tracelens.analyze(folder)
    is_standard(result)
    (row,) = result.collectives
    assert (row.op, row.calls, row.message_bytes) == ("all_reduce", 2, 2 * 2 * BYTES)
    assert row.bytes_per_step.message == 2 * BYTES
    for one in result.ranks:
        (device,) = one.devices
        assert device.before_first_step == 0
        assert device.total.launches_without_record == 0
        assert device.total.kernels == 8


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_correlations_and_external_ids(start: int, schema: Schema, tmp_path: Path) -> None:
    for number in (0, 1):
        made = linked(number, "external", schema=schema, _last_id=start)
        made.write(tmp_path / f"rank{number}.json")
    is_whole(tmp_path)


def test_in_hexadecimal(tmp_path: Path) -> None:
    def hexed(event: dict[str, Any]) -> None:
        for key in ("correlation", "External id"):
            if key in event.get("args", {}):
                event["args"][key] = hex(event["args"][key])

    for number in (0, 1):
        made = linked(number, "external", _last_id=0x7FFF_FFFF_FFFF_F000)
        changed(made, hexed).write(tmp_path / f"rank{number}.json")
    is_whole(tmp_path)


@pytest.mark.parametrize("pid", [(1 << 53) + 1, (1 << 63) + 7])
def test_processes_and_threads(pid: int, tmp_path: Path) -> None:
    """Threads that differ by one are two: a record of the other one launches nothing here."""

    def renamed(event: dict[str, Any]) -> None:
        event["tid"] = pid + event["tid"] if event["cat"] != "kernel" else event["tid"]

    for number in (0, 1):
        made = linked(number, "time", pid=pid + 10 * number)
        for at in (480, 1480):  # the neighbour thread's, around the same instant
            args = made.comm_args("_allgather_base", 16, 32)
            made.record("_allgather_base", at - 2, 10, thread=2, args=args)
        changed(made, renamed).write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [0, 1]
    by_op = {row.op: row for row in result.collectives}
    assert by_op["all_reduce"].message_bytes == 2 * 2 * BYTES
    assert by_op["all_gather"].time_ns is None, "its launch has no kernel"
    assert {device.process for one in result.ranks for device in one.devices} == {
        (pid + 10 * number + (1 << 63)) % (1 << 64) - (1 << 63) for number in (0, 1)
    }


def test_addresses_that_name_communicators(tmp_path: Path) -> None:
    """`Comms Id` is an address; two groups of one size differ in its last bit only."""
    pairs = (Group((0, 1), "1", "tp"), Group((2, 3), "2", "tp"))
    for number in range(4):
        mine = pairs[number // 2]
        trace = Trace(rank=number, world=4, pid=4000 + number, groups=(mine,))
        trace.step(1, 0, 1000).kernel("gemm", 100, 300)
        trace.all_reduce(500, 300, group=mine)
        trace.events = [
            text.replace("12345678901234567890", str((1 << 63) + number // 2))
            for text in trace.events
        ]
        trace.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    groups = {tuple(group.ranks or ()) for group in result.groups if group.role == "tp"}
    assert groups == {(0, 1), (2, 3)}
    assert [row.matched_calls for row in result.collectives] == [{"exact": 1.0}] * 2
    traces = tracelens.load(tmp_path)
    ids = {int(value) for one in traces for value in one.communications["comms_id"]}
    assert len(ids) == 2


def test_a_rank_of_plain_ids_beside_one_of_strings(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank0.json")
    made = rank(1, schema=Schema(text_ids=True), _last_id=1 << 60)
    made.write(tmp_path / "rank1.json")
    is_whole(tmp_path)


def changed(trace: Trace, change: Callable[[dict[str, Any]], None]) -> Trace:
    """Change every event of a trace."""
    events = [json.loads(text) for text in trace.events]
    for event in events:
        change(event)
    trace.events = [json.dumps(event) for event in events]
    return trace

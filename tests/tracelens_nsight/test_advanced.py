"""NCCL's advanced tracing, as its documentation describes it: no real export was at hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from nsight_exports import NAMES, SEND_RECV, Export

import tracelens
from tracelens_nsight.advanced import read

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis, CollectiveResult

DOMAIN = 5
COMM = 0x9F00_0000_0000_0007
GROUPS = [{"name": "1", "description": "mesh_dp", "ranks": [0, 1]}]


class Traced(Export):
    """Two ranks in one export; NCCL speaks by `-t nccl`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.number = 0
        for rank in (0, 1):
            pid = 4000 + rank
            self.gpu(rank, "NVIDIA H100 80GB HBM3", pid=pid).mark(pid, rank=rank, world=2)
            self.range("NCCL Profiler", 0, None, pid=pid, kind=75, domain=DOMAIN)
            for step in (1, 2):
                begin = 100_000 * step
                self.step(step, begin, begin + 90_000, pid)
                self.kernel("gemm", begin + 1_000, 5_000, pid=pid, device=rank)

    def said(self, rank: int, **more: Any) -> dict[str, Any]:
        self.number += 1
        return {"commHash": COMM, "rank": rank, "commRank": rank, "operationId": self.number,
                "seqNumber": self.number, **more}  # fmt: skip

    def row(self, name: str, start: int, end: int, rank: int, said: dict[str, Any] | None) -> None:
        more: dict[str, Any] = {} if said is None else {"jsonText": json.dumps(said)}
        self.range(name, start, end, pid=4000 + rank, domain=DOMAIN, **more)

    def traced(
        self, calls: list[tuple[str, dict[str, Any]]], start: int, rank: int, kernel: str,
        *, details: bool = True, device_rows: int = 0,
    ) -> Traced:  # fmt: skip
        """Add a group of calls, its launch, kernel, and rows of the GPU, one a channel."""
        self.row("API Group", start - 900, start - 100, rank, None)
        for place, (name, values) in enumerate(calls):
            said = self.said(rank, **values)
            at = start - 850 + 20 * place
            self.row(name, at, at + 10, rank, said if details else None)
            for channel in range(device_rows):
                self.row(name, start + channel, start + 480, rank, {**said, "channelId": channel})
        self.row("KernelLaunch", start - 300, start - 150, rank, None)
        self.kernel(kernel, start, 500, at=start - 250, pid=4000 + rank, device=rank, stream=20)
        return self

    def both(self, calls: list[tuple[str, dict[str, Any]]], kernel: str, **options: Any) -> Traced:
        """Add the calls to both ranks in both steps."""
        for rank in (0, 1):
            for step in (1, 2):
                self.traced(calls, 100_000 * step + 20_000, rank, kernel, **options)
        return self


def analysed(export: Export, folder: Path) -> Analysis:
    return tracelens.analyze(export.write(folder / "run.sqlite"))


def only(analysis: Analysis) -> CollectiveResult:
    (found,) = analysis.collectives
    return found


@pytest.mark.parametrize(
    ("call", "dtype", "message", "shown"),
    [
        ("AllReduce", "ncclBfloat16", 2 * 1000 * 2, "bfloat16"),  # both ways
        ("AllGather", "ncclFloat32", 2 * 1000 * 4, "float32"),  # a member's part
        ("ReduceScatter", "ncclFloat16", 2 * 1000 * 2, "float16"),
        ("Broadcast", "ncclInt64", 1000 * 8, "int64"),
        ("AlltoAll", "ncclFloat64", 2 * 1000 * 8, "float64"),
    ],
)
def test_elements_and_their_type(
    call: str, dtype: str, message: int, shown: str, tmp_path: Path
) -> None:
    kernel = NAMES.get(f"nccl{call}", SEND_RECV)
    export = Traced().both([(call, {"count": 1000, "dataType": dtype, "root": 0})], kernel)
    analysis = analysed(export, tmp_path)
    found = only(analysis)
    assert found.bytes_per_step.message == message
    assert (found.dtype, found.calls) == (shown, 2)
    assert [group.ranks for group in analysis.groups] == [[0, 1]]
    assert [n.code for n in analysis.notices if n.level == "warning"] == []


def test_rows_of_channels_count_once(tmp_path: Path) -> None:
    calls = [("AllReduce", {"count": 1000, "dataType": "bfloat16"})]
    export = Traced().both(calls, NAMES["ncclAllReduce"], device_rows=4)
    analysis = analysed(export, tmp_path)
    assert only(analysis).calls == 2
    assert "no-device-time" not in {notice.code for notice in analysis.notices}


def test_a_group_of_calls_is_carried_by_its_kernel(tmp_path: Path) -> None:
    one = {"count": 1000, "dataType": "bfloat16"}
    export = Traced().both([("AllReduce", one), ("AllReduce", one)], NAMES["ncclAllReduce"])
    found = only(analysed(export, tmp_path))
    assert found.calls == 4
    assert found.bytes_per_step.message == 2 * 2 * 1000 * 2


def test_an_all_to_all_shown_as_messages(tmp_path: Path) -> None:
    one = {"count": 1000, "dataType": "bfloat16"}
    calls = [(call, {**one, "peer": peer}) for peer in (0, 1) for call in ("Send", "Recv")]
    found = only(analysed(Traced().both(calls, SEND_RECV), tmp_path))
    assert (found.op, found.calls) == ("all_to_all", 2)
    assert found.bytes_per_step.wire == 1000 * 2


def test_without_details_it_says_so(tmp_path: Path) -> None:
    calls = [("AllReduce", {"count": 1000, "dataType": "bfloat16"})]
    export = Traced().both(calls, NAMES["ncclAllReduce"], details=False)
    analysis = analysed(export, tmp_path)
    found = only(analysis)
    assert (found.op, found.calls, found.bytes_per_step.message) == ("all_reduce", 2, None)
    said = [(n.rank, n.count) for n in analysis.notices if n.code == "nccl-trace-unread"]
    assert said == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "broken",
    [{"dataType": "ncclFloat4x"}, {"count": "many"}, {"count": "9" * 5000}, {"count": 1 << 61}],
)
def test_what_is_not_understood_stays_unknown(broken: dict[str, Any], tmp_path: Path) -> None:
    calls = [("AllReduce", {"count": 1000, "dataType": "bfloat16", **broken})]
    analysis = analysed(Traced().both(calls, NAMES["ncclAllReduce"]), tmp_path)
    assert only(analysis).bytes_per_step.message is None
    codes = {n.code for n in analysis.notices}
    assert "nccl-trace-unread" in codes
    assert "payloads-unread" not in codes
    assert [group.ranks for group in analysis.groups] == [[0, 1]], "whose it was, it says"


def test_names_of_a_program_are_its_own(tmp_path: Path) -> None:
    export = Export().mark(rank=0, world=1)
    for step in (1, 2):
        begin = 10_000 * step
        export.step(step, begin, begin + 9_000).range("Reduce", begin + 500, begin + 2_000)
        export.range("Send", begin + 500, begin + 2_000, jsonText='{"count": 3}')
        export.kernel("gemm", begin + 1_000, 5_000)
    (trace,) = export.traces(tmp_path / "own.sqlite")
    assert {"Reduce", "Send"} <= set(trace.marks["name"])
    assert len(trace.communications) == 0
    assert trace.info.notices == ()


# keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"count": 8, "dataType": "ncclFloat32", "commHash": 7, "commRank": 1, "rank": 5}',
        '{"Count": "8", "Data Type": "float", "Comm Hash": "0x7", "Comm Rank": "1"}',
        '{"COUNT": 8, "data_type": 7, "comm_hash": "7", "comm_rank": 1}',
    ],
)
def test_keys_are_read_however_they_are_spelt(text: str) -> None:
    call = read("AllReduce", text)
    assert call is not None
    assert (call.communicator, call.size, call.dtype, call.place) == (7, 32, "float32", 1)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [("0x9f00000000000007", COMM), ("9f00000000000007", COMM), (str(COMM), COMM), (COMM, COMM)],
)
def test_ids_of_communicators_keep_their_bits(shown: object, expected: int) -> None:
    call = read("AllReduce", json.dumps({"commHash": shown}))
    assert call is not None
    assert call.communicator & (1 << 64) - 1 == expected


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "7", "null", '{"commHash": "x y"}', '{"commHash": true}', "[" * 9999]
)
def test_what_names_no_communicator_is_no_call(text: str) -> None:
    assert read("AllReduce", text) is None


def test_bytes_that_are_copied_have_no_type() -> None:
    """NCCL gathers and broadcasts bytes, whatever they are of."""
    call = read("AllGather", '{"commHash": 7, "count": 8, "dataType": "ncclInt8"}')
    assert call is not None
    assert (call.size, call.dtype) == (8, None)

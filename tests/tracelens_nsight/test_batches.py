"""Which of NCCL's calls each kernel carries, and what the core makes of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight_exports import MEMCPY, NAMES, PID, Export

from tracelens.communication import COMMUNICATION, COPY, Identified, identify
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from tracelens.communication import Operation
    from tracelens.model.trace import RankTrace

COMM: dict[str, Any] = {"comm": 7}
AUTOGRAD = 4123


def parsed(export: Export, path: Path) -> RankTrace:
    (trace,) = export.traces(path / "x.sqlite")
    return trace


def identified(export: Export, path: Path) -> Identified:
    return identify(parsed(export, path))


def operations(export: Export, path: Path) -> list[Operation]:
    return identified(export, path).operations


def attached(trace: RankTrace) -> list[tuple[str, int]]:
    rows = trace.communications[trace.communications["source"] == "payload"]
    return list(zip(rows["name"].astype(str), rows["event"].tolist(), strict=True))


def event_ops(found: Identified) -> list[str | None]:
    return [OPERATIONS[code] if code >= 0 else None for code in found.event_op]


def messages(*peers: int, size: int = 64) -> list[tuple[str, dict[str, int]]]:
    values = [{**COMM, "size": size, "peer": peer} for peer in peers]
    return [(name, value) for value in values for name in ("ncclSend", "ncclRecv")]


class TestAttaching:
    def test_a_call_and_the_kernel_launched_in_it(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).collective("ncclAllReduce", 5_000, **COMM, size=64)
        assert attached(parsed(export, tmp_path)) == [("ncclAllReduce", 1)]

    def test_every_call_since_the_group_began_belongs_to_the_kernel_of_its_end(
        self, tmp_path: Path
    ) -> None:
        export = Export().group(messages(0, 1), 9_000)
        assert attached(parsed(export, tmp_path)) == [
            ("ncclSend", 0), ("ncclRecv", 0), ("ncclSend", 0), ("ncclRecv", 0),
        ]  # fmt: skip

    def test_groups_in_groups_end_with_the_outermost(self, tmp_path: Path) -> None:
        export = Export().call("ncclGroupStart", 1_000, 10).call("ncclGroupStart", 1_020, 10)
        export.call("ncclSend", 1_040, 10, **COMM, size=8, peer=1)
        export.call("ncclGroupEnd", 1_060, 10).call("ncclRecv", 1_080, 10, **COMM, size=8, peer=1)
        export.call("ncclGroupEnd", 1_100, 100).kernel("ncclDevKernel_SendRecv", 3_000, at=1_120)
        assert attached(parsed(export, tmp_path)) == [("ncclSend", 0), ("ncclRecv", 0)]

    def test_a_group_begun_before_the_recording(self, tmp_path: Path) -> None:
        export = Export().call("ncclRecv", 1_000, 10, **COMM, size=8, peer=1)
        export.call("ncclGroupEnd", 1_100, 100).kernel("ncclDevKernel_SendRecv", 3_000, at=1_120)
        export.collective("ncclAllReduce", 5_000, **COMM, size=64)
        trace = parsed(export, tmp_path)
        assert ("ncclAllReduce", 1) in attached(trace)
        assert identify(trace).operations[0].op == "send_recv", (
            "by its name; what it carries is lost"
        )

    def test_a_call_in_a_call(self, tmp_path: Path) -> None:
        export = Export().call("ncclBcast", 1_000, 200)
        export.call("ncclBroadcast", 1_010, 180, **COMM, size=64)
        export.kernel(NAMES["ncclBroadcast"], 3_000, at=1_050)
        assert attached(parsed(export, tmp_path)) == [("ncclBroadcast", 0)]

    def test_other_kernels_launched_between_calls_are_none_of_theirs(self, tmp_path: Path) -> None:
        export = Export().call("ncclGroupStart", 1_000, 10)
        export.kernel("gemm", 2_000, at=1_050)
        export.call("ncclSend", 1_200, 10, **COMM, size=8, peer=1).call("ncclGroupEnd", 1_220, 100)
        export.kernel("ncclDevKernel_SendRecv", 3_000, at=1_240)
        trace = parsed(export, tmp_path)
        assert attached(trace) == [("ncclSend", 1)]
        assert event_ops(identify(trace)) == [None, "send"]

    def test_what_is_launched_when_a_call_returns_is_none_of_it(self, tmp_path: Path) -> None:
        export = Export().call("ncclAllReduce", 1_000, 100, **COMM, size=64)
        export.kernel(NAMES["ncclAllReduce"], 3_000, at=1_050).kernel("gemm", 4_000, at=1_100)
        assert attached(parsed(export, tmp_path)) == [("ncclAllReduce", 0)]

    def test_threads_have_their_own_groups(self, tmp_path: Path) -> None:
        export = Export().call("ncclGroupStart", 1_000, 10)
        export.collective("ncclAllReduce", 5_000, at=1_020, tid=AUTOGRAD, **COMM, size=64)
        export.call("ncclSend", 1_100, 10, **COMM, size=8, peer=1).call("ncclGroupEnd", 1_200, 100)
        export.kernel("ncclDevKernel_SendRecv", 6_000, at=1_250)
        assert sorted(attached(parsed(export, tmp_path))) == [("ncclAllReduce", 0), ("ncclSend", 1)]

    def test_several_communicators_in_a_group(self, tmp_path: Path) -> None:
        export = Export()
        for comm, stream, at in ((7, 20, 2_000), (8, 21, 4_000)):  # teaches who uses which stream
            export.collective("ncclAllReduce", at, comm=comm, size=8, stream=stream)
        export.call("ncclGroupStart", 5_000, 10)
        for comm, at in ((7, 5_020), (8, 5_040)):
            export.call("ncclAllReduce", at, 10, comm=comm, size=64 * comm)
        export.call("ncclGroupEnd", 5_060, 200)
        export.kernel(NAMES["ncclAllReduce"], 7_000, at=5_100, stream=21)
        export.kernel(NAMES["ncclAllReduce"], 7_500, at=5_150, stream=20)
        trace = parsed(export, tmp_path)
        rows = trace.communications
        assert rows["buffer_bytes"].tolist() == [8, 8, 448, 512]
        assert rows["event"].tolist() == [0, 1, 3, 2]

    def test_a_group_in_two_kernels_is_counted_once_and_timed_twice(self, tmp_path: Path) -> None:
        export = Export().group(messages(1), 9_000, length=500, more=1)
        found = identified(export, tmp_path)
        assert [o.op for o in found.operations] == ["send", "recv"]
        assert found.owner.tolist() == [0, 0]
        assert event_ops(found) == ["send_recv", "send_recv"]

    def test_a_call_whose_kernel_was_not_recorded_still_moved_its_bytes(
        self, tmp_path: Path
    ) -> None:
        export = Export().kernel("gemm", 1_000)
        export.call("ncclCommInitRank", 100, **COMM, nranks=4, rank=1)
        export.call("ncclAllReduce", 5_000, **COMM, size=64)
        found = identified(export, tmp_path)
        assert [(o.op, o.event, o.buffer_bytes) for o in found.operations] == [
            ("all_reduce", None, 64)
        ]
        assert found.without_device_time == 1

    def test_making_communicators_moves_nothing(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000)
        export.call("ncclCommInitRank", 100, **COMM, nranks=4, rank=1)
        export.call("ncclCommCount", 300).call("ncclCommSplit", 500, comm=8, nranks=2, rank=1)
        assert operations(export, tmp_path) == []


moves = st.lists(st.sampled_from(["start", "end", "call", "launch", "gap"]), max_size=14)


@given(moves)
def test_attaching_follows_a_stack_of_groups(script: list[str]) -> None:
    """Play calls and launches one after the other, and keep the open group as NCCL does."""
    export, at, launches = Export(), 100, 0
    expected: dict[int, list[int]] = {}
    queued: list[int] = []
    depth = number = 0
    for move in script:
        at += 100
        if move in ("start", "end"):
            export.call("ncclGroupStart" if move == "start" else "ncclGroupEnd", at, 50)
            depth = depth + 1 if move == "start" else max(depth - 1, 0)
            if move == "end" and depth == 0:
                export.kernel("ncclDevKernel_SendRecv", 100_000 + at, at=at + 10)
                expected[launches], queued, launches = queued, [], launches + 1
        elif move == "call":
            number += 1
            export.call("ncclAllReduce", at, 50, comm=7, size=number)
            queued.append(number)
            if depth == 0:
                export.kernel(NAMES["ncclAllReduce"], 100_000 + at, at=at + 10)
                expected[launches], queued, launches = queued, [], launches + 1
        elif move == "launch":  # the program's own, between the calls
            export.kernel("gemm", 100_000 + at, at=at + 60)
            launches += 1
    with tempfile.TemporaryDirectory() as folder:
        if not launches:
            return
        rows = parsed(export, Path(folder)).communications
    found: dict[int, list[int]] = {}
    for event, size in zip(rows["event"].tolist(), rows["buffer_bytes"].tolist(), strict=True):
        if event != NONE:
            found.setdefault(event, []).append(size)
    assert found == {event: sizes for event, sizes in expected.items() if sizes}


class TestCopyEngines:
    def test_copies_between_devices_carry_a_call_without_a_kernel(self, tmp_path: Path) -> None:
        export = Export().call("ncclAllGather", 1_000, 300, **COMM, size=64)
        for place in range(2):
            export.device(
                MEMCPY, 3_000 + 200 * place, at=1_050 + 60 * place, call="cudaMemcpyAsync_v3020",
                copyKind=8, srcKind=2, dstKind=2, bytes=64,
            )  # fmt: skip
        found = identified(export, tmp_path)
        assert [o.op for o in found.operations] == ["all_gather"]
        assert found.event_class.tolist() == [COMMUNICATION, COMMUNICATION]

    def test_copies_beside_the_kernel_are_copies(self, tmp_path: Path) -> None:
        export = Export().call("ncclAllGather", 1_000, 300, **COMM, size=64)
        export.kernel(NAMES["ncclAllGather"], 3_000, at=1_050)
        export.device(MEMCPY, 2_500, at=1_020, copyKind=8, bytes=64)
        assert identified(export, tmp_path).event_class.tolist() == [COPY, COMMUNICATION]

    @pytest.mark.parametrize("kind", [1, 2])
    def test_copies_from_and_to_the_host_are_copies(self, kind: int, tmp_path: Path) -> None:
        export = Export().call("ncclAllGather", 1_000, 300, **COMM, size=64)
        export.device(MEMCPY, 2_500, at=1_020, copyKind=kind, bytes=64)
        assert identified(export, tmp_path).event_class.tolist() == [COPY]


class TestExchanges:
    """A kernel that sends and receives: an all-to-all, or messages."""

    def group(self, export: Export, *peers: int) -> Export:
        return export.group(messages(*peers), 9_000)

    def test_torch_says_so(self, tmp_path: Path) -> None:
        export = self.group(Export(), 0, 1).range("nccl:all_to_all, op_id = 1", 7_900, 8_500)
        (found,) = operations(export, tmp_path)
        assert (found.op, found.buffer_bytes, found.in_splits) == ("all_to_all", 128, "[64, 64]")

    def test_even_if_payloads_are_not_exported(self, tmp_path: Path) -> None:
        export = self.group(Export(blobs=False), 0, 1).range("nccl:all_to_all", 7_900, 8_500)
        (found,) = operations(export, tmp_path)
        assert (found.op, found.buffer_bytes) == ("all_to_all", None)

    def test_a_message_to_itself_is_an_all_to_all(self, tmp_path: Path) -> None:
        export = Export().call("ncclCommInitRank", 100, **COMM, nranks=8, rank=3)
        (found,) = operations(self.group(export, 2, 3, 4), tmp_path)
        assert (found.op, found.buffer_bytes) == ("all_to_all", 192)

    def test_messages_to_every_member_are_one(self, tmp_path: Path) -> None:
        export = Export().call("ncclCommInitRank", 100, **COMM, nranks=2, rank=5)
        (found,) = operations(self.group(export, 0, 1), tmp_path)
        assert found.op == "all_to_all"

    def test_messages_to_both_neighbours_are_messages(self, tmp_path: Path) -> None:
        export = Export().call("ncclCommInitRank", 100, **COMM, nranks=8, rank=3)
        found = operations(self.group(export, 2, 4), tmp_path)
        assert [(o.op, o.root, o.buffer_bytes) for o in found] == [
            ("send", 2, 64), ("recv", 2, 64), ("send", 4, 64), ("recv", 4, 64),
        ]  # fmt: skip

    def test_nobody_says_what_a_batch_without_peers_is(self, tmp_path: Path) -> None:
        export = self.group(Export(blobs=False), 0, 1)
        (found,) = operations(export, tmp_path)
        assert (found.op, found.buffer_bytes) == ("send_recv", None)

    def test_one_message_without_a_peer_is_that_message(self, tmp_path: Path) -> None:
        export = Export(blobs=False).collective("ncclSend", 5_000, kernel="ncclDevKernel_SendRecv")
        (found,) = operations(export, tmp_path)
        assert (found.op, found.buffer_bytes) == ("send", None)

    def test_an_uneven_all_to_all(self, tmp_path: Path) -> None:
        calls = [
            (name, {**COMM, "size": size, "peer": peer})
            for peer, size in ((0, 10), (1, 30))
            for name in ("ncclSend", "ncclRecv")
        ]
        export = Export().group(calls, 9_000).range("nccl:all_to_allv", 7_900, 8_500)
        (found,) = operations(export, tmp_path)
        assert (found.buffer_bytes, found.in_splits) == (40, "[10, 30]")

    def test_a_gather_of_uneven_parts_is_written_as_broadcasts(self, tmp_path: Path) -> None:
        calls = [
            ("ncclBroadcast", {**COMM, "size": size, "root": root})
            for root, size in ((0, 10), (1, 30))
        ]
        export = Export().group(calls, 9_000, kernel=NAMES["ncclBroadcast"])
        export.range("nccl:all_gather", 7_900, 8_500)
        (found,) = operations(export, tmp_path)
        assert (found.op, found.buffer_bytes, found.root) == ("all_gather", 40, None)

    @pytest.mark.parametrize("op", ["gather", "scatter"])
    def test_gathers_and_scatters_are_written_as_messages(self, op: str, tmp_path: Path) -> None:
        export = self.group(Export(), 1, 2, 3).range(f"nccl:{op}", 7_900, 8_500)
        (found,) = operations(export, tmp_path)
        assert (found.op, found.part_bytes, found.buffer_bytes) == (op, 64, None)

    def test_coalesced_collectives_are_each_their_own(self, tmp_path: Path) -> None:
        calls = [("ncclAllGather", {**COMM, "size": size}) for size in (16, 32)]
        export = Export().group(calls, 9_000, kernel=NAMES["ncclAllGather"])
        export.range("nccl:coalesced", 7_900, 8_500)
        found = identified(export, tmp_path)
        assert [(o.op, o.part_bytes) for o in found.operations] == [
            ("all_gather", 16), ("all_gather", 32),
        ]  # fmt: skip
        assert event_ops(found) == ["all_gather"]


class TestTypes:
    @pytest.mark.parametrize(
        ("call", "dtype"), [("ncclAllReduce", "bfloat16"), ("ncclReduceScatter", "float32")]
    )
    def test_a_kernels_name_tells_what_it_reduces(
        self, call: str, dtype: str, tmp_path: Path
    ) -> None:
        export = Export().collective(call, 5_000, **COMM, size=64)
        assert [o.dtype for o in operations(export, tmp_path)] == [dtype]

    @pytest.mark.parametrize("call", ["ncclAllGather", "ncclBroadcast"])
    def test_but_not_what_it_gathers(self, call: str, tmp_path: Path) -> None:
        export = Export().collective(call, 5_000, **COMM, size=64)
        assert [o.dtype for o in operations(export, tmp_path)] == [""]

    def test_nor_if_it_carries_several_calls(self, tmp_path: Path) -> None:
        calls = [("ncclAllReduce", {**COMM, "size": size}) for size in (16, 32)]
        export = Export().group(calls, 9_000, kernel=NAMES["ncclAllReduce"])
        assert [o.dtype for o in operations(export, tmp_path)] == ["", ""]


class TestContext:
    def test_backward_takes_the_range_of_the_main_thread(self, tmp_path: Path) -> None:
        export = Export().range("backward_step mb=3", 4_000, 6_000)
        export.collective("ncclAllReduce", 5_000, tid=AUTOGRAD, **COMM, size=64)
        (found,) = operations(export, tmp_path)
        assert found.mark == "backward_step mb=3"

    def test_unless_it_has_one_of_its_own(self, tmp_path: Path) -> None:
        export = Export().range("backward", 4_000, 6_000)
        export.range("FSDP::post_backward_reduce", 4_500, 5_500, tid=AUTOGRAD)
        export.collective("ncclReduceScatter", 5_000, tid=AUTOGRAD, **COMM, size=64)
        (found,) = operations(export, tmp_path)
        assert found.mark == "FSDP::post_backward_reduce"

    def test_kernels_of_deep_ep_are_known_by_name(self, tmp_path: Path) -> None:
        export = Export().kernel("void deep_ep::internode::dispatch<true>(int4*)", 1_000)
        export.kernel("void deep_ep::layout::get_dispatch_layout<256>(long const*)", 2_000)
        assert event_ops(identified(export, tmp_path)) == ["all_to_all", "unknown"]

    def test_launches_of_unknown_time_have_no_thread(self, tmp_path: Path) -> None:
        export = Export().kernel(NAMES["ncclAllReduce"], 1_000, at=None)
        (found,) = operations(export, tmp_path)
        assert (found.op, found.source, found.launch) == ("all_reduce", "name", None)


def test_group_rank_is_the_place_in_the_communicator(tmp_path: Path) -> None:
    export = Export().call("ncclCommInitRank", 100, **COMM, nranks=2, rank=1)
    trace = parsed(export.kernel("gemm", 1_000), tmp_path)
    (group,) = trace.info.process_groups
    assert (group.size, group.place, group.ranks) == (2, 1, None)
    assert trace.info.process == PID
    assert trace.info.rank is None
    assert NONE not in (group.size, group.place)

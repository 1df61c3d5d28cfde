"""One rank, reduced: whole traces through `reduce_rank`, random and known ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from builders import GENERIC, RING, Group, Trace
from hypothesis import given
from hypothesis import strategies as st
from strategies import DeviceEvent, device_events

from tracelens.communication import COMMUNICATION, COPY
from tracelens.model.trace import DEVICE_EVENTS, MARKS, NONE, RankInfo, RankTrace, frame
from tracelens.operations import OPERATIONS
from tracelens.reduction import Selection, reduce_rank

if TYPE_CHECKING:
    from tracelens.model.result import Partition
    from tracelens.reduced import RankReduction

OP_KERNELS = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "ncclDevKernel_AllGather_RING_LL",
    "nvshmem_alltoallmem_kernel",
)


def rank_trace(events: list[DeviceEvent], lengths: list[int]) -> RankTrace:
    """Build a trace of random device events under consecutive step marks."""
    communicates = [event.event_class == COMMUNICATION for event in events]
    data: dict[str, Any] = {
        "process": [1] * len(events),
        "device": [0] * len(events),
        "start": [event.start for event in events],
        "end": [event.start + event.duration for event in events],
        "name": [
            OP_KERNELS[e.op] if c else "gemm" for e, c in zip(events, communicates, strict=True)
        ],
        "kind": ["copy" if event.event_class == COPY else "kernel" for event in events],
        "launch": [NONE if event.launch is None else event.launch for event in events],
    }
    edges = np.concatenate(([0], np.cumsum(lengths)))
    names = [f"ProfilerStep#{number}" for number in range(len(lengths))]
    marks = {"name": names, "start": edges[:-1], "end": edges[1:], "thread": [1] * len(lengths)}
    return RankTrace(
        RankInfo("trace.json", "kineto", rank=0),
        device_events=frame(DEVICE_EVENTS, data),
        marks=frame(MARKS, marks),
    )


def assert_closed(part: Partition) -> None:
    whole = part.compute_ns + part.exposed_comm_ns + part.exposed_copy_ns + part.idle_ns
    assert whole == part.window_ns
    assert sum(part.exposed_by_op_ns.values()) == part.exposed_comm_ns
    assert part.overlapped_comm_ns + part.exposed_comm_ns == part.comm_ns


step_lengths = st.lists(st.integers(1, 30), max_size=4)


@given(device_events(min_size=1), step_lengths)
def test_every_window_closes(events: list[DeviceEvent], lengths: list[int]) -> None:
    reduction = reduce_rank(rank_trace(events, lengths))
    (device,) = reduction.devices
    assert_closed(device.total)
    assert device.total.window_ns == max(e.start + e.duration for e in events) - events[0].start
    assert len(device.steps) == len(lengths)
    for step in device.steps:
        assert_closed(step.partition)


@given(device_events(min_size=1), step_lengths)
def test_times_of_operations_add_up(events: list[DeviceEvent], lengths: list[int]) -> None:
    """Each kernel is an operation here: exposed times sum to the partition's, per window too."""
    reduction = reduce_rank(rank_trace(events, lengths))
    (device,) = reduction.devices
    operations, per_step = reduction.operations, reduction.operation_steps
    comms = [event for event in events if event.event_class == COMMUNICATION]
    assert len(operations) == len(comms)
    assert operations["time_ns"].sum() == sum(event.duration for event in comms)
    assert operations["exposed_ns"].sum() == device.total.exposed_comm_ns
    for index, step in enumerate(device.steps):
        mine = per_step[per_step["step"] == index]
        assert mine["exposed_ns"].sum() == step.partition.exposed_comm_ns


@given(device_events(min_size=1), step_lengths)
def test_kernel_times_lose_nothing(events: list[DeviceEvent], lengths: list[int]) -> None:
    kernels = reduce_rank(rank_trace(events, lengths)).kernels
    assert kernels["count"].sum() == len(events)
    assert kernels["total_ns"].sum() == sum(event.duration for event in events)


def table(reduction: RankReduction) -> list[tuple[str, int, int, int]]:
    """Return (operation, step, message bytes, wire bytes) of each row."""
    rows = reduction.operations
    names = [OPERATIONS[code] for code in rows["op"]]
    return list(zip(names, rows["step"], rows["message_bytes"], rows["wire_bytes"], strict=True))


class TestBytes:
    """Each operation in both conventions; bf16 is two bytes."""

    @pytest.mark.parametrize(
        ("name", "in_elems", "out_elems", "operation", "message", "wire"),
        [
            ("allreduce", 100, 100, "all_reduce", 400, 300),
            ("_allgather_base", 100, 400, "all_gather", 800, 600),
            ("_reduce_scatter_base", 400, 100, "reduce_scatter", 800, 600),
            ("all_to_all", 400, 400, "all_to_all", 800, 600),
            ("broadcast", 100, 100, "broadcast", 200, 200),
            ("reduce", 100, 100, "reduce", 200, 200),
            ("send", 100, 100, "send", 200, 200),
            ("recv", 100, 100, "recv", 0, 0),
        ],
    )
    def test_of_each_operation(
        self, name: str, in_elems: int, out_elems: int, operation: str, message: int, wire: int
    ) -> None:
        trace = Trace(world=4).collective(name, 500, 60, in_elems, out_elems, kernel=GENERIC)
        assert table(trace.step(1, 0, 1000).reduce()) == [(operation, 0, message, wire)]

    def test_all_to_all_v_keeps_the_own_split(self) -> None:
        trace = Trace(rank=2, world=4)
        splits = [10, 20, 30, 40]  # rows; a row has 8 elements
        trace.collective("all_to_allv", 500, 60, 800, 640, in_splits=splits)
        assert table(trace.reduce()) == [("all_to_all", -1, 1600, 1600 - 30 * 8 * 2)]

    def test_the_own_split_is_the_place_in_the_group(self) -> None:
        trace = Trace(rank=5, world=8, groups=())
        group = Group((1, 5), "3", "mesh_ep")
        trace.collective("all_to_allv", 500, 60, 400, 400, in_splits=[30, 10], group=group)
        assert table(trace.reduce())[0][3] == 800 - 10 * 10 * 2

    def test_cut_or_missing_splits_fall_back_to_the_share(self) -> None:
        for splits in ("[1, 2, ...]", "[]", [1, 2], "[1, x, 2, -3]", "nonsense"):
            trace = Trace(world=4).collective("all_to_allv", 500, 60, 400, 400, in_splits=splits)
            assert table(trace.reduce())[0][3] == 600

    def test_unknown_sizes_are_none_and_not_zero(self) -> None:
        assert table(Trace().kernel(RING, 500, 60).reduce()) == [("all_reduce", -1, NONE, NONE)]

    def test_unknown_dtypes_have_elements_but_no_bytes(self) -> None:
        reduction = Trace().all_reduce(500, 60, 9, dtype="Float6_e3m2").reduce()
        assert reduction.operations["message_elements"].tolist() == [18]
        assert table(reduction) == [("all_reduce", -1, NONE, NONE)]

    @pytest.mark.parametrize("elements", [-1, 1 << 60, (1 << 63) - 1, 1 << 64, 10**400])
    def test_sizes_that_cannot_be_are_unknown(self, elements: int) -> None:
        trace = Trace(world=4).all_reduce(500, 60, elements)
        assert table(trace.reduce()) == [("all_reduce", -1, NONE, NONE)]
        trace = Trace(world=4).all_gather(500, 60, 1 << 47)  # times four
        assert table(trace.reduce()) == [("all_gather", -1, NONE, NONE)]

    def test_nothing_is_nothing_whatever_its_dtype(self) -> None:
        reduction = Trace().all_reduce(500, 60, 0, dtype="").reduce()
        assert table(reduction) == [("all_reduce", -1, 0, 0)]


def two_steps() -> Trace:
    """Build the standard steps of the cases: compute 700, comm 300, of which 100 exposed."""
    trace = Trace()
    for number, start in ((10, 1000), (11, 2000)):
        trace.step(number, start, 1000)
        for offset, length in ((100, 300), (400, 200), (700, 200)):
            trace.kernel("gemm", start + offset, length)
        trace.all_reduce(start + 500, 300, 100)
    return trace


class TestSteps:
    def test_the_standard_step(self) -> None:
        (device,) = two_steps().reduce().devices
        for step in device.steps:
            part = step.partition
            assert (part.window_ns, step.period_ns, step.complete) == (1_000_000, 1_000_000, True)
            assert (part.compute_ns, part.comm_ns, part.exposed_comm_ns) == (
                700_000,
                300_000,
                100_000,
            )
            assert (part.busy_ns, part.idle_ns) == (800_000, 200_000)
        assert device.before_first_step == 0

    def test_calls_go_to_the_launching_step(self) -> None:
        trace = two_steps().all_reduce(2050, 40, 7, launch=1900)
        rows = trace.reduce().operations
        late = rows[rows["elements"] == 7].iloc[0]
        assert late["step"] == 0
        per_step = trace.reduce().operation_steps
        assert per_step[per_step["row"] == late.name]["step"].tolist() == [0]

    def test_time_is_cut_where_windows_meet(self) -> None:
        trace = two_steps().kernel("tail", 2050, 100, stream=9, launch=1900)
        first, second = trace.reduce().devices[0].steps
        # runs from 2050 to 2150; the window of step 11 opens at 2100
        assert first.partition.compute_ns == 750_000
        assert second.partition.compute_ns == 700_000  # its second half hides behind a gemm

    def test_before_the_first_step(self) -> None:
        trace = (
            two_steps()
            .kernel(RING, 900, 50, stream=20, launch=None)
            .kernel("gemm", 1010, 50, launch=950)
        )
        reduction = trace.reduce()
        (device,) = reduction.devices
        assert device.before_first_step == 2
        assert device.total.window_ns == 2_000_000
        assert [step.partition.comm_ns for step in device.steps] == [300_000, 300_000]
        assert reduction.operations["step"].tolist()[0] == -1

    def test_a_lost_record_makes_its_step_incomplete(self) -> None:
        trace = two_steps().call("cudaLaunchKernel", 2500, correlation=999_999)
        (device,) = trace.reduce().devices
        assert [step.complete for step in device.steps] == [True, False]
        assert [s.partition.launches_without_record for s in device.steps] == [0, 1]
        assert device.total.launches_without_record == 1
        assert trace.reduce().lost == 1

    def test_without_a_timeline_there_are_no_steps(self) -> None:
        """Of a process whose device events are lost, marks and records can be all that is left."""
        trace = Trace().step(1, 0, 1000).step(2, 1000, 1000).record("allreduce", 1200)
        reduction = trace.reduce()
        assert reduction.devices == []
        assert reduction.operations["step"].tolist() == [-1]
        assert reduction.step_count == 0

    @pytest.mark.parametrize(("lost", "whole"), [(0, [False, False]), (1, [True, False])])
    def test_without_the_next_steps_first_record_a_steps_end_is_unknown(
        self, lost: int, whole: list[bool]
    ) -> None:
        trace = Trace().step(1, 0, 1000).step(2, 1000, 1000).kernel("a", 100, 50)
        for at, start in enumerate((1100, 1300)):
            if at == lost:
                trace.call("cudaLaunchKernel", start - 20, 5, correlation=7)
            else:
                trace.kernel("b", start, 50)
        steps = trace.reduce().devices[0].steps
        assert [step.complete for step in steps] == whole

    @pytest.mark.parametrize(
        "name",
        ["cudaMemsetAsync", "cudaStreamSynchronize", "cudaMalloc", "cudaLaunchHostFunc",
         "cudaGraphAddMemcpyNode", "cudaEventRecord"],
    )  # fmt: skip
    def test_calls_that_need_no_record(self, name: str) -> None:
        trace = two_steps().call(name, 2500, correlation=999_999)
        assert trace.reduce().lost == 0

    def test_an_untimed_event_is_no_lost_record(self) -> None:
        trace = two_steps().kernel("gemm", 0, 0, launch=2500)
        reduction = trace.reduce()
        assert reduction.lost == 0
        assert reduction.devices[0].untimed == 1
        assert reduction.devices[0].total.window_ns == 1_800_000

    def test_no_steps(self) -> None:
        (device,) = Trace().kernel("gemm", 100, 50).reduce().devices
        assert (device.steps, device.before_first_step) == ([], 0)
        assert device.total.window_ns == 50_000

    def test_a_user_pattern(self) -> None:
        trace = two_steps().mark("mini 1", 1000, 500).mark("mini 2", 1500, 1500)
        reduction = trace.reduce(Selection(step_pattern=r"mini (\d)"))
        assert [step.step for step in reduction.devices[0].steps] == [1, 2]
        assert reduction.step_source == "pattern"

    def test_marks_are_counted_per_step(self) -> None:
        trace = (
            two_steps()
            .mark("forward", 1100, 10)
            .mark("forward", 1200, 10)
            .mark("forward", 2100, 10)
        )
        counts = trace.reduce().mark_counts
        forward = counts[counts["name"] == "forward"]
        assert list(zip(forward["step"], forward["count"], strict=True)) == [(0, 2), (1, 1)]


class TestSelection:
    @pytest.mark.parametrize(
        ("first", "last", "kept"), [(11, None, [11]), (None, 10, [10]), (12, 14, [])]
    )
    def test_keeps_the_steps_asked_for(
        self, first: int | None, last: int | None, kept: list[int]
    ) -> None:
        reduction = two_steps().reduce(Selection(first, last))
        assert [step.step for step in reduction.devices[0].steps] == kept

    @pytest.mark.parametrize("kept", [10, 11])
    def test_does_not_change_a_steps_numbers(self, kept: int) -> None:
        trace = two_steps().kernel("tail", 2050, 100, stream=9, launch=1900)
        every = {step.step: step for step in trace.reduce().devices[0].steps}
        (chosen,) = trace.reduce(Selection(kept, kept)).devices[0].steps
        assert chosen == every[kept]

    def test_does_not_call_earlier_steps_before_the_first(self) -> None:
        assert two_steps().reduce(Selection(first_step=11)).devices[0].before_first_step == 0


class TestDevices:
    def test_two_devices_are_two_timelines(self) -> None:
        trace = Trace().step(1, 0, 1000)
        trace.kernel("gemm", 100, 200, device=0).all_reduce(300, 100, device=0)
        trace.kernel("gemm", 300, 100, device=1).all_reduce(500, 50, device=1)
        reduction = trace.reduce()
        first, second = (device.total for device in reduction.devices)
        assert [device.device for device in reduction.devices] == [0, 1]
        assert (first.compute_ns, first.exposed_comm_ns) == (200_000, 100_000)
        assert (second.compute_ns, second.exposed_comm_ns) == (100_000, 50_000)
        assert [len(device.steps) for device in reduction.devices] == [1, 1]

    def test_several_streams_are_one_timeline(self) -> None:
        trace = Trace().kernel("gemm", 100, 200, stream=7).kernel("gemm", 150, 100, stream=13)
        assert trace.reduce().devices[0].total.compute_ns == 200_000


def test_an_operation_ends_with_its_last_kernel() -> None:
    trace = Trace().all_reduce(500, 60, launch=400)
    record = {"External id": 101}  # the first id a trace hands out
    trace.kernel(RING, 510, 10, stream=21, launch=401, args=record)
    rows = trace.reduce().operations
    assert rows["start"].tolist() == [500_000]
    assert rows["end"].tolist() == [560_000]


def test_first_and_last_moment_are_absolute() -> None:
    trace = Trace(base_ns=10**18).kernel("gemm", "100.001", "50.002")
    reduction = trace.reduce()
    assert (reduction.first_ns, reduction.last_ns) == (10**18 + 100_001, 10**18 + 150_003)

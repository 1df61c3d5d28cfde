"""CPU runs: gloo's ranges are the communication, operators outside of them the compute."""

from __future__ import annotations

from builders import Group, Trace

from tracelens.host_timeline import HostTimeline, build
from tracelens.operations import OPERATIONS

WORLD4 = Group((0, 1, 2, 3))


def timeline(trace: Trace) -> HostTimeline:
    return build(trace.parse())


def test_an_operator_is_linked_to_its_range() -> None:
    trace = Trace().gloo("allreduce_", 500, 60, [[[9]]], annotated="all_reduce", enqueued=400)
    (operation,) = timeline(trace).operations
    assert (operation.op, operation.source, operation.in_elems) == ("all_reduce", "operator", 9)
    assert (operation.launch, operation.event, operation.dtype) == (400_000, 0, "float")


def test_a_reduce_scatter_is_annotated_as_all_reduce() -> None:
    trace = Trace().gloo("_reduce_scatter_base_", 500, 60, [[2], [8]], annotated="all_reduce")
    got = timeline(trace)
    assert [(o.op, o.in_elems, o.out_elems) for o in got.operations] == [("reduce_scatter", 8, 2)]


def test_an_all_gather_knows_both_sides() -> None:
    trace = Trace().gloo("_allgather_base_", 500, 60, [[8], [2]], annotated="all_gather")
    got = timeline(trace)
    assert [(o.op, o.in_elems, o.out_elems) for o in got.operations] == [("all_gather", 2, 8)]


def test_equal_ranges_are_taken_in_order() -> None:
    trace = Trace()
    for at in (500, 700, 900):
        trace.gloo("allreduce_", at, 60, [[[9]]], annotated="all_reduce", enqueued=at - 50)
    got = timeline(trace)
    starts = [got.start[o.event] for o in got.operations if o.event is not None]
    assert starts == [500_000, 700_000, 900_000]


def test_ranges_are_matched_by_size_not_by_order() -> None:
    trace = Trace()
    trace.gloo("allreduce_", 900, 10, [[[9]]], annotated="all_reduce", enqueued=100)
    trace.gloo("allreduce_", 500, 10, [[[5]]], annotated="all_reduce", enqueued=200)
    got = timeline(trace)
    pairs = {o.in_elems: int(got.start[o.event]) for o in got.operations if o.event is not None}
    assert pairs == {9: 900_000, 5: 500_000}


def test_operators_without_shapes_take_the_ranges_in_order() -> None:
    trace = Trace()
    for at, size in ((500, 9), (700, 5)):
        trace.operator(
            "c10d::allreduce_",
            at - 50,
            10,
            args={"Input Dims": [[], []], "Input type": ["TensorList"]},
        )
        trace.gloo("allreduce_", at, 60, [[size]], annotated="all_reduce", enqueued=None)
    got = timeline(trace)
    assert [(o.in_elems, o.source) for o in got.operations] == [(9, "operator"), (5, "operator")]


def test_an_unsized_gather_takes_only_the_input_from_its_range() -> None:
    trace = Trace().operator("c10d::allgather_", 450, 10)
    trace.gloo("allgather_", 500, 60, [[3]], annotated="all_gather", enqueued=None)
    assert [(o.in_elems, o.out_elems) for o in timeline(trace).operations] == [(3, None)]


def test_a_range_whose_operator_was_not_recorded() -> None:
    trace = Trace().gloo("allreduce_", 500, 60, [[9]], annotated="all_reduce", enqueued=None)
    assert [(o.source, o.in_elems, o.launch) for o in timeline(trace).operations] == [
        ("annotation", 9, None)
    ]


def test_an_operator_whose_range_was_not_recorded() -> None:
    trace = (
        Trace()
        .operator("aten::mm", 10, 20)
        .operator("c10d::allreduce_", 50, 5, args={"Input Dims": [[[9]]]})
    )
    assert [(o.in_elems, o.event) for o in timeline(trace).operations] == [(9, None)]


def test_a_range_that_ran_before_the_operator_is_not_its() -> None:
    trace = Trace().gloo("allreduce_", 300, 60, [[9]], annotated="all_reduce", enqueued=None)
    trace.operator("c10d::allreduce_", 400, 5, args={"Input Dims": [[[9]]]})
    assert sorted(o.source for o in timeline(trace).operations) == ["annotation", "operator"]


def test_barriers_and_waits_move_nothing() -> None:
    trace = (
        Trace()
        .operator("c10d::barrier", 100, 50)
        .operator("_c10d_functional::wait_tensor", 200, 50)
    )
    trace.operator("aten::mm", 10, 20)
    assert timeline(trace).operations == []


def test_compute_is_operator_time_outside_collectives_and_waits() -> None:
    trace = Trace().step(1, 0, 1000)
    trace.operator("aten::linear", 100, 100).operator("aten::addmm", 110, 50)
    trace.operator("_c10d_functional::all_reduce", 300, 60)
    trace.operator("aten::outer", 400, 100).operator("_c10d_functional::wait_tensor", 420, 30)
    trace.operator("autograd::engine", 600, 50, thread=2)
    reduction = trace.reduce()
    assert reduction.devices[0].total.compute_ns == (100 + 70 + 50) * 1000
    assert reduction.devices[0].total.comm_ns == 0


def test_the_run_loop_threads_do_not_compute() -> None:
    trace = Trace().operator("aten::mm", 100, 50)
    trace.gloo("allreduce_", 500, 60, [[[9]]], annotated="all_reduce")
    trace.operator("aten::copy_", 510, 20, thread=90)
    reduction = trace.reduce()
    total = reduction.devices[0].total
    assert (total.compute_ns, total.comm_ns, total.overlapped_comm_ns) == (50_000, 60_000, 0)


def test_ranges_on_the_main_thread_do_not_silence_it() -> None:
    trace = Trace().step(1, 0, 1000).operator("aten::mm", 100, 50)
    trace.gloo("send", 500, 60, [[[9]]], annotated="send", loop_thread=1)
    assert trace.reduce().devices[0].total.compute_ns == 50_000


def test_operations_point_at_their_events_in_time_order() -> None:
    trace = Trace().operator("aten::mm", 100, 50).operator("aten::mm", 800, 50)
    trace.gloo("allreduce_", 500, 60, [[[9]]], annotated="all_reduce")
    got = timeline(trace)
    assert got.start.tolist() == [100_000, 500_000, 800_000]
    (operation,) = got.operations
    assert operation.event == 1
    assert OPERATIONS[got.event_op[1]] == "all_reduce"


def test_steps_cut_host_time_by_their_marks() -> None:
    trace = Trace().step(1, 0, 400).step(2, 400, 400)
    trace.operator("aten::mm", 350, 100)
    trace.gloo("allreduce_", 380, 200, [[[9]]], annotated="all_reduce", enqueued=370)
    reduction = trace.reduce()
    first, second = (step.partition for step in reduction.devices[0].steps)
    assert (first.window_ns, second.window_ns) == (400_000, 400_000)
    assert (first.compute_ns, second.compute_ns) == (40_000, 50_000)  # 10 us enqueue a collective
    assert (first.comm_ns, second.comm_ns) == (20_000, 180_000)
    assert reduction.operations["step"].tolist() == [0]


def test_a_trace_with_nothing_in_it() -> None:
    assert Trace().mark("forward", 0, 10).reduce().devices == []


def test_gloo_bytes_use_the_groups_size() -> None:
    trace = Trace(world=4, groups=(WORLD4,))
    trace.gloo("allgather_", 500, 60, [[], [[3]]], annotated="all_gather", types=["", "float"])
    row = trace.reduce().operations.iloc[0]
    assert row["elements"] == 12
    assert row["wire_bytes"] == 36

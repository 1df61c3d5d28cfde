"""Which kernels communicate, by which evidence, and that each operation is counted once."""

from __future__ import annotations

import re
from typing import Any

import pytest
from builders import GENERIC, RING, SEND_RECV, Group, Schema, Trace

from tracelens.communication import COMMUNICATION, COMPUTE, Identified, identify
from tracelens.operations import OPERATIONS, Rule

MIB = 1 << 20


def identified(trace: Trace, *rules: Rule) -> Identified:
    return identify(trace.parse(), rules)


def found(trace: Trace, *rules: Rule) -> list[tuple[str, str, int | None]]:
    """Return (operation, source, elements in) of each operation."""
    return [(o.op, o.source, o.in_elems) for o in identified(trace, *rules).operations]


def ops_of_events(trace: Trace, *rules: Rule) -> list[str | None]:
    result = identified(trace, *rules)
    return [
        OPERATIONS[op] if which == COMMUNICATION else None
        for op, which in zip(result.event_op, result.event_class, strict=True)
    ]


class TestLayers:
    """Each layer wins over the next; a weaker one fills what a stronger one left open."""

    def test_arguments_on_the_kernel(self) -> None:
        trace = Trace().collective("_reduce_scatter_base", 500, 60, 8, 4, kernel=RING)
        assert found(trace) == [("reduce_scatter", "args", 8)]

    def test_record_by_external_id(self) -> None:
        trace = Trace().collective(
            "_allgather_base", 500, 60, 8, 16, kernel=GENERIC, link="external"
        )
        assert found(trace) == [("all_gather", "record", 8)]

    def test_record_by_launch_time_only(self) -> None:
        trace = Trace().collective("_allgather_base", 500, 60, 8, 16, kernel=GENERIC, link="time")
        assert found(trace) == [("all_gather", "record", 8)]

    def test_operator_around_an_old_record(self) -> None:
        trace = Trace(schema=Schema(torch="2.1"))
        trace.operator(
            "c10d::allreduce_", 470, 50, args={"Input Dims": [[[9]]], "Input type": ["TensorList"]}
        )
        trace.collective("allreduce", 500, 60, 9, 9, kernel=GENERIC, link="external", dims=[[9]])
        assert found(trace) == [("all_reduce", "operator", 9)]

    def test_annotation_where_nothing_else_is(self) -> None:
        trace = Trace(schema=Schema(torch="2.1")).kernel(SEND_RECV, 500, 60)
        shape = {"Input Dims": [[7]], "Input type": ["float"]}
        trace.mark("nccl:all_to_all", 470, 40, args=shape)
        assert found(trace) == [("all_to_all", "annotation", 7)]

    def test_name_alone_has_no_size(self) -> None:
        assert found(Trace().kernel(RING, 500, 60)) == [("all_reduce", "name", None)]

    def test_a_generic_name_alone_is_unknown_communication(self) -> None:
        assert found(Trace().kernel(GENERIC, 500, 60)) == [("unknown", "name", None)]

    def test_a_rule_names_what_nothing_else_knows(self) -> None:
        rule = Rule(re.compile("acme_ring"), "all_gather")
        trace = Trace().kernel("acme_ring_fast", 500, 60).kernel("acme_gemm", 600, 60)
        assert ops_of_events(trace, rule) == ["all_gather", None]
        assert found(trace, rule) == [("all_gather", "rule", None)]
        assert found(trace) == []

    def test_a_rule_names_a_generic_kernel_but_loses_to_a_known_name(self) -> None:
        rule = Rule(re.compile("nccl"), "broadcast")
        assert ops_of_events(Trace().kernel(GENERIC, 500, 60), rule) == ["broadcast"]
        assert ops_of_events(Trace().kernel(RING, 500, 60), rule) == ["all_reduce"]

    def test_a_rule_loses_to_arguments(self) -> None:
        rule = Rule(re.compile("nccl"), "broadcast")
        assert ops_of_events(Trace().all_reduce(500, 60, kernel=GENERIC), rule) == ["all_reduce"]

    def test_the_record_fills_what_the_kernel_lacks(self) -> None:
        # torch 2.3 copied sizes to the kernel, but not the collective's name
        trace = Trace(schema=Schema(torch="2.3")).all_gather(500, 60, 8, kernel=GENERIC)
        (operation,) = identified(trace).operations
        assert (operation.op, operation.in_elems, operation.out_elems) == ("all_gather", 8, 16)

    @pytest.mark.parametrize("torch", ["2.1", "2.2", "2.3", "2.4", "2.5", "2.12"])
    def test_every_release_knows_the_size(self, torch: Any) -> None:
        trace = Trace(schema=Schema(torch=torch))
        trace.operator(
            "c10d::allreduce_", 470, 50, args={"Input Dims": [[[9]]], "Input type": ["TensorList"]}
        )
        trace.all_reduce(500, 60, 9, dims=[[9]])
        (operation,) = identified(trace).operations
        assert (operation.op, operation.in_elems) == ("all_reduce", 9)

    def test_compute_inside_a_record_is_compute(self) -> None:
        trace = Trace().all_reduce(500, 60, launch=480).kernel("acme_flatten", 300, 50, launch=485)
        assert ops_of_events(trace) == [None, "all_reduce"]


class TestNotCollectives:
    @pytest.mark.parametrize("name", ["wait", "init", ""])
    def test_pseudo_records_are_no_operations(self, name: str) -> None:
        trace = Trace().kernel("gemm", 100, 50).record(name, 200).record("barrier", 300)
        result = identified(trace)
        assert result.operations == []
        assert result.without_device_time == 0

    def test_a_kernel_launched_by_a_wait_record_is_compute(self) -> None:
        trace = (
            Trace()
            .record("wait", 470, 50, external=55)
            .kernel("gemm", 500, 50, args={"External id": 55})
        )
        assert ops_of_events(trace) == [None]

    def test_a_barriers_kernel_takes_time_but_moves_nothing(self) -> None:
        trace = Trace().collective("barrier", 500, 60, 0, 0)
        reduction = trace.step(1, 0, 1000).reduce()
        assert reduction.devices[0].total.comm_ns == 60_000
        assert set(reduction.operations["message_bytes"]) <= {0}
        assert OPERATIONS[reduction.operations["op"][0]] == "barrier"

    def test_a_group_of_one_without_a_kernel(self) -> None:
        trace = Trace().kernel("gemm", 100, 50)
        trace.record("allreduce", 200, group=Group((0,)))
        assert found(trace) == []


class TestCountedOnce:
    def test_several_kernels_of_one_record(self) -> None:
        trace = Trace().all_reduce(500, 60, 9, kernels=3).step(1, 0, 2000)
        result = identified(trace)
        assert [o.in_elems for o in result.operations] == [9]
        assert result.owner.tolist() == [0, 0, 0]
        reduction = trace.reduce()
        assert reduction.devices[0].total.comm_ns == 180_000
        assert reduction.operations["time_ns"].tolist() == [180_000]
        assert reduction.operations["message_bytes"].tolist() == [2 * 9 * 2]

    def test_several_kernels_whose_record_is_missing(self) -> None:
        trace = Trace()
        args = trace.comm_args("allreduce", 9, 9) | {"External id": 77}
        for start in (500, 600):
            trace.kernel(RING, start, 60, args=args)
        assert found(trace) == [("all_reduce", "args", 9)]

    def test_nested_records(self) -> None:
        trace = Trace()
        args = trace.comm_args("allreduce", 9, 9)
        trace.operator("_c10d_functional::all_reduce", 440, 80)
        trace.operator("c10d::allreduce_", 445, 70, args={"Input Dims": [[[9]]]})
        trace.record(
            "allreduce_coalesced", 450, 60, args=trace.comm_args("allreduce_coalesced", 9, 9)
        )
        trace.record("allreduce", 460, 40, external=77, args=args)
        trace.mark("nccl:all_reduce", 462, 30)
        trace.kernel(RING, 500, 60, launch=470, args={"External id": 77, **args})
        (operation,) = identified(trace).operations
        assert (operation.op, operation.in_elems, operation.functional) == ("all_reduce", 9, True)

    def test_two_collectives_are_two(self) -> None:
        trace = Trace().all_reduce(500, 60, 9).all_reduce(600, 60, 9)
        assert len(identified(trace).operations) == 2

    def test_a_record_without_a_kernel(self) -> None:
        trace = Trace().kernel("gemm", 100, 50)
        trace.record("_allgather_base", 200, args=trace.comm_args("_allgather_base", 8, 16))
        result = identified(trace)
        assert [(o.op, o.out_elems, o.event) for o in result.operations] == [
            ("all_gather", 16, None)
        ]
        assert result.without_device_time == 1

    def test_graph_kernels_share_a_correlation_and_have_no_sizes(self) -> None:
        trace = Trace().graph(100, [(RING, 200, 50), ("gemm", 260, 50), (RING, 320, 50)])
        result = identified(trace)
        assert [(o.op, o.source, o.in_elems) for o in result.operations] == [
            ("all_reduce", "name", None)
        ] * 2
        assert result.event_class.tolist() == [COMMUNICATION, COMPUTE, COMMUNICATION]
        assert result.in_graphs == 2


class TestBatches:
    """`nccl:coalesced`: the kernel says nothing, the records before it say all."""

    def test_sizes_come_from_the_records(self) -> None:
        messages = [("send", 1, 64), ("recv", 1, 32)]
        trace = Trace().point_to_point(500, 60, messages).step(1, 0, 2000)
        assert found(trace) == [("send", "record", 64), ("recv", "record", 32)]
        assert ops_of_events(trace) == ["send_recv"]
        reduction = trace.reduce()
        assert reduction.devices[0].total.comm_ns == 60_000
        assert reduction.operations["message_bytes"].tolist() == [128, 0]
        assert reduction.operations["time_ns"].sum() == 60_000
        assert reduction.operations["peer"].tolist() == [1, 1]

    def test_a_batch_of_sends_is_a_send(self) -> None:
        assert ops_of_events(Trace().point_to_point(500, 60, [("send", 1, 64)])) == ["send"]

    def test_each_batch_takes_its_own_records(self) -> None:
        trace = Trace().point_to_point(500, 60, [("send", 1, 64)])
        trace.point_to_point(900, 60, [("recv", 1, 32), ("recv", 2, 16)])
        result = identified(trace)
        assert [(o.op, o.in_elems) for o in result.operations] == [
            ("send", 64),
            ("recv", 32),
            ("recv", 16),
        ]
        assert result.owner.tolist() == [0, 1]
        assert result.without_device_time == 0

    def test_a_batch_of_many_messages(self) -> None:
        messages = [("send", peer, 8) for peer in range(40)] + [
            ("recv", peer, 8) for peer in range(40)
        ]
        result = identified(Trace(world=40).point_to_point(2000, 60, messages))
        assert [o.op for o in result.operations] == ["send"] * 40 + ["recv"] * 40
        assert result.without_device_time == 0

    def test_two_kernels_of_one_batch(self) -> None:
        trace = (
            Trace().point_to_point(500, 60, [("send", 1, 64)]).kernel(SEND_RECV, 570, 60, 20, 480)
        )
        result = identified(trace)
        assert [(o.op, o.in_elems) for o in result.operations] == [("send", 64)]
        assert result.owner.tolist() == [0, 0]

    def test_a_send_with_its_own_kernel_is_not_taken_again(self) -> None:
        trace = Trace().collective("send", 500, 60, 64, 64, link="external", peer=1)
        trace.point_to_point(900, 60, [("recv", 1, 32)])
        assert found(trace) == [("send", "record", 64), ("recv", "record", 32)]

    @pytest.mark.parametrize("link", ["args", "external", "time"])
    def test_a_range_left_open_takes_no_later_collective(self, link: Any) -> None:
        trace = Trace().point_to_point(500, 60, [("send", 1, 64)])
        trace.mark("nccl:coalesced", 460, 2000)
        trace.all_reduce(900, 60, 32, link=link)
        assert [(o.op, o.in_elems) for o in identified(trace).operations] == [
            ("send", 64),
            ("all_reduce", 32),
        ]

    def test_an_ordinary_send(self) -> None:
        trace = Trace().collective("send", 500, 60, 64, 64, kernel=SEND_RECV, peer=3)
        (operation,) = identified(trace).operations
        assert (operation.op, operation.peer, operation.in_elems) == ("send", 3, 64)

    @pytest.mark.parametrize("link", ["args", "external", "time"])
    def test_before_torch_2_5_the_range_names_the_peer(self, link: Any) -> None:
        trace = Trace(world=8, schema=Schema(torch="2.4"))
        trace.collective("recv", 500, 60, 64, 64, kernel=SEND_RECV, link=link)
        trace.mark("nccl:recv 0<-5", 476, 20)
        (operation,) = identified(trace).operations
        assert (operation.op, operation.peer, operation.root) == ("recv", None, 5)

    def test_in_a_batch_too(self) -> None:
        trace = Trace(world=8, schema=Schema(torch="2.4"))
        trace.point_to_point(500, 60, [("send", 3, 64), ("recv", 6, 64)])
        assert trace.reduce().operations["peer"].tolist() == [3, 6]


class TestCopyEngines:
    def test_copies_of_a_record_that_has_no_kernel_communicate(self) -> None:
        trace = Trace(rank=0)
        args = trace.comm_args("_allgather_base", 8, 16)
        trace.record("_allgather_base", 470, 50, external=77, args=args)
        for start in (500, 520):
            trace.copy(start, 10, "PtoP", launch=480, args={"External id": 77})
        trace.copy(600, 10, "HtoD")
        result = identified(trace)
        assert [(o.op, o.out_elems) for o in result.operations] == [("all_gather", 16)]
        assert result.owner.tolist() == [0, 0, -1]
        assert result.without_device_time == 0

    def test_a_peer_copy_outside_records_is_a_copy(self) -> None:
        result = identified(Trace().copy(500, 10, "PtoP").all_reduce(600, 10))
        assert result.owner.tolist() == [-1, 0]

    def test_a_peer_copy_of_a_record_with_a_kernel_is_a_copy(self) -> None:
        trace = Trace().all_reduce(500, 60, launch=480).copy(570, 10, "PtoP", launch=485)
        result = identified(trace)
        assert result.owner.tolist() == [0, -1]
        assert len(result.operations) == 1


class TestContext:
    def test_the_innermost_range_around_the_launch(self) -> None:
        trace = Trace().mark("forward", 0, 1000).mark("FSDP::all_gather (layers.0)", 450, 100)
        trace.all_gather(500, 60, 8).all_gather(900, 60, 8)
        marks = [o.mark for o in identified(trace).operations]
        assert marks == ["FSDP::all_gather (layers.0)", "forward"]

    def test_ranges_before_do_not_hide_an_outer_one(self) -> None:
        trace = Trace().mark("outer", 0, 5000)
        for index in range(40):
            trace.mark("inner", 10 * index, 5)
        trace.all_gather(900, 60, 8)
        assert [o.mark for o in identified(trace).operations] == ["outer"]

    def test_a_thread_without_ranges_takes_those_of_the_main_thread(self) -> None:
        trace = Trace(pid=7).mark("forward", 0, 1000, thread=7).all_gather(500, 60, 8)
        assert [o.mark for o in identified(trace).operations] == ["forward"]

    def test_ranges_of_other_threads_do_not_count(self) -> None:
        trace = Trace().mark("early", 0, 10).mark("late", 900, 10)
        trace.mark("elsewhere", 0, 1000, thread=7).all_gather(500, 60, 8)
        assert [o.mark for o in identified(trace).operations] == [""]

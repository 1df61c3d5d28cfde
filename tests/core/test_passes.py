"""Which work belongs to which pass of a pipeline: by ranges, by messages and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import Group, Trace

from tracelens.passes import KINDS

if TYPE_CHECKING:
    from tracelens.passes import Work
    from tracelens.reduced import StepReduction

MAIN, AUTOGRAD = 1, 2
US = 1000
PIPELINE = Group((0, 1), "1", "PIPELINE_MODEL_PARALLEL_GROUP")


def stage(rank: int = 0) -> Trace:
    return Trace(rank, 2, groups=(Group((0, 1)), PIPELINE)).step(1, 0, 10_000)


def message(trace: Trace, kind: str, launch: int, start: int, length: int = 50) -> Trace:
    peer = 1 - (trace.rank or 0)
    return trace.collective(kind, start, length, 64, 64, launch=launch, peer=peer, group=PIPELINE)


def work(trace: Trace) -> Work | None:
    return step_of(trace).work


def step_of(trace: Trace) -> StepReduction:
    (device,) = trace.reduce().devices
    return device.steps[0]


def shown(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Return (kind, micro-batch, start and work in microseconds) of each pass."""
    found = work(trace)
    if found is None:
        return []
    passes = found.passes
    first = int(passes.start[0])
    return [
        (
            KINDS[int(passes.kind[i])],
            max(int(passes.micro_batch[i]), -1),
            (int(passes.start[i]) - first) // US,
            int(passes.work_ns[i]) // US,
        )
        for i in range(len(passes.kind))
    ]


def test_ranges_of_a_schedule_tell_everything() -> None:
    trace = stage()
    for at, name in ((100, "PP:0F0"), (200, "PP:3F1"), (300, "PP:3I1"), (400, "PP:3W1")):
        trace.mark(name, at, 90).kernel("gemm", at + 1000, 60, launch=at + 10)
    message(trace, "send", 450, 1500)
    assert shown(trace) == [
        ("forward", 0, 0, 60),
        ("forward", 1, 100, 60),
        ("backward_input", 1, 200, 60),
        ("backward_weight", 1, 300, 60),
    ]
    found = work(trace)
    assert found is not None
    assert found.passes.stage.tolist() == [0, 3, 3, 3]
    assert (found.work_ns, found.last - found.first) == (240 * US, 360 * US)


def test_two_passes_that_overlap_in_one_range_are_told_apart_by_thread() -> None:
    trace = stage().mark("PP:(0F5;3B2)OVERLAP_F_B", 100, 400)
    trace.kernel("gemm", 1000, 50, launch=110, thread=MAIN)
    trace.kernel("dgrad", 1050, 80, launch=120, thread=AUTOGRAD)
    trace.kernel("gemm", 1130, 50, launch=130, thread=MAIN)
    message(trace, "send", 600, 1500)
    assert shown(trace) == [("forward", 5, 0, 100), ("backward", 2, 50, 80)]


@pytest.mark.parametrize(
    ("forward", "backward", "number"),
    [
        ("Forward 0", "Backward 0", 0),
        ("forward_step", "backward_step", -1),
        ("megatron.core.pipeline_parallel.schedules.forward_step", "backward_step", -1),
        ("_exec_forward_pass", "_exec_backward_pass", -1),
        ("forward_step mb=3", "backward_step mb=3", 3),
        ("forward_step (micro-batch 3)", "backward_step 3", 3),
    ],
)
def test_ranges_of_other_frameworks(forward: str, backward: str, number: int) -> None:
    trace = stage().mark(forward, 100, 90).mark(backward, 200, 90)
    trace.kernel("gemm", 1000, 50, launch=110).kernel("dgrad", 1100, 70, launch=210)
    trace.kernel("adam", 1300, 50, launch=400)  # in no range: no work
    message(trace, "send", 300, 1200)
    assert shown(trace) == [("forward", number, 0, 50), ("backward", number, 100, 70)]


def test_a_range_around_a_range_counts_once() -> None:
    trace = stage().mark("forward_step", 100, 90).mark("x.forward_step", 110, 70)
    trace.kernel("gemm", 1000, 50, launch=120)
    message(trace, "send", 300, 1200)
    assert shown(trace) == [("forward", -1, 0, 50)]


def unmarked(rank: int = 0) -> Trace:
    """Return two micro-batches on a first (rank 0) or last stage, launched as in 1F1B."""
    trace = stage(rank).mark("Optimizer.zero_grad#Adam.zero_grad", 10, 30)
    trace.kernel("fill", 900, 20, launch=20)
    for at in (100, 1100):
        if rank == 1:
            message(trace, "recv", at, 1000 + at)
        trace.kernel("gemm", 1060 + at, 100, launch=at + 20, thread=MAIN)
        trace.kernel("gemm", 1160 + at, 100, launch=at + 30, thread=MAIN)
        if rank == 0:
            message(trace, "send", at + 40, 1270 + at)
            message(trace, "recv", at + 50, 1330 + at)
        trace.kernel("dgrad", 1400 + at, 300, launch=at + 60, thread=AUTOGRAD)
        if rank == 1:
            message(trace, "send", at + 70, 1710 + at)
    trace.mark("Optimizer.step#Adam.step", 3000, 100)
    return trace.kernel("norm", 3500, 40, launch=2900).kernel("adam", 3600, 200, launch=3010)


@pytest.mark.parametrize("rank", [0, 1])
def test_without_ranges_messages_and_threads_tell(rank: int) -> None:
    """Neither zeroing gradients nor their norm nor the optimizer is a pass."""
    assert shown(unmarked(rank)) == [
        ("forward", -1, 0, 200),
        ("backward", -1, 340, 300),
        ("forward", -1, 1000, 200),
        ("backward", -1, 1340, 300),
    ]


def test_a_stage_that_receives_first_has_nothing_to_do_before() -> None:
    trace = unmarked(1).kernel("metrics", 1000, 30, launch=60)
    assert len(shown(trace)) == 4


def test_small_runs_belong_to_the_pass_beside_them() -> None:
    """The scaling of a received gradient, launched by the main thread, is part of backward."""
    trace = unmarked(0).kernel("scale", 1490, 2, launch=155, thread=MAIN)
    assert shown(trace) == [
        ("forward", -1, 0, 200),
        ("backward", -1, 330, 302),
        ("forward", -1, 1000, 200),
        ("backward", -1, 1340, 300),
    ]


def test_weight_gradients_after_the_last_message_are_work() -> None:
    trace = unmarked(1).kernel("wgrad", 2900, 250, launch=1180, thread=AUTOGRAD)
    assert shown(trace)[-1] == ("backward", -1, 1740, 250)


def test_no_messages_no_passes() -> None:
    trace = stage().mark("PP:0F0", 100, 90).kernel("gemm", 1000, 50, launch=110)
    assert work(trace) is None


def test_rings_of_keys_and_values_cut_nothing() -> None:
    """A context-parallel group's messages are inside a pass."""
    ring = Group((0, 1), "2", "CONTEXT_PARALLEL_GROUP")
    trace = stage()
    trace.kernel("gemm", 1000, 100, launch=110)
    trace.collective("send", 1020, 50, 64, 64, launch=115, peer=1, group=ring)
    trace.kernel("gemm", 1100, 100, launch=120)
    message(trace, "send", 200, 1300)
    assert shown(trace) == [("forward", -1, 0, 200)]


def test_idle_time_by_where_it_is() -> None:
    """Between and around passes the device waited; a gap inside a pass is none of it."""
    trace = stage()
    trace.kernel("copyish", 100, 10, launch=20)  # begins the window
    message(trace, "recv", 30, 110, 40)
    trace.kernel("gemm", 200, 100, launch=50)  # 50 after the message: around
    trace.kernel("gemm", 320, 80, launch=60)  # 20 inside the pass
    message(trace, "send", 70, 400, 30)
    trace.kernel("dgrad", 460, 40, launch=80, thread=AUTOGRAD)  # 30 between
    trace.kernel("late", 560, 40, launch=540)  # the host's, and no pass
    found = work(trace)
    assert found is not None
    assert [kind for kind, *_ in shown(trace)] == ["forward", "backward"]
    assert found.dependency_ns == 30 * US
    low, high = found.dependency_edges
    assert (high - low).tolist() == [50 * US]
    assert step_of(trace).idle is not None
    assert step_of(trace).idle.dependency_ns == 100 * US  # type: ignore[union-attr]

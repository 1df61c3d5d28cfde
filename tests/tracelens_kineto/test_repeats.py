"""Events that stand in a file twice: counts, bytes and sums by name would double."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders import Schema, Trace

if TYPE_CHECKING:
    from tracelens.model.trace import RankTrace


def said(trace: RankTrace) -> dict[str, str]:
    return {notice.code: notice.message for notice in trace.info.notices}


def test_events_in_the_file_twice_count_once() -> None:
    trace = Trace().step(1, 0, 5000).kernel("gemm", 100, 50).all_reduce(200, 3000, 64)
    trace.copy(3300, 20).kernel("after", 3400, 50)
    once = trace.reduce()
    trace.events += trace.events
    twice = trace.reduce()
    assert twice.devices == once.devices
    assert len(twice.kernels) == len(once.kernels)
    assert twice.operations.equals(once.operations)
    assert said(trace.parse()) == {
        "repeated-events": "6 device events, collectives or ranges in the file more than once: "
        "each counts once"
    }


def test_what_only_looks_alike_counts() -> None:
    """Branches of a graph, other streams, other launches."""
    trace = Trace(schema=Schema(times="whole"))
    trace.kernel("a", 100, 1, stream=7, correlation=5).kernel("a", 100, 1, stream=8, correlation=5)
    trace.kernel("a", 100, 1, stream=7, correlation=6)
    trace.graph(150, [("b", 200, 1), ("b", 200, 1)])
    parsed = trace.parse()
    assert len(parsed.device_events) == 5
    assert "repeated-events" not in said(parsed)


def test_collectives_and_ranges_of_a_cpu_run_count_once() -> None:
    trace = Trace(keys={"record_shapes": 1}).step(1, 0, 5000)
    trace.gloo("c10d::allreduce_", 100, 900, [[[64]], [], [], [], []], annotated="gloo:all_reduce")
    trace.mark("DistributedDataParallel.forward", 10, 50)
    once = trace.parse()
    trace.events += trace.events
    twice = trace.parse()
    for name in ("communications", "marks", "host_calls", "operators"):
        assert getattr(twice, name).equals(getattr(once, name)), name
    assert "each counts once" in said(twice)["repeated-events"]

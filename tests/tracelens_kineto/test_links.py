"""What launched a device event: correlation first, then External id, then the flow arrow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import Trace

from tracelens.model.trace import NONE


def flow(phase: str, number: int, at: float, pid: int, tid: int, cat: str = "ac2g") -> str:
    fields = {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": at, "cat": cat, "name": cat}
    return json.dumps(fields)


def launches(trace: Trace) -> list[Any]:
    table = trace.parse().device_events
    return table[["launch", "launch_end", "launch_thread"]].to_numpy().tolist()


def without_correlation(trace: Trace, at: int, external: int | None = None) -> Trace:
    args = {"device": 0, "stream": 7} | ({} if external is None else {"External id": external})
    return trace.event("kernel", "gemm", at, 5, pid=0, tid=7, args=args)


def call(trace: Trace, at: int, external: int, thread: int = 3) -> Trace:
    args = {"External id": external}
    return trace.event("cuda_runtime", "cudaLaunchKernel", at, 5, tid=thread, args=args)


def test_external_id_of_a_call() -> None:
    trace = call(without_correlation(Trace(), 100, 12), 50, 12)
    assert launches(trace) == [[50_000, 55_000, 3]]


def test_several_kernels_of_one_operator_in_order() -> None:
    trace = Trace()
    for at in (300, 100, 200):
        without_correlation(trace, at, 12)
    for at in (70, 50, 60):
        call(trace, at, 12)
    assert [row[0] for row in launches(trace)] == [50_000, 60_000, 70_000]


def test_external_id_of_an_operator_when_no_call_has_it() -> None:
    """The operator says when; not when the launch returned."""
    trace = without_correlation(Trace(), 100, 12)
    trace.operator("aten::mm", 40, 30, thread=4, args={"External id": 12})
    assert launches(trace) == [[40_000, NONE, 4]]


def test_correlation_wins() -> None:
    trace = Trace().kernel("gemm", 100, 5, launch=80, args={"External id": 12})
    call(trace, 50, 12)
    assert launches(trace) == [[80_000, 85_000, 1]]


def test_an_external_id_that_repeats_the_correlation_says_nothing() -> None:
    """libkineto fills it in so where an event has no operator; operators count from 1 as well."""
    trace = Trace().kernel("gemm", 100, 5, launch=None, correlation=31, args={"External id": 31})
    call(trace, 50, 31)
    assert launches(trace) == [[NONE, NONE, NONE]]


def test_nothing_is_launched_after_it_ran() -> None:
    trace = call(without_correlation(Trace(), 100, 12), 5000, 12)
    assert launches(trace) == [[NONE, NONE, NONE]]


@pytest.mark.parametrize("cat", ["ac2g", "async_cpu_to_gpu", "async"])
def test_a_flow_links_when_correlations_are_missing(cat: str) -> None:
    trace = without_correlation(Trace(), 100)
    trace.call("cudaLaunchKernel", 50, thread=6)
    trace.raw(flow("s", 9, 50, 4012, 6, cat)).raw(flow("f", 9, 100, 0, 7, cat))
    assert launches(trace) == [[50_000, NONE, 6]]


def test_a_flow_that_ends_elsewhere_does_not_link() -> None:
    trace = without_correlation(Trace(), 100)
    trace.raw(flow("s", 9, 50, 4012, 6)).raw(flow("f", 9, 100, 0, 8))
    trace.raw(flow("s", 5, 50, 4012, 6, "fwdbwd")).raw(flow("f", 5, 100, 0, 7, "fwdbwd"))
    assert launches(trace) == [[NONE, NONE, NONE]]


def test_the_step_is_found_through_either() -> None:
    """Without links the kernels of step 2 that overlap step 1's window would be step 1's."""
    trace = Trace().step(1, 0, 500).step(2, 500, 500)
    for at, launch in ((100, 50), (700, 600)):
        trace.event("kernel", "gemm", at, 200, pid=0, tid=7, args={"device": 0, "stream": 7})
        trace.raw(flow("s", at, launch, 4012, 1)).raw(flow("f", at, at, 0, 7))
    (device,) = trace.reduce().devices
    assert [(s.low, s.high) for s in device.steps] == [(100_000, 700_000), (700_000, 1_200_000)]
    assert [s.partition.compute_ns for s in device.steps] == [200_000, 200_000]


def test_a_clean_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def second(*_: object, **__: object) -> None:
        raise AssertionError("read twice")

    monkeypatch.setattr("tracelens_kineto.reading._Read._again", second)
    trace = Trace().kernel("early", 10, 5, launch=None, correlation=7).kernel("gemm", 100, 5)
    assert [row[0] for row in launches(trace)] == [NONE, 80_000]

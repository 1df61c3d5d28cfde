"""Devices that are not NVIDIA's or AMD's, and devices of which the trace keeps nothing usable.

What can be attributed is; the rest is called unknown. Never does the host's time stand for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from builders import RING, Literally, Schema, Trace
from command import run
from standard_run import (
    BYTES,
    add_step,
    codes,
    holds,
    is_standard,
    rank,
    rank_of,
    said,
    write_ranks,
)

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis


def foreign(number: int, **renamed: str) -> Trace:
    """Build a standard rank in which other names stand for CUDA's."""
    trace = Trace(rank=number, pid=4000 + number, keys={"deviceProperties": []})
    for step in (0, 1):
        trace.step(10 + step, 1000 * step, 1000)
        at = 1000 * step
        trace.kernel("gemm", at + 100, 300).kernel("gelu", at + 400, 200)
        trace.all_reduce(at + 500, 300, link="external").kernel("norm", at + 700, 200)
    names = {RING: "comm", "cuda_runtime": "runtime", "cudaLaunchKernel": "launch"}
    for old, new in names.items():
        trace.events = [text.replace(old, renamed[new]) for text in trace.events]
    return trace


# Runtime category, launch call, the kernel of an all-reduce, and what the device is called.
KNOWN = [
    ("xpu_runtime", "urEnqueueKernelLaunch", "oneccl_allreduce_large<half>", "xpu"),
    ("xpu_driver", "zeCommandListAppendLaunchKernel", "_ZTSN3ccl6kernelE", "xpu"),
    ("privateuse1_runtime", "aclrtLaunchKernelWithConfig", "hcom_allReduce__363_0_1", "npu"),
    ("mtia_runtime", "mtiaLaunch", "hccl::allreduce_kernel", "mtia"),
    ("hpu_op", "synLaunch", "collective", "hpu"),
]


@pytest.mark.parametrize(("runtime", "launch", "comm", "kind"), KNOWN)
def test_devices_that_kineto_records_like_cuda(
    runtime: str, launch: str, comm: str, kind: str, tmp_path: Path
) -> None:
    for number in (0, 1):
        made = foreign(number, runtime=runtime, launch=launch, comm=comm)
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert result.run.device_kind == kind
    (row,) = result.collectives
    assert (row.op, row.message_bytes) == ("all_reduce", 2 * 2 * BYTES)
    assert row.calls_without_bytes == 0


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("hcom_allReduce__363_0_1", "all_reduce"),
        ("HcclReduceScatter", "reduce_scatter"),
        ("hcom_receive__1_0_1", "recv"),
        ("oneccl_allgatherv_large<float>", "all_gather"),
    ],
)
def test_a_kernel_known_by_its_name_only(name: str, op: str, tmp_path: Path) -> None:
    trace = Trace(world=1).step(1, 0, 1000).kernel("gemm", 100, 300).kernel(name, 500, 100)
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    (device,) = rank_of(result, 0).devices
    assert device.total.comm_by_op_ns == {op: 100_000}
    assert device.total.compute_ns == 300_000
    (row,) = result.collectives
    assert (row.op, row.message_bytes) == (op, None), "its size is unknown, not 0"


# what cannot be attributed ------------------------------------------------------------------------


def ascend(number: int) -> bytes:
    """Return what torch_npu writes as trace_view.json: one array, device rows without category."""
    host, hardware, overlap = 1000 + number, 4_294_967_296 + number, 8_589_934_592 + number
    events: list[dict[str, Any]] = []
    for step in (1, 2):
        at = 1_767_225_600_000_000 + 1000 * step
        named = {"ProfilerStep#" + str(step): (at, 990), "aten::mm": (at + 10, 400)}
        for name, (start, length) in named.items():
            events.append(_row(name, host, start, length, cat="cpu_op"))
        events.append(_row("Enqueue", host, at + 20, 3, cat="enqueue"))
        args = {"Task Type": "AI_CORE", "Physic Stream Id": 2, "Task Id": step}
        events.append(_row("aclnnMatmul_MatMulV2", hardware, at + 100, 300, args=args))
        events.append(_row("Computing", overlap, at + 100, 300))
        events.append(_row("Communication", overlap, at + 500, 300))
    for process, name, label in (
        (host, "Python", "CPU"),
        (hardware, "Ascend Hardware", f"NPU {number}"),
        (overlap, "Overlap Analysis", f"NPU {number}"),
    ):
        meta = {"ph": "M", "pid": process, "tid": 0}
        events.append(meta | {"name": "process_name", "args": {"name": name}})
        events.append(meta | {"name": "process_labels", "args": {"labels": label}})
    return json.dumps(events).encode()


def _row(name: str, process: int, start: int, length: int, **more: Any) -> dict[str, Any]:
    times = {"ts": f"{start}.125", "dur": float(length)}
    return {"ph": "X", "name": name, "pid": process, "tid": 2, **times, "args": {}, **more}


def is_unseen(result: Analysis, number: int = 0) -> None:
    """Check that no number is claimed for a rank's device."""
    one = rank_of(result, number)
    assert one.devices == []
    assert one.partial
    assert number in result.run.ranks_partial
    assert not codes(result) & {"cpu-run", "no-device-events"}
    assert "times of this rank are unknown" in said(result, "device-unseen")


def test_rows_of_torch_npu_are_unknown_and_not_a_cpu_run(tmp_path: Path) -> None:
    for number in (0, 1):
        folder = tmp_path / f"host_{number}_ascend_pt" / f"rank_{number}"
        folder.mkdir(parents=True)
        (folder / "trace_view.json").write_bytes(ascend(number))
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [0, 1]
    assert [one.devices for one in result.ranks] == [[], []]
    unread = [n for n in result.notices if n.code == "unread-device-events"]
    assert [(n.rank, n.count) for n in unread] == [(0, 6), (1, 6)]
    assert "(Overlap Analysis, Ascend Hardware)" in unread[0].message
    assert "unknown-categories" not in codes(result), "the task queue is the host's"
    assert "cpu-run" not in codes(result)
    assert result.run.device_kind == "unknown"
    assert "No complete step" in result.summary.verdict


@pytest.mark.parametrize(
    ("category", "label"),
    [("mtia_ccp_events", "MTIA 0"), ("mtia_ccp_events", None), ("synapse", "HPU 0"), ("", "GPU 3")],
)
def test_work_of_an_unknown_kind_is_counted_and_named(
    category: str, label: str | None, tmp_path: Path
) -> None:
    trace = Trace(world=1).step(1, 0, 1000).operator("aten::mm", 90, 50)
    for at in (100, 300, 500):
        trace.event(category, "matmul", at, 100, pid=3, tid=1)
    if label:
        args = json.dumps({"labels": label})
        trace.raw(f'{{"ph": "M", "name": "process_labels", "pid": 3, "tid": 0, "args": {args}}}')
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    is_unseen(result)
    assert f"3 events of a device in a form TraceLens cannot attribute ({category or 'none'})" in (
        said(result, "unread-device-events")
    )


def test_beside_known_kernels_it_makes_sums_lower_bounds(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    rank(1).event("mtia_ccp_events", "matmul", 150, 100, pid=0).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_partial == [1]
    assert "rank1.json: 1 event of a device" in said(result, "unread-device-events")
    assert [s.complete for s in rank_of(result, 1).devices[0].steps] == [False, False]
    holds(rank_of(result, 0).devices[0].mean_step)
    assert "device-unseen" not in codes(result)


def test_a_process_with_the_number_of_a_device_is_no_device(tmp_path: Path) -> None:
    """In a container the program may be process 1, and Kineto labels eight GPUs always."""
    trace = rank(0, 1, pid=1).event("new_category", "plan", 100, 50)
    for label in ("CPU", "GPU 1"):
        args = json.dumps({"labels": label})
        trace.raw(f'{{"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {args}}}')
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result, world=1)
    assert "1 event of unknown categories (new_category)" in said(result, "unknown-categories")


# devices that left nothing usable ----------------------------------------------------------------


def test_kernels_that_are_all_untimed(tmp_path: Path) -> None:
    trace = Trace(world=1).step(1, 0, 1000).operator("aten::mm", 90, 50)
    trace.kernel("gemm", 0, 300, launch=100).kernel("gemm", 500, None, launch=200)
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    is_unseen(result)
    assert "(device events: 2)" in said(result, "device-unseen")
    assert "2 device events without a usable time" in said(result, "untimed-events")


def without_kernels(number: int, world: int = 2) -> Trace:
    trace = rank(number, world)
    trace.events = [text for text in trace.events if '"cat": "kernel"' not in text]
    return trace.operator("aten::mm", 90, 50)


def test_launches_without_any_kernel(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    without_kernels(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_unseen(result, 1)
    assert "rank1.json: signs of a device (launches: 8)" in said(result, "device-unseen")
    assert not rank_of(result, 1).in_means
    holds(rank_of(result, 0).devices[0].mean_step)
    (row,) = result.collectives
    assert row.message_bytes == 2 * 2 * BYTES, "bytes need no device time"
    assert (row.time_ns, row.calls) == (600_000, 2)
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


def test_a_rank_whose_trace_has_no_events(tmp_path: Path) -> None:
    """It is no rank that did nothing: means and bytes are those of the others."""
    write_ranks(tmp_path)
    trace = rank(1)
    trace.events = []
    trace.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_unseen(result, 1)
    assert not {"different-times", "mixed-runs"} & set(codes(result))
    (row,) = result.collectives
    assert (row.calls, row.message_bytes) == (2, 2 * 2 * BYTES)
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


@pytest.mark.parametrize("times", ["relative", "epoch"])
def test_a_file_cut_before_its_first_kernel(times: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path, schema=Schema(times=times))
    trace = without_kernels(1)
    trace.schema = Schema(times=times)
    trace.events = [
        text for text in rank(1, schema=trace.schema).events if '"cat": "kernel"' not in text
    ]
    text = trace.text()
    (tmp_path / "rank1.json").write_text(text[: text.rindex("]") - 30])
    result = tracelens.analyze(tmp_path)
    is_unseen(result, 1)
    assert "rank1.json: the file ends early" in said(result, "truncated-file")
    assert "different-times" not in codes(result), "its host events say when it was recorded"
    holds(rank_of(result, 0).devices[0].mean_step)


def test_a_gpu_run_recorded_without_its_gpu(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 1000).operator("aten::mm", 90, 50)
    trace.record("allreduce", 200, args=trace.comm_args("allreduce", 1 << 20, 1 << 20))
    trace.mark("nccl:all_reduce", 201, 20).write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    is_unseen(result)
    assert "(collectives between devices: 1)" in said(result, "device-unseen")
    (row,) = result.collectives
    assert (row.op, row.message_bytes, row.time_ns) == ("all_reduce", 2 * BYTES, None)
    assert "there is no communication" not in result.summary.verdict
    done = run("doctor", ".", cwd=tmp_path)
    assert "no GPU event was recorded" in done.out + done.err


def test_gloo_on_a_machine_with_gpus_is_a_cpu_run(tmp_path: Path) -> None:
    trace = Trace(keys={"record_shapes": 1}).step(1, 0, 1000).operator("aten::mm", 70, 400)
    trace.gloo("allreduce_", 500, 300, [[[1 << 18]]], annotated="all_reduce")
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    (device,) = rank_of(result, 0).devices
    (step,) = device.steps
    holds(step.partition, compute_ns=400_000, exposed_comm_ns=300_000, idle_ns=300_000)
    assert "cpu-run" in codes(result)
    assert not codes(result) & {"device-unseen", "unread-device-events"}


def test_a_queue_of_64_bits_is_a_stream(tmp_path: Path) -> None:
    """SYCL and HSA name queues by addresses, beyond 2^53 and beyond 2^63."""
    trace = Trace(world=1).step(1, 0, 1000)
    for stream in ((1 << 63) + 2, (1 << 53) + 1, (1 << 53)):
        trace.kernel("k", 100, 300, args={"stream": Literally(str(stream))})
    add_step(trace, 2, 1000)
    trace.write(tmp_path / "rank0.json")
    (trace_read,) = tracelens.load(tmp_path)
    streams = set(trace_read.device_events["stream"])
    assert {(1 << 53) + 1, 1 << 53, 2 - (1 << 63)} <= streams


def test_a_name_with_line_breaks_stays_in_its_notice(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    odd = '{"ph": "X", "cat": "Oper\\nator", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    rank(1).raw(odd).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "(Oper ator)" in said(result, "unknown-categories")

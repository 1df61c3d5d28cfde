"""Each check strikes on a trace that lacks its thing, and on nothing else.

Every trace here is the whole one with one thing taken away.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from builders import RING, SEND_RECV, Group, Schema, Trace
from samples import SAMPLES

from tracelens.doctor.check import LEVELS, SECTIONS
from tracelens.doctor.kineto import CHECKS
from tracelens.engine import Options, examine
from tracelens.reduction import Selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.doctor.check import Check, Lack

STEP = 1000


def host(rank: int | None) -> dict[str, Any]:
    return {"host_name": f"node{rank}"}


def empty(rank: int | None = 0, **options: Any) -> Trace:
    keys = {"record_shapes": 1, **host(rank), **options.pop("keys", {})}
    trace = Trace(rank=rank, keys=keys, **options)
    return trace.event("cuda_sync", "Event Sync", 130, 5)


def step(
    trace: Trace,
    number: int,
    *,
    optimizer: bool = True,
    mark: bool = True,
    collective: bool = True,
    **options: Any,
) -> Trace:
    """Add a step of one kernel, one all-reduce, and the optimizer."""
    at = STEP * number
    if mark:
        trace.step(number, at, STEP)
    if optimizer:
        trace.mark("Optimizer.step#AdamW.step", at + 800, 100)
    if collective:
        trace.all_reduce(at + 500, 200, seq=number, **options)
    return trace.kernel("gemm", at + 100, 300)


def steps(trace: Trace, numbers: range = range(10, 13), **options: Any) -> Trace:
    for number in numbers:
        step(trace, number, **options)
    return trace


def whole(rank: int = 0, **options: Any) -> Trace:
    return steps(empty(rank, **options))


def lacks_of(
    folder: Path, traces: list[Trace], pattern: str | None = None, name: str = "rank{}.json"
) -> list[Lack]:
    for number, trace in enumerate(traces):
        trace.write(folder / name.format(number))
    return examine(folder, Options(selection=Selection(step_pattern=pattern)))[1]


def pair(build: Callable[[int], Trace]) -> list[Trace]:
    return [build(0), build(1)]


def test_a_whole_capture_lacks_nothing(tmp_path: Path) -> None:
    assert lacks_of(tmp_path, pair(whole)) == []


# one trace a check -------------------------------------------------------------------------------


def cpu_only(rank: int) -> Trace:
    """A gloo run: no device events, no device."""
    trace = Trace(rank=rank, keys={"record_shapes": 1, "deviceProperties": []})
    for number in (10, 11, 12):
        trace.step(number, STEP * number, STEP)
        trace.mark("Optimizer.step#AdamW.step", STEP * number + 800, 100)
        trace.gloo("allreduce_", STEP * number + 500, 50, [[[4096]]], annotated="all_reduce")
    text = trace.header()["distributedInfo"] | {"backend": "gloo"}
    trace.keys["distributedInfo"] = text
    return trace


def gpu_left_out(rank: int) -> Trace:
    trace = cpu_only(rank)
    del trace.keys["deviceProperties"]
    return trace


def no_operators(rank: int) -> Trace:
    trace = Trace(rank=rank, keys=host(rank)).event("cuda_sync", "Event Sync", 130, 5)
    for number in (10, 11, 12):
        trace.kernel("gemm", STEP * number + 100, 300).kernel(RING, STEP * number + 500, 200)
    return trace


def no_shapes(rank: int) -> Trace:
    trace = steps(empty(rank, keys={"record_shapes": 0}), collective=False)
    for number in (10, 11, 12):
        at = STEP * number
        trace.record("allreduce", at + 450, 100, args={"Collective name": "allreduce"})
        trace.kernel(RING, at + 500, 200, 20, at + 460)
    return trace


def shapes_without_sizes(rank: int) -> Trace:
    trace = no_shapes(rank)
    trace.keys["record_shapes"] = 1
    return trace


def truncated(rank: int) -> Trace:
    return Cut(rank=rank, keys={"record_shapes": 1}) if rank else whole(rank)


class Cut(Trace):
    """A trace whose file stops inside its last event."""

    def bytes(self) -> bytes:
        return whole(self.rank or 0).bytes()[:-100]


def damaged(rank: int) -> Trace:
    trace = whole(rank).raw('{"ph": "X", "cat": "kernel", "name": "k", "ts": 1x, "dur": 2}')
    return trace.kernel("gemm", 12_750, 10)


def graphs(rank: int) -> Trace:
    return whole(rank).graph(12_600, [(RING, 12_700, 50), (RING, 12_760, 50)])


def by_name(rank: int) -> Trace:
    return whole(rank).kernel("void deep_ep::intranode::dispatch<8, 768>(int4*)", 12_750, 50)


def unlaunched(rank: int) -> Trace:
    return whole(rank).kernel(RING, 12_750, 50, launch=None)


def no_groups(rank: int) -> Trace:
    """Eight ranks in groups of two, of a torch that does not say which two."""
    listed: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": 8}
    keys = {"record_shapes": 1, "distributedInfo": listed, **host(rank)}
    trace = Trace(rank=rank, world=8, schema=Schema(torch="2.3"), keys=keys)
    trace.event("cuda_sync", "Event Sync", 130, 5)
    for number in (10, 11, 12):
        pair_of_ranks = Group((0, 1), "7", "undefined")
        step(trace, number, collective=False)
        trace.all_reduce(STEP * number + 500, 200, group=pair_of_ranks)
    return trace


def no_peers(rank: int) -> Trace:
    """A pipeline recorded by a torch before 2.5."""
    trace = Trace(rank=rank, schema=Schema(torch="2.4"), keys={"record_shapes": 1, **host(rank)})
    trace.event("cuda_sync", "Event Sync", 130, 5)
    for number in (10, 11, 12):
        step(trace, number, collective=False)
        kind = "recv" if rank else "send"
        trace.collective(kind, STEP * number + 500, 200, 4096, 4096, kernel=SEND_RECV)
    return trace


def pipeline_without_optimizer(rank: int) -> Trace:
    trace = empty(rank)
    for number in (10, 11, 12):
        step(trace, number, collective=False, optimizer=False)
        kind = "recv" if rank else "send"
        options: dict[str, Any] = {"peer": 1 - rank, "seq": number, "kernel": SEND_RECV}
        trace.collective(kind, STEP * number + 500, 200, 4096, 4096, **options)
    return trace


def micro_batches(rank: int) -> Trace:
    trace = empty(rank)
    for number in range(10, 14):
        step(trace, number, optimizer=number % 2 == 1)
    return trace


def unexplained_idle(rank: int) -> Trace:
    trace = empty(rank)
    for number in range(10, 14):
        step(trace, number).kernel("late", STEP * number + 750, 10, launch=None)
    return trace


def without_info(rank: int) -> Trace:
    """The file says nothing of the run, its name says the rank."""
    trace = whole(rank)
    trace.keys["distributedInfo"] = {}
    return trace


def single() -> Trace:
    return steps(empty(world=1, groups=()), collective=False)


BROKEN: dict[str, tuple[list[Trace], str]] = {
    "no-device-events": (pair(gpu_left_out), "no GPU event was recorded, though the file lists"),
    "no-operators": (pair(no_operators), "no CPU operator or range was recorded"),
    "no-steps": (pair(lambda r: steps(empty(r), mark=False)), "no step is marked"),
    "no-collectives": (
        pair(lambda r: steps(empty(r), collective=False)),
        "no collective was recorded",
    ),
    "no-shapes": (pair(no_shapes), "the size of 6 of 6 collective calls was not recorded"),
    "no-sizes": (pair(shapes_without_sizes), "the size of 6 of 6 collective calls was not"),
    "truncated": (pair(truncated), "the file ends early"),
    "damaged": (pair(damaged), "2 device events are damaged"),
    "lost-device-records": (
        pair(lambda r: whole(r).call("cudaLaunchKernel", 12_000, correlation=9)),
        "2 launches have no device record",
    ),
    "untimed": (pair(lambda r: whole(r).kernel("k", 12_600, 0)), "2 device events have no usable"),
    "cuda-graphs": (pair(graphs), "4 communication kernels ran inside CUDA graphs"),
    "known-by-name": (pair(by_name), "2 of 8 communication calls are known by the name"),
    "no-launch": (pair(unlaunched), "2 of 8 collective calls inside steps have no launch record"),
    "no-groups": (pair(no_groups), "6 of 6 collective calls do not say on which ranks"),
    "no-peers": (pair(no_peers), "6 of 6 sends and receives do not say with whom"),
    "no-optimizer-range": (pair(pipeline_without_optimizer), "the optimizer step of a pipeline"),
    "step-without-optimizer": (pair(micro_batches), "4 of 8 steps hold no optimizer step"),
    "set-up-steps": (
        pair(lambda r: steps(empty(r), range(1, 4))),
        "the recording begins with step 1 of the process",
    ),
    "python-stacks": (
        pair(lambda r: whole(r).event("python_function", "train.py(7): step", 10_000, 5)),
        "2 of 46 events are Python frames",
    ),
    "idle-without-cause": (pair(unexplained_idle), "% of the idle time ends with an event whose"),
    "no-distributed-info": (pair(without_info), "there is no `distributedInfo`"),
    "no-rank": ([steps(empty(rank=None), collective=False)], "no rank is said"),
    "unused-settings": (
        pair(lambda r: whole(r, keys={"profile_memory": 1, "with_flops": 1})),
        "no section reads what profile_memory, with_flops records",
    ),
    "early-calls": (
        pair(lambda r: whole(r).kernel(RING, 9_000, 50, launch=None)),
        "2 of 8 collective calls were launched before recording began",
    ),
    "no-sequence-numbers": (
        pair(lambda r: whole(r, schema=Schema(torch="2.5"))),
        "6 of 6 collective calls are not numbered",
    ),
    "no-sync-events": (
        pair(lambda r: steps(Trace(rank=r, keys={"record_shapes": 1, **host(r)}))),
        "synchronisation events were not recorded",
    ),
    "several-devices": (
        pair(lambda r: whole(r).kernel("gemm", 12_100, 300, device=1)),
        "one process drives 4 devices",
    ),
    "cpu-run": (pair(cpu_only), "the run has no device"),
    "one-process": ([single()], "the run has a single process"),
}  # fmt: skip

# What cannot be taken away alone: a trace that lacks the first also lacks the others.
IMPLIED = {
    "no-shapes": {"no-sequence-numbers"},
    "no-sizes": {"no-sequence-numbers"},
    "no-groups": {"no-sequence-numbers", "missing-ranks"},
    "no-peers": {"no-sequence-numbers"},
    "no-rank": {"no-collectives"},
}


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_a_check_finds_what_it_is_for_and_nothing_else(name: str, tmp_path: Path) -> None:
    traces, said = BROKEN[name]
    found = lacks_of(tmp_path, traces, name="a{}.json" if name == "no-rank" else "rank{}.json")
    by_name = {lack.check: lack for lack in found}
    assert set(by_name) == {name} | IMPLIED.get(name, set())
    assert said in by_name[name].what


# rules of the table ------------------------------------------------------------------------------


def test_checks_stand_in_order_of_importance() -> None:
    places = [LEVELS.index(check.level) for check in CHECKS]
    assert places == sorted(places)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_says_whom_what_and_how(check: Check[Any]) -> None:
    assert set(check.sections) <= set(SECTIONS)
    assert set(re.findall(r"\{(\w+)\}", check.what)) <= {"count", "total", "share", "detail"}
    for text in (check.what, check.costs, check.remedy):
        assert text == text.strip().rstrip(".")


def test_a_step_pattern_names_the_steps(tmp_path: Path) -> None:
    traces = pair(lambda r: steps(empty(r), mark=False))
    for trace in traces:
        for number in (10, 11, 12):
            trace.mark(f"my loop {number}", STEP * number, STEP)
    assert lacks_of(tmp_path, traces, r"my loop (\d+)") == []


def test_idle_time_at_the_end_of_a_recording_is_no_lack(tmp_path: Path) -> None:
    """The last step's window ends with the host's step, the device may be done long before."""
    traces = pair(lambda r: whole(r).step(13, 13_000, 90_000).kernel("gemm", 13_100, 300))
    assert "idle-without-cause" not in {lack.check for lack in lacks_of(tmp_path, traces)}


SMALL_AND_AMBIGUOUS = {"hsdp-2x2": {"no-groups"}}  # losses of one element, on one mesh or the other


@pytest.mark.parametrize("folder", sorted(SAMPLES.glob("*/rank0*")), ids=lambda p: p.parent.name)
def test_recorded_samples_lack_no_more_than_gloo_does(folder: Path) -> None:
    lacks = {lack.check for lack in examine(folder.parent)[1]}
    assert lacks == {"cpu-run"} | SMALL_AND_AMBIGUOUS.get(folder.parent.name, set())

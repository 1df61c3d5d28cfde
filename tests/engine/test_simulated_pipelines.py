"""Pipelines of simulated GPUs, whose receive kernels spin: everything is known there."""

from __future__ import annotations

import functools
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from simulated import Simulated, simulated

from tracelens import messages
from tracelens.model.trace import NONE
from tracelens.operations import CODE
from tracelens.simulate import Layout, Machine, Model, Options
from tracelens.simulate.clocks import EPOCH_NS, reading

if TYPE_CHECKING:
    from tracelens.model.result import Breakdown, Pipeline

_MACHINE = Machine(skew_ns=2_000_000, drift_ppm=0.0)
_MODEL = Model(layers=8, hidden=512, vocabulary=1024, sequence=256)
_ONE = Options(Layout(pp=4), _MODEL, _MACHINE, micro_batches=8, steps=3)
_3D = replace(_ONE, layout=Layout(dp=2, tp=2, pp=2), strategy="distributed-optimizer")
_INTERLEAVED = replace(_ONE, schedule="interleaved", virtual_stages=2)

RUNS = {
    "GPipe": replace(_ONE, schedule="gpipe"),
    "1F1B": _ONE,
    "1F1B of two": replace(_ONE, layout=Layout(pp=2)),
    "1F1B, torch 2.4": replace(_ONE, torch="2.4"),
    "1F1B of eight": replace(_ONE, layout=Layout(pp=8), micro_batches=12, steps=2),
    "as many micro-batches as stages": replace(_ONE, micro_batches=4),
    "fewer micro-batches": replace(_ONE, micro_batches=2),
    "a slow stage": replace(_ONE, machine=replace(_MACHINE, slow={2: 1.4})),
    "a slow host": replace(_ONE, machine=replace(_MACHINE, slow_hosts={1: 2.0})),
    "interleaved": _INTERLEAVED,
    "interleaved deeper": replace(
        _INTERLEAVED, layout=Layout(pp=3), model=replace(_MODEL, layers=12), virtual_stages=4,
        micro_batches=6,
    ),
    "ZB-H1": replace(_ONE, schedule="zb-h1"),
    "ZB-H1 of two": replace(_ONE, layout=Layout(pp=2), schedule="zb-h1"),
    "3D": _3D,
    "with context parallelism": replace(_3D, layout=Layout(cp=2, pp=2), strategy="ddp"),
    "with experts": replace(
        _3D, layout=Layout(dp=2, ep=2, pp=2), strategy="ddp",
        model=replace(_MODEL, layers=4, experts=4),
    ),
}  # fmt: skip
NAMES = {"interleaved": "interleaved-1f1b"}


@functools.cache
def run_of(name: str) -> Simulated:
    with tempfile.TemporaryDirectory() as folder:
        return simulated(RUNS[name], Path(folder))


def pipeline(name: str) -> Pipeline:
    found = run_of(name).analysis.pipeline
    assert found is not None
    return found


@pytest.mark.parametrize("name", RUNS)
def test_the_schedule_is_exact(name: str) -> None:
    found, true = pipeline(name), run_of(name).truth["pipeline"]
    assert found.schedule == NAMES.get(true["schedule"], true["schedule"])
    assert found.stages == true["stages"]
    assert found.virtual_stages == true["virtual_stages"]
    assert found.microbatches == true["micro_batches"]
    assert found.stage_of_rank == {int(r): s for r, s in true["stage_of_rank"].items()}
    assert found.pipelines == RUNS[name].layout.world // true["stages"]


@pytest.mark.parametrize("name", RUNS)
def test_the_bubble_of_every_rank(name: str) -> None:
    found, true = pipeline(name).bubble, run_of(name).truth["pipeline"]
    assert found.over == "phase"
    for rank, share in true["bubble"]["by_rank"].items():
        assert found.by_rank[int(rank)] == pytest.approx(share, abs=0.001)
    assert found.measured == pytest.approx(true["bubble"]["overall"], abs=0.001)
    assert found.phase_ns == pytest.approx(true["phase_ns"], rel=0.001)


def parts(breakdown: Breakdown) -> int:
    known = (
        breakdown.compute_ns, breakdown.wait_ns, breakdown.bubble_ns, breakdown.exposed_copy_ns,
        breakdown.idle_host_ns, breakdown.idle_dependency_ns, breakdown.idle_unknown_ns,
    )  # fmt: skip
    by_op = [breakdown.transfer_by_op_ns or {}, breakdown.exposed_unsplit_by_op_ns]
    return sum(part or 0 for part in known) + sum(t for one in by_op for t in one.values())


@pytest.mark.parametrize("name", RUNS)
def test_the_breakdown_closes_and_all_messages_are_split(name: str) -> None:
    for rank in run_of(name).analysis.ranks:
        breakdown = rank.devices[0].breakdown
        assert breakdown is not None
        assert parts(breakdown) == breakdown.window_ns
        assert breakdown.bubble_ns
        assert not {"send", "recv", "send_recv"} & breakdown.exposed_unsplit_by_op_ns.keys()


@pytest.mark.parametrize("name", RUNS)
def test_waiting_of_every_message(name: str) -> None:
    """A kernel waits for the last end of what it carries; each end's start is known."""
    run = run_of(name)
    clocks = {rank.rank: rank.clock for rank in run.whole.ranks}
    true: dict[tuple[int, int], int] = defaultdict(int)
    for instance in run.truth["instances"]:
        for member in instance["members"] if instance["op"] == "message" else []:
            shown = EPOCH_NS + reading(clocks[member["rank"]], member["start_ns"])
            key = (member["rank"], shown)
            true[key] = max(true[key], member["wait_ns"])
    frame = run.table.frame
    rank, start, op = (frame[n].to_numpy(np.int64) for n in ("rank", "start_ns", "op"))
    whole = frame["complete"].to_numpy(bool)
    kernels = np.unique(messages.carrier_rows(frame))
    checked = 0
    for row in kernels[kernels != NONE].tolist():
        if op[row] not in (CODE["send"], CODE["recv"]) or not whole[row]:
            continue
        # The clocks of the ranks are known to a few microseconds.
        wait = true[int(rank[row]), int(start[row])]
        assert run.waiting.wait_ns[row] == pytest.approx(wait, rel=0.01, abs=4_000)
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", ["1F1B", "interleaved", "GPipe", "a slow stage"])
def test_micro_batches_of_every_pass(name: str) -> None:
    """Without any range: by order alone."""
    run, found = run_of(name), pipeline(name)
    last = RUNS[name].first_step + RUNS[name].steps - 1
    for rank in run.whole.ranks:
        mark = next(r for r in rank.ranges if r.name == f"ProfilerStep#{last}")
        launched = {launch.correlation: launch.start for launch in rank.launches}
        true: dict[tuple[str, int, int], int] = {}
        for event in rank.device_events:
            inside = mark.start <= launched[event.correlation] < mark.end
            passes = event.part in ("forward", "backward") and event.kind == "kernel"
            if inside and passes and not event.communications and event.micro_batch is not None:
                key = (event.part, event.chunk * 4 + rank.rank, event.micro_batch)
                true[key] = min(true.get(key, event.start), event.start)
        shown = {
            (one.kind, one.virtual_stage, one.microbatch): one.start_ns
            for one in found.timeline
            if one.stage == rank.rank
        }
        assert shown.keys() == true.keys()
        apart = [shown[key] - true[key] for key in true]
        assert max(apart) - min(apart) < 5_000


def test_a_slow_stage_is_named() -> None:
    [finding] = [f for f in run_of("a slow stage").analysis.findings if f.id == "stage-imbalance"]
    assert finding.evidence["stage"] == 2
    works = [one.work_ns for one in pipeline("a slow stage").stage_times]
    assert finding.saving_ns_per_step == round(works[2] - sum(works) / 4)


def test_nobody_is_called_late_for_the_schedule() -> None:
    """The norm of the gradients spans stages, and the first stage ends last there by design."""
    assert run_of("1F1B").analysis.stragglers == []

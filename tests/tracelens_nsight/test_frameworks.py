"""Ranges that frameworks push: where the optimizer begins, and which framework it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nsight_exports import Export

import tracelens
from tracelens import steps
from tracelens.operations import SEND
from tracelens.passes import Compute, Message, PassFinder

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace
    from tracelens.passes import Work


def work_of(trace: RankTrace) -> Work | None:
    """Return the work of the first step as that of a stage, which sends something."""
    events = trace.device_events
    columns = (events[n].to_numpy() for n in ("start", "end", "launch", "launch_thread"))
    finder = PassFinder(trace, steps.find(trace.marks), is_host=False)
    return finder.of_step(0, Compute(*columns), [Message(1_001, SEND)])


@pytest.mark.parametrize(
    "name",
    [
        "Optimizer.step#AdamW.step, op_id = 5",
        "DeepSpeedZeroOptimizer_Stage3.step",
        "megatron.core.optimizer.distrib_optimizer.DistributedOptimizer.step",
    ],
)
def test_what_the_optimizer_computes_is_neither_forward_nor_backward(
    name: str, tmp_path: Path
) -> None:
    export = Export().step(1, 1_000, 9_000).kernel("gemm", 2_000, 500)
    export.range(name, 5_000, 8_000).kernel("multi_tensor_apply", 6_000, 700)
    (trace,) = export.traces(tmp_path / "x.sqlite")
    work = work_of(trace)
    assert work is not None
    assert (work.first, work.last, work.work_ns) == (2_000, 2_500, 500)


@pytest.mark.parametrize("name", ["optimizer_step", "x.step"])
def test_other_ranges_are_no_optimizer(name: str, tmp_path: Path) -> None:
    export = Export().step(1, 1_000, 9_000).range(name, 1_500, 8_000)
    (trace,) = export.kernel("gemm", 2_000, 500).traces(tmp_path / "x.sqlite")
    work = work_of(trace)
    assert work is not None
    assert work.work_ns == 500


@pytest.mark.parametrize(
    ("name", "strategy", "framework"),
    [
        ("FSDP::pre_forward (layers.0)", "zero3", "fsdp2"),
        ("FullyShardedDataParallel._pre_forward", "zero3", "fsdp1"),
        ("DistributedDataParallel.forward", "ddp", "ddp"),
        ("DeepSpeedZeroOptimizer_Stage3.step", "zero3", "deepspeed"),
        ("DeepSpeedZeroOptimizer.step", "zero1-or-2", "deepspeed"),
    ],
)
def test_without_sizes_ranges_name_the_framework(
    name: str, strategy: str, framework: str, tmp_path: Path
) -> None:
    for rank in range(2):
        export = Export(nccl=None).mark(rank=rank, world=2)
        for step in (1, 2):
            begin = 10_000 * step
            export.step(step, begin, begin + 9_000).range(name, begin + 100, begin + 200)
            export.kernel("gemm", begin + 1_000).collective("ncclAllReduce", begin + 5_000)
        export.write(tmp_path / f"{rank}.sqlite")
    found = tracelens.analyze(tmp_path).parallelism
    assert (found.strategy, found.framework, found.confidence) == (strategy, framework, "medium")

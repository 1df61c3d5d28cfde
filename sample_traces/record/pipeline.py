"""Record pipeline schedules whose stages sleep, so that their bubbles are real on few cores."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from expected import write_expected
from profiling import gloo_process_group, profile_steps
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.nn.functional import linear, mse_loss
from torch.profiler import record_function

ROWS_PER_MICRO_BATCH = 4
DIMENSION = 128


@dataclass(frozen=True)
class Plan:
    """A schedule and how long a stage sleeps in it for each micro-batch.

    `weight` is the part of the backward that a zero-bubble schedule may put off. Whole-backward
    schedules sleep in `backward` only.
    """

    schedule: Any
    micro_batches: int
    forward: float
    backward: float
    weight: float = 0.0
    style: Literal["single", "loop", "v"] = "single"

    def stages_of(self, rank: int, ranks: int) -> list[int]:
        """Return the stages a rank holds."""
        if self.style == "single":
            return [rank]
        second = rank + ranks if self.style == "loop" else 2 * ranks - 1 - rank
        return [rank, second]


PLANS = {
    "GPipe": Plan(ScheduleGPipe, 8, 0.040, 0.080),
    "1F1B": Plan(Schedule1F1B, 8, 0.040, 0.080),
    "Interleaved1F1B": Plan(ScheduleInterleaved1F1B, 4, 0.040, 0.080, style="loop"),
    "ZBVZeroBubble": Plan(ScheduleZBVZeroBubble, 5, 0.080, 0.080, 0.080, style="v"),
    "DualPipeV": Plan(ScheduleDualPipeV, 6, 0.080, 0.080, 0.080, style="v"),
}


class Sleep(torch.autograd.Function):
    """The identity, taking as long as a stage would compute on a device of its own."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, plan: Plan) -> Tensor:
        """Sleep for the forward of a micro-batch."""
        ctx.plan = plan
        with record_function("stage_forward"):
            time.sleep(plan.forward)
        return activations.clone()  # the schedules detach it, which no view allows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sleep for the backward of a micro-batch."""
        with record_function("stage_backward"):
            time.sleep(ctx.plan.backward)
        return gradient, None


class SleepForWeight(torch.autograd.Function):
    """The identity of a weight: only its gradient takes time."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, plan: Plan) -> Tensor:
        """Do nothing."""
        ctx.plan = plan
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sleep for the weight gradient of a micro-batch."""
        with record_function("stage_weight"):
            time.sleep(ctx.plan.weight)
        return gradient, None


class SleepingStage(nn.Module):
    """A small layer that sleeps."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.layer = nn.Linear(DIMENSION, DIMENSION)

    def forward(self, activations: Tensor) -> Tensor:
        """Apply the layer; the sleep comes after it so that it takes part in every backward."""
        weight = self.layer.weight
        if self.plan.weight:
            weight = SleepForWeight.apply(weight, self.plan)
        slept: Tensor = Sleep.apply(linear(activations, weight, self.layer.bias), self.plan)
        return slept


def expect(name: str, plan: Plan, parameters: int) -> None:
    """Send each micro-batch's activations on and their gradients back.

    No message is sent between two stages of one rank.
    """
    ranks = dist.get_world_size()
    held = [plan.stages_of(rank, ranks) for rank in range(ranks)]
    last = max(stage for stages in held for stage in stages)
    sends = [
        plan.micro_batches
        * sum(
            (stage < last and stage + 1 not in stages) + (stage > 0 and stage - 1 not in stages)
            for stage in stages
        )
        for stages in held
    ]
    write_expected(
        framework="pipelining",
        strategy="pipeline-parallel",
        parameters=parameters * ranks,
        facts={
            "schedule": name,
            "stages": ranks,
            "virtual_stages": len(held[0]),
            "micro_batches": plan.micro_batches,
            "forward_seconds": plan.forward,
            "backward_seconds": plan.backward,
            "weight_seconds": plan.weight,
            "elements_per_send": ROWS_PER_MICRO_BATCH * DIMENSION,
            "sends_per_step": sends,
        },
    )


def train(name: str) -> None:
    """Train the stages and record their steps."""
    plan = PLANS[name]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    held = plan.stages_of(rank, ranks)
    modules = nn.ModuleList(SleepingStage(plan) for _ in held)
    expect(name, plan, sum(parameter.numel() for parameter in modules.parameters()))
    stages = [
        PipelineStage(module, index, len(held) * ranks, torch.device("cpu"))
        for index, module in zip(held, modules, strict=True)
    ]
    given: Any = stages if plan.style != "single" else stages[0]
    schedule = plan.schedule(given, n_microbatches=plan.micro_batches, loss_fn=mse_loss)
    optimizer = torch.optim.SGD(modules.parameters(), lr=1e-3)

    def train_step() -> None:
        batch = torch.randn(plan.micro_batches * ROWS_PER_MICRO_BATCH, DIMENSION)
        inputs = (batch,) if any(stage.is_first for stage in stages) else ()
        target = batch if any(stage.is_last for stage in stages) else None
        schedule.step(*inputs, target=target)
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=PLANS, required=True)
    with gloo_process_group():
        train(parser.parse_args().schedule)

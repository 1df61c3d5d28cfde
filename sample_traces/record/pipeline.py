"""Record pipeline schedules whose stages sleep, so that their bubbles are real on few cores."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from expected import write_expected
from profiling import gloo_process_group, profile_steps
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss
from torch.profiler import record_function

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
MICRO_BATCHES = 8
ROWS_PER_MICRO_BATCH = 4
DIMENSION = 128
FORWARD_SECONDS = 0.020
BACKWARD_SECONDS = 0.040


class Sleep(torch.autograd.Function):
    """The identity, taking as long as a stage would compute on a device of its own."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor) -> Tensor:
        """Sleep for the forward of a micro-batch."""
        with record_function("stage_forward"):
            time.sleep(FORWARD_SECONDS)
        return activations.view_as(activations)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Sleep for the backward of a micro-batch."""
        with record_function("stage_backward"):
            time.sleep(BACKWARD_SECONDS)
        return gradient


class SleepingStage(nn.Module):
    """A small layer that sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIMENSION, DIMENSION)

    def forward(self, activations: Tensor) -> Tensor:
        """Apply the layer; the sleep comes after it so that it takes part in every backward."""
        slept: Tensor = Sleep.apply(self.layer(activations))
        return slept


def expect(schedule: str, stage_parameters: int) -> None:
    """Send each micro-batch's activations on and their gradients back."""
    stages = dist.get_world_size()
    write_expected(
        framework="pipelining",
        strategy="pipeline-parallel",
        parameters=stages * stage_parameters,
        facts={
            "schedule": schedule,
            "stages": stages,
            "micro_batches": MICRO_BATCHES,
            "forward_seconds": FORWARD_SECONDS,
            "backward_seconds": BACKWARD_SECONDS,
            "ideal_bubble": (stages - 1) / (MICRO_BATCHES + stages - 1),
            "elements_per_send": ROWS_PER_MICRO_BATCH * DIMENSION,
            "sends_per_step": [
                MICRO_BATCHES * ((stage < stages - 1) + (stage > 0)) for stage in range(stages)
            ],
        },
    )


def train(schedule_name: str) -> None:
    """Train the stages and record their steps."""
    rank, stages = dist.get_rank(), dist.get_world_size()
    module = SleepingStage()
    expect(schedule_name, sum(parameter.numel() for parameter in module.parameters()))
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = SCHEDULES[schedule_name](stage, n_microbatches=MICRO_BATCHES, loss_fn=mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def train_step() -> None:
        batch = torch.randn(MICRO_BATCHES * ROWS_PER_MICRO_BATCH, DIMENSION)
        inputs = (batch,) if stage.is_first else ()
        schedule.step(*inputs, target=batch if stage.is_last else None)
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, required=True)
    with gloo_process_group():
        train(parser.parse_args().schedule)

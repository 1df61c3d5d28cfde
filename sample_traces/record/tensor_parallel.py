"""Record tensor parallelism by DTensor: `up` split by columns, `down` by rows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expected import write_expected
from model import (
    DIMENSION,
    HIDDEN_SIZES,
    SEQUENCE_LENGTH,
    SEQUENCES,
    ToyLanguageModel,
    count,
    next_token_loss,
    random_tokens,
)
from profiling import gloo_process_group, profile_steps
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def parallelize_blocks(model: ToyLanguageModel, mesh: DeviceMesh) -> None:
    """Split every block's hidden dimension over the mesh."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def expect(parameters: int) -> None:
    """All-reduce each block's output in forward and its input's gradient in backward."""
    activations = SEQUENCES * SEQUENCE_LENGTH * DIMENSION
    all_reduces = 2 * len(HIDDEN_SIZES)
    write_expected(
        framework="dtensor",
        strategy="tensor-parallel",
        parameters=parameters,
        facts={
            "mesh": {"tp": dist.get_world_size()},
            "activation_all_reduces_per_rank_and_step": all_reduces,
            "activation_elements_per_all_reduce": activations,
        },
    )


def train() -> None:
    """Train the model and record its steps."""
    model = ToyLanguageModel()
    expect(count(model.parameters()))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    parallelize_blocks(model, mesh)
    # The norms, embedding and head are plain tensors, which one foreach call cannot mix with
    # DTensors.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def train_step() -> None:
        tokens = random_tokens()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step)


if __name__ == "__main__":
    with gloo_process_group():
        train()

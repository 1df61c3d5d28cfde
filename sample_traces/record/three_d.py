"""Record 3-D parallelism: tensor parallel, then `fully_shard`, then a 1F1B pipeline."""

from __future__ import annotations

import torch
from expected import write_expected
from fsdp2 import shard
from model import (
    DIMENSION,
    HIDDEN_SIZES,
    SEQUENCE_LENGTH,
    SEQUENCES,
    ToyLanguageModel,
    count,
    count_root,
    next_token_loss,
    random_tokens,
)
from profiling import gloo_process_group, profile_steps, recorded_steps
from tensor_parallel import parallelize_blocks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MESH = {"pp": 2, "dp": 2, "tp": 2}
MICRO_BATCHES = 4
ACTIVATIONS = SEQUENCES * SEQUENCE_LENGTH * DIMENSION


def build_stage(index: int) -> ToyLanguageModel:
    """Return the first or the second half of the model."""
    half = len(HIDDEN_SIZES) // 2
    hidden_sizes = HIDDEN_SIZES[:half] if index == 0 else HIDDEN_SIZES[half:]
    return ToyLanguageModel(hidden_sizes, first=index == 0, last=index == MESH["pp"] - 1)


def local_sizes(stage: ToyLanguageModel) -> tuple[int, int]:
    """Return the elements of a rank's root unit and of its blocks, after the split by `tp`."""
    parameters = list(stage.blocks.parameters())
    matrices = count(parameter for parameter in parameters if parameter.ndim == 2)
    norms = count(parameters) - matrices
    return count_root(stage), matrices // MESH["tp"] + norms


def expect_of_stage(index: int) -> dict[str, int]:
    """Return the traffic of each rank of a stage.

    In a pipeline, FSDP2 reduce-scatters in the last backward only and does not reshard after the
    others. So the blocks are gathered for the forwards before the first backward and for every
    backward that follows a forward: in 1F1B once per micro-batch and once more. The root is
    gathered once.
    """
    root, blocks = local_sizes(build_stage(index))
    tensor_parallel_all_reduces = 2 * len(HIDDEN_SIZES) // MESH["pp"] * MICRO_BATCHES
    return {
        "parameters": count(build_stage(index).parameters()),
        "parameters_per_tp_rank": root + blocks,
        "dp_all_gather_elements": root + (MICRO_BATCHES + 1) * blocks,
        "dp_reduce_scatter_elements": root + blocks,
        "tp_all_reduces": tensor_parallel_all_reduces,
        "tp_all_reduce_elements": tensor_parallel_all_reduces * ACTIVATIONS,
        "pp_sends": MICRO_BATCHES,
        "pp_send_elements": MICRO_BATCHES * ACTIVATIONS,
    }


def expect() -> None:
    """Describe the run, stage by stage."""
    write_expected(
        framework="fsdp2+dtensor+pipelining",
        strategy="3d",
        parameters=count(ToyLanguageModel().parameters()),
        steps=recorded_steps(MICRO_BATCHES),
        facts={
            "mesh": MESH,
            "schedule": "1F1B",
            "micro_batches": MICRO_BATCHES,
            "stages": [expect_of_stage(index) for index in range(MESH["pp"])],
        },
    )


def train() -> None:
    """Train the stages and record their steps."""
    expect()
    mesh = init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))
    index = mesh["pp"].get_local_rank()
    model = build_stage(index)
    parallelize_blocks(model, mesh["tp"])
    shard(model, mesh["dp"], reshard=True)
    stage = PipelineStage(
        model, index, MESH["pp"], torch.device("cpu"), group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=next_token_loss)
    # One foreach call cannot mix the two meshes of the parameters.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def train_step() -> None:
        tokens = random_tokens(MICRO_BATCHES * SEQUENCES)
        inputs = (tokens,) if stage.is_first else ()
        schedule.step(*inputs, target=tokens if stage.is_last else None)
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step, MICRO_BATCHES)


if __name__ == "__main__":
    with gloo_process_group():
        train()

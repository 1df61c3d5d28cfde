"""Record FSDP2 (`fully_shard`): sharded, not resharded after forward, or hybrid on a 2-D mesh."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from expected import Elements, write_expected
from model import Block, ToyLanguageModel, count, count_root, next_token_loss, random_tokens
from profiling import gloo_process_group, profile_steps
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def expect(model: ToyLanguageModel, replicas: int, *, reshard: bool) -> None:
    """Gather in forward and again in backward (but never the root), and reduce-scatter.

    Hybrid sharding all-reduces each rank's gradient shard across the replicas on top.
    """
    parameters, root = count(model.parameters()), count_root(model)
    shards = dist.get_world_size() // replicas
    write_expected(
        framework="fsdp2",
        strategy="hsdp" if replicas > 1 else "fsdp",
        parameters=parameters,
        elements=Elements(
            all_gather=2 * parameters - root if reshard else parameters,
            reduce_scatter=parameters,
            all_reduce=parameters // shards if replicas > 1 else 0,
        ),
        facts={
            "root_parameters": root,
            "reshard_after_forward": reshard,
            "mesh": {"replicate": replicas, "shard": shards},
        },
    )


def build_mesh(replicas: int) -> DeviceMesh:
    """Return a 1-D mesh, or for several replicas the 2-D mesh of hybrid sharding."""
    shards = dist.get_world_size() // replicas
    if replicas == 1:
        return init_device_mesh("cpu", (shards,), mesh_dim_names=("shard",))
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def shard(model: ToyLanguageModel, mesh: DeviceMesh, *, reshard: bool) -> None:
    """Shard every block as a unit, and the rest as the root unit."""
    # None is FSDP2's default: reshard every unit but the root.
    reshard_after_forward = None if reshard else False
    for block in model.blocks:
        assert isinstance(block, Block)
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward)


def train(replicas: int, *, reshard: bool) -> None:
    """Train the model and record its steps."""
    model = ToyLanguageModel()
    expect(model, replicas, reshard=reshard)
    shard(model, build_mesh(replicas), reshard=reshard)
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step() -> None:
        tokens = random_tokens()
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        # What most training loops add: two messages of one element, the norm and the mean loss.
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        dist.all_reduce(loss.detach())
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--no-reshard", action="store_true")
    arguments = parser.parse_args()
    with gloo_process_group():
        train(arguments.replicas, reshard=not arguments.no_reshard)

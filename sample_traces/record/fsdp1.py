"""Record FSDP1 (`FullyShardedDataParallel`) with FULL_SHARD."""

from __future__ import annotations

import torch
from expected import Elements, write_expected
from model import Block, ToyLanguageModel, count, count_root, next_token_loss, random_tokens
from profiling import gloo_process_group, profile_steps
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def expect(model: ToyLanguageModel) -> None:
    """Gather in forward and again in backward (but never the root), and reduce-scatter."""
    parameters, root = count(model.parameters()), count_root(model)
    write_expected(
        framework="fsdp1",
        strategy="fsdp",
        parameters=parameters,
        elements=Elements(all_gather=2 * parameters - root, reduce_scatter=parameters),
        facts={"root_parameters": root, "sharding_strategy": "FULL_SHARD"},
    )


def train() -> None:
    """Train the model and record its steps."""
    model = ToyLanguageModel()
    expect(model)
    sharded = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(sharded.parameters())

    def train_step() -> None:
        tokens = random_tokens()
        next_token_loss(sharded(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step)


if __name__ == "__main__":
    with gloo_process_group():
        train()

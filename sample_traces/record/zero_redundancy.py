"""Record DistributedDataParallel with ZeroRedundancyOptimizer, PyTorch's ZeRO stage 1."""

from __future__ import annotations

import torch
from expected import Elements, write_expected
from model import ToyLanguageModel, count, next_token_loss, random_tokens
from profiling import gloo_process_group, profile_steps
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

# Small enough that the gradients fill several buckets.
BUCKET_MIB = 0.5


def expect(parameters: int) -> None:
    """All-reduce every gradient, then broadcast every parameter from the rank that updated it."""
    write_expected(
        framework="zero-redundancy-optimizer",
        strategy="zero1",
        parameters=parameters,
        elements=Elements(all_reduce=parameters, broadcast=parameters),
        facts={"bucket_cap_mib": BUCKET_MIB},
    )


def train() -> None:
    """Train the model and record its steps."""
    model = ToyLanguageModel()
    expect(count(model.parameters()))
    replica = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB)
    optimizer = ZeroRedundancyOptimizer(replica.parameters(), optimizer_class=torch.optim.AdamW)

    def train_step() -> None:
        tokens = random_tokens()
        next_token_loss(replica(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step)


if __name__ == "__main__":
    with gloo_process_group():
        train()

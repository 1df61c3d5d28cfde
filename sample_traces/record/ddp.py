"""Record DistributedDataParallel, with and without gradient accumulation."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
from expected import Elements, write_expected
from model import ToyLanguageModel, count, next_token_loss, random_tokens
from profiling import gloo_process_group, profile_steps
from torch.nn.parallel import DistributedDataParallel

# Small enough that the gradients fill several buckets.
BUCKET_MIB = 0.5


def expect(parameters: int, micro_batches: int, *, no_sync: bool) -> None:
    """All-reduce each gradient once per synchronised micro-batch."""
    synchronised = 1 if no_sync else micro_batches
    write_expected(
        framework="ddp",
        strategy="ddp",
        parameters=parameters,
        gradient_accumulation=micro_batches,
        elements=Elements(all_reduce=synchronised * parameters),
        facts={"no_sync": no_sync, "bucket_cap_mib": BUCKET_MIB},
    )


def train(micro_batches: int, *, no_sync: bool) -> None:
    """Train the model and record its steps."""
    model = ToyLanguageModel()
    expect(count(model.parameters()), micro_batches, no_sync=no_sync)
    replica = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB)
    optimizer = torch.optim.AdamW(replica.parameters())

    def train_step() -> None:
        for micro_batch in range(micro_batches):
            accumulate_only = no_sync and micro_batch < micro_batches - 1
            with replica.no_sync() if accumulate_only else nullcontext():
                tokens = random_tokens()
                next_token_loss(replica(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    profile_steps(train_step, micro_batches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--no-sync", action="store_true")
    arguments = parser.parse_args()
    with gloo_process_group():
        train(arguments.micro_batches, no_sync=arguments.no_sync)

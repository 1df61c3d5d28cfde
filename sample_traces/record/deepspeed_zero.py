"""Record DeepSpeed ZeRO stages 1 to 3 in bf16."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from expected import Elements, write_expected
from model import SEQUENCES, ToyLanguageModel, count, next_token_loss, random_tokens
from profiling import gloo_process_group, profile_steps

# Small enough that the gradients fill several buckets (DeepSpeed's default is 5e8 elements).
BUCKET_ELEMENTS = 300_000


def elements_of(stage: int, parameters: int, micro_batches: int, *, reuse: bool) -> Elements:
    """Return the traffic that DeepSpeed emits, which is not the paper's.

    Stages 1 and 2 all-reduce their buckets (stage 2 every micro-batch) and gather the parameters
    after the step. Stage 3 gathers for forward and for backward, but its defaults keep so small a
    model gathered in between, so that `reuse` halves the gathers.
    """
    if stage == 3:
        gathers = 1 if reuse else 2
        return Elements(all_gather=gathers * parameters, reduce_scatter=parameters)
    reductions = micro_batches if stage == 2 else 1
    return Elements(all_reduce=reductions * parameters, all_gather=parameters)


def configuration(stage: int, micro_batches: int, *, reuse: bool) -> dict[str, object]:
    """Return the DeepSpeed configuration."""
    zero: dict[str, object] = {"stage": stage, "reduce_bucket_size": BUCKET_ELEMENTS}
    if not reuse:
        zero |= {"stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0}
        # The default, 5e7 elements, prefetches this whole model for forward and backward at once,
        # and DeepSpeed does not release what prefetching found in place for a later use.
        zero["stage3_prefetch_bucket_size"] = 0
    return {
        "train_micro_batch_size_per_gpu": SEQUENCES,
        "gradient_accumulation_steps": micro_batches,
        "bf16": {"enabled": True},
        # DeepSpeed's own Adam would be compiled at run time.
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": zero,
    }


def train(stage: int, micro_batches: int, *, reuse: bool) -> None:
    """Train the model and record its steps."""
    model = ToyLanguageModel()
    parameters = count(model.parameters())
    config = configuration(stage, micro_batches, reuse=reuse)
    write_expected(
        framework="deepspeed",
        strategy=f"zero{stage}",
        parameters=parameters,
        dtype="bfloat16",
        gradient_accumulation=micro_batches,
        elements=elements_of(stage, parameters, micro_batches, reuse=reuse),
        facts={
            "zero_optimization": config["zero_optimization"],
            "deepspeed": deepspeed.__version__,
        },
    )
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )

    def train_step() -> None:
        for _ in range(micro_batches):
            tokens = random_tokens()
            engine.backward(next_token_loss(engine(tokens), tokens))
            engine.step()

    profile_steps(train_step, micro_batches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, required=True)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--no-reuse", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    deepspeed.init_distributed("gloo")
    with gloo_process_group():
        train(arguments.stage, arguments.micro_batches, reuse=not arguments.no_reuse)

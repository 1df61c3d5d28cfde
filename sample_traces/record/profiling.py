"""Run training steps under torch.profiler and export one trace per rank."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The first steps differ: DDP rebuilds its buckets, ZeRO-3 learns the order of its parameters.
SKIPPED = 4
WAIT = 1
WARMUP = 1


def active_steps(micro_batches: int) -> int:
    """Return how many steps to record: fewer of the long ones, to keep the samples small."""
    return 3 if micro_batches == 1 else 2


def recorded_steps(micro_batches: int = 1) -> list[int]:
    """Return the ProfilerStep numbers that the trace holds."""
    first = SKIPPED + WAIT + WARMUP
    return list(range(first, first + active_steps(micro_batches)))


@contextmanager
def gloo_process_group() -> Iterator[None]:
    """Set up a reproducible process of a gloo job that torchrun started."""
    torch.set_num_threads(1)
    # One seed for all: replicas start equal, and the ranks of a tensor-parallel group must train
    # on the same tokens.
    torch.manual_seed(0)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until every rank is here, without a collective that the trace would show."""
    store = dist.FileStore("waiting", dist.get_world_size())
    store.add("ranks", 1)
    while store.add("ranks", 0) < dist.get_world_size():
        time.sleep(0.01)


def export(profiler: profile) -> None:
    """Write this rank's trace, by a relative name because Kineto stores the name it is given.

    Writing takes a core from ranks that still work, so all wait for each other first.
    """
    wait_for_all()
    profiler.export_chrome_trace(f"rank{dist.get_rank()}.pt.trace.json")


def profile_steps(train_step: Callable[[], None], micro_batches: int = 1) -> None:
    """Call `train_step`, one optimizer step, until the profiler has recorded its active steps."""
    active = active_steps(micro_batches)
    plan = schedule(skip_first=SKIPPED, wait=WAIT, warmup=WARMUP, active=active, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=export,
        record_shapes=True,
    ) as profiler:
        for _ in range(SKIPPED + WAIT + WARMUP + active):
            train_step()
            profiler.step()

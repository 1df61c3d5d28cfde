"""Data parallelism: what each strategy sends, and when. One file a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate.strategies.base import Strategy
from tracelens.simulate.strategies.ddp import DDP
from tracelens.simulate.strategies.deepspeed import DeepSpeed
from tracelens.simulate.strategies.fsdp import FSDP
from tracelens.simulate.strategies.megatron import Megatron

if TYPE_CHECKING:
    from tracelens.simulate.strategies.base import Setting


def strategy(setting: Setting) -> Strategy:
    """Return the strategy of a rank.

    "ddp" is torch's where data parallelism is all there is, with any other dimension Megatron's.
    """
    options = setting.options
    if options.strategy in ("zero1", "zero2"):
        return DeepSpeed(setting)
    if options.strategy == "zero3":
        return FSDP(setting)
    if options.strategy == "ddp" and options.layout.only_data_parallel:
        return DDP(setting)
    return Megatron(setting)


__all__ = ["Strategy", "strategy"]

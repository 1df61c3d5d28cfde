"""DeepSpeed ZeRO-1 and ZeRO-2: gradients are all-reduced, parameters gathered after the step.

That is what the code does with its defaults (deepspeed/runtime/zero/stage_1_and_2.py), where the
paper reduce-scatters. ZeRO-1 reduces once a step, ZeRO-2 in every micro-batch; nothing overlaps
(`overlap_comm` is off below stage 3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracelens.simulate.strategies.base import Setting, Strategy, buckets

if TYPE_CHECKING:
    from tracelens.theory.transformer import Unit

_BUCKET = 500_000_000
"""`reduce_bucket_size`, in elements."""
_ALIGNMENT = 2
"""`nccl_start_alignment_factor`: the flat group is padded to a multiple of it times N."""


class DeepSpeed(Strategy):
    """Gradients and parameters travel in the parameters' dtype."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.group = setting.group("dp_cp")
        self.dtype = setting.options.model.dtype
        self.every = setting.options.strategy == "zero2"
        self.buckets = buckets(setting.chunks[0], [setting.options.bucket_elements or _BUCKET])
        size = self.group[1] if self.group else 1
        self.flat = math.ceil(setting.parameters / (size * _ALIGNMENT)) * size * _ALIGNMENT
        self.owned = self.flat // size

    def after_backward(self, chunk: int, unit: Unit, *, last: bool) -> None:  # noqa: ARG002
        """All-reduce the buckets this unit completes, and wait for them."""
        if self.group is None or not (last or self.every):
            return
        for bucket in self.buckets:
            if bucket.unit == unit.name:
                with self.script.working_for("gradients"):
                    self.script.blocking_collective(
                        "all_reduce", *self.group, bucket.elements, self.dtype
                    )

    def reduce_norm(self) -> None:
        """Share the overflow flag and the norm."""
        if self.group is not None:
            for _ in range(2):
                self.script.blocking_collective("all_reduce", *self.group, 1, "Float")

    def after_optimizer(self) -> None:
        """Gather the parameters everybody updated a share of."""
        if self.group is not None:
            with self.script.working_for("parameters"):
                self.script.blocking_collective("all_gather", *self.group, self.flat, self.dtype)

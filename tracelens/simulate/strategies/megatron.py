"""Megatron's data parallelism: all-reduce, or the distributed optimizer's two halves of it.

Gradients travel in fp32 once a step, beside the last micro-batch's backward; experts' gradients on
their own groups. Sizes: megatron/core/distributed/param_and_grad_buffer.py and
distributed_data_parallel.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tracelens.simulate.instructions import COMPUTE_STREAM
from tracelens.simulate.strategies.base import Bucket, Setting, Strategy, buckets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.theory.transformer import Unit

_SMALLEST_BUCKET = 40_000_000
_BUCKET_A_RANK = 1_000_000
_PADDING = 128
_GRADIENTS = "Float"


class _Buffer(NamedTuple):
    """The buckets of one chunk on one group."""

    group: tuple[int, int]
    buckets: list[Bucket]


class Megatron(Strategy):
    """One buffer a chunk and kind of parameter (dense, expert)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.sharded = setting.options.strategy == "distributed-optimizer"
        self.buffers = [self._buffers(units) for units in setting.chunks]
        if self.sharded:
            flat = [(b.elements, x.group[1]) for c in self.buffers for x in c for b in x.buckets]
            held = sum(elements for elements, _ in flat)
            self.owned += sum(elements // size for elements, size in flat) - held

    def _buffers(self, units: Sequence[Unit]) -> list[_Buffer]:
        kinds = (("dp_cp", False), ("edp", True)) if self._has_experts else (("dp_cp", None),)
        found = []
        for kind, experts in kinds:
            group = self.setting.group(kind)
            if group is not None:
                limit = self.setting.options.bucket_elements or self._bucket(group[1])
                whole = buckets(units, [limit], experts=experts)
                padded = [b._replace(elements=self._padded(b.elements, group[1])) for b in whole]
                found.append(_Buffer(group, padded))
        return found

    @property
    def _has_experts(self) -> bool:
        return self.setting.options.layout.ep > 1

    def _bucket(self, size: int) -> int:
        return max(_SMALLEST_BUCKET, _BUCKET_A_RANK * size)

    def _padded(self, elements: int, size: int) -> int:
        if not self.sharded:
            return elements
        multiple = math.lcm(size, _PADDING)
        return math.ceil(elements / multiple) * multiple

    def after_backward(self, chunk: int, unit: Unit, *, last: bool) -> None:
        """Reduce the buckets this unit completes."""
        if not last:
            return
        op = "reduce_scatter" if self.sharded else "all_reduce"
        for group, listed in self.buffers[chunk]:
            for bucket in listed:
                if bucket.unit == unit.name:
                    with self.script.working_for("gradients"):
                        self.script.collective(op, *group, bucket.elements, _GRADIENTS)

    def finish_gradients(self) -> None:
        """Wait for all buckets; sum a tied embedding's gradients over first and last stage."""
        for group in {buffer.group for listed in self.buffers for buffer in listed}:
            self.script.wait(COMPUTE_STREAM, self.script.stream_of(("group", group[0])))
        ends = self.setting.group("embedding")
        model, layout = self.setting.options.model, self.setting.options.layout
        if ends is not None and model.tied:
            elements = model.vocabulary * model.hidden // layout.tp
            with self.script.working_for("gradients"):
                self.script.blocking_collective("all_reduce", *ends, elements, _GRADIENTS)

    def reduce_norm(self) -> None:
        """Sum the norm over all shards: the world's, or one replica's."""
        group = self.setting.group("world" if self.sharded else "model")
        if group is not None:
            self.script.blocking_collective("all_reduce", *group, 1, _GRADIENTS)

    def after_optimizer(self) -> None:
        """Gather the parameters, bucket by bucket (without `overlap_param_gather`)."""
        if not self.sharded:
            return
        dtype = self.setting.options.model.dtype
        for listed in self.buffers:
            for group, filled in listed:
                for bucket in filled:
                    with self.script.working_for("parameters"):
                        self.script.blocking_collective(
                            "all_gather", *group, bucket.elements, dtype
                        )

"""torch DDP: all-reduces of buckets beside backward, in the last micro-batch (`no_sync` before)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracelens.simulate.instructions import COMPUTE_STREAM
from tracelens.simulate.script import item_bytes
from tracelens.simulate.strategies.base import Setting, Strategy, buckets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.theory.transformer import Unit

_MIB = 2**20
_FIRST, _OTHERS = _MIB, 25 * _MIB
"""torch/csrc/distributed/c10d/reducer.hpp: kDefaultFirstBucketBytes, kDefaultBucketBytesCap."""


class DDP(Strategy):
    """Gradients travel in the parameters' own dtype."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.group = setting.group("dp_cp")
        self.dtype = setting.options.model.dtype
        each = item_bytes(self.dtype)
        size = setting.options.bucket_elements
        limits = [size] if size else [_FIRST // each, _OTHERS // each]
        self.buckets = buckets(setting.chunks[0], limits)

    @contextmanager
    def forward_pass(self, chunk: int) -> Iterator[None]:  # noqa: ARG002 - there is one
        """Name the pass as DDP's wrapper does."""
        with self.script.range("annotation", "DistributedDataParallel.forward"):
            yield

    def after_backward(self, chunk: int, unit: Unit, *, last: bool) -> None:  # noqa: ARG002
        """All-reduce the buckets this unit completes."""
        if not last or self.group is None:
            return
        for bucket in self.buckets:
            if bucket.unit == unit.name:
                with self.script.working_for("gradients"):
                    self.script.collective("all_reduce", *self.group, bucket.elements, self.dtype)

    def finish_gradients(self) -> None:
        """Wait for all buckets."""
        if self.group is not None:
            self.script.wait(COMPUTE_STREAM, self.script.stream_of(("group", self.group[0])))

"""Attention, and the traffic of context parallelism around it.

A ring passes keys and values on (c-1) times forward, and both them and their gradients backward;
the other way gathers them, and gathers them again and reduce-scatters their gradients backward
(Megatron's `cp_comm_type`: p2p and all_gather).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import kernels
from tracelens.simulate.instructions import Post
from tracelens.simulate.tensor import backward_of

if TYPE_CHECKING:
    from tracelens.simulate.layout import ProcessGroups
    from tracelens.simulate.options import Options
    from tracelens.simulate.tensor import Tensor
    from tracelens.theory.transformer import Unit

_BACKWARD = 2.5  # a flash backward computes five matrix products where forward computes two


class Attention:
    """Writes the attention of one rank: its heads, and its tokens as queries."""

    def __init__(self, tensor: Tensor, options: Options, groups: ProcessGroups) -> None:
        self.tensor, self.script, self.model = tensor, tensor.script, options.model
        self.group = groups.of("cp", tensor.script.rank)
        self.members = groups.ranks("cp", tensor.script.rank)
        self.ring = options.context == "ring"

    def forward(self, unit: Unit) -> None:
        """Attend to the whole sequence."""
        if self.group is None:
            self._attend(kernels.ATTENTION, 1.0)
        elif self.ring:
            self._pass_round(kernels.ATTENTION, 1.0, ("kv",), unit)
        else:
            self._gather()
            self._attend(kernels.ATTENTION, 1.0)

    def backward(self, unit: Unit) -> None:
        """Compute the gradients of queries, keys and values."""
        with backward_of(self.script, "ScaledDotProductCudnnAttention"):
            if self.group is None:
                self._attend(kernels.ATTENTION_BACKWARD, _BACKWARD)
            elif self.ring:
                self._pass_round(kernels.ATTENTION_BACKWARD, _BACKWARD, ("kv", "dkv"), unit)
            else:
                self._gather()
                self._attend(kernels.ATTENTION_BACKWARD, _BACKWARD)
                self._collective("reduce_scatter")

    def _attend(self, kernel: kernels.Kernel, factor: float) -> None:
        """Launch the kernel; causal masking halves the work."""
        model = self.model
        pairs = self.tensor.tokens * model.sequence / 2
        operations = factor * 4 * pairs * model.hidden / self.tensor.size
        moved = 8 * self.tensor.tokens * model.hidden / self.tensor.size
        self.script.kernel(kernel, operations=operations, moved=moved)

    def _pass_round(
        self, kernel: kernels.Kernel, factor: float, what: tuple[str, ...], unit: Unit
    ) -> None:
        """Attend to one part of the sequence while the next one arrives."""
        size = len(self.members)
        for turn in range(size):
            arriving = self._exchange(what, unit, turn) if turn < size - 1 else None
            self._attend(kernel, factor / size)
            if arriving is not None:
                self.script.wait_for(arriving)

    def _exchange(self, what: tuple[str, ...], unit: Unit, turn: int) -> int:
        assert self.group is not None, "a context-parallel group"
        own = self.members.index(self.script.rank)
        following = self.members[(own + 1) % len(self.members)]
        before = self.members[own - 1]
        elements = 2 * self.tensor.tokens * self.model.kv_width // self.tensor.size
        label = (unit.name, self.script.tag.micro_batch, turn)
        posts = [
            Post(op, peer, elements, (*label, name))
            for op, peer in (("send", following), ("recv", before))
            for name in what
        ]
        return self.script.exchange(self.group, self.model.dtype, posts)

    def _gather(self) -> None:
        self._collective("all_gather")

    def _collective(self, op: str) -> None:
        assert self.group is not None, "a context-parallel group"
        size = len(self.members)
        elements = 2 * self.tensor.tokens * size * self.model.kv_width // self.tensor.size
        self.script.blocking_collective(op, self.group, size, elements, self.model.dtype)

"""Tensor parallelism: a rank's share of the work, and the traffic that puts the shares together.

Counts and sizes follow Megatron (megatron/core/tensor_parallel/layers.py): per layer two
all-reduces of b·s·h forward and two backward; with sequence parallelism six all-gathers and four
reduce-scatters instead: a column-parallel layer gathers its input again for its weight gradient.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracelens.simulate.script import item_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.simulate.kernels import Kernel
    from tracelens.simulate.layout import ProcessGroups
    from tracelens.simulate.options import Options
    from tracelens.simulate.script import Script

_AUTOGRAD = "autograd::engine::evaluate_function: {}Backward0"


@contextmanager
def backward_of(script: Script, name: str) -> Iterator[None]:
    """Write what follows inside the range autograd opens around a function."""
    with script.range("operator", _AUTOGRAD.format(name)):
        yield


class Tensor:
    """The tensor-parallel side of a rank: its shares of the work, and how they are put together.

    Attributes:
        tokens: Tokens of a micro-batch on this rank.
        size: Ranks of the tensor-parallel group.
        sequence_parallel: Whether norms and residuals hold 1/size of the tokens.
    """

    def __init__(self, script: Script, options: Options, groups: ProcessGroups) -> None:
        self.script, self.model = script, options.model
        self.group = groups.of("tp", script.rank)
        self.size = options.layout.tp
        self.tokens = self.model.batch * self.model.sequence // options.layout.cp
        self.sequence_parallel = options.sequence_parallel and self.size > 1

    @property
    def own_tokens(self) -> int:
        """Tokens whose residual this rank holds."""
        return self.tokens // self.size if self.sequence_parallel else self.tokens

    def pointwise(self, kernel: Kernel, tokens: int, width: float, passes: int = 3) -> None:
        """Launch a kernel that reads and writes `passes` tensors of tokens x width."""
        moved = passes * tokens * width * item_bytes(self.model.dtype)
        self.script.kernel(kernel, moved=moved)

    def gather(self) -> None:
        """Gather the tokens for a column-parallel layer (sequence parallelism only)."""
        if self.sequence_parallel:
            self._blocking("all_gather")

    def reduce(self) -> None:
        """Sum the outputs of a row-parallel layer; with sequence parallelism each keeps a share."""
        if self.group is not None:
            self._blocking("reduce_scatter" if self.sequence_parallel else "all_reduce")

    def reduce_scalars(self) -> None:
        """Sum one number a token: what the loss over a split vocabulary needs."""
        if self.group is not None:
            self.script.blocking_collective(
                "all_reduce", self.group, self.size, self.tokens, "Float"
            )

    def linear_backward(
        self, outputs: int, inputs: int, *, column: bool, input_too: bool, weight_too: bool
    ) -> None:
        """Compute the gradients of a linear layer.

        Args:
            outputs: Width of the output on this rank.
            inputs: Width of the input on this rank.
            column: Whether it is column-parallel, else row-parallel.
            input_too: Whether to compute the input's gradient.
            weight_too: Whether to compute the weight's gradient.
        """
        with backward_of(self.script, "Mm"):
            if not column and input_too:
                self.gather()  # the gradient of the row-parallel layer's reduce-scatter
            gathered = self._start("all_gather") if column and weight_too else None
            if input_too:
                self.script.matmul(self.tokens, inputs, outputs)
            summed = self._start_sum() if column and input_too else None
            if gathered is not None:
                self.script.wait_for(gathered)
            if weight_too:
                self.script.matmul(outputs, inputs, self.tokens)
            if summed is not None:
                self.script.wait_for(summed)

    def _start_sum(self) -> int | None:
        """Start summing a column-parallel layer's input gradient, beside its weight gradient."""
        if self.group is None:
            return None
        if self.sequence_parallel:
            return self._start("reduce_scatter")
        return self._collective("all_reduce")

    def _start(self, op: str) -> int | None:
        return self._collective(op) if self.sequence_parallel else None

    def _collective(self, op: str) -> int:
        assert self.group is not None, "a tensor-parallel group"
        return self.script.collective(op, self.group, self.size, self._elements, self.model.dtype)

    def _blocking(self, op: str) -> None:
        assert self.group is not None, "a tensor-parallel group"
        self.script.blocking_collective(op, self.group, self.size, self._elements, self.model.dtype)

    @property
    def _elements(self) -> int:
        return self.tokens * self.model.hidden

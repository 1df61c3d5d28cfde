"""A layer of experts: tokens go to the ranks that hold their experts, and come back.

Per layer and micro-batch an all-to-all of T·k·h elements dispatches, another one combines, and
backward repeats both the other way (docs/theory.md). Routing is balanced. Experts are tensor
parallel like the rest of the model, so the tokens they got are gathered over that group first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import kernels
from tracelens.simulate.tensor import backward_of

if TYPE_CHECKING:
    from tracelens.simulate.layout import ProcessGroups
    from tracelens.simulate.options import Options
    from tracelens.simulate.tensor import Tensor


class Experts:
    """Writes the expert layers of one rank."""

    def __init__(self, tensor: Tensor, options: Options, groups: ProcessGroups) -> None:
        self.tensor, self.script, self.model = tensor, tensor.script, options.model
        self.group = groups.of("ep", tensor.script.rank)
        self.size = options.layout.ep

    def forward(self) -> None:
        """Route, dispatch, compute, combine."""
        model, tensor, script = self.model, self.tensor, self.script
        script.matmul(tensor.own_tokens, model.experts, model.hidden)
        tensor.pointwise(kernels.TOP_K, tensor.own_tokens, model.experts, 2)
        self._permute()
        self._all_to_all()
        self._over_tensor_group("all_gather")
        script.matmul(self._routed, self._first, model.hidden, kernels.GROUPED_MATMUL)
        tensor.pointwise(kernels.ACTIVATION, self._routed, self._first, 2)
        script.matmul(self._routed, model.hidden, self._second, kernels.GROUPED_MATMUL)
        self._over_tensor_group("reduce_scatter")
        self._all_to_all()
        self._permute()

    def backward(self, *, input_too: bool, weight_too: bool) -> None:
        """Send the gradients the same way back."""
        if input_too:
            with backward_of(self.script, "_AllToAll"):
                self._permute()
                self._all_to_all()
                self._over_tensor_group("all_gather")
        self._linear_backward(
            self.model.hidden, self._second, input_too=input_too, weight_too=weight_too
        )
        if input_too:
            with backward_of(self.script, "Gelu"):
                self.tensor.pointwise(kernels.ACTIVATION_BACKWARD, self._routed, self._first)
        self._linear_backward(
            self._first, self.model.hidden, input_too=input_too, weight_too=weight_too
        )
        if input_too:
            with backward_of(self.script, "_AllToAll"):
                self._over_tensor_group("reduce_scatter")
                self._all_to_all()
                self._permute()

    def _linear_backward(
        self, outputs: int, inputs: int, *, input_too: bool, weight_too: bool
    ) -> None:
        with backward_of(self.script, "Bmm"):
            if input_too:
                self.script.matmul(self._routed, inputs, outputs, kernels.GROUPED_MATMUL)
            if weight_too:
                self.script.matmul(outputs, inputs, self._routed, kernels.GROUPED_MATMUL)

    def _all_to_all(self) -> None:
        if self.group is not None:
            self.script.blocking_collective(
                "all_to_all", self.group, self.size, self._elements, self.model.dtype
            )

    def _over_tensor_group(self, op: str) -> None:
        tensor = self.tensor
        if tensor.group is not None:
            elements = self._elements * tensor.size
            self.script.blocking_collective(
                op, tensor.group, tensor.size, elements, self.model.dtype
            )

    def _permute(self) -> None:
        tokens = self.tensor.own_tokens * self.model.top_k
        self.tensor.pointwise(kernels.PERMUTE, tokens, self.model.hidden, 2)

    @property
    def _elements(self) -> int:
        """Elements a rank sends: each of its tokens to `top_k` experts."""
        return self.tensor.own_tokens * self.model.top_k * self.model.hidden

    @property
    def _routed(self) -> int:
        """Tokens the experts of this rank compute."""
        return self.tensor.own_tokens * self.model.top_k * self.tensor.size

    @property
    def _first(self) -> int:
        return self.model.mlp_width * (2 if self.model.gated else 1) // self.tensor.size

    @property
    def _second(self) -> int:
        return self.model.mlp_width // self.tensor.size

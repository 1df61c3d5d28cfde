"""Compute a unit of the model forward and backward: the kernels of a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import kernels
from tracelens.simulate.attention import Attention
from tracelens.simulate.experts import Experts
from tracelens.simulate.tensor import Tensor, backward_of

if TYPE_CHECKING:
    from tracelens.simulate.layout import ProcessGroups
    from tracelens.simulate.options import Options
    from tracelens.simulate.script import Script
    from tracelens.theory.transformer import Unit


class Transformer:
    """Writes forward and backward passes of units."""

    def __init__(self, script: Script, options: Options, groups: ProcessGroups) -> None:
        self.script, self.model = script, options.model
        self.tensor = Tensor(script, options, groups)
        self.attention = Attention(self.tensor, options, groups)
        self.experts = Experts(self.tensor, options, groups)

    def forward(self, unit: Unit) -> None:
        """Compute a unit's output."""
        {"embedding": self._embed, "layer": self._layer, "head": self._head}[unit.kind](unit)

    def backward(self, unit: Unit, *, input_too: bool = True, weight_too: bool = True) -> None:
        """Compute a unit's gradients: of its input, of its weights, or both."""
        if unit.kind == "embedding":
            if weight_too:  # nothing stands before an embedding
                self._embed_backward()
        elif unit.kind == "layer":
            self._layer_backward(unit, input_too=input_too, weight_too=weight_too)
        else:
            self._head_backward(input_too=input_too, weight_too=weight_too)

    # forward -------------------------------------------------------------------------------------

    def _embed(self, _unit: Unit) -> None:
        self.tensor.pointwise(kernels.EMBEDDING, self.tensor.tokens, self.model.hidden, 2)
        self.tensor.reduce()

    def _layer(self, unit: Unit) -> None:
        model, tensor, script = self.model, self.tensor, self.script
        tensor.pointwise(kernels.NORM, tensor.own_tokens, model.hidden, 2)
        tensor.gather()
        script.matmul(tensor.tokens, self._qkv_width, model.hidden)
        self.attention.forward(unit)
        script.matmul(tensor.tokens, model.hidden, model.hidden / tensor.size)
        tensor.reduce()
        tensor.pointwise(kernels.ADD, tensor.own_tokens, model.hidden)
        tensor.pointwise(kernels.NORM, tensor.own_tokens, model.hidden, 2)
        if model.experts:
            self.experts.forward()
        else:
            tensor.gather()
            script.matmul(tensor.tokens, self._first_width, model.hidden)
            tensor.pointwise(kernels.ACTIVATION, tensor.tokens, self._first_width, 2)
            script.matmul(tensor.tokens, model.hidden, model.mlp_width / tensor.size)
            tensor.reduce()
        tensor.pointwise(kernels.ADD, tensor.own_tokens, model.hidden)

    def _head(self, _unit: Unit) -> None:
        model, tensor = self.model, self.tensor
        tensor.pointwise(kernels.NORM, tensor.own_tokens, model.hidden, 2)
        tensor.gather()
        self.script.matmul(tensor.tokens, model.vocabulary // tensor.size, model.hidden)
        tensor.reduce_scalars()  # the largest logit
        tensor.reduce_scalars()  # the logit of the label
        tensor.pointwise(kernels.CROSS_ENTROPY, tensor.tokens, model.vocabulary / tensor.size, 2)
        tensor.reduce_scalars()  # the sum of the exponentials

    # backward ------------------------------------------------------------------------------------

    def _embed_backward(self) -> None:
        with backward_of(self.script, "Embedding"):
            self.tensor.gather()
            self.tensor.pointwise(
                kernels.EMBEDDING_BACKWARD, self.tensor.tokens, self.model.hidden, 2
            )

    def _layer_backward(self, unit: Unit, *, input_too: bool, weight_too: bool) -> None:
        model, tensor = self.model, self.tensor
        parts = {"input_too": input_too, "weight_too": weight_too}
        if model.experts:
            self.experts.backward(**parts)
        else:
            tensor.linear_backward(
                model.hidden, model.mlp_width // tensor.size, column=False, **parts
            )
            if input_too:
                self._pointwise_backward(
                    "Gelu", kernels.ACTIVATION_BACKWARD, tensor.tokens, self._first_width
                )
            tensor.linear_backward(self._first_width, model.hidden, column=True, **parts)
        if input_too:
            self._norm_backward()
        tensor.linear_backward(model.hidden, model.hidden // tensor.size, column=False, **parts)
        if input_too:
            self.attention.backward(unit)
        tensor.linear_backward(self._qkv_width, model.hidden, column=True, **parts)
        if input_too:
            self._norm_backward()

    def _head_backward(self, *, input_too: bool, weight_too: bool) -> None:
        model, tensor = self.model, self.tensor
        width = model.vocabulary // tensor.size
        if input_too:
            self._pointwise_backward(
                "LogSoftmax", kernels.CROSS_ENTROPY_BACKWARD, tensor.tokens, width
            )
        tensor.linear_backward(
            width, model.hidden, column=True, input_too=input_too, weight_too=weight_too
        )
        if input_too:
            self._norm_backward()

    def _norm_backward(self) -> None:
        """Compute the gradient of a norm, and add that of the residual beside it."""
        tokens, hidden = self.tensor.own_tokens, self.model.hidden
        self._pointwise_backward("NativeLayerNorm", kernels.NORM_BACKWARD, tokens, hidden)
        self._pointwise_backward("Add", kernels.ADD, tokens, hidden)

    def _pointwise_backward(
        self, name: str, kernel: kernels.Kernel, tokens: int, width: float
    ) -> None:
        with backward_of(self.script, name):
            self.tensor.pointwise(kernel, tokens, width)

    @property
    def _qkv_width(self) -> int:
        return (self.model.hidden + 2 * self.model.kv_width) // self.tensor.size

    @property
    def _first_width(self) -> int:
        return self.model.mlp_width * (2 if self.model.gated else 1) // self.tensor.size

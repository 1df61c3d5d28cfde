"""The model: a decoder-only transformer, its parameters and how they are split."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

from tracelens.errors import OptionError

Split = Literal["rows", "columns", "none"]


class Parameter(NamedTuple):
    """A parameter tensor of one layer.

    Attributes:
        name: As in Megatron, roughly.
        rows: Its first dimension, the one FSDP2 shards.
        columns: The product of the others.
        split: What tensor parallelism divides.
        expert: Whether it belongs to one of the experts.
    """

    name: str
    rows: int
    columns: int = 1
    split: Split = "none"
    expert: bool = False

    @property
    def elements(self) -> int:
        """Elements of the whole tensor."""
        return self.rows * self.columns

    def on_one_of(self, tp: int) -> Parameter:
        """Return the shard of one tensor-parallel rank."""
        if self.split == "rows":
            return self._replace(rows=self.rows // tp)
        return self._replace(columns=self.columns // tp) if self.split == "columns" else self

    def padded(self, shards: int) -> int:
        """Return its elements with the first dimension padded to a multiple of `shards`."""
        return math.ceil(self.rows / shards) * shards * self.columns


class Unit(NamedTuple):
    """A part of the model that is computed at once: embedding, layer or head."""

    name: str
    kind: Literal["embedding", "layer", "head"]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a transformer.

    Attributes:
        layers: Transformer layers.
        hidden: Width h.
        vocabulary: Tokens, padded as the training framework pads them.
        sequence: Tokens of a sequence s.
        batch: Sequences of a micro-batch b.
        heads: Attention heads; h/128 if 0.
        kv_heads: Key and value heads; as many as heads if 0.
        feed_forward: Width of the MLP; 4h if 0.
        gated: Whether the MLP has a gate (SwiGLU), and norms and linear layers no biases.
        tied: Whether embedding and head share their weight.
        positions: Whether positions are learned parameters.
        experts: Experts of each layer's MLP; 0: a dense model.
        top_k: Experts a token is sent to.
        dtype: As it travels: BFloat16, Half or Float.
    """

    layers: int = 4
    hidden: int = 1024
    vocabulary: int = 32_000
    sequence: int = 1024
    batch: int = 1
    heads: int = 0
    kv_heads: int = 0
    feed_forward: int = 0
    gated: bool = False
    tied: bool = False
    positions: bool = True
    experts: int = 0
    top_k: int = 2
    dtype: str = "BFloat16"

    @property
    def attention_heads(self) -> int:
        """Number of heads."""
        return self.heads or max(self.hidden // 128, 1)

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.hidden * (self.kv_heads or self.attention_heads) // self.attention_heads

    @property
    def mlp_width(self) -> int:
        """Width of the MLP, of one expert."""
        return self.feed_forward or 4 * self.hidden

    @property
    def parameters(self) -> int:
        """Ψ, all experts counted, a tied embedding once."""
        return sum(p.elements for unit in self.units() for p in unit.parameters)

    def units(self, experts_here: int | None = None) -> list[Unit]:
        """Return embedding, layers and head in order of forward.

        Args:
            experts_here: Experts to list a layer; all if None.
        """
        experts = self.experts if experts_here is None else experts_here
        embedding = [Parameter("word_embeddings.weight", self.vocabulary, self.hidden, "rows")]
        if self.positions:
            embedding.append(Parameter("position_embeddings.weight", self.sequence, self.hidden))
        head = [*self._norm("final_layernorm")]
        if not self.tied:
            head.append(Parameter("output_layer.weight", self.vocabulary, self.hidden, "rows"))
        layer = (*self._attention(), *self._mlp(experts))
        return [
            Unit("embedding", "embedding", tuple(embedding)),
            *(Unit(f"layers.{number}", "layer", layer) for number in range(self.layers)),
            Unit("head", "head", tuple(head)),
        ]

    def _norm(self, name: str) -> list[Parameter]:
        weight = Parameter(f"{name}.weight", self.hidden)
        return [weight] if self.gated else [weight, Parameter(f"{name}.bias", self.hidden)]

    def _linear(
        self, name: str, rows: int, columns: int, split: Split, *, expert: bool = False
    ) -> list[Parameter]:
        found = [Parameter(f"{name}.weight", rows, columns, split, expert)]
        if not self.gated:
            # A row-parallel layer adds its bias after the sum over the ranks: it is whole on each.
            bias: Split = "rows" if split == "rows" else "none"
            found.append(Parameter(f"{name}.bias", rows, 1, bias, expert))
        return found

    def _attention(self) -> list[Parameter]:
        return [
            *self._norm("input_layernorm"),
            *self._linear("linear_qkv", self.hidden + 2 * self.kv_width, self.hidden, "rows"),
            *self._linear("linear_proj", self.hidden, self.hidden, "columns"),
            *self._norm("pre_mlp_layernorm"),
        ]

    def _mlp(self, experts: int) -> list[Parameter]:
        first = self.mlp_width * (2 if self.gated else 1)
        if not self.experts:
            return [
                *self._linear("mlp.linear_fc1", first, self.hidden, "rows"),
                *self._linear("mlp.linear_fc2", self.hidden, self.mlp_width, "columns"),
            ]
        found = [Parameter("mlp.router.weight", self.experts, self.hidden)]
        for number in range(experts):
            name = f"mlp.experts.{number}.linear"
            found += self._linear(f"{name}_fc1", first, self.hidden, "rows", expert=True)
            found += self._linear(
                f"{name}_fc2", self.hidden, self.mlp_width, "columns", expert=True
            )
        return found


PRESETS = {
    "tiny": Model(),
    "tiny-moe": Model(experts=8, feed_forward=1024),
    "gpt2": Model(12, 768, 50304, 1024, heads=12, tied=True),
    "gpt2-xl": Model(48, 1600, 50304, 1024, heads=25, tied=True),
    "gpt-3": Model(96, 12288, 51200, 2048, heads=96, tied=True),
    "llama-2-7b": Model(32, 4096, 32000, 4096, feed_forward=11008, gated=True, positions=False),
    "llama-2-70b": Model(
        80, 8192, 32000, 4096, 1, 64, 8, feed_forward=28672, gated=True, positions=False
    ),
    "llama-3-8b": Model(
        32, 4096, 128256, 8192, 1, 32, 8, feed_forward=14336, gated=True, positions=False
    ),
    "mixtral-8x7b": Model(
        32, 4096, 32000, 4096, 1, 32, 8, 14336, gated=True, positions=False, experts=8
    ),
}


@dataclass(frozen=True, slots=True)
class Described:
    """A model as far as somebody described it.

    Attributes:
        model: Its sizes.
        stated: Those that were written down, by name; the others are defaults nobody vouches for.
        text: The description.
    """

    model: Model
    stated: frozenset[str]
    text: str = ""

    def says(self, *names: str) -> bool:
        """Tell whether all these sizes were written down."""
        return self.stated.issuperset(names)


_OF_THE_RUN = {"sequence", "batch", "dtype"}
"""Sizes that a known model does not settle: they are chosen for each training run."""


def describe(text: str) -> Described:
    """Read a model as `parse` does, and remember what the text states.

    Raises:
        OptionError: If it names no model or size.
    """
    model = parse(text)
    parts = [part.strip() for part in text.split(",")]
    known = parts[0] in PRESETS
    sizes = {part.partition("=")[0].strip().lower().replace("-", "_") for part in parts[known:]}
    settled = {field.name for field in fields(Model)} - _OF_THE_RUN if known else set()
    return Described(model, frozenset(settled | sizes), text)


def parse(text: str) -> Model:
    """Read "llama-2-7b", "layers=8,hidden=1024" or both: "llama-2-7b,layers=4".

    Raises:
        OptionError: If it names no model or size.
    """
    parts = [part.strip() for part in text.split(",")]
    model = Model()
    if "=" not in parts[0]:
        if parts[0] not in PRESETS:
            known = ", ".join(PRESETS)
            raise OptionError(
                f"there is no model {parts[0]!r}",
                hint=f"write one of {known}, or sizes: layers=8,hidden=1024",
            )
        model, parts = PRESETS[parts[0]], parts[1:]
    return replace(model, **dict(_size(part) for part in parts))  # type: ignore[arg-type]


_DTYPES = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float"}
_FLAGS = {"yes": True, "no": False}


def _size(part: str) -> tuple[str, int | bool | str]:
    name, _, value = part.partition("=")
    name, value = name.strip().lower().replace("-", "_"), value.strip().lower()
    kinds = {field.name: field.type for field in fields(Model)}
    if (
        kinds.get(name) == "int"
        and value.isdecimal()
        and (int(value) or Model.__dataclass_fields__[name].default == 0)
    ):
        return name, int(value)
    if kinds.get(name) == "bool" and value in _FLAGS:
        return name, _FLAGS[value]
    if name == "dtype" and value in _DTYPES:
        return name, _DTYPES[value]
    raise OptionError(
        f"{part!r} is no size of a model",
        hint="write NAME=NUMBER with one of "
        + ", ".join(name for name, kind in kinds.items() if kind == "int")
        + "; gated, tied, positions=yes or no; dtype=bf16, fp16 or fp32",
    )

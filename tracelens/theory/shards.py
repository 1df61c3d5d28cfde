"""The parameters one rank of a layout holds: its stage, its tensor-parallel shard, its experts.

What tensor parallelism does not split (norms, biases added after a sum, learned positions, routers)
each of its ranks holds whole, and a tied embedding stands on the first and on the last stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tracelens.theory.transformer import Model, Unit


class Held(NamedTuple):
    """Parameters of a rank: those every data-parallel rank shares, and those of its experts."""

    dense: int
    experts: int


def held(model: Model, stage: int, stages: int, tp: int = 1, ep: int = 1) -> Held | None:
    """Count the parameters of a rank; None if layers or experts do not divide evenly.

    Args:
        model: The whole model.
        stage: From 0.
        stages: p; each has as many layers.
        tp: Ranks of a tensor-parallel group.
        ep: Ranks of an expert-parallel group.
    """
    if model.layers % stages or model.experts % ep:
        return None
    embedding, *layers, head = model.units(model.experts // ep)
    units = layers[: model.layers // stages]  # layers are alike
    if stage == 0:
        units = [embedding, *units]
    if stage == stages - 1:
        units = [*units, head]
    copied = model.tied and stage == stages - 1 and stages > 1
    copy = embedding.parameters[0].on_one_of(tp).elements if copied else 0
    return Held(copy + _elements(units, tp, expert=False), _elements(units, tp, expert=True))


def _elements(units: list[Unit], tp: int, *, expert: bool) -> int:
    return sum(
        parameter.on_one_of(tp).elements
        for unit in units
        for parameter in unit.parameters
        if parameter.expert == expert
    )

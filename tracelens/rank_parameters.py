"""The parameters one rank of a mixed run holds, on average over the ranks that count.

With `--model` they are counted shard by shard. With `--params` alone, Ψ is divided by the layout:
that is exact without tensor parallelism; with it, each rank holds some parameters whole, which
nothing in a trace tells apart.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracelens.operations import ALL_REDUCE
from tracelens.step_facts import MissingFactError
from tracelens.theory.shards import held

if TYPE_CHECKING:
    from tracelens.step_facts import StepFacts

_SIZES = ("layers", "hidden", "vocabulary")
_WHOLE = 0.01
_WHOLE_AT_MOST = 0.1
"""What share of a model's parameters tensor parallelism leaves whole: norms and biases are about
1/(2h) of it, learned positions may be more (GPT-2: 0.6 %). Toy models leave more."""


class More(NamedTuple):
    """By what share observed traffic may exceed a prediction.

    Attributes:
        right: So much is as it should be.
        open: So much may be.
    """

    right: float = 0.0
    open: float = 0.0


class RankParameters(NamedTuple):
    """Ψ of a mean rank, where it comes from, and by what share it may be too small."""

    number: int
    source: str
    more: More = More()


def mean_parameters(facts: StepFacts) -> RankParameters:
    """Return the gradients that a mean rank reduces over data-parallel ranks.

    Raises:
        MissingFactError: If nothing but the traffic tells.
    """
    sizes = (*_SIZES, "experts") if facts.dims["ep"] > 1 else _SIZES
    if facts.states(*sizes) and not facts.folded:
        return _of_model(facts)
    if facts.given.parameters is None or facts.dims["ep"] > 1:
        how = f"--model with {', '.join(sizes)}"
        raise MissingFactError(
            "the parameters of a rank from elsewhere: give "
            + (how if facts.dims["ep"] > 1 else f"--params, or {how}")
        )
    return _of_layout(facts, facts.given.parameters)


def _of_model(facts: StepFacts) -> RankParameters:
    model, dims = facts.model("the model", *_SIZES), facts.dims
    has_replicas = dims["dp"] * dims["cp"] > dims["ep"]
    total = steps = 0
    for rank, weight in facts.table.complete_steps.items():
        found = held(model, facts.stage(rank), dims["pp"], dims["tp"], dims["ep"])
        if found is None:
            raise MissingFactError("how layers and experts are dealt to ranks")
        total += weight * (found.dense + (found.experts if has_replicas else 0))
        steps += weight
    return RankParameters(round(total / max(steps, 1)), "Ψ of a rank from --model")


def _of_layout(facts: StepFacts, parameters: int) -> RankParameters:
    tp, pp = facts.dims["tp"], facts.dims["pp"]
    weights: dict[int, int] = defaultdict(int)
    for rank, steps in facts.table.complete_steps.items():
        weights[facts.stage(rank)] += steps
    if len(weights) != pp or len(set(weights.values())) != 1:
        raise MissingFactError("as many ranks of every pipeline stage")
    count = round((parameters / tp + _tied(facts)) / pp)
    source = f"Ψ of a mean rank from --params: {parameters:,} / {tp * pp}"
    if tp == 1:
        return RankParameters(count, source)
    whole = "; what tp does not split (norms, biases) counts 1/tp here, so a little more is right"
    more = More(_WHOLE * (tp - 1), _WHOLE_AT_MOST * (tp - 1))
    return RankParameters(count, source + whole, more)


def _tied(facts: StepFacts) -> float:
    """Return the elements of an embedding that the last stage holds too: both ends reduce it."""
    frame = facts.table.frame[facts.calls("embedding", ALL_REDUCE)]
    ranks = [r for r in facts.table.complete_steps if facts.stage(r) in (0, facts.dims["pp"] - 1)]
    steps = sum(facts.table.complete_steps[rank] for rank in ranks)
    return float(frame["elements"].sum()) / steps if steps and len(frame) else 0.0

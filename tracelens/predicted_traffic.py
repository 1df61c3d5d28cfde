"""What each dimension of a mixed run should move, as terms of theory per rank.

Every function raises `MissingFactError` where a fact it needs is known from nothing but the number
that the prediction would be held against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracelens.operations import ALL_GATHER
from tracelens.operations_table import MONITORING_BYTES
from tracelens.step_facts import BY_MESSAGES, MissingFactError
from tracelens.theory import context, expert, pipeline_messages, tensor

if TYPE_CHECKING:
    from tracelens.step_facts import StepFacts
    from tracelens.theory.scheme import Term

_LOSS_BYTES = 4
_DENSE = "layers of one attention and one MLP"
_ONLY_SIZES = "m counted by these messages, so only their size and who sends them is checked"


class RankTraffic(NamedTuple):
    """What a rank should move in a step: terms, bytes of an element, and what they stand on."""

    terms: tuple[Term, ...]
    item: int
    sources: tuple[str, ...]


def tensor_parallel(
    facts: StepFacts, rank: int, *, vocabulary: bool, experts: bool, again: bool
) -> RankTraffic:
    """Predict the layers of a rank, and at the ends of the model embedding, head and loss.

    Args:
        facts: Of the run.
        rank: The rank.
        vocabulary: Whether embedding and head are split over the vocabulary.
        experts: Whether experts, if there are any, are tensor-parallel as the rest is.
        again: Whether backward, where it recomputes attention, recomputes whole layers.
    """
    unit, size = facts.unit("tp"), facts.dims["tp"]
    passes = facts.passes(rank)
    split, backward = facts.sequence_parallel, facts.backward
    forwards = 1 + (facts.reruns if again else 0)
    if facts.has_experts:
        top_k = facts.model("the experts of a token", "top_k").top_k if experts else 0
        terms = tensor.expert_layers(
            unit.elements, size, passes.number, top_k, backward=backward, forwards=forwards
        )
    else:
        terms = tensor.layers(
            unit.elements,
            size,
            passes.number,
            sequence_parallel=split,
            backward=backward,
            forwards=forwards,
        )
    kind = "layers of attention and experts" if facts.has_experts else _DENSE
    sources = (unit.source, *passes.sources, kind, *_recomputed(facts, again=again))
    if not vocabulary:
        return RankTraffic(terms, unit.item, (*sources, "a vocabulary that tp does not split"))
    m = facts.micro_batches
    stage = facts.stage(rank)
    ends = {"sequence_parallel": split, "backward": backward}
    if stage == 0:
        terms += tensor.embedding(unit.elements, size, m.number, **ends)
    if stage == (0 if facts.folded else facts.dims["pp"] - 1):
        terms += tensor.head(unit.elements, size, m.number, **ends)
        if facts.tokens is not None and facts.tokens * _LOSS_BYTES > MONITORING_BYTES:
            terms += tensor.loss(facts.tokens, size, m.number)
    return RankTraffic(terms, unit.item, (*sources, *m.sources))


def _recomputed(facts: StepFacts, *, again: bool) -> tuple[str, ...]:
    if not facts.reruns:
        return ()
    return ("backward recomputes whole layers" if again else "backward recomputes attention only",)


def pipeline_parallel(facts: StepFacts, rank: int) -> RankTraffic:
    """Predict the messages of a rank to its neighbours."""
    unit = facts.unit("pp")
    m, stage = facts.micro_batches, facts.stage(rank)
    each = unit.elements
    if facts.dims["tp"] > 1 and facts.sequence_parallel:
        each //= facts.dims["tp"]
    count = pipeline_messages.sends(
        stage,
        facts.dims["pp"],
        m.number,
        facts.virtual,
        folded=facts.folded,
        backward=facts.backward,
    )
    own = BY_MESSAGES in m.sources
    sources = (_ONLY_SIZES,) if own else m.sources
    return RankTraffic(
        (pipeline_messages.messages(each, count),), unit.item, (unit.source, *sources)
    )


def expert_parallel(facts: StepFacts, rank: int, *, again: bool) -> RankTraffic:
    """Predict the all-to-alls of a rank; `again` as for `tensor_parallel`."""
    top_k = facts.model("the experts of a token", "top_k").top_k
    unit, passes = facts.unit("ep"), facts.passes(rank)
    own = unit.elements
    if facts.dims["tp"] > 1 and facts.sequence_parallel:
        own //= facts.dims["tp"]
    term = expert.all_to_all(
        own,
        top_k,
        facts.dims["ep"],
        passes.number,
        backward=facts.backward,
        forwards=1 + (facts.reruns if again else 0),
    )
    sources = ("k from --model", unit.source, *passes.sources, *_recomputed(facts, again=again))
    return RankTraffic((term,), unit.item, sources)


def context_parallel(facts: StepFacts, rank: int) -> RankTraffic:
    """Predict how a rank gets the keys and values of the others."""
    model = facts.model("the width of keys and values", "hidden", "heads")
    unit, passes, size = facts.unit("cp"), facts.passes(rank), facts.dims["cp"]
    queries = unit.elements // facts.dims["tp"]
    keys_values = 2 * unit.elements * model.kv_width // model.hidden // facts.dims["tp"]
    sources = ("h_kv from --model", unit.source, *passes.sources)
    backward, forwards = facts.backward, 1 + facts.reruns
    how = facts.context
    if how is None:
        raise MissingFactError("collectives that show how keys and values travel")
    if how == "all-gather" and len(facts.sizes("cp", ALL_GATHER)) > 1:
        # A sharded optimizer may gather over the same ranks.
        raise MissingFactError("gathers of one size: some may be of parameters")
    if how == "all-to-all":
        terms = context.all_to_all(
            queries, keys_values, size, passes.number, backward=backward, forwards=forwards
        )
    else:
        predict = context.ring if how == "ring" else context.gathered
        terms = predict(keys_values, size, passes.number, backward=backward, forwards=forwards)
    return RankTraffic(terms, unit.item, sources)


def tied_embedding(facts: StepFacts, rank: int, item: int) -> RankTraffic:
    """Predict what first and last stage reduce of a weight that both hold.

    Args:
        facts: Of the run.
        rank: The rank.
        item: Bytes of a gradient.
    """
    model = facts.model("the size of the embedding", "vocabulary", "hidden", "tied")
    ends = (0, facts.dims["pp"] - 1)
    if not model.tied or facts.folded or facts.stage(rank) not in ends:
        return RankTraffic((), item, ())
    term = pipeline_messages.tied_embedding(model.vocabulary, model.hidden, facts.dims["tp"])
    return RankTraffic((term,), item, ("V and h from --model",))

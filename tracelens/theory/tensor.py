"""Tensor parallelism as Megatron emits it, per rank and step, in elements.

Narayanan et al. 2021, Megatron-LM, section 3.2: two all-reduces of b·s·h per layer forward, two
backward. With sequence parallelism all-gathers and reduce-scatters stand in their place, and a
column-parallel layer gathers its input once more for its weight gradient (Korthikanti et al. 2022,
section 4.2.2; megatron/core/tensor_parallel/layers.py): 6 all-gathers and 4 reduce-scatters.

A unit is the b·s·h elements of one micro-batch's activations, b·s the tokens of a rank of the
context-parallel group. A pass is one micro-batch through one layer, forward and, in training,
backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.theory.scheme import Term

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOSS_REDUCTIONS = 3  # of each token: the largest logit, the label's, the sum of exponentials
_LOSS_BYTES = 4  # megatron/core/tensor_parallel/cross_entropy.py works in fp32


def layers(
    unit: int,
    size: int,
    passes: int,
    *,
    sequence_parallel: bool = False,
    backward: bool = True,
    forwards: int = 1,
) -> tuple[Term, ...]:
    """Predict the traffic of dense layers: attention and MLP each put their shares together.

    Args:
        unit: b·s·h.
        size: Ranks of the group.
        passes: Layers of the rank times micro-batches.
        sequence_parallel: Whether the sequence is split outside of these layers.
        backward: Whether there is a backward pass.
        forwards: How often a layer runs forward: twice if backward recomputes it.
    """
    counts = _calls(2, forwards, sequence_parallel=sequence_parallel, backward=backward)
    return _terms(counts, unit, size, passes, "layer passes")


def expert_layers(
    unit: int, size: int, passes: int, top_k: int, *, backward: bool = True, forwards: int = 1
) -> tuple[Term, ...]:
    """Predict layers whose MLP are experts: attention as before, and k times the tokens.

    Megatron asks for sequence parallelism here: what a rank's experts got is gathered over the
    group, and their outputs are reduce-scattered, forward and backward. Args as `layers`.
    """
    attention = _calls(1, forwards, sequence_parallel=True, backward=backward)
    each = forwards + backward
    experts = {"all_gather": each, "reduce_scatter": each}
    return (
        *_terms(attention, unit, size, passes, "layer passes"),
        *_terms(experts, top_k * unit, size, passes, "layer passes of experts"),
    )


def embedding(
    unit: int,
    size: int,
    micro_batches: int,
    *,
    sequence_parallel: bool = False,
    backward: bool = True,
) -> tuple[Term, ...]:
    """Predict an embedding that is split over the vocabulary; the first stage has it."""
    counts = {"reduce_scatter": 1} if sequence_parallel else {"all_reduce": 1}
    if sequence_parallel and backward:
        counts["all_gather"] = 1
    return _terms(counts, unit, size, micro_batches, "embeddings")


def head(
    unit: int,
    size: int,
    micro_batches: int,
    *,
    sequence_parallel: bool = False,
    backward: bool = True,
) -> tuple[Term, ...]:
    """Predict an output layer that is split over the vocabulary; the last stage has it.

    It is column-parallel: forward gathers only what the sequence was split into.
    """
    counts: dict[str, int] = {}
    if sequence_parallel:
        counts["all_gather"] = 2 if backward else 1
    if backward:
        counts["reduce_scatter" if sequence_parallel else "all_reduce"] = 1
    return _terms(counts, unit, size, micro_batches, "heads")


def loss(tokens: int, size: int, micro_batches: int) -> tuple[Term, ...]:
    """Predict the cross-entropy over a split vocabulary: three fp32 numbers a token."""
    calls = _LOSS_REDUCTIONS * micro_batches
    formula = f"{_LOSS_REDUCTIONS} x {micro_batches:,} losses x b·s {tokens:,}"
    return (
        Term("all_reduce", calls * tokens, "activation", size, formula, "tensor", item=_LOSS_BYTES),
    )


def _calls(
    halves: int, forwards: int, *, sequence_parallel: bool, backward: bool
) -> dict[str, int]:
    """Count the calls of one pass; a half is attention or a dense MLP."""
    summed = halves * (forwards + backward)
    if not sequence_parallel:
        return {"all_reduce": summed}
    return {"all_gather": halves * (forwards + 2 * backward), "reduce_scatter": summed}


def _terms(counts: dict[str, int], unit: int, size: int, times: int, what: str) -> tuple[Term, ...]:
    return tuple(
        Term(
            op,
            count * times * unit,
            "activation",
            size,
            f"{count} x {times:,} {what} x {unit:,}",
            "tensor",
        )
        for op, count in counts.items()
    )


def total(terms: Iterable[Term]) -> float:
    """Return the message elements of some terms."""
    return sum(term.message_elements for term in terms)

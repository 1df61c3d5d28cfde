"""Context parallelism: how the ranks of one sequence get each other's keys and values.

Sizes follow Megatron's `cp_comm_type` (p2p, all_gather, a2a). Keys and values are the 2·b·s·h_kv
elements that one rank holds: of its s/c tokens and, with tensor parallelism, its 1/t of the width.
A pass is one micro-batch through one layer.
"""

from __future__ import annotations

from tracelens.theory.scheme import Term


def ring(
    keys_values: int, size: int, passes: int, *, backward: bool = True, forwards: int = 1
) -> tuple[Term, ...]:
    """Predict a ring: keys and values pass on c - 1 times, backward with their gradients.

    Args:
        keys_values: Of one rank.
        size: Ranks of the group (c).
        passes: Layers of the rank times micro-batches.
        backward: Whether there is a backward pass.
        forwards: How often attention runs forward: twice if backward recomputes it.
    """
    each = forwards + 2 * backward
    elements = each * (size - 1) * passes * keys_values
    formula = f"{each} x {size - 1} turns x {passes:,} layer passes x {keys_values:,}"
    return (Term("send", elements, "activation", size, formula, "context"),)


def gathered(
    keys_values: int, size: int, passes: int, *, backward: bool = True, forwards: int = 1
) -> tuple[Term, ...]:
    """Predict gathers: once forward, once backward, where gradients are reduce-scattered too.

    Args as `ring`.
    """
    whole = keys_values * size * passes
    formula = f"{passes:,} layer passes x {keys_values * size:,}"
    times = forwards + backward
    gather = Term(
        "all_gather", times * whole, "activation", size, f"{times} x {formula}", "context"
    )
    scatter = Term("reduce_scatter", whole, "activation", size, formula, "context")
    return (gather, scatter) if backward else (gather,)


def all_to_all(
    queries: int,
    keys_values: int,
    size: int,
    passes: int,
    *,
    backward: bool = True,
    forwards: int = 1,
) -> tuple[Term, ...]:
    """Predict Ulysses (Jacobs et al. 2023): queries, keys, values and outputs change their split.

    Args:
        queries: Of one rank, b·s·h; outputs are as large.
        keys_values: As `ring`.
        size: As `ring`.
        passes: As `ring`.
        backward: As `ring`.
        forwards: As `ring`.
    """
    each = forwards + backward
    one = 2 * queries + keys_values
    formula = f"{each} x {passes:,} layer passes x {one:,}"
    return (Term("all_to_all", each * passes * one, "activation", size, formula, "context"),)

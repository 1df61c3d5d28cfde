"""Expert parallelism: all-to-alls that send tokens to their experts and back.

Per layer, micro-batch and rank T·k·h elements are dispatched and as many combined; backward sends
the gradients the other way: 4·T·k·h (megatron/core/transformer/moe/token_dispatcher.py). T are the
rank's own tokens: b·s, divided by c and, with sequence parallelism, by t.
"""

from __future__ import annotations

import math

from tracelens.theory.scheme import Term


def all_to_all(
    unit: int, copies: int, size: int, passes: int, *, backward: bool = True, forwards: int = 1
) -> Term:
    """Predict dispatch and combine.

    Args:
        unit: T·h.
        copies: Experts each token goes to (k), or what `slots` a token takes.
        size: Ranks of the group.
        passes: Layers of the rank times micro-batches.
        backward: Whether there is a backward pass.
        forwards: How often a layer runs forward: twice if backward recomputes it.
    """
    each = 2 * (forwards + backward)
    formula = f"{each} x {passes:,} layer passes x k {copies} x {unit:,}"
    elements = each * passes * copies * unit
    return Term("all_to_all", elements, "activation", size, formula, "expert")


def slots(tokens: int, experts: int, top_k: int, factor: float) -> int:
    """Return the tokens a rank sends in capacity mode: every expert's buffer is full.

    Each of the experts has room for factor·k·T/E tokens of a rank, rounded up (GShard; DeepSpeed's
    sharded_moe.py), and travels whole.
    """
    return experts * math.ceil(factor * top_k * tokens / experts)

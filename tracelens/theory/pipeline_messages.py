"""What pipeline stages send each other, per rank and step, in elements.

Between two stages an activation of b·s·h travels on and its gradient travels back, once a
micro-batch and boundary (Narayanan et al. 2021, Megatron-LM, section 2.2). With sequence
parallelism each rank holds, and sends, 1/t of it (megatron/core/pipeline_parallel/schedules.py,
`get_tensor_shapes`). Virtual stages add boundaries.
"""

from __future__ import annotations

from tracelens.theory.scheme import Term


def sends(
    stage: int,
    stages: int,
    micro_batches: int,
    virtual: int = 1,
    *,
    folded: bool = False,
    backward: bool = True,
) -> int:
    """Count the messages a stage sends in a step.

    Args:
        stage: From 0.
        stages: p.
        micro_batches: m.
        virtual: Virtual stages of a rank (v).
        folded: Whether they go down and up again (ZB-V, DualPipeV) instead of round after round:
            the rank at the turn passes on to itself.
        backward: Whether gradients travel back.
    """
    last = stages * virtual - 1
    neighbours = 0
    for own in range(last + 1):
        if _owner(own, stages, folded=folded) != stage:
            continue
        for other in (own + 1, own - 1) if backward else (own + 1,):
            elsewhere = _owner(other, stages, folded=folded) != stage
            neighbours += 0 <= other <= last and elsewhere
    return neighbours * micro_batches


def _owner(virtual_stage: int, stages: int, *, folded: bool) -> int:
    turn, place = divmod(virtual_stage, stages)
    return stages - 1 - place if folded and turn % 2 else place


def messages(unit: int, count: int) -> Term:
    """Predict the messages of a rank.

    Args:
        unit: Elements of one: b·s·h, divided by t with sequence parallelism.
        count: How many, from `sends`.
    """
    return Term("send", count * unit, "activation", 2, f"{count:,} messages x {unit:,}", "pipeline")


def tied_embedding(vocabulary: int, hidden: int, tp: int) -> Term:
    """Predict what first and last stage reduce if embedding and head share their weight: V·h/t.

    Megatron-LM, megatron/core/distributed/finalize_model_grads.py: once a step.
    """
    formula = f"V·h/t = {vocabulary:,} x {hidden:,} / {tp}"
    return Term("all_reduce", vocabulary * hidden // tp, "gradient", 2, formula, "embedding")

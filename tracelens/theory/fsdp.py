"""FSDP and HSDP as torch emits them (FSDP1 and FSDP2 agree on volumes).

The root unit is gathered once: it is used last in forward and first in backward, so torch never
frees it in between (torch/distributed/fsdp: `_lazy_init` turns the root's resharding off).
"""

from __future__ import annotations

from tracelens.theory.scheme import Scheme, Term

SOURCE = "torch/distributed/fsdp: one all-gather a unit and pass, one reduce-scatter a unit"


def full_shard(
    parameters: int,
    size: int,
    root: int,
    micro_batches: int = 1,
    reductions: int = 1,
    *,
    trained: int | None = None,
    name: str = "FSDP",
) -> Scheme:
    """Predict FULL_SHARD / `reshard_after_forward=True`: (2Ψ - Ψ_root)·GA gathered, Ψ reduced.

    Args:
        parameters: Ψ.
        size: Ranks of the shard group.
        root: Elements of the root unit, 0 if the root is resharded too.
        micro_batches: Micro-batches a step (GA): each gathers again.
        reductions: Reductions a step: GA, or 1 if gradients accumulate unsharded.
        trained: Parameters with gradients, if some are frozen: these are gathered all the same.
        name: FSDP1 or FSDP2.
    """
    gathered = micro_batches * (2 * parameters - root)
    why = (
        f"the root unit (Ψ_root = {root:,}) stays gathered between forward and backward and is not "
        "gathered again"
        if root
        else None
    )
    inner = f"2Ψ - Ψ_root = 2 x {parameters:,} - {root:,}" if root else f"2Ψ = 2 x {parameters:,}"
    gather = Term(
        "all_gather", gathered, "parameter", size, _times(inner, micro_batches), "shard", why
    )
    reduced = _reduce_scatter(parameters, size, reductions, trained)
    terms, why = (gather, reduced), _both(why, reduced.why)
    kept = "root kept" if root else "root resharded too"
    label = f"{name}, resharded after forward ({kept}){_suffix(micro_batches)}"
    return Scheme(label, "framework", terms, SOURCE, why)


def grad_op(
    parameters: int,
    size: int,
    micro_batches: int = 1,
    reductions: int = 1,
    *,
    trained: int | None = None,
    name: str = "FSDP",
) -> Scheme:
    """Predict SHARD_GRAD_OP / `reshard_after_forward=False`: Ψ·GA gathered, Ψ reduced.

    Args as `full_shard`.
    """
    gather = Term(
        "all_gather",
        micro_batches * parameters,
        "parameter",
        size,
        _times(f"Ψ = {parameters:,}", micro_batches),
        "shard",
    )
    why = (
        None
        if micro_batches == 1
        else f"the parameters are gathered again in each of the {micro_batches} micro-batches"
    )
    reduced = _reduce_scatter(parameters, size, reductions, trained)
    terms, why = (gather, reduced), _both(why, reduced.why)
    label = f"{name}, kept after forward{_suffix(micro_batches)}"
    return Scheme(label, "framework", terms, SOURCE, why)


def reshard_to(
    parameters: int,
    size: int,
    smaller: int,
    micro_batches: int = 1,
    reductions: int = 1,
    *,
    trained: int | None = None,
    name: str = "FSDP2",
) -> Scheme:
    """Predict `reshard_after_forward=k`: gathered over all ranks, then again over k of them.

    Args as `full_shard`; `smaller` is k. Measured on a real run: 3Ψ in the message convention.
    """
    formula = _times(f"Ψ = {parameters:,}", micro_batches)
    gathered = micro_batches * parameters
    why = f"parameters stay sharded over {smaller} ranks, so backward gathers in small groups"
    reduced = _reduce_scatter(parameters, size, reductions, trained)
    terms = (
        Term("all_gather", gathered, "parameter", size, formula, "shard"),
        Term("all_gather", gathered, "parameter", smaller, formula, "regather", why),
        reduced,
    )
    why = _both(why, reduced.why) or why
    label = f"{name}, resharded to {smaller} ranks{_suffix(micro_batches)}"
    return Scheme(label, "framework", terms, SOURCE, why)


def _reduce_scatter(parameters: int, size: int, reductions: int, trained: int | None) -> Term:
    count = parameters if trained is None else trained
    symbol, why = "Ψ", None
    if count < parameters:
        symbol = "Ψ_trained"
        why = f"{parameters - count:,} of the parameters are frozen: gathered, never reduced"
    formula = _times(f"{symbol} = {count:,}", reductions)
    return Term("reduce_scatter", reductions * count, "gradient", size, formula, "shard", why)


def _both(first: str | None, second: str | None) -> str | None:
    return "; ".join(part for part in (first, second) if part) or None


def _times(formula: str, count: int) -> str:
    return formula if count == 1 else f"{count} x ({formula})"


def _suffix(micro_batches: int) -> str:
    return "" if micro_batches == 1 else f", {micro_batches} micro-batches"


def replicated(inner: Scheme, parameters: int, shard: int, replicas: int, times: int = 1) -> Scheme:
    """Add HSDP's all-reduce of each rank's gradient shard across the replicas: 2Ψ/s.

    Args:
        inner: The scheme within the shard group.
        parameters: Ψ, or what is trained of it.
        shard: Ranks of the shard group (s).
        replicas: Ranks of the replicate group.
        times: Reductions a step.
    """
    elements = times * parameters / shard
    why = f"each gradient shard is all-reduced across the {replicas} replicas (2Ψ/{shard})"
    formula = f"Ψ/{shard} = {parameters:,} / {shard}" + (f" x {times}" if times > 1 else "")
    term = Term("all_reduce", elements, "gradient", replicas, formula, "replicate", why)
    name = f"HSDP {replicas} x {shard}: {inner.name}"
    return Scheme(name, "framework", (*inner.terms, term), SOURCE, _both(inner.why, why))

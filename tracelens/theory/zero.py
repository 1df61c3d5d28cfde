"""ZeRO stages: the paper's volumes, and what DeepSpeed, Megatron and torch emit for them.

The paper: Rajbhandari et al. 2020, ZeRO, section 7. DeepSpeed 0.19 was measured on real runs
(sample_traces/README.md): its ZeRO-1 and -2 all-reduce gradients instead of reduce-scattering them.
"""

from __future__ import annotations

from tracelens.theory.scheme import Scheme, Term

PAPER = "ZeRO, Rajbhandari et al. 2020, section 7.2"
STAGE_1_2 = "deepspeed/runtime/zero/stage_1_and_2.py: buckets are all-reduced, then all-gather"
STAGE_3 = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
REDUNDANCY = "torch/distributed/optim/zero_redundancy_optimizer.py: owners broadcast their shards"
MEGATRON = "megatron/core/distributed/param_and_grad_buffer.py"
REUSE_DISTANCE = 10**9
"""DeepSpeed's default `stage3_max_reuse_distance`, in elements."""


def _all_gather(parameters: int, size: int) -> Term:
    return Term("all_gather", parameters, "parameter", size, f"Ψ = {parameters:,}")


def _reduce_scatter(elements: int, size: int, formula: str) -> Term:
    return Term("reduce_scatter", elements, "gradient", size, formula)


def paper_1_2(parameters: int, size: int) -> Scheme:
    """Predict ZeRO-1 and ZeRO-2: reduce-scatter and all-gather, 2Ψ."""
    terms = (
        _reduce_scatter(parameters, size, f"Ψ = {parameters:,}"),
        _all_gather(parameters, size),
    )
    return Scheme("ZeRO-1/2 (paper)", "paper", terms, PAPER)


def paper_3(parameters: int, size: int, micro_batches: int = 1) -> Scheme:
    """Predict ZeRO-3: gathers in forward and backward and a reduce-scatter, 3Ψ a micro-batch."""
    times = "" if micro_batches == 1 else f" x {micro_batches}"
    elements = micro_batches * parameters
    gather = f"2Ψ{times} = 2 x {elements:,}"
    terms = (
        Term("all_gather", 2 * elements, "parameter", size, gather),
        _reduce_scatter(elements, size, f"Ψ{times} = {elements:,}"),
    )
    return Scheme("ZeRO-3 (paper)", "paper", terms, PAPER)


def distributed_optimizer(parameters: int, size: int) -> Scheme:
    """Predict a sharded optimizer that reduce-scatters and gathers once per step: 2Ψ."""
    terms = paper_1_2(parameters, size).terms
    return Scheme("Sharded optimizer (Megatron style)", "framework", terms, MEGATRON)


def deepspeed_1_2(parameters: int, size: int, reductions: int = 1) -> Scheme:
    """Predict DeepSpeed ZeRO-1/2: an all-reduce a reduction, and one all-gather: 2Ψ·k + Ψ.

    Args:
        parameters: Ψ.
        size: Ranks of the data-parallel group.
        reductions: How often a step reduces: 1, or under ZeRO-2 the number of micro-batches.
    """
    why = (
        "DeepSpeed all-reduces gradient buckets (2Ψ) where the paper reduce-scatters them (Ψ), and "
        "then gathers the parameters (Ψ)"
    )
    name = "DeepSpeed ZeRO-1/2"
    formula = f"Ψ = {parameters:,}"
    if reductions > 1:
        name = f"DeepSpeed ZeRO-2, {reductions} micro-batches"
        why += f"; ZeRO-2 repeats the reduction in each of the {reductions} micro-batches"
        formula = f"{reductions}Ψ = {reductions} x {parameters:,}"
    reduction = Term(
        "all_reduce", reductions * parameters, "gradient", size, formula, why="not a reduce-scatter"
    )
    return Scheme(name, "framework", (reduction, _all_gather(parameters, size)), STAGE_1_2, why)


def deepspeed_1_2_by_owner(parameters: int, size: int, reductions: int = 1) -> Scheme:
    """Predict `use_multi_rank_bucket_allreduce: false`: a reduce to each owner, and all-gather."""
    times = "" if reductions == 1 else f"{reductions}"
    formula = f"{times}Ψ = {reductions * parameters:,}"
    reduction = Term("reduce", reductions * parameters, "gradient", size, formula)
    name = "DeepSpeed ZeRO-1/2, reduce to owners"
    return Scheme(name, "framework", (reduction, _all_gather(parameters, size)), STAGE_1_2)


def zero_redundancy_optimizer(parameters: int, size: int) -> Scheme:
    """Predict torch's ZeroRedundancyOptimizer over DDP: all-reduce and broadcasts, 3Ψ."""
    why = (
        "DDP still all-reduces all gradients (2Ψ) where the paper reduce-scatters them (Ψ); after "
        "its step each owner broadcasts its parameters (Ψ)"
    )
    terms = (
        Term("all_reduce", parameters, "gradient", size, f"Ψ = {parameters:,}"),
        Term("broadcast", parameters, "parameter", size, f"Ψ = {parameters:,}"),
    )
    return Scheme("ZeroRedundancyOptimizer over DDP", "framework", terms, REDUNDANCY, why)


def deepspeed_3(parameters: int, size: int, micro_batches: int = 1) -> Scheme:
    """Predict DeepSpeed ZeRO-3 with its defaults.

    What survives between forward and backward is estimated as half the reuse distance
    (docs/theory.md); below 5e8 parameters that is everything, and the volume is 2Ψ exactly.
    """
    kept = min(parameters, REUSE_DISTANCE // 2)
    gathered = micro_batches * (2 * parameters - kept)
    why = (
        "DeepSpeed keeps parameters between forward and backward while the next use is near "
        "(`stage3_max_reuse_distance`, 1e9 elements by default), so backward gathers "
        + ("nothing" if kept == parameters else f"{kept:,} elements less")
    )
    formula = f"(2Ψ - {kept:,})" + (f" x {micro_batches}" if micro_batches > 1 else "")
    terms = (
        Term("all_gather", gathered, "parameter", size, f"{formula} = {gathered:,}", why=why),
        _reduce_scatter(
            micro_batches * parameters, size, f"Ψ·{micro_batches} = {micro_batches * parameters:,}"
        ),
    )
    return Scheme("DeepSpeed ZeRO-3, defaults", "framework", terms, STAGE_3, why)


def deepspeed_3_no_reuse(parameters: int, size: int, micro_batches: int = 1) -> Scheme:
    """Predict DeepSpeed ZeRO-3 with reuse distance and persistence threshold 0: 3Ψ."""
    terms = paper_3(parameters, size, micro_batches).terms
    return Scheme("DeepSpeed ZeRO-3, nothing kept", "framework", terms, STAGE_3)

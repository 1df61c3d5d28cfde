"""Rules for ZeRO without ranges that name it: DeepSpeed, and optimizers that shard like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.operations import ALL_GATHER, ALL_REDUCE, REDUCE, REDUCE_SCATTER
from tracelens.strategy.fsdp import maybe_replicated
from tracelens.strategy.inference import CLOSE, Inference, ratio_text, repeats, share_after
from tracelens.strategy.replicated import ddp_forwards
from tracelens.theory import zero

if TYPE_CHECKING:
    from tracelens.strategy.inference import View
    from tracelens.traffic import GroupTraffic

_MOST_GATHERS = 3  # forward, recomputation, backward


def sharded_parameters(view: View) -> Inference | None:
    """ZeRO-3 without FSDP's ranges: forward's gathers stand before the first reduction."""
    scattered, gathered = view.elements(REDUCE_SCATTER), view.elements(ALL_GATHER)
    if not scattered or not gathered or share_after(view.main) > 0.6:
        return None
    if gathered > _MOST_GATHERS * (1 + CLOSE) * scattered and not view.given.parameters:
        evidence = [
            ratio_text(view),
            f"no parameter is gathered more than {_MOST_GATHERS} times for a gradient: some are "
            "frozen, so Ψ cannot be read off what is reduced (give --params)",
        ]
        return Inference("zero3", "deepspeed", "medium", evidence, traffic=[view.main])
    psi = view.psi(scattered)
    schemes = [
        zero.paper_3(psi, view.size),
        zero.deepspeed_3(psi, view.size),
        zero.deepspeed_3_no_reuse(psi, view.size),
    ]
    return maybe_replicated(
        view,
        Inference(
            strategy="zero3",
            framework="deepspeed",
            confidence="medium",
            evidence=[
                ratio_text(view),
                "forward's all-gathers stand before the first reduction, without FSDP's ranges: "
                "parameters are sharded (DeepSpeed ZeRO-3, or another implementation)",
                "one micro-batch per step is assumed: nothing in the trace counts them",
            ],
            parameters=psi,
            schemes=schemes,
        ),
    )


def sharded_optimizer(view: View) -> Inference | None:
    """Reduce-scatter of gradients, then an all-gather of as many parameters."""
    scattered, gathered = view.elements(REDUCE_SCATTER), view.elements(ALL_GATHER)
    if not scattered or not gathered or abs(gathered / scattered - 1) > CLOSE:
        return None
    psi = view.psi(scattered)
    return Inference(
        strategy="zero1-or-2",
        framework="sharded-optimizer",
        confidence="medium",
        evidence=[
            ratio_text(view),
            "the all-gathers follow the reductions: the optimizer is sharded, parameters are not",
        ],
        parameters=psi,
        schemes=[zero.paper_1_2(psi, view.size), zero.distributed_optimizer(psi, view.size)],
    )


def deepspeed_1_2(view: View) -> Inference | None:
    """All-reduces (or reduces) of a whole multiple of what is gathered after them."""
    gathered = view.elements(ALL_GATHER)
    by_owner = view.elements(REDUCE) > view.elements(ALL_REDUCE)
    reduced = view.elements(REDUCE if by_owner else ALL_REDUCE)
    if not reduced or not gathered or view.elements(REDUCE_SCATTER):
        return None
    k = max(round(reduced / gathered), 1)
    if abs(reduced / gathered / k - 1) > CLOSE:
        return None
    # Every large k is close to some ratio, so the reductions themselves must repeat.
    op = REDUCE if by_owner else ALL_REDUCE
    if not _reduced_then_gathered(view.main, op, k) or ddp_forwards(view):
        return None
    psi = view.psi(gathered)
    scheme = zero.deepspeed_1_2_by_owner if by_owner else zero.deepspeed_1_2
    sent = "reduces" if by_owner else "all-reduces"
    evidence = [
        f"{sent} of {reduced:,.0f} elements and an all-gather of {gathered:,.0f} on one group, the "
        "gather after the reductions: the pattern of DeepSpeed ZeRO-1/2",
        f"gradients are reduced {k} times per step: ZeRO-2 with {k} micro-batches"
        if k > 1
        else "one reduction per step: ZeRO-1, or ZeRO-2 without accumulation; they look the same",
    ]
    return Inference(
        strategy="zero2" if k > 1 else "zero1-or-2",
        framework="deepspeed",
        confidence="high" if k > 1 else "medium",
        evidence=evidence,
        parameters=psi,
        micro_batches=k if k > 1 else None,
        schemes=[zero.paper_1_2(psi, view.size), scheme(psi, view.size, k)],
    )


def _reduced_then_gathered(main: GroupTraffic, op: str, times: int) -> bool:
    """Tell whether a step reduces the same sizes so many times, and gathers after all of it."""
    sizes = [call.elements for call in main.calls if call.op == op]
    last = max((call.launch for call in main.calls if call.op == op), default=0)
    after = all(call.launch > last for call in main.calls if call.op == ALL_GATHER)
    return after and len(sizes) % times == 0 and repeats(sizes, times)

"""Rules for replicated parameters: DDP, and the optimizer that torch shards beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.operations import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER
from tracelens.strategy.inference import CLOSE, Inference, repeats
from tracelens.theory import ddp, zero

if TYPE_CHECKING:
    from tracelens.strategy.inference import View


def zero_redundancy(view: View) -> Inference | None:
    """PyTorch's ZeroRedundancyOptimizer: all-reduced gradients, broadcast parameters."""
    reduced, sent = view.elements(ALL_REDUCE), view.elements(BROADCAST)
    marked = view.traffic.marks_like("ZeroRedundancyOptimizer") > 0
    if not reduced or not (marked or (sent and abs(sent / reduced - 1) < CLOSE)):
        return None
    k, why = synchronised(view)
    psi = view.psi(reduced / k)
    return Inference(
        strategy="zero1",
        framework="zero-redundancy-optimizer",
        confidence="high" if marked else "medium",
        evidence=[
            f"all-reduce of gradients ({reduced:,.0f} elements) and broadcasts of as many "
            f"parameters ({sent:,.0f}) per step",
            *(["ranges named ZeroRedundancyOptimizer.step"] if marked else []),
            why,
        ],
        parameters=psi,
        micro_batches=micro_batches(view, k),
        schemes=[zero.paper_1_2(psi, view.size), zero.zero_redundancy_optimizer(psi, view.size)],
        parameter_broadcasts=True,
    )


def plain_ddp(view: View) -> Inference | None:
    """All-reduces of gradients; what is gathered under DDP's ranges is the program's own."""
    reduced, gathered = view.elements(ALL_REDUCE), view.elements(ALL_GATHER)
    forwards = ddp_forwards(view)
    if not reduced or view.elements(REDUCE_SCATTER) or (gathered and not forwards):
        return None
    k, why = synchronised(view)
    psi = view.psi(reduced / k)
    return Inference(
        strategy="ddp",
        framework="ddp" if forwards else None,
        confidence="high" if forwards else "medium",
        evidence=[
            f"all-reduces of {reduced:,.0f} elements per step, "
            + (
                f"and {gathered:,.0f} gathered, which DDP never does: the program's own"
                if gathered
                else "no all-gather or reduce-scatter"
            ),
            *(
                [f"DistributedDataParallel.forward ranges per step: {forwards:g}"]
                if forwards
                else []
            ),
            why,
        ],
        parameters=psi,
        micro_batches=micro_batches(view, k),
        schemes=[ddp.paper(psi, view.size), ddp.torch_ddp(psi, view.size, k)],
    )


def ddp_forwards(view: View) -> float:
    """Count DDP's forward ranges in a step."""
    return view.traffic.marks_like(r"^DistributedDataParallel\.forward")


def micro_batches(view: View, synchronised: int) -> int | None:
    """Return the micro-batches of a step as DDP's forward ranges count them, if there are any."""
    forwards = ddp_forwards(view)
    return max(round(forwards), synchronised) if forwards else None


def synchronised(view: View) -> tuple[int, str]:
    """Count the backward passes of a step that all-reduce, from DDP's forward ranges.

    The sizes of the step's all-reduces repeat as often as gradients are synchronised; one period
    is Ψ. Without accumulation there is one forward range, so equal buckets cannot mislead.
    """
    forwards = round(ddp_forwards(view))
    sizes = [call.elements for call in view.main.calls if call.op == ALL_REDUCE]
    if forwards > 1:
        if len(sizes) % forwards == 0 and repeats(sizes, forwards):
            return forwards, f"the same all-reduces in each of the {forwards} micro-batches"
        return 1, f"{forwards} micro-batches, gradients all-reduced once (no_sync)"
    if forwards == 1:
        return 1, "one micro-batch per step"
    return 1, "micro-batches per step unknown: no DistributedDataParallel.forward ranges"

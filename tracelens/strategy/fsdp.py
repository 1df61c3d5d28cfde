"""Rules for FSDP, and for gradients that are reduced across replicas of a sharded model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracelens.operations import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tracelens.strategy.inference import CLOSE, Inference, ratio_text
from tracelens.theory import fsdp, zero

if TYPE_CHECKING:
    from tracelens.strategy.inference import View
    from tracelens.traffic import Call, GroupTraffic


def sharded(view: View) -> Inference | None:
    """FSDP1 or FSDP2, which their ranges name: what is gathered again, and what is kept."""
    two = view.traffic.marks_like(r"^FSDP::")
    one = view.traffic.marks_like(r"^FullyShardedDataParallel")
    if not (one or two) or not view.elements(REDUCE_SCATTER):
        return None
    name = "FSDP2" if two else "FSDP1"
    passes, reductions = _fsdp_passes(view)
    trained = view.elements(REDUCE_SCATTER) / reductions
    held = max(trained, _held_by_units(view))
    psi, frozen = view.psi(held), held > (1 + CLOSE) * trained
    reduced = round(trained) if frozen else None
    found = Inference(
        strategy="zero3",
        framework=name.lower(),
        confidence="high",
        evidence=[
            f"ranges of {name} around its collectives",
            ratio_text(view),
            "each unit's size includes FSDP's padding to the group's size",
        ],
        parameters=psi,
        micro_batches=passes,
        schemes=[zero.paper_3(psi, view.size, passes)],
    )
    if frozen:
        found.evidence.append(
            f"units of {held:,.0f} elements are gathered, {trained:,.0f} of them are reduced: the "
            "rest is frozen"
        )
    regather = regather_group(view)
    if regather is not None:
        smaller = regather.group.size or 1
        found.schemes.append(
            fsdp.reshard_to(psi, view.size, smaller, passes, reductions, trained=reduced)
        )
        found.evidence.append(f"a second group of {smaller} ranks gathers again for backward")
    elif view.elements(ALL_GATHER) / passes < (1 + CLOSE) * held:
        found.strategy = "fsdp-grad-op"
        inner = fsdp.grad_op(psi, view.size, passes, reductions, trained=reduced, name=name)
        found.schemes = [zero.paper_1_2(psi, view.size), inner]
    else:
        root = _root_elements(view, passes)
        found.schemes.append(
            fsdp.full_shard(psi, view.size, root, passes, reductions, trained=reduced, name=name)
        )
        found.evidence.append(f"the root unit, gathered once, holds {root:,} elements")
    return maybe_replicated(view, found, reduced)


def _held_by_units(view: View) -> float:
    """Return the elements of all units FSDP2's ranges name, frozen ones too; 0 if some have none.

    Units of several dtypes travel as bytes, which are no elements.
    """
    gathers = [call for call in view.main.calls if call.op == ALL_GATHER]
    named = all(call.mark.startswith("FSDP::") for call in gathers)
    if not named or view.main.item_bytes.get(ALL_GATHER) == 1:
        return 0
    return sum(size for size, _ in {_unit(call) for call in gathers})


def regather_group(view: View) -> GroupTraffic | None:
    """Return the smaller group that only gathers: `reshard_after_forward=k`."""
    for group in view.traffic.groups:
        only_gathers = group.total(ALL_GATHER) and not group.total(REDUCE_SCATTER, ALL_REDUCE)
        if group is not view.main and only_gathers and (group.group.size or 0) < view.size:
            return group
    return None


def maybe_replicated(view: View, found: Inference, trained: int | None = None) -> Inference:
    """Make it HSDP if another group all-reduces each gradient shard."""
    if view.replicas is None or found.parameters is None:
        return found
    replicas = view.replicas.group.size or 1
    found.strategy = "hsdp"
    found.schemes[-1] = fsdp.replicated(
        found.schemes[-1],
        found.parameters if trained is None else trained,
        view.size,
        replicas,
        found.micro_batches or 1,
    )
    found.evidence.append(
        f"each gradient shard is all-reduced across {replicas} replicas in another group"
    )
    return found


def _fsdp_passes(view: View) -> tuple[int, int]:
    """Count the micro-batches of a step, and how often it reduces.

    FSDP2 names the root's forward. Else the first all-gather of a step is the root's, one each
    forward pass. Units may be equal in size, so the rarest one tells how often a unit reduces.
    """
    gathers = [_unit(call) for call in view.main.calls if call.op == ALL_GATHER]
    scatters = Counter(_unit(call) for call in view.main.calls if call.op == REDUCE_SCATTER)
    named = round(view.traffic.marks.get("FSDP::root_pre_forward", 0.0))
    passes = named or (gathers.count(gathers[0]) if gathers else 1)
    return passes, min(scatters.values(), default=1)


def _unit(call: Call) -> tuple[int, str]:
    """Name the unit a call belongs to: its size, and its name where FSDP2's ranges say it."""
    return call.elements, call.mark if call.mark.startswith("FSDP::") else ""


def _root_elements(view: View, passes: int) -> int:
    """Return the size of the root unit if it is gathered once a pass, 0 if it is twice."""
    gathers = [call for call in view.main.calls if call.op == ALL_GATHER]
    times = Counter(_unit(call) for call in gathers)
    return gathers[0].elements if gathers and times[_unit(gathers[0])] <= passes else 0

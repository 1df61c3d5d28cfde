"""Infer the data-parallel strategy, Ψ and the micro-batches from a step's traffic.

The rules follow docs/theory.md ("Inferring the strategy"). Each one states its evidence and its
confidence; what no rule covers is unknown, never guessed. Options given by the user win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.operations import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tracelens.strategy import fsdp, replicated, zero
from tracelens.strategy.inference import CLOSE, Inference, View, share_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.strategy.inference import Given
    from tracelens.traffic import GroupTraffic, Traffic

_RULES: tuple[Callable[[View], Inference | None], ...] = (
    replicated.zero_redundancy,
    fsdp.sharded,
    zero.sharded_parameters,
    zero.sharded_optimizer,
    zero.deepspeed_1_2,
    replicated.plain_ddp,
)
READ_OFF = (
    "Ψ is read off the same traffic, so the comparison checks which collectives run and how often; "
    "give --params to check the total too"
)
_DATA_PARALLEL_ROLES = ("dp", "shard", "unknown", "world", "cp", "ep")
"""Gradients may be reduced over the ranks of a cp or ep group, see `shared_groups`."""


def infer(traffic: Traffic, given: Given) -> Inference:
    """Name the strategy of a run's data-parallel traffic."""
    main = _main_group(traffic)
    if main is None:
        return _without_sizes(traffic)
    if main.untyped:
        return _untyped(traffic, main)
    if _varies(main) and given.parameters is None:
        return _no_single_psi(main)
    replicas = _replica_group(traffic, main)
    view = View(traffic, main, replicas, given)
    for rule in _RULES:
        found = rule(view)
        if found is not None:
            return _finish(found, view)
    return Inference(evidence=[f"no known strategy sends {_pattern(main)}"], traffic=[main])


def _without_sizes(traffic: Traffic) -> Inference:
    """Name what ranges alone can tell when no size is known."""
    if not any(group.unknown for group in traffic.groups):
        return Inference(evidence=["no gradient or parameter traffic in complete steps"])
    evidence = ["the sizes of the collectives are not recorded (record_shapes=True records them)"]
    return _named_by_ranges(traffic, evidence)


def _named_by_ranges(traffic: Traffic, evidence: list[str]) -> Inference:
    for pattern, strategy, framework in _NAMED_BY_RANGES:
        if traffic.marks_like(pattern):
            evidence.append(f"ranges of {framework.upper()}")
            return Inference(strategy, framework, "medium", evidence)
    return Inference(evidence=evidence)


_NAMED_BY_RANGES = (
    (r"^FSDP::", "zero3", "fsdp2"),
    (r"^FullyShardedDataParallel", "zero3", "fsdp1"),
    (r"^DistributedDataParallel\.forward", "ddp", "ddp"),
    (r"^DeepSpeedZeroOptimizer_Stage3\.", "zero3", "deepspeed"),
    (r"^DeepSpeedZeroOptimizer\.", "zero1-or-2", "deepspeed"),
)


def _untyped(traffic: Traffic, main: GroupTraffic) -> Inference:
    """Say that elements are unknown: 4Ψ bytes are Ψ 32-bit parameters or 2Ψ 16-bit ones."""
    evidence = [
        f"the type of {main.untyped:,} gathers is not recorded, so it is not known how many "
        "parameters they carry (give --dtype)"
    ]
    return _named_by_ranges(traffic, evidence)


def _varies(main: GroupTraffic) -> bool:
    return bool(main.by_step) and max(main.by_step) > (1 + CLOSE) * min(main.by_step)


def _no_single_psi(main: GroupTraffic) -> Inference:
    """Say that steps differ, so that no multiple of one Ψ describes them."""
    shown = ", ".join(f"{total:,}" for total in main.by_step[:6])
    sharded = main.total(ALL_GATHER) > 0 and main.total(REDUCE_SCATTER) > 0
    evidence = [
        f"traffic differs from step to step ({shown} elements): parts of the model are "
        "synchronised in some steps only, so no single multiple of Ψ describes a step"
    ]
    if sharded:
        gathered, scattered = main.total(ALL_GATHER), main.total(REDUCE_SCATTER)
        evidence.append(
            f"on average {scattered:,.0f} elements reduce-scattered and {gathered:,.0f} gathered"
        )
    after = share_after(main)
    optimizer = sharded and after > 0.5
    return Inference(
        strategy="zero1-or-2" if optimizer else None,
        framework="sharded-optimizer" if optimizer else None,
        confidence="medium" if optimizer else "unknown",
        evidence=evidence,
        traffic=[main],
    )


def _main_group(traffic: Traffic) -> GroupTraffic | None:
    """Return the data-parallel group with the most sharded traffic, else the most traffic."""
    candidates = [g for g in traffic.groups if g.group.role in _DATA_PARALLEL_ROLES and g.calls]
    sharded = [g for g in candidates if g.total(ALL_GATHER, REDUCE_SCATTER) > 0]
    ranked = sharded or candidates
    return max(ranked, key=lambda g: sum(g.elements.values()), default=None)


def _replica_group(traffic: Traffic, main: GroupTraffic) -> GroupTraffic | None:
    """Return the group across which each rank's gradient shard is all-reduced (HSDP)."""
    scattered = main.total(REDUCE_SCATTER)
    if not scattered or not main.group.size:
        return None
    shard = scattered / main.group.size
    for group in traffic.groups:
        reduced = group.total(ALL_REDUCE)
        if group is not main and reduced and abs(reduced / shard - 1) < CLOSE:
            return group
    return None


def _pattern(group: GroupTraffic) -> str:
    parts = [f"{op} {elements:,.0f}" for op, elements in sorted(group.elements.items())]
    return ", ".join(parts) + " elements per step"


def _finish(found: Inference, view: View) -> Inference:
    second = view.replicas or fsdp.regather_group(view)
    found.traffic = [view.main] + ([second] if second else [])
    if view.given.parameters is not None:
        found.parameters_confidence = "exact"
    elif found.parameters is not None:
        found.parameters_confidence = "high" if found.confidence == "high" else "medium"
        found.evidence.append(READ_OFF)
    if view.given.zero_stage is not None:
        _apply_stage(found, view.given.zero_stage)
    return found


_FITTING_STAGES = {"zero1-or-2": (1, 2), "zero1": (1,), "zero2": (2,), "zero3": (3,), "ddp": (0,)}


def stage_fits(found: Inference, stage: int) -> bool:
    """Tell whether a ZeRO stage can have sent this traffic."""
    return stage in _FITTING_STAGES.get(found.strategy or "", (stage,))


def _apply_stage(found: Inference, stage: int) -> None:
    """Let the user's ZeRO stage decide what the traffic leaves open, never against the traffic."""
    if not stage_fits(found, stage):
        found.evidence.append(f"stage {stage}, given by --layout, does not fit this traffic")
    elif found.strategy == "zero1-or-2":
        found.strategy = f"zero{stage}"
        found.stage_given = True
        found.evidence.append(f"stage {stage} as given by --layout")

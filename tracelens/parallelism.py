"""Infer the data-parallel strategy, Ψ and the micro-batches from a step's traffic.

The rules follow docs/theory.md ("Inferring the strategy"). Each one states its evidence and its
confidence; what no rule covers is unknown, never guessed. Options given by the user win.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.operations import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER
from tracelens.theory import ddp, fsdp, zero

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.result import Confidence
    from tracelens.theory.scheme import Scheme
    from tracelens.theory.transformer import Described
    from tracelens.traffic import Call, GroupTraffic, Traffic

_CLOSE = 0.02  # padding: docs/theory.md, "Padding"
_MOST_GATHERS = 3  # forward, recomputation, backward
READ_OFF = (
    "Ψ is read off the same traffic, so the comparison checks which collectives run and how often; "
    "give --params to check the total too"
)
_DATA_PARALLEL_ROLES = ("dp", "shard", "unknown", "world", "cp", "ep")
"""Gradients may be reduced over the ranks of a cp or ep group, see `shared_groups`."""


@dataclass(slots=True)
class Inference:
    """What the traffic says about the strategy.

    Attributes:
        strategy: ddp, zero1, zero2, zero1-or-2, zero3, fsdp-grad-op, hsdp, sharded-optimizer.
        parameters: Ψ, None if unknown.
        micro_batches: Of a step; None where one is assumed and nothing counts them.
        schemes: Predictions to compare with, the paper's first.
        traffic: The groups whose traffic the prediction is about.
        parameter_broadcasts: Whether broadcasts carry parameters (else they are buffers).
        stage_given: Whether the user's ZeRO stage decided what the traffic leaves open.
    """

    strategy: str | None = None
    framework: str | None = None
    confidence: Confidence = "unknown"
    evidence: list[str] = field(default_factory=list)
    parameters: int | None = None
    parameters_confidence: Confidence = "unknown"
    micro_batches: int | None = None
    schemes: list[Scheme] = field(default_factory=list)
    traffic: list[GroupTraffic] = field(default_factory=list)
    parameter_broadcasts: bool = False
    stage_given: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """What the user said.

    Attributes:
        parameters: Ψ (`--params`).
        zero_stage: The ZeRO stage (`--layout`).
        dims: Group sizes (`--layout`).
        dtype: Of gradients and parameters as they travel.
        gpus_per_node: Consecutive ranks that share a machine.
        intra_gbps: One-way peak of the links inside a machine, per GPU, in GB/s.
        inter_gbps: One-way peak of the network of a machine, per GPU, in GB/s.
        model: The sizes of the model (`--model`).
    """

    parameters: int | None = None
    zero_stage: int | None = None
    dims: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None
    gpus_per_node: int | None = None
    intra_gbps: float | None = None
    inter_gbps: float | None = None
    model: Described | None = None


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
    view = _View(traffic, main, replicas, given)
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
    return bool(main.by_step) and max(main.by_step) > (1 + _CLOSE) * min(main.by_step)


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
    after = _share_after(main)
    optimizer = sharded and after > 0.5
    return Inference(
        strategy="zero1-or-2" if optimizer else None,
        framework="sharded-optimizer" if optimizer else None,
        confidence="medium" if optimizer else "unknown",
        evidence=evidence,
        traffic=[main],
    )


@dataclass(slots=True)
class _View:
    traffic: Traffic
    main: GroupTraffic
    replicas: GroupTraffic | None
    given: Given

    @property
    def size(self) -> int:
        return self.main.group.size or 1

    def elements(self, op: str) -> float:
        return self.main.elements.get(op, 0.0)

    def psi(self, inferred: float) -> int:
        return self.given.parameters or round(inferred)


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
        if group is not main and reduced and abs(reduced / shard - 1) < _CLOSE:
            return group
    return None


def _pattern(group: GroupTraffic) -> str:
    parts = [f"{op} {elements:,.0f}" for op, elements in sorted(group.elements.items())]
    return ", ".join(parts) + " elements per step"


# rules -------------------------------------------------------------------------------------------


def _zero_redundancy(view: _View) -> Inference | None:
    reduced, sent = view.elements(ALL_REDUCE), view.elements(BROADCAST)
    marked = view.traffic.marks_like("ZeroRedundancyOptimizer") > 0
    if not reduced or not (marked or (sent and abs(sent / reduced - 1) < _CLOSE)):
        return None
    k, why = _synchronised(view)
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
        micro_batches=_micro_batches(view, k),
        schemes=[zero.paper_1_2(psi, view.size), zero.zero_redundancy_optimizer(psi, view.size)],
        parameter_broadcasts=True,
    )


def _fsdp(view: _View) -> Inference | None:
    two = view.traffic.marks_like(r"^FSDP::")
    one = view.traffic.marks_like(r"^FullyShardedDataParallel")
    if not (one or two) or not view.elements(REDUCE_SCATTER):
        return None
    name = "FSDP2" if two else "FSDP1"
    passes, reductions = _fsdp_passes(view)
    trained = view.elements(REDUCE_SCATTER) / reductions
    held = max(trained, _held_by_units(view))
    psi, frozen = view.psi(held), held > (1 + _CLOSE) * trained
    reduced = round(trained) if frozen else None
    found = Inference(
        strategy="zero3",
        framework=name.lower(),
        confidence="high",
        evidence=[
            f"ranges of {name} around its collectives",
            _ratio_text(view),
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
    regather = _regather_group(view)
    if regather is not None:
        smaller = regather.group.size or 1
        found.schemes.append(
            fsdp.reshard_to(psi, view.size, smaller, passes, reductions, trained=reduced)
        )
        found.evidence.append(f"a second group of {smaller} ranks gathers again for backward")
    elif view.elements(ALL_GATHER) / passes < (1 + _CLOSE) * held:
        found.strategy = "fsdp-grad-op"
        inner = fsdp.grad_op(psi, view.size, passes, reductions, trained=reduced, name=name)
        found.schemes = [zero.paper_1_2(psi, view.size), inner]
    else:
        root = _root_elements(view, passes)
        found.schemes.append(
            fsdp.full_shard(psi, view.size, root, passes, reductions, trained=reduced, name=name)
        )
        found.evidence.append(f"the root unit, gathered once, holds {root:,} elements")
    return _maybe_replicated(view, found, reduced)


def _held_by_units(view: _View) -> float:
    """Return the elements of all units FSDP2's ranges name, frozen ones too; 0 if some have none.

    Units of several dtypes travel as bytes, which are no elements.
    """
    gathers = [call for call in view.main.calls if call.op == ALL_GATHER]
    named = all(call.mark.startswith("FSDP::") for call in gathers)
    if not named or view.main.item_bytes.get(ALL_GATHER) == 1:
        return 0
    return sum(size for size, _ in {_unit(call) for call in gathers})


def _regather_group(view: _View) -> GroupTraffic | None:
    """Return the smaller group that only gathers: `reshard_after_forward=k`."""
    for group in view.traffic.groups:
        only_gathers = group.total(ALL_GATHER) and not group.total(REDUCE_SCATTER, ALL_REDUCE)
        if group is not view.main and only_gathers and (group.group.size or 0) < view.size:
            return group
    return None


def _maybe_replicated(view: _View, found: Inference, trained: int | None = None) -> Inference:
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


def _sharded_3(view: _View) -> Inference | None:
    """ZeRO-3 without FSDP's ranges: forward's gathers stand before the first reduction."""
    scattered, gathered = view.elements(REDUCE_SCATTER), view.elements(ALL_GATHER)
    if not scattered or not gathered or _share_after(view.main) > 0.6:
        return None
    if gathered > _MOST_GATHERS * (1 + _CLOSE) * scattered and not view.given.parameters:
        evidence = [
            _ratio_text(view),
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
    return _maybe_replicated(
        view,
        Inference(
            strategy="zero3",
            framework="deepspeed",
            confidence="medium",
            evidence=[
                _ratio_text(view),
                "forward's all-gathers stand before the first reduction, without FSDP's ranges: "
                "parameters are sharded (DeepSpeed ZeRO-3, or another implementation)",
                "one micro-batch per step is assumed: nothing in the trace counts them",
            ],
            parameters=psi,
            schemes=schemes,
        ),
    )


def _sharded_optimizer(view: _View) -> Inference | None:
    """Reduce-scatter of gradients, then an all-gather of as many parameters."""
    scattered, gathered = view.elements(REDUCE_SCATTER), view.elements(ALL_GATHER)
    if not scattered or not gathered or abs(gathered / scattered - 1) > _CLOSE:
        return None
    psi = view.psi(scattered)
    return Inference(
        strategy="zero1-or-2",
        framework="sharded-optimizer",
        confidence="medium",
        evidence=[
            _ratio_text(view),
            "the all-gathers follow the reductions: the optimizer is sharded, parameters are not",
        ],
        parameters=psi,
        schemes=[zero.paper_1_2(psi, view.size), zero.distributed_optimizer(psi, view.size)],
    )


def _deepspeed_1_2(view: _View) -> Inference | None:
    gathered = view.elements(ALL_GATHER)
    by_owner = view.elements(REDUCE) > view.elements(ALL_REDUCE)
    reduced = view.elements(REDUCE if by_owner else ALL_REDUCE)
    if not reduced or not gathered or view.elements(REDUCE_SCATTER):
        return None
    k = max(round(reduced / gathered), 1)
    if abs(reduced / gathered / k - 1) > _CLOSE:
        return None
    # Every large k is close to some ratio, so the reductions themselves must repeat.
    op = REDUCE if by_owner else ALL_REDUCE
    if not _reduced_then_gathered(view.main, op, k) or _ddp_forwards(view):
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
    return after and len(sizes) % times == 0 and _repeats(sizes, times)


def _ddp(view: _View) -> Inference | None:
    """All-reduces of gradients; what is gathered under DDP's ranges is the program's own."""
    reduced, gathered = view.elements(ALL_REDUCE), view.elements(ALL_GATHER)
    forwards = _ddp_forwards(view)
    if not reduced or view.elements(REDUCE_SCATTER) or (gathered and not forwards):
        return None
    k, why = _synchronised(view)
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
        micro_batches=_micro_batches(view, k),
        schemes=[ddp.paper(psi, view.size), ddp.torch_ddp(psi, view.size, k)],
    )


_RULES: tuple[Callable[[_View], Inference | None], ...] = (
    _zero_redundancy,
    _fsdp,
    _sharded_3,
    _sharded_optimizer,
    _deepspeed_1_2,
    _ddp,
)


# evidence ----------------------------------------------------------------------------------------


def _ratio_text(view: _View) -> str:
    gathered, scattered = view.elements(ALL_GATHER), view.elements(REDUCE_SCATTER)
    return (
        f"all-gather {gathered:,.0f} and reduce-scatter {scattered:,.0f} elements per step "
        f"(ratio {gathered / scattered:.3f})"
    )


def _ddp_forwards(view: _View) -> float:
    return view.traffic.marks_like(r"^DistributedDataParallel\.forward")


def _micro_batches(view: _View, synchronised: int) -> int | None:
    """Return the micro-batches of a step as DDP's forward ranges count them, if there are any."""
    forwards = _ddp_forwards(view)
    return max(round(forwards), synchronised) if forwards else None


def _synchronised(view: _View) -> tuple[int, str]:
    """Count the backward passes of a step that all-reduce, from DDP's forward ranges.

    The sizes of the step's all-reduces repeat as often as gradients are synchronised; one period
    is Ψ. Without accumulation there is one forward range, so equal buckets cannot mislead.
    """
    forwards = round(_ddp_forwards(view))
    sizes = [call.elements for call in view.main.calls if call.op == ALL_REDUCE]
    if forwards > 1:
        if len(sizes) % forwards == 0 and _repeats(sizes, forwards):
            return forwards, f"the same all-reduces in each of the {forwards} micro-batches"
        return 1, f"{forwards} micro-batches, gradients all-reduced once (no_sync)"
    if forwards == 1:
        return 1, "one micro-batch per step"
    return 1, "micro-batches per step unknown: no DistributedDataParallel.forward ranges"


def _repeats(sizes: list[int], times: int) -> bool:
    """Tell whether a list of sizes is the same multiset `times` over, period by period."""
    length = len(sizes) // times
    periods = [Counter(sizes[i * length : (i + 1) * length]) for i in range(times)]
    return length > 0 and all(period == periods[0] for period in periods)


def _fsdp_passes(view: _View) -> tuple[int, int]:
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


def _root_elements(view: _View, passes: int) -> int:
    """Return the size of the root unit if it is gathered once a pass, 0 if it is twice."""
    gathers = [call for call in view.main.calls if call.op == ALL_GATHER]
    times = Counter(_unit(call) for call in gathers)
    return gathers[0].elements if gathers and times[_unit(gathers[0])] <= passes else 0


def _share_after(main: GroupTraffic) -> float:
    """Return the share of gathered elements launched after the step's first reduce-scatter."""
    first = min((c.launch for c in main.calls if c.op == REDUCE_SCATTER), default=0)
    gathers = [c for c in main.calls if c.op == ALL_GATHER]
    total = sum(c.elements for c in gathers)
    return sum(c.elements for c in gathers if c.launch > first) / total if total else 0.0


def _finish(found: Inference, view: _View) -> Inference:
    second = view.replicas or _regather_group(view)
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

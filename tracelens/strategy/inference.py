"""What a rule looks at, and what it concludes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.operations import ALL_GATHER, REDUCE_SCATTER

if TYPE_CHECKING:
    from tracelens.model.result import Confidence
    from tracelens.theory.scheme import Scheme
    from tracelens.theory.transformer import Described
    from tracelens.traffic import GroupTraffic, Traffic

CLOSE = 0.02  # padding: docs/theory.md, "Padding"


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


@dataclass(slots=True)
class View:
    """A step's data-parallel traffic as the rules look at it."""

    traffic: Traffic
    main: GroupTraffic
    replicas: GroupTraffic | None
    given: Given

    @property
    def size(self) -> int:
        """Ranks of the main group."""
        return self.main.group.size or 1

    def elements(self, op: str) -> float:
        """Return the elements of an operation on the main group in a step."""
        return self.main.elements.get(op, 0.0)

    def psi(self, inferred: float) -> int:
        """Return Ψ as the user gave it, else as inferred."""
        return self.given.parameters or round(inferred)


def ratio_text(view: View) -> str:
    """Say how much is gathered and reduced."""
    gathered, scattered = view.elements(ALL_GATHER), view.elements(REDUCE_SCATTER)
    return (
        f"all-gather {gathered:,.0f} and reduce-scatter {scattered:,.0f} elements per step "
        f"(ratio {gathered / scattered:.3f})"
    )


def share_after(main: GroupTraffic) -> float:
    """Return the share of gathered elements launched after the step's first reduce-scatter."""
    first = min((c.launch for c in main.calls if c.op == REDUCE_SCATTER), default=0)
    gathers = [c for c in main.calls if c.op == ALL_GATHER]
    total = sum(c.elements for c in gathers)
    return sum(c.elements for c in gathers if c.launch > first) / total if total else 0.0


def repeats(sizes: list[int], times: int) -> bool:
    """Tell whether a list of sizes is the same multiset `times` over, period by period."""
    length = len(sizes) // times
    periods = [Counter(sizes[i * length : (i + 1) * length]) for i in range(times)]
    return length > 0 and all(period == periods[0] for period in periods)

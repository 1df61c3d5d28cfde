"""The rules. Each looks at one symptom, states its evidence and what could be gained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.model.result import Finding
from tracelens.operations import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens.model.result import Partition, RankResult, Volumes

_EXPOSED_SHARE = 0.05  # of the step: our choice, docs/findings.md
_HIGH_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule may look at."""

    ranks: list[RankResult]
    volumes: Volumes
    framework: str | None

    @property
    def means(self) -> list[Partition]:
        """The mean step of every device of the ranks that means are over."""
        devices = [d for rank in self.ranks if rank.in_means for d in rank.devices]
        return [d.mean_step for d in devices if d.mean_step]

    @property
    def step_ns(self) -> int:
        """Mean step time over devices; 0 if there is no complete step."""
        windows = [mean.window_ns for mean in self.means]
        return round(sum(windows) / len(windows)) if windows else 0

    def exposed_by_op(self) -> dict[str, int]:
        """Exposed time per operation in the mean step, over devices."""
        ops = sorted({op for mean in self.means for op in mean.exposed_by_op_ns})
        count = len(self.means)
        return {
            op: round(sum(mean.exposed_by_op_ns.get(op, 0) for mean in self.means) / count)
            for op in ops
        }


_RULES: list[Callable[[Evidence], Iterator[Finding]]] = []


def rule(
    function: Callable[[Evidence], Iterator[Finding]],
) -> Callable[[Evidence], Iterator[Finding]]:
    """Register a rule."""
    _RULES.append(function)
    return function


def find(ranks: list[RankResult], volumes: Volumes, framework: str | None) -> list[Finding]:
    """Apply all rules; the finding with most time to gain comes first."""
    evidence = Evidence(ranks, volumes, framework)
    found = [finding for one in _RULES for finding in one(evidence)]
    return sorted(found, key=lambda f: (-(f.saving_ns_per_step or 0), f.id))


_ADVICE = {
    ("all_gather", "fsdp2"): "prefetch earlier with `set_modules_to_forward_prefetch` and "
    "`set_modules_to_backward_prefetch`, or use a larger micro-batch",
    ("all_gather", "fsdp1"): "use `backward_prefetch=BACKWARD_PRE`, `forward_prefetch=True` and "
    "`limit_all_gathers`, or a larger micro-batch",
    ("all_gather", "deepspeed"): "set `overlap_comm: true` and raise "
    "`stage3_prefetch_bucket_size`, or use a larger micro-batch",
    ("reduce_scatter", "deepspeed"): "set `overlap_comm: true`, or use a larger micro-batch",
    (
        "all_reduce",
        "ddp",
    ): "check `bucket_cap_mb` and that the last bucket is small; under gradient "
    "accumulation use `no_sync()` on all but the last micro-batch",
    ("all_reduce", "deepspeed"): "set `overlap_comm: true` (its default is true for stage 3 only)",
}
_GENERAL_ADVICE = "give it compute to hide behind: smaller buckets, earlier launch, larger batch"


@rule
def exposed_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Name each operation whose exposed time is a large share of the step."""
    step = evidence.step_ns
    for op, exposed in evidence.exposed_by_op().items():
        if step and exposed > _EXPOSED_SHARE * step:
            yield Finding(
                id=f"exposed-{named(op)}",
                severity="high" if exposed > _HIGH_SHARE * step else "medium",
                title=f"Exposed {named(op)} costs {100 * exposed / step:.3g} % of a step",
                evidence={"exposed_ns_per_step": exposed, "step_ns": step},
                saving_ns_per_step=exposed,
                advice=_ADVICE.get((op, evidence.framework or ""), _GENERAL_ADVICE),
                links=["collectives"],
            )


@rule
def repeated_reductions(evidence: Evidence) -> Iterator[Finding]:
    """Name a scheme that moves more than the paper's, with what would move less."""
    matched = next((p for p in evidence.volumes.predictions if p.matches), None)
    paper = next((p for p in evidence.volumes.predictions if p.kind == "paper"), None)
    if matched is None or paper is None or evidence.volumes.verdict != "explained":
        return
    if matched.name.startswith("HSDP"):
        return  # the second group's all-reduce is what HSDP is for
    ratio = paper.observed_over_predicted
    if ratio is None or ratio <= 1.01 or evidence.volumes.explanation is None:
        return
    yield Finding(
        id="moves-more-than-theory",
        severity="medium",
        title=f"{matched.name} moves {ratio:.3g} x the bytes of {paper.name}",
        evidence={"observed_over_paper": ratio, "why": evidence.volumes.explanation},
        saving_ns_per_step=None,
        advice=_volume_advice(matched.name),
        links=["volumes"],
    )


def _volume_advice(scheme: str) -> str:
    if scheme.startswith("DDP"):
        return "wrap all but the last micro-batch in `no_sync()`"
    if scheme.startswith("DeepSpeed ZeRO-2,"):
        return "use ZeRO-1 under gradient accumulation: it reduces once per step"
    if scheme.startswith("DeepSpeed"):
        return (
            "on few ranks `use_multi_rank_bucket_allreduce: false` reduces to owners (2Ψ); FSDP "
            "with `reshard_after_forward=False` also moves 2Ψ"
        )
    return "a sharded optimizer with reduce-scatter (FSDP, Megatron) moves 2Ψ"

"""The rules. Each looks at one symptom, states its evidence and what could be gained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.findings.evidence import Network
from tracelens.findings.pipeline import phase_of, pipeline_findings
from tracelens.model.result import Finding
from tracelens.operations import POINT_TO_POINT_NAMES, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracelens.model.result import (
        Breakdown,
        CollectiveResult,
        Partition,
        Pipeline,
        RankResult,
        Straggler,
        Volumes,
    )

EXPOSED_SHARE = 0.05  # of the step: our choice, docs/findings.md
HIGH_SHARE = 0.15
_WITHIN_STAGES = ("cp", "tp", "etp", "ep")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule may look at."""

    ranks: list[RankResult]
    volumes: Volumes
    framework: str | None
    stragglers: list[Straggler]
    pipeline: Pipeline | None = None
    network: Network = field(default_factory=Network)

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

    @property
    def breakdowns(self) -> list[Breakdown]:
        """The refined mean step of every device of the ranks that means are over."""
        devices = [d for rank in self.ranks if rank.in_means for d in rank.devices]
        return [d.breakdown for d in devices if d.breakdown]

    def exposed_by_op(self) -> dict[str, int]:
        """Exposed time per operation in the mean step over devices, known waiting left out."""
        sums: dict[str, int] = {}
        for breakdown in self.breakdowns:
            for parts in (breakdown.transfer_by_op_ns or {}, breakdown.exposed_unsplit_by_op_ns):
                for op, time in parts.items():
                    sums[op] = sums.get(op, 0) + time
        mean = {op: round(total / len(self.breakdowns)) for op, total in sorted(sums.items())}
        if phase_of(self.pipeline) is None:
            return mean
        # Waiting for other stages is the bubble's, which has rules of its own.
        between = {op: time for op, time in mean.items() if op not in POINT_TO_POINT_NAMES}
        return between | self._messages_within_stages()

    def _messages_within_stages(self) -> dict[str, int]:
        """Exposed messages that no pipeline sends, such as those of a context-parallel ring."""
        rows = [row for row in self.network.collectives if row.group in self._within_stages]
        return {
            op: round(self.per_rank((row for row in rows if row.op == op), _exposed))
            for op in sorted({row.op for row in rows} & POINT_TO_POINT_NAMES)
        }

    def per_rank(
        self, rows: Iterable[CollectiveResult], value: Callable[[CollectiveResult], float]
    ) -> float:
        """Average over the ranks that count: a row's number is the mean of its members."""
        ranks = sum(rank.in_means for rank in self.ranks)
        return sum(value(row) * len(row.by_rank) for row in rows) / ranks if ranks else 0.0

    @property
    def _within_stages(self) -> set[str]:
        return {group.id for group in self.network.groups if group.role in _WITHIN_STAGES}

    def calls(self, op: str) -> list[CollectiveResult]:
        """The rows that `exposed_by_op` counts for an operation."""
        rows = [row for row in self.network.collectives if row.op == op]
        if op not in POINT_TO_POINT_NAMES or phase_of(self.pipeline) is None:
            return rows
        return [row for row in rows if row.group in self._within_stages]

    @property
    def wait_ns(self) -> int:
        """Exposed waiting of the mean step over devices; 0 if it is unknown."""
        waits = [breakdown.wait_ns or 0 for breakdown in self.breakdowns]
        return round(sum(waits) / len(waits)) if waits else 0


def _exposed(row: CollectiveResult) -> float:
    known = row.exposed_transfer_per_step_ns
    return (row.exposed_per_step_ns if known is None else known) or 0


_RULES: list[Callable[[Evidence], Iterator[Finding]]] = []


def rule(
    function: Callable[[Evidence], Iterator[Finding]],
) -> Callable[[Evidence], Iterator[Finding]]:
    """Register a rule."""
    _RULES.append(function)
    return function


def find(
    ranks: list[RankResult],
    volumes: Volumes,
    framework: str | None,
    stragglers: list[Straggler],
    pipeline: Pipeline | None = None,
    network: Network | None = None,
) -> list[Finding]:
    """Apply all rules; the finding with most time to gain comes first."""
    evidence = Evidence(ranks, volumes, framework, stragglers, pipeline, network or Network())
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


def calls_of(rows: Iterable[CollectiveResult]) -> list[str]:
    """Return the links of a finding on these calls: findings may be on the same ones."""
    return ["collectives", *sorted({f"collectives/{row.group}/{row.op}" for row in rows})]


@rule
def exposed_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Name each operation whose exposed time is a large share of the step."""
    step = evidence.step_ns
    for op, exposed in evidence.exposed_by_op().items():
        if step and exposed > EXPOSED_SHARE * step:
            yield Finding(
                id=f"exposed-{named(op)}",
                severity="high" if exposed > HIGH_SHARE * step else "medium",
                title=f"Exposed {named(op)} costs {100 * exposed / step:.3g} % of a step",
                evidence={"exposed_ns_per_step": exposed, "step_ns": step},
                saving_ns_per_step=exposed,
                advice=_advice_on_calls(op, evidence),
                links=calls_of(evidence.calls(op)),
            )


def _advice_on_calls(op: str, evidence: Evidence) -> str:
    if op not in POINT_TO_POINT_NAMES:
        return _ADVICE.get((op, evidence.framework or ""), _GENERAL_ADVICE)
    if evidence.pipeline is not None and phase_of(evidence.pipeline) is None:
        return (
            "these messages also wait for other stages: bring the traces of all stages, which tell "
            "the pipeline's bubble from transfer"
        )
    return "give it compute to hide behind: more work a turn of the ring, or fewer ranks in it"


@rule
def waiting_for_late_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Name the ranks the others wait for; without any, say that nobody in particular is late."""
    step, wait = evidence.step_ns, evidence.wait_ns
    if not step or wait <= EXPOSED_SHARE * step:
        return
    late = evidence.stragglers
    share = sum(s.share_of_wait_pct or 0.0 for s in late) / 100
    names = ", ".join(str(s.rank) for s in late[:8]) + (", …" if len(late) > 8 else "")
    who = f"rank{'s' if len(late) > 1 else ''} {names}"
    title = f"Waiting for late ranks costs {100 * wait / step:.3g} % of a step"
    yield Finding(
        id="waiting-for-late-ranks",
        severity="high" if wait > HIGH_SHARE * step else "medium",
        title=f"{title}: {100 * share:.3g} % of it for {who}" if late else title,
        evidence={
            "wait_ns_per_step": wait,
            "step_ns": step,
            **({"late_ranks": names, "share_of_wait_pct": 100 * share} if late else {}),
        },
        saving_ns_per_step=round(wait * share) if late else wait,
        advice=_advice_on(late, who) + _now_and_then(late),
        links=["stability"],
    )


def _now_and_then(late: list[Straggler]) -> str:
    """Point to what happens in some steps only, if the lateness does."""
    if not late or any(straggler.persistent is not False for straggler in late):
        return ""
    steps = max(straggler.late_steps or 0 for straggler in late)
    return (
        f". It happens in {steps} of {late[0].steps} steps: look for what else does, such as "
        "checkpoints, evaluation, garbage collection"
    )


def _advice_on(late: list[Straggler], who: str) -> str:
    if not late:
        return "no rank causes most of it: look for uneven batches, data loading and host jitter"
    known = {straggler.cause for straggler in late}
    if known == {"host"}:
        return (
            f"the device of {who} idles until its host launches: look there for data loading, "
            "Python, garbage collection, other processes on the CPU"
        )
    if known == {"compute"}:
        verb = "computes" if len(late) == 1 else "compute"
        return f"{who} {verb} longer: look for clocks and heat, uneven batches, uneven layers"
    return f"compare {who} with the others: compute time, clocks and heat, data loading, host"


@rule
def pipelines(evidence: Evidence) -> Iterator[Finding]:
    """Name what a pipeline loses to its schedule, to unequal stages, and beyond both."""
    yield from pipeline_findings(evidence.pipeline, evidence.breakdowns)


@rule
def waiting_for_the_host(evidence: Evidence) -> Iterator[Finding]:
    """Name idle time in which the device had nothing queued."""
    step = evidence.step_ns
    idle = [b.idle_host_ns for b in evidence.breakdowns if b.idle_host_ns is not None]
    host = round(sum(idle) / len(idle)) if idle else 0
    if not step or host <= HIGH_SHARE * step:
        return
    yield Finding(
        id="waiting-for-the-host",
        severity="high" if host > 2 * HIGH_SHARE * step else "medium",
        title=f"The device waits for the host {100 * host / step:.3g} % of a step",
        evidence={"idle_host_ns_per_step": host, "step_ns": step},
        saving_ns_per_step=host,
        advice="give the host less to do per kernel: a larger batch, `torch.compile`, CUDA graphs; "
        "and look for data loading, `.item()` and other synchronising calls",
        links=["step"],
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

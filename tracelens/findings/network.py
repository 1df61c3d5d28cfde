"""Rules about links: groups across nodes, calls bound by latency, slow large calls, contention.

Costs are means over the ranks that count. What a row of collectives costs a step is its exposed
transfer: waiting for late ranks has its own rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.findings.rules import EXPOSED_SHARE, HIGH_SHARE, Evidence, calls_of, rule
from tracelens.model.result import Finding
from tracelens.operations import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracelens.model.result import CollectiveResult, GroupResult

LOW_SHARE_OF_LINK = 0.5
REACHED_SHARE_OF_LINK = 0.75
SLOWED = 1.15
LOST_SHARE = 0.01


@rule
def tensor_parallelism_across_nodes(evidence: Evidence) -> Iterator[Finding]:
    """Name tensor-parallel groups that leave their machine (Narayanan 2021, takeaway 1)."""
    across = _Across(evidence, "tp")
    if across.spanning:
        yield Finding(
            id="tp-across-nodes",
            severity="high" if across.share > EXPOSED_SHARE else "medium",
            title=across.title("Tensor parallelism"),
            evidence=across.shown(),
            saving_ns_per_step=across.saving(),
            advice="keep a tensor-parallel group within a machine: a smaller tp, or ranks in an "
            "order that puts tp innermost; use pp, cp or dp between machines",
            links=["layout", *calls_of(across.rows)],
        )


@rule
def expert_parallelism_across_nodes(evidence: Evidence) -> Iterator[Finding]:
    """Name expert-parallel groups that leave their machine and cost a noticeable time."""
    across = _Across(evidence, "ep")
    if across.spanning and across.share > EXPOSED_SHARE:
        yield Finding(
            id="ep-across-nodes",
            severity="high" if across.share > HIGH_SHARE else "medium",
            title=across.title("Expert parallelism"),
            evidence=across.shown(),
            saving_ns_per_step=across.saving(),
            advice="keep experts within a machine, limit the nodes a token is routed to, send "
            "tokens in fp8, or overlap their dispatch with compute",
            links=["layout", *calls_of(across.rows)],
        )


class _Across:
    """The groups of one role that span machines, and what they cost."""

    def __init__(self, evidence: Evidence, role: str) -> None:
        self.evidence, self.role = evidence, role
        network = evidence.network
        self.groups = [g for g in network.groups if g.role == role and g.nodes is not None]
        self.spanning = [g for g in self.groups if (g.nodes or 1) > 1]
        ids = {group.id for group in self.spanning}
        self.rows = [c for c in network.collectives if c.group in ids]
        others = {group.id for group in self.groups} - ids
        self.inside = _whole(evidence, (c for c in network.collectives if c.group in others))
        split = [row for row in _whole(evidence, self.rows) if row.transfer_ns is not None]
        cost = evidence.per_rank(split, _exposed_transfer)
        self.exposed_ns = round(cost) if split else None

    @property
    def share(self) -> float:
        """Share of the step; 0 if waiting could not be told from transfer."""
        step = self.evidence.step_ns
        return (self.exposed_ns or 0) / step if step else 0.0

    def title(self, what: str) -> str:
        nodes = max(group.nodes or 1 for group in self.spanning)
        which = f"{len(self.spanning)} of {len(self.groups)} groups span up to {nodes} nodes"
        cost = f" and cost {100 * self.share:.3g} % of a step" if self.exposed_ns else ""
        return f"{what} leaves the machine: {which}{cost}"

    def shown(self) -> dict[str, float | int | str | None]:
        return {
            "groups_across_nodes": len(self.spanning),
            "groups": len(self.groups),
            "first": _listed(self.spanning[0]),
            "nodes": ", ".join((self.spanning[0].node_names or [])[:4]),
            "exposed_ns_per_step": self.exposed_ns,
            "busbw_gbps": self.measured(),
            "busbw_inside_gbps": self.reference(),
        }

    def measured(self) -> float | None:
        """Bus bandwidth across machines, over all transfer time."""
        return _busbw(_whole(self.evidence, self.rows))

    def reference(self) -> float | None:
        """Bus bandwidth to expect inside one: measured there, else what NCCL gets of the link."""
        links = self.evidence.network.links
        peak = links.intra_gbps if links is not None else None
        return _busbw(self.inside) or (None if peak is None else REACHED_SHARE_OF_LINK * peak)

    def saving(self) -> int | None:
        """Return what the exposed transfer would shrink by at the bandwidth inside a machine."""
        measured, reference = self.measured(), self.reference()
        if measured is None or reference is None or self.exposed_ns is None:
            return None
        return round(self.exposed_ns * max(1 - measured / reference, 0.0))


@rule
def latency_bound_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Name operations whose small calls cost a noticeable time for their latency."""
    for op, rows in _by_op(evidence, lambda row: row.half_bandwidth_bytes is not None):
        cost = evidence.per_rank(rows, _latency_bound)
        if not evidence.step_ns or cost <= EXPOSED_SHARE * evidence.step_ns:
            continue
        worst = max(rows, key=lambda row: _latency_bound(row) * len(row.by_rank))
        calls = evidence.per_rank(rows, _small_calls)
        latency = evidence.per_rank(rows, lambda row: _small_calls(row) * _alpha_ns(row))
        share = cost / evidence.step_ns
        yield Finding(
            id=f"latency-bound-{named(op)}",
            severity="high" if share > HIGH_SHARE else "medium",
            title=f"Small {named(op)} calls cost {100 * share:.3g} % of a step, most of it latency",
            evidence={
                "exposed_ns_per_step": round(cost),
                "small_calls_per_step": calls,
                "half_bandwidth_bytes": worst.half_bandwidth_bytes,
                "latency_us": worst.alpha_us,
                "share_of_calls_pct": worst.latency_bound_calls_pct,
            },
            saving_ns_per_step=round(min(cost, latency)),
            advice=f"fewer and larger calls: {_LARGER.get(evidence.framework or '', _ANY_LARGER)}",
            links=calls_of(rows),
        )


_LARGER = {
    "ddp": "`bucket_cap_mb`",
    "deepspeed": "`reduce_bucket_size`, `stage3_prefetch_bucket_size`, "
    "`stage3_param_persistence_threshold`",
    "fsdp1": "wrap coarser units",
    "fsdp2": "wrap coarser units",
}
_ANY_LARGER = "larger buckets, coarser units, fused reductions"


@rule
def low_bandwidth(evidence: Evidence) -> Iterator[Finding]:
    """Name operations whose large calls get little of the link."""
    for op, rows in _by_op(evidence, _is_slow):
        cost = evidence.per_rank(rows, _exposed_transfer)
        if not evidence.step_ns or cost <= EXPOSED_SHARE * evidence.step_ns:
            continue
        worst = min(rows, key=_share_of_link)
        share = cost / evidence.step_ns
        yield Finding(
            id=f"low-bandwidth-{named(op)}",
            severity="high" if share > HIGH_SHARE else "medium",
            title=f"Large {named(op)} calls get {100 * _share_of_link(worst):.3g} % of the link's "
            f"peak and cost {100 * share:.3g} % of a step",
            evidence={
                "large_busbw_gbps": worst.large_busbw_gbps,
                "link_peak_gbps": worst.link_peak_gbps,
                "exposed_ns_per_step": round(cost),
            },
            saving_ns_per_step=round(evidence.per_rank(rows, _slow_part)),
            advice="see in `NCCL_DEBUG=INFO` which transports and rings NCCL chose; check "
            "`NCCL_IB_HCA`, GPUDirect RDMA, `NCCL_P2P_DISABLE`, `NCCL_NVLS_ENABLE`, and whether "
            "compute beside it takes the multiprocessors",
            links=calls_of(rows),
        )


@rule
def overlap_contention(evidence: Evidence) -> Iterator[Finding]:
    """Say if matrix multiplications run slower beside communication than alone."""
    found, step = evidence.network.contention, evidence.step_ns
    if found is None or found.gemm_slowdown is None or not step:
        return
    lost = found.gemm_lost_per_step_ns or 0
    if found.gemm_slowdown < SLOWED or lost <= LOST_SHARE * step:
        return
    slowed = next(kernel for kernel in found.kernels if kernel.is_gemm)
    yield Finding(
        id="overlap-contention",
        severity="high" if lost > EXPOSED_SHARE * step else "medium",
        title=f"Matrix multiplications run {found.gemm_slowdown:.3g} x as long beside "
        f"communication: {100 * lost / step:.3g} % of a step",
        evidence={
            "gemm_slowdown": found.gemm_slowdown,
            "lost_ns_per_step": lost,
            "kernel": slowed.name,
            "alone_us": slowed.alone_ns / 1000,
            "beside_us": slowed.beside_ns / 1000,
        },
        saving_ns_per_step=lost,
        advice="let communication take fewer multiprocessors: `NCCL_MAX_CTAS`, copy engines "
        "(`NCCL_CTA_POLICY`), NVLS or user buffers",
        links=["kernels"],
    )


# rows --------------------------------------------------------------------------------------------


def _by_op(
    evidence: Evidence, which: Callable[[CollectiveResult], bool]
) -> Iterator[tuple[str, list[CollectiveResult]]]:
    rows = [row for row in _whole(evidence, evidence.network.collectives) if which(row)]
    for op in sorted({row.op for row in rows}):
        yield op, [row for row in rows if row.op == op]


def _exposed_transfer(row: CollectiveResult) -> float:
    """Return a row's exposed transfer a step; 0 where waiting could not be told from it."""
    return row.exposed_transfer_per_step_ns or 0.0


def _latency_bound(row: CollectiveResult) -> float:
    return _exposed_transfer(row) * (row.latency_bound_time_pct or 0.0) / 100


def _small_calls(row: CollectiveResult) -> float:
    return (row.calls_per_step or 0.0) * (row.latency_bound_calls_pct or 0.0) / 100


def _alpha_ns(row: CollectiveResult) -> float:
    return 1000 * (row.alpha_us or 0.0)


def _whole(evidence: Evidence, rows: Iterable[CollectiveResult]) -> list[CollectiveResult]:
    """Keep the groups whose members all have a trace: else transfer contains waiting for others."""
    sizes = {group.id: group.size for group in evidence.network.groups}
    return [row for row in rows if sizes.get(row.group) == len(row.by_rank)]


def _is_slow(row: CollectiveResult) -> bool:
    """Tell whether large calls get little of the link."""
    known = row.large_busbw_gbps is not None and row.link_peak_gbps is not None
    return known and _share_of_link(row) < LOW_SHARE_OF_LINK


def _share_of_link(row: CollectiveResult) -> float:
    return (row.large_busbw_gbps or 0.0) / (row.link_peak_gbps or 1.0)


def _slow_part(row: CollectiveResult) -> float:
    """Return what the exposed transfer would shrink by at the share that NCCL usually gets."""
    return _exposed_transfer(row) * (1 - _share_of_link(row) / REACHED_SHARE_OF_LINK)


def _busbw(rows: list[CollectiveResult]) -> float | None:
    known = [
        (row.busbw_gbps, row.transfer_ns * len(row.by_rank)) for row in rows if row.transfer_ns
    ]
    pairs = [(rate, time) for rate, time in known if rate is not None]
    total = sum(time for _, time in pairs)
    return sum(rate * time for rate, time in pairs) / total if total else None


def _listed(group: GroupResult) -> str:
    ranks = group.ranks or []
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")

"""Findings about links: groups across machines, latency, bandwidth, contention."""

from __future__ import annotations

import dataclasses
from typing import Any

import analysis_builder
import pytest
from analysis_parts import MS, collective, partition

from tracelens.findings import Network, find
from tracelens.model.result import (
    CollectiveResult,
    Contention,
    Finding,
    GroupResult,
    Links,
    RankResult,
    SlowedKernel,
)
from tracelens.reporting.findings import finding_views

NVLINK = Links("NVLink 4", 450.0, None, "data sheet")


def rank_of(number: int) -> RankResult:
    """A rank whose mean step of 100 ms is compute, so that no other rule speaks."""
    rank = analysis_builder.fsdp2().ranks[0]
    mean = partition(100 * MS, 0, 0, 0, 0, {})
    device = dataclasses.replace(rank.devices[0], mean_step=mean, breakdown=None)
    return dataclasses.replace(rank, rank=number, devices=[device])


def group(role: str, ranks: list[int], nodes: int | None, name: str = "g0") -> GroupResult:
    names = None if nodes is None else [f"gpu-{i}" for i in range(nodes)]
    return GroupResult(name, ["1"], None, role, "high", len(ranks), ranks, nodes, names)


def row(name: str, ranks: list[int], exposed: int, **more: Any) -> CollectiveResult:
    """An all-reduce of 20 ms a step, of which so many are exposed; nobody waits."""
    base = collective(name, "all_reduce", ranks, message=10**9, exposed=exposed, time=20 * MS)
    fields = {
        "wait_ns": 0,
        "transfer_ns": 80 * MS,
        "exposed_transfer_per_step_ns": exposed,
        "busbw_gbps": 30.0,
        **more,
    }
    return dataclasses.replace(base, **fields)


def found(network: Network, ranks: int = 4, framework: str | None = "fsdp2") -> dict[str, Finding]:
    quiet = dataclasses.replace(analysis_builder.fsdp2().volumes, verdict="as expected")
    everybody = [rank_of(number) for number in range(ranks)]
    return {f.id: f for f in find(everybody, quiet, framework, [], None, network)}


PAIRS = [[0, 1], [2, 3]]


def pairs(role: str, nodes: list[int | None], exposed: int = 6 * MS, **more: Any) -> Network:
    """Two groups of two ranks, each on so many nodes."""
    groups = [group(role, PAIRS[i], nodes[i], f"g{i}") for i in (0, 1)]
    rows = [row(f"g{i}", PAIRS[i], exposed, **more) for i in (0, 1)]
    return Network(rows, groups, NVLINK)


@pytest.mark.parametrize(
    ("nodes", "exposed", "severity"),
    [
        ([1, 1], 20, None),
        ([None, None], 20, None),
        ([2, 2], 6, "high"),
        ([2, 2], 4, "medium"),
        ([1, 2], 8, "medium"),  # half of the ranks pay, so 4 % in the mean
    ],
)
def test_tensor_parallelism_across_machines(
    nodes: list[int | None], exposed: int, severity: str | None
) -> None:
    one = found(pairs("tp", nodes, exposed * MS)).get("tp-across-nodes")
    assert (None if one is None else one.severity) == severity


def test_it_says_which_groups_and_what_they_cost() -> None:
    one = found(pairs("tp", [1, 2]))["tp-across-nodes"]
    assert one.title == (
        "Tensor parallelism leaves the machine: 1 of 2 groups span up to 2 nodes and cost "
        "3 % of a step"
    )
    assert one.evidence["first"] == "2, 3"
    assert one.evidence["nodes"] == "gpu-0, gpu-1"
    assert one.evidence["exposed_ns_per_step"] == 3 * MS


def test_the_gain_is_held_against_the_same_groups_inside_a_machine() -> None:
    network = pairs("tp", [1, 2])
    inside = dataclasses.replace(network.collectives[0], busbw_gbps=300.0)
    one = found(dataclasses.replace(network, collectives=[inside, network.collectives[1]]))
    assert one["tp-across-nodes"].saving_ns_per_step == round(3 * MS * (1 - 30 / 300))


def test_else_against_the_link() -> None:
    one = found(pairs("tp", [2, 2]))["tp-across-nodes"]
    assert one.evidence["busbw_inside_gbps"] == 0.75 * 450
    assert one.saving_ns_per_step == round(6 * MS * (1 - 30 / (0.75 * 450)))


def test_without_a_known_link_no_gain_is_claimed() -> None:
    network = dataclasses.replace(pairs("tp", [2, 2]), links=None)
    assert found(network)["tp-across-nodes"].saving_ns_per_step is None


def test_with_one_rank_a_group_the_cost_is_unknown() -> None:
    network = pairs(
        "tp",
        [2, 2],
        wait_ns=None,
        transfer_ns=None,
        exposed_transfer_per_step_ns=None,
        busbw_gbps=None,
    )
    one = found(network)["tp-across-nodes"]
    assert one.evidence["exposed_ns_per_step"] is None
    assert one.saving_ns_per_step is None
    assert one.title.endswith("span up to 2 nodes")


@pytest.mark.parametrize(
    ("exposed", "severity"), [(5, None), (6, "medium"), (15, "medium"), (16, "high")]
)
def test_experts_across_machines_by_what_they_cost(exposed: int, severity: str | None) -> None:
    one = found(pairs("ep", [2, 2], exposed * MS)).get("ep-across-nodes")
    assert (None if one is None else one.severity) == severity


def test_waiting_is_no_part_of_what_a_link_costs() -> None:
    """Of 20 ms that nothing hides, 4 follow the last arrival."""
    network = pairs("ep", [2, 2], 20 * MS, exposed_transfer_per_step_ns=4 * MS)
    assert "ep-across-nodes" not in found(network)


def test_findings_on_the_same_calls_say_so() -> None:
    """Slow calls of a group across machines: three findings promise one and the same time."""
    calls = {"large_busbw_gbps": 30.0, "link_peak_gbps": 450.0}
    network = pairs("tp", [2, 2], 18 * MS, **calls)
    other = dataclasses.replace(row("g2", [0, 1, 2, 3], 30 * MS, **calls), op="all_gather")
    network = dataclasses.replace(
        network,
        collectives=[*network.collectives, other],
        groups=[*network.groups, group("dp", [0, 1, 2, 3], 1, "g2")],
    )
    base = analysis_builder.fsdp2(4)
    views = finding_views(
        dataclasses.replace(base, findings=list(found(network, framework=None).values()))
    )
    said = [(view.title.split(" ")[0], (view.saving or "").partition(", ")[2]) for view in views]
    assert said == [
        ("Large", ""),  # all-gathers
        ("Large", ""),  # all-reduces
        ("Tensor", "of the same time as finding 2"),
    ]


def small(exposed: int, share: float = 50.0, **more: Any) -> Network:
    fields = {
        "alpha_us": 20.0,
        "beta_gbps": 300.0,
        "half_bandwidth_bytes": 6_000_000,
        "latency_bound_calls_pct": 75.0,
        "latency_bound_time_pct": share,
        **more,
    }
    return Network(
        [row("g0", [0, 1, 2, 3], exposed * MS, **fields)], [group("dp", [0, 1, 2, 3], 1)]
    )


@pytest.mark.parametrize(
    ("exposed", "severity"), [(10, None), (12, "medium"), (19, "medium"), (20, "medium")]
)
def test_small_calls_by_what_they_cost(exposed: int, severity: str | None) -> None:
    one = found(small(exposed)).get("latency-bound-all-reduce")
    assert (None if one is None else one.severity) == severity


def test_no_more_is_gained_than_the_latency_of_the_small_calls() -> None:
    one = found(small(12))["latency-bound-all-reduce"]
    assert one.evidence["small_calls_per_step"] == 0.75 * 64
    assert one.evidence["exposed_ns_per_step"] == 6 * MS
    assert one.saving_ns_per_step == 48 * 20_000
    slow = found(small(12, alpha_us=500.0))["latency-bound-all-reduce"]
    assert slow.saving_ns_per_step == 6 * MS


@pytest.mark.parametrize(
    ("framework", "said"),
    [("ddp", "bucket_cap_mb"), ("deepspeed", "reduce_bucket_size"), (None, "larger buckets")],
)
def test_advice_follows_the_framework(framework: str | None, said: str) -> None:
    assert said in found(small(12), framework=framework)["latency-bound-all-reduce"].advice


def test_without_a_fit_nothing_is_called_latency() -> None:
    network = small(20, half_bandwidth_bytes=None, latency_bound_time_pct=None)
    assert found(network) == {}


def large(exposed: int, rate: float, *, size: int = 4, peak: float | None = 450.0) -> Network:
    fields = {"large_busbw_gbps": rate, "link_peak_gbps": peak}
    ranks = [0, 1, 2, 3]
    groups = [dataclasses.replace(group("dp", ranks, 1), size=size)]
    return Network([row("g0", ranks, exposed * MS, **fields)], groups)


@pytest.mark.parametrize(
    ("exposed", "rate", "severity"),
    [(20, 225, None), (20, 224, "high"), (15, 100, "medium"), (5, 100, None)],
)
def test_large_calls_by_their_share_of_the_link(
    exposed: int, rate: float, severity: str | None
) -> None:
    one = found(large(exposed, rate)).get("low-bandwidth-all-reduce")
    assert (None if one is None else one.severity) == severity


def test_the_gain_is_up_to_what_nccl_usually_gets() -> None:
    one = found(large(18, 135))["low-bandwidth-all-reduce"]  # 30 % of the peak
    assert one.title == "Large all-reduce calls get 30 % of the link's peak and cost 18 % of a step"
    assert one.saving_ns_per_step == pytest.approx(18 * MS * (1 - 0.3 / 0.75))


def test_with_members_missing_transfer_may_be_waiting() -> None:
    assert found(large(18, 135, size=8)) == {}
    assert found(large(18, 135, peak=None)) == {}


def test_with_members_missing_latency_and_distance_may_be_waiting_too() -> None:
    network = small(20)
    lacking = [dataclasses.replace(one, size=8) for one in network.groups]
    assert found(dataclasses.replace(network, groups=lacking)) == {}
    network = pairs("tp", [2, 2])
    lacking = [dataclasses.replace(one, size=4) for one in network.groups]
    one = found(dataclasses.replace(network, groups=lacking))["tp-across-nodes"]
    assert (one.evidence["exposed_ns_per_step"], one.saving_ns_per_step) == (None, None)


def contended(slowdown: float | None, lost: int | None) -> Network:
    kernels = [
        SlowedKernel("norm", False, 9, 100_000, 9, 400_000, 4.0),
        SlowedKernel("sm90_gemm", True, 9, 100_000, 9, 130_000, 1.3),
    ]
    return Network(contention=Contention(2.0, slowdown, 50 * MS, lost, kernels))


@pytest.mark.parametrize(
    ("slowdown", "lost", "severity"),
    [
        (1.15, 2 * MS, "medium"),
        (1.14, 2 * MS, None),
        (1.5, MS, None),
        (1.5, 6 * MS, "high"),
        (None, None, None),
    ],
)
def test_matrix_multiplications_beside_communication(
    slowdown: float | None, lost: int | None, severity: str | None
) -> None:
    one = found(contended(slowdown, lost)).get("overlap-contention")
    assert (None if one is None else one.severity) == severity


def test_the_worst_kernel_is_named_with_both_times() -> None:
    one = found(contended(1.3, 2 * MS))["overlap-contention"]
    assert one.evidence["kernel"] == "sm90_gemm"
    assert (one.evidence["alone_us"], one.evidence["beside_us"]) == (100.0, 130.0)
    assert one.saving_ns_per_step == 2 * MS


def test_nothing_known_is_nothing_said() -> None:
    assert found(Network()) == {}
    assert found(pairs("tp", [2, 2]), ranks=0)["tp-across-nodes"].saving_ns_per_step == 0

"""Findings: thresholds, what they say, and in which order."""

from __future__ import annotations

import dataclasses

import analysis_builder
import pytest

from tracelens.causes import explained
from tracelens.findings import find
from tracelens.model.result import Breakdown, Finding, RankResult, Straggler, Volumes

MS = 1_000_000


def breakdown(**parts: int | dict[str, int] | None) -> Breakdown:
    """A step of 100 ms; what is not given is compute."""
    base: dict[str, int | dict[str, int] | None] = {
        "transfer_by_op_ns": {},
        "wait_ns": 0,
        "exposed_unsplit_by_op_ns": {},
        "bubble_ns": None,
        "exposed_copy_ns": 0,
        "idle_host_ns": 0,
        "idle_dependency_ns": 0,
        "idle_unknown_ns": 0,
        **parts,
    }
    spent = sum(
        sum(part.values()) if isinstance(part, dict) else part or 0 for part in base.values()
    )
    return Breakdown(window_ns=100 * MS, compute_ns=100 * MS - spent, **base)  # type: ignore[arg-type]


def rank_with(number: int, steps: Breakdown) -> RankResult:
    rank = analysis_builder.fsdp2().ranks[0]
    mean = rank.devices[0].mean_step
    assert mean is not None
    device = dataclasses.replace(
        rank.devices[0],
        breakdown=steps,
        mean_step=dataclasses.replace(mean, window_ns=steps.window_ns),
    )
    return dataclasses.replace(rank, rank=number, devices=[device], in_means=True)


def quiet() -> Volumes:
    return dataclasses.replace(analysis_builder.fsdp2().volumes, verdict="as expected")


def found(*steps: Breakdown, late: list[Straggler] | None = None) -> list[Finding]:
    ranks = [rank_with(number, step) for number, step in enumerate(steps)]
    return find(ranks, quiet(), "fsdp2", late or [])


def test_nothing_stands_out() -> None:
    assert found(breakdown()) == []


@pytest.mark.parametrize(
    ("exposed", "severity"), [(5, None), (6, "medium"), (15, "medium"), (16, "high")]
)
def test_exposed_communication_by_its_share(exposed: int, severity: str | None) -> None:
    result = found(breakdown(transfer_by_op_ns={"all_gather": exposed * MS}))
    assert [finding.severity for finding in result] == ([severity] if severity else [])


def test_waiting_is_no_part_of_an_operations_cost() -> None:
    result = found(breakdown(transfer_by_op_ns={"all_gather": 6 * MS}, wait_ns=40 * MS))
    by_id = {finding.id: finding for finding in result}
    assert by_id["exposed-all-gather"].saving_ns_per_step == 6 * MS
    assert by_id["waiting-for-late-ranks"].saving_ns_per_step == 40 * MS


def test_time_that_cannot_be_split_counts_whole() -> None:
    split = breakdown(transfer_by_op_ns=None, wait_ns=None)
    unsplit = dataclasses.replace(split, exposed_unsplit_by_op_ns={"all_reduce": 20 * MS})
    [finding] = found(unsplit)
    assert (finding.id, finding.saving_ns_per_step) == ("exposed-all-reduce", 20 * MS)


def test_the_most_costly_comes_first() -> None:
    step = breakdown(
        transfer_by_op_ns={"all_gather": 8 * MS, "reduce_scatter": 12 * MS}, idle_host_ns=31 * MS
    )
    ids = [finding.id for finding in found(step)]
    assert ids == ["waiting-for-the-host", "exposed-reduce-scatter", "exposed-all-gather"]


@pytest.mark.parametrize(
    ("host", "severity"), [(15, None), (16, "medium"), (30, "medium"), (31, "high")]
)
def test_a_device_that_waits_for_its_host(host: int, severity: str | None) -> None:
    result = found(breakdown(idle_host_ns=host * MS))
    assert [finding.severity for finding in result] == ([severity] if severity else [])


def test_a_cpu_run_has_no_device_that_waits() -> None:
    assert found(breakdown(idle_host_ns=None, idle_unknown_ns=50 * MS)) == []


def straggler(rank: int, share: float = 80.0) -> Straggler:
    return Straggler(rank, 50.0, 5 * MS, 100 * MS, share)


def test_late_ranks_are_named_with_their_share() -> None:
    result = found(breakdown(wait_ns=20 * MS), late=[straggler(3, 60.0), straggler(5, 20.0)])
    [finding] = result
    assert finding.title.endswith("20 % of a step: 80 % of it for ranks 3, 5")
    assert finding.saving_ns_per_step == 16 * MS


def test_without_a_straggler_nobody_is_named() -> None:
    [finding] = found(breakdown(wait_ns=20 * MS))
    assert finding.title == "Waiting for late ranks costs 20 % of a step"
    assert "no rank causes most of it" in finding.advice


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        (breakdown(wait_ns=10 * MS, idle_host_ns=30 * MS), "host"),
        (breakdown(wait_ns=2 * MS), "compute"),
        (breakdown(wait_ns=2 * MS, idle_host_ns=20 * MS), "host"),
        (breakdown(wait_ns=38 * MS, idle_host_ns=2 * MS), None),
    ],
)
def test_a_straggler_is_explained_by_what_it_has_more_of(own: Breakdown, cause: str | None) -> None:
    usual = breakdown(wait_ns=40 * MS)
    ranks = [rank_with(0, own), *(rank_with(number, usual) for number in (1, 2, 3))]
    [explained_one] = explained([straggler(0)], ranks)
    assert explained_one.cause == cause


def test_a_straggler_alone_is_not_explained() -> None:
    assert explained([straggler(0)], [rank_with(0, breakdown())])[0].cause is None


@pytest.mark.parametrize(
    ("cause", "said"),
    [("host", "idles until its host launches"), ("compute", "compute longer"), (None, "compare")],
)
def test_advice_follows_the_cause(cause: str | None, said: str) -> None:
    late = dataclasses.replace(straggler(1), cause=cause)
    [finding] = found(breakdown(wait_ns=20 * MS), late=[late])
    assert said in finding.advice


@pytest.mark.parametrize(("persistent", "said"), [(True, False), (None, False), (False, True)])
def test_what_is_late_now_and_then_has_another_cause(persistent: bool | None, said: bool) -> None:
    late = dataclasses.replace(straggler(1), persistent=persistent, late_steps=2, steps=10)
    [finding] = [f for f in found(breakdown(wait_ns=20 * MS), late=[late]) if "wait" in f.id]
    assert ("It happens in 2 of 10 steps" in finding.advice) is said


def pipeline(measured: float, micro_batches: int) -> dict[str, object]:
    bubble = {
        "theory": 0.2,
        "measured": measured,
        "warmup_ns": 3 * MS,
        "steady_ns": 4 * MS,
        "cooldown_ns": 5 * MS,
        "imbalance_ns": MS,
    }
    return {"stages": 4, "microbatches": micro_batches, "bubble": bubble}


def found_with(pipe: dict[str, object]) -> list[Finding]:
    sent = breakdown(exposed_unsplit_by_op_ns={"recv": 20 * MS, "all_reduce": 20 * MS})
    return find([rank_with(0, sent)], quiet(), None, [], pipe)


@pytest.mark.parametrize(
    ("measured", "severity"), [(0.1, None), (0.11, "medium"), (0.2, "medium"), (0.21, "high")]
)
def test_a_bubble_by_its_share(measured: float, severity: str | None) -> None:
    result = {finding.id: finding for finding in found_with(pipeline(measured, 12))}
    assert "exposed-all-reduce" in result
    assert "exposed-recv" not in result
    assert (result["pipeline-bubble"].severity if severity else None) == severity
    assert ("pipeline-bubble" in result) == (severity is not None)


@pytest.mark.parametrize(
    ("measured", "micro_batches", "said"),
    [
        (0.22, 8, "more micro-batches: with 16 theory gives 15.8 %"),
        (0.3, 16, "balance the stages"),
        (0.22, 16, "interleave stages"),
    ],
)
def test_advice_on_a_bubble(measured: float, micro_batches: int, said: str) -> None:
    [bubble] = [
        f for f in found_with(pipeline(measured, micro_batches)) if f.id == "pipeline-bubble"
    ]
    assert said in bubble.advice
    assert bubble.saving_ns_per_step == 12 * MS

"""Findings: thresholds, what they say, and in which order."""

from __future__ import annotations

import dataclasses
from typing import Any

import analysis_builder
import analysis_parts
import pytest

from tracelens.causes import explained
from tracelens.findings import Network, find
from tracelens.model.result import (
    Breakdown,
    Finding,
    GroupResult,
    Pipeline,
    RankResult,
    StageTimes,
    Straggler,
    Volumes,
)

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
    [
        ("host", "idles until its host launches"),
        ("compute", "rank 1 computes longer"),
        (None, "compare"),
    ],
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


def pipeline(
    measured: float | None = 0.2,
    *,
    theory: float | None = 0.2,
    own: float | None = None,
    works: tuple[int, ...] = (),
    **more: Any,
) -> Pipeline:
    """A phase of 80 ms."""
    base = analysis_parts.pipeline(4)
    bubble = dataclasses.replace(
        base.bubble,
        theory=theory,
        measured=measured,
        theory_at_measured_times=own,
        phase_ns=80 * MS,
        imbalance_ns=MS,
        p2p_ns=0,
    )
    times = [StageTimes(i, 1, 1, None, work * MS) for i, work in enumerate(works)]
    return dataclasses.replace(base, bubble=bubble, stage_times=times, **more)


def found_in(pipe: Pipeline, **parts: Any) -> dict[str, Finding]:
    step = breakdown(
        **{"exposed_unsplit_by_op_ns": {"recv": 20 * MS, "all_reduce": 20 * MS}, **parts}
    )
    return {f.id: f for f in find([rank_with(0, step)], quiet(), None, [], pipe)}


def test_messages_have_no_finding_of_their_own() -> None:
    ops = {"send": 20 * MS, "recv": 20 * MS, "send_recv": 20 * MS, "all_reduce": 20 * MS}
    assert list(found_in(pipeline(0.1, theory=0.1), exposed_unsplit_by_op_ns=ops)) == [
        "exposed-all-reduce"
    ]


def test_messages_of_a_ring_inside_stages_have_one() -> None:
    """Half of the ranks are in a ring that exposes 24 ms, and all send to stages."""
    ring, stages = (
        GroupResult(name, ["1"], None, role, "high", 2, ranks, 1, None)
        for name, role, ranks in (("g0", "cp", [0, 1]), ("g1", "pp", [0, 1, 2, 3]))
    )
    rows = [
        analysis_parts.collective(
            group.id,
            "send",
            group.ranks or [],
            message=10**6,
            exposed=30 * MS,
            time=40 * MS,
            exposed_transfer_per_step_ns=24 * MS,
        )
        for group in (ring, stages)
    ]
    step = breakdown(transfer_by_op_ns={"send": 42 * MS})
    ranks = [rank_with(number, step) for number in range(4)]
    network = Network(rows, [ring, stages])
    found = find(ranks, quiet(), None, [], pipeline(0.1, theory=0.1), network)
    assert [(f.id, f.saving_ns_per_step) for f in found] == [("exposed-send", 12 * MS)]
    assert found[0].links == ["collectives", "collectives/g0/send"]


def test_messages_that_wait_for_unseen_stages_say_so() -> None:
    lone = pipeline(0.5)
    lone = dataclasses.replace(
        lone, bubble=dataclasses.replace(lone.bubble, over="step", phase_ns=None)
    )
    finding = found_in(lone, exposed_unsplit_by_op_ns={"recv": 45 * MS})["exposed-recv"]
    assert finding.saving_ns_per_step == 45 * MS
    assert "bring the traces of all stages" in finding.advice


@pytest.mark.parametrize(
    ("theory", "measured", "found_it"), [(0.1, 0.3, False), (0.11, 0.11, True), (0.3, 0.1, False)]
)
def test_a_schedule_with_a_large_bubble(theory: float, measured: float, found_it: bool) -> None:
    result = found_in(pipeline(measured, theory=theory, microbatches=16))
    assert ("pipeline-bubble" in result) == found_it
    assert "too-few-micro-batches" not in result


def test_interleaving_shortens_the_phase() -> None:
    """16 micro-batches in 4 stages: 3/19 of the phase; with 2 virtual stages 3/35."""
    finding = found_in(pipeline(3 / 19, theory=3 / 19, microbatches=16))["pipeline-bubble"]
    assert finding.severity == "medium"
    assert finding.saving_ns_per_step == round(80 * MS * (1 - (16 / 19) / (32 / 35)))


@pytest.mark.parametrize(
    ("virtual", "count", "wanted", "share"),
    [(1, 8, 16, 3 / 19), (2, 4, 8, 3 / 19), (1, 15, 16, 3 / 19)],
)
def test_too_few_micro_batches(virtual: int, count: int, wanted: int, share: float) -> None:
    theory = 3 / (virtual * count + 3)
    name = "1f1b" if virtual == 1 else "interleaved-1f1b"
    pipe = pipeline(
        theory, theory=theory, microbatches=count, virtual_stages=virtual, schedule=name
    )
    finding = found_in(pipe)["too-few-micro-batches"]
    assert finding.evidence["enough"] == wanted
    assert finding.evidence["theory_with_enough"] == pytest.approx(share)
    assert f"{wanted} micro-batches (theory: 15.8 %)" in finding.advice
    assert finding.saving_ns_per_step == round(80 * MS * (1 - (1 - theory) / (1 - share)))


@pytest.mark.parametrize(
    ("longest", "severity"), [(105, None), (106, "medium"), (108, "medium"), (109, "high")]
)
def test_a_stage_that_works_longer(longest: int, severity: str | None) -> None:
    """One of twenty stages, so that the mean hardly moves; the phase is 80 ms."""
    result = found_in(pipeline(0.1, theory=0.1, works=(*[100] * 7, longest, *[100] * 12)))
    assert ("stage-imbalance" in result) == (severity is not None)
    if severity is not None:
        finding = result["stage-imbalance"]
        assert finding.severity == severity
        assert finding.evidence["stage"] == 7
        assert finding.saving_ns_per_step == round((longest - 100) * MS * 19 / 20)


@pytest.mark.parametrize(
    ("measured", "own", "excess"),
    [
        (0.24, None, None),  # 5 points, and the imbalance explains some
        (0.30, None, 0.3 - 0.7 / 4 - 1 / 80),  # 20 % of a phase: a quarter of its work
        (0.30, 0.28, None),  # their own times explain it
        (0.30, 0.24, 0.3 - 0.7 * 0.24 / 0.76),
        (0.30, 0.1, 0.3 - 0.7 / 4),  # theory explains more than their own times do
    ],
)
def test_a_bubble_beyond_its_schedule(
    measured: float, own: float | None, excess: float | None
) -> None:
    result = found_in(pipeline(measured, own=own))
    assert ("bubble-over-theory" in result) == (excess is not None)
    if excess is not None:
        assert result["bubble-over-theory"].saving_ns_per_step == pytest.approx(excess * 80 * MS)


def test_launch_gaps_are_no_part_of_it() -> None:
    """The class of the breakdown is smaller than what is not worked: the rest is the host's."""
    assert "bubble-over-theory" not in found_in(pipeline(0.5), bubble_ns=18 * MS)
    finding = found_in(pipeline(0.5), bubble_ns=30 * MS)["bubble-over-theory"]
    assert finding.saving_ns_per_step == (30 - (80 - 30) / 4 - 1) * MS


def test_a_schedule_promises_no_time_that_messages_take() -> None:
    """Passes of 16 ms: a bubble of 12 ms with 4 micro-batches, of 3 with 16, whatever else is lost.

    In a phase of 60 ms stages wait another 32: without it, the phase would take 28.
    """
    pipe = pipeline(44 / 60, theory=3 / 7, microbatches=4)
    pipe = dataclasses.replace(
        pipe, bubble=dataclasses.replace(pipe.bubble, phase_ns=60 * MS, imbalance_ns=0)
    )
    result = found_in(pipe)
    assert result["too-few-micro-batches"].saving_ns_per_step == (12 - 3) * MS
    assert result["bubble-over-theory"].saving_ns_per_step == (60 - 28) * MS


@pytest.mark.parametrize(
    ("syncs", "found_it"), [(None, False), (0.0, False), (7.9, False), (8.0, True)]
)
def test_a_host_that_waits_for_its_device(syncs: float | None, found_it: bool) -> None:
    result = found_in(pipeline(0.1, theory=0.1, device_syncs=syncs))
    assert ("blocking-messages" in result) == found_it


def test_nothing_is_claimed_of_a_bubble_without_a_phase() -> None:
    """The time in messages is a loss all the same, and then has no other name."""
    assert list(found_in(pipeline(None, theory=None))) == ["exposed-all-reduce"]
    lone = pipeline()
    lone = dataclasses.replace(lone, bubble=dataclasses.replace(lone.bubble, over="step"))
    assert list(found_in(lone)) == ["exposed-all-reduce", "exposed-recv"]

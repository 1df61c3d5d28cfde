"""The recorded pipelines: stages that sleep, so that the bubble is known from the ranges."""

from __future__ import annotations

import gzip
import json
import re
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from samples import EXPECTED, SAMPLES, analysis

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Breakdown, Pipeline

RECORDED = {
    "pipeline-gpipe": "gpipe",
    "pipeline-1f1b": "1f1b",
    "pipeline-interleaved": "interleaved-1f1b",
    "pipeline-zbv": "zbv",
    "pipeline-dualpipev": "dualpipev",
}
PLAIN = ["pipeline-gpipe", "pipeline-1f1b"]


def pipeline(name: str) -> Pipeline:
    found = analysis(name).pipeline
    assert found is not None
    return found


def slept_bubbles(name: str) -> dict[int, float]:
    """Compute the bubble of each rank directly from the ranges in which the stages sleep."""
    slept: dict[int, int] = {}
    phases = 0
    traces = tracelens.load(SAMPLES / name)
    for step in EXPECTED[name]["steps"]:
        low, high = [], []
        for rank, trace in enumerate(traces):
            marks = trace.marks
            [own] = marks[marks["name"] == f"ProfilerStep#{step}"].itertuples()
            names = ["stage_forward", "stage_backward", "stage_weight"]
            sleeps = marks[marks["name"].isin(names)]
            sleeps = sleeps[(sleeps["start"] >= own.start) & (sleeps["start"] < own.end)]
            low.append(int(sleeps["start"].min()) + trace.info.base_ns)
            high.append(int(sleeps["end"].max()) + trace.info.base_ns)
            slept[rank] = slept.get(rank, 0) + int((sleeps["end"] - sleeps["start"]).sum())
        phases += max(high) - min(low)
    return {rank: 1 - asleep / phases for rank, asleep in slept.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_stages_schedule_and_micro_batches_are_exact(name: str) -> None:
    found, expected = pipeline(name), EXPECTED[name]
    assert found.schedule == RECORDED[name]
    assert found.stages == expected["stages"] == expected["world_size"]
    assert found.virtual_stages == expected["virtual_stages"]
    assert found.microbatches == expected["micro_batches"]
    assert found.stage_of_rank == {rank: rank for rank in range(expected["stages"])}
    assert found.source == ("messages" if name in PLAIN else "ranges")


@pytest.mark.parametrize("name", RECORDED)
def test_the_bubble_is_what_the_stages_did_not_sleep(name: str) -> None:
    bubble = pipeline(name).bubble
    slept = slept_bubbles(name)
    assert bubble.measured is not None
    assert bubble.measured == pytest.approx(fmean(slept.values()), abs=0.005)
    assert bubble.by_rank == pytest.approx(slept, abs=0.006)
    assert bubble.theory == pytest.approx(bubble.measured, abs=0.05)
    assert fmean(v for v in bubble.by_rank.values() if v is not None) == bubble.measured


@pytest.mark.parametrize("name", PLAIN)
def test_the_closed_form_of_equal_stages(name: str) -> None:
    assert pipeline(name).bubble.theory == pytest.approx(3 / 11)


@pytest.mark.parametrize("name", [*PLAIN, "pipeline-interleaved", "pipeline-zbv"])
def test_a_replay_without_messages_loses_what_theory_says(name: str) -> None:
    """Equal stages: measured times change nothing, and the order of passes is right."""
    bubble = pipeline(name).bubble
    assert bubble.theory_at_measured_times == pytest.approx(bubble.theory, abs=0.003)


@pytest.mark.parametrize("name", RECORDED)
def test_passes_take_as_long_as_the_sleeps(name: str) -> None:
    expected = EXPECTED[name]
    each = expected["virtual_stages"]
    for stage in pipeline(name).stage_times:
        assert stage.forward_ns is not None
        assert stage.backward_ns is not None
        forward = each * expected["forward_seconds"] * 1e9
        backward = each * (expected["backward_seconds"] + expected["weight_seconds"]) * 1e9
        assert stage.forward_ns == pytest.approx(forward, rel=0.03)
        assert stage.backward_ns == pytest.approx(backward, rel=0.03)


@pytest.mark.parametrize("name", RECORDED)
def test_one_step_is_drawn_whole(name: str) -> None:
    found, expected = pipeline(name), EXPECTED[name]
    phase = found.bubble.phase_ns
    assert phase is not None
    for stage in range(expected["stages"]):
        own = [one for one in found.timeline if one.stage == stage]
        forward = [one for one in own if one.kind == "forward"]
        assert len(forward) == expected["micro_batches"] * expected["virtual_stages"]
        for virtual in {one.virtual_stage for one in forward}:
            numbers = [one.microbatch for one in forward if one.virtual_stage == virtual]
            assert sorted(n for n in numbers if n is not None) == list(
                range(expected["micro_batches"])
            )
        ends = [one.start_ns + one.duration_ns for one in own]
        assert min(one.start_ns for one in own) >= 0
        assert max(ends) <= 1.05 * phase
        assert sum(one.duration_ns for one in own) <= 1.05 * phase
    assert min(one.start_ns for one in found.timeline) == 0


@pytest.mark.parametrize("name", RECORDED)
def test_every_pass_follows_what_it_needs(name: str) -> None:
    """An activation arrives before the next stage's pass begins, a gradient likewise."""
    ends = {
        (one.kind, one.virtual_stage, one.microbatch): one.start_ns + one.duration_ns
        for one in pipeline(name).timeline
    }
    checked = 0
    for one in pipeline(name).timeline:
        step = -1 if one.kind == "forward" else 1
        if one.virtual_stage is None or one.kind == "backward_weight":
            continue
        before = ends.get((one.kind, one.virtual_stage + step, one.microbatch))
        if before is not None:
            assert before <= one.start_ns + 1e6
            checked += 1
    assert checked > 8


@pytest.mark.parametrize("name", PLAIN)
def test_warm_up_and_cool_down_follow_from_the_sleeps(name: str) -> None:
    """Stage s of four waits s forwards and (3 - s) backwards in all; GPipe before its backward."""
    forward, backward = 40e6, 80e6
    bubble = pipeline(name).bubble
    warmup, cooldown = 1.5 * (forward + backward), 1.5 * (forward + backward)
    if name == "pipeline-gpipe":
        warmup, cooldown = 3 * forward + 1.5 * backward, 1.5 * backward
    assert bubble.warmup_ns == pytest.approx(warmup, rel=0.12)
    assert bubble.cooldown_ns == pytest.approx(cooldown, rel=0.12)
    assert bubble.steady_ns is not None
    assert bubble.steady_ns < 15e6


def parts(breakdown: Breakdown) -> list[int]:
    known = (
        breakdown.compute_ns, breakdown.wait_ns, breakdown.bubble_ns, breakdown.exposed_copy_ns,
        breakdown.idle_host_ns, breakdown.idle_dependency_ns, breakdown.idle_unknown_ns,
    )  # fmt: skip
    by_op = [breakdown.transfer_by_op_ns or {}, breakdown.exposed_unsplit_by_op_ns]
    return [part or 0 for part in known] + [t for one in by_op for t in one.values()]


@pytest.mark.parametrize("name", [*RECORDED, "3d-pp2-dp2-tp2"])
def test_the_bubble_is_a_class_of_the_breakdown(name: str) -> None:
    for rank in analysis(name).ranks:
        breakdown = rank.devices[0].breakdown
        assert breakdown is not None
        assert breakdown.bubble_ns
        assert sum(parts(breakdown)) == breakdown.window_ns


@pytest.mark.parametrize("name", RECORDED)
def test_nearly_all_of_the_bubble_is_waiting_for_messages(name: str) -> None:
    """These stages do nothing else: no optimizer to speak of, no launch gaps."""
    found = pipeline(name).bubble
    assert found.phase_ns is not None
    for rank in analysis(name).ranks:
        breakdown = rank.devices[0].breakdown
        assert breakdown is not None
        assert breakdown.bubble_ns is not None
        share = breakdown.bubble_ns / breakdown.window_ns
        # ZB-V's stages do not wait: the next step fills the time by which they begin apart.
        assert share == pytest.approx(found.by_rank[rank.rank], abs=0.07 if "zbv" in name else 0.02)
        assert breakdown.wait_ns is not None
        assert breakdown.wait_ns < 0.01 * breakdown.window_ns


def test_every_pipeline_of_the_3d_run_is_found() -> None:
    found = pipeline("3d-pp2-dp2-tp2")
    assert found.stage_of_rank == {rank: rank // 4 for rank in range(8)}
    assert (found.schedule, found.microbatches, found.pipelines) == ("1f1b", 4, 4)


@pytest.mark.parametrize("name", PLAIN)
def test_the_reports_say_it(name: str) -> None:
    result = analysis(name)
    [metric] = [m for m in result.summary.metrics if m.name == "bubble_pct"]
    assert result.pipeline is not None
    assert result.pipeline.bubble.measured is not None
    assert metric.value == 100 * result.pipeline.bubble.measured
    shape = f"{RECORDED[name]}, 4 stages, 8 micro-batches"
    assert metric.detail == f"predicted 27.3 % for {shape}"
    assert " are pipeline bubble and " in result.summary.verdict


def test_what_is_found() -> None:
    """Equal stages and fast messages: only the number of micro-batches is to blame."""
    ids = {finding.id for finding in analysis("pipeline-1f1b").findings}
    assert ids == {"too-few-micro-batches"}
    assert not analysis("pipeline-zbv").findings


class TestRanksThatAreMissing:
    @pytest.mark.parametrize("ranks", [{1}, {1, 2}, {0, 1, 2}])
    def test_the_step_stands_in_for_the_phase(self, ranks: set[int]) -> None:
        options = tracelens.Options(ranks=frozenset(ranks))
        result = tracelens.analyze(SAMPLES / "pipeline-1f1b", options)
        found = result.pipeline
        assert found is not None
        assert (found.schedule, found.stages, found.microbatches) == ("1f1b", 4, 8)
        assert found.stage_of_rank == {rank: rank for rank in ranks}
        bubble = found.bubble
        assert bubble.over == "step"
        assert (bubble.warmup_ns, bubble.phase_ns, found.timeline) == (None, None, [])
        assert set(bubble.by_rank) == ranks
        for rank in result.ranks:
            device = rank.devices[0]
            assert device.mean_step is not None
            assert device.breakdown is not None
            assert device.breakdown.bubble_ns is None
            idle = 1 - device.mean_step.compute_ns / device.mean_step.window_ns
            assert bubble.by_rank[rank.rank] == pytest.approx(idle, abs=0.01)

    def test_ranges_still_name_stages(self) -> None:
        options = tracelens.Options(ranks=frozenset({2}))
        found = tracelens.analyze(SAMPLES / "pipeline-interleaved", options).pipeline
        assert found is not None
        assert (found.stage_of_rank, found.virtual_stages, found.microbatches) == ({2: 2}, 2, 4)
        assert (found.stages, found.schedule) == (4, "interleaved-1f1b")

    def test_nothing_is_found_fault_with(self) -> None:
        options = tracelens.Options(ranks=frozenset({1}))
        result = tracelens.analyze(SAMPLES / "pipeline-1f1b", options)
        assert not {"pipeline-bubble", "bubble-over-theory"} & {f.id for f in result.findings}
        [metric] = [m for m in result.summary.metrics if m.name == "bubble_pct"]
        assert metric.status == "unknown"


def test_runs_without_messages_have_no_pipeline() -> None:
    result = analysis("fsdp2")
    assert result.pipeline is None
    assert {r.devices[0].breakdown.bubble_ns for r in result.ranks if r.devices[0].breakdown} == {
        None
    }


@pytest.mark.parametrize("name", ["pipeline-gpipe", "pipeline-interleaved"])
def test_without_the_schedules_ranges_the_bubble_is_the_same(name: str, tmp_path: Path) -> None:
    """Schedule1F1B never names its passes; here the others do not either."""
    for file in (SAMPLES / name).glob("*.json.gz"):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        trace["traceEvents"] = [
            event
            for event in trace["traceEvents"]
            if not re.match(r"Forward \d|Backward \d|PP:", str(event.get("name")))
        ]
        (tmp_path / file.name.removesuffix(".gz")).write_text(json.dumps(trace))
    found, annotated = tracelens.analyze(tmp_path).pipeline, pipeline(name)
    assert found is not None
    assert found.source == "messages"
    assert (found.stages, found.microbatches) == (annotated.stages, annotated.microbatches)
    assert found.stage_of_rank == annotated.stage_of_rank
    assert found.schedule == annotated.schedule
    slept = fmean(slept_bubbles(name).values())
    assert found.bubble.measured == pytest.approx(slept, abs=0.005)

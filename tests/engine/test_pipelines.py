"""The recorded pipelines: stages that sleep, so that the bubble is known from the ranges."""

from __future__ import annotations

from statistics import fmean

import pytest
from samples import EXPECTED, SAMPLES, analysis

import tracelens

PIPELINES = ["pipeline-gpipe", "pipeline-1f1b"]


def slept_bubble(name: str) -> float:
    """Compute the bubble directly from the ranges in which the stages sleep."""
    traces = tracelens.load(SAMPLES / name)
    shares = []
    for step in EXPECTED[name]["steps"]:
        spans = []
        for trace in traces:
            marks = trace.marks
            [own] = marks[marks["name"] == f"ProfilerStep#{step}"].itertuples()
            sleeps = marks[marks["name"].isin(["stage_forward", "stage_backward"])]
            sleeps = sleeps[(sleeps["start"] >= own.start) & (sleeps["start"] < own.end)]
            base = trace.info.base_ns
            slept = int((sleeps["end"] - sleeps["start"]).sum())
            spans.append((sleeps["start"].min() + base, sleeps["end"].max() + base, slept))
        phase = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
        shares += [1 - slept / phase for _, _, slept in spans]
    return fmean(shares)


@pytest.mark.parametrize("name", PIPELINES)
def test_stages_schedule_and_micro_batches_are_exact(name: str) -> None:
    pipeline = analysis(name).pipeline
    assert pipeline is not None
    assert pipeline["schedule"] == name.removeprefix("pipeline-")
    assert pipeline["stages"] == EXPECTED[name]["stages"] == 4
    assert pipeline["microbatches"] == EXPECTED[name]["micro_batches"] == 8
    assert pipeline["stage_of_rank"] == {"0": 0, "1": 1, "2": 2, "3": 3}


@pytest.mark.parametrize("name", PIPELINES)
def test_the_bubble_is_what_the_stages_did_not_sleep(name: str) -> None:
    """Operators around the sleep are work as well, so the bubble is up to a point smaller."""
    pipeline = analysis(name).pipeline
    assert pipeline is not None
    bubble = pipeline["bubble"]
    assert -0.01 < bubble["measured"] - slept_bubble(name) < 0.001
    assert bubble["theory"] == pytest.approx(3 / 11)
    assert abs(bubble["measured"] - bubble["theory"]) < 0.05
    assert fmean(bubble["by_rank"].values()) == pytest.approx(bubble["measured"])
    assert max(bubble["by_rank"].values()) - min(bubble["by_rank"].values()) < 0.01


@pytest.mark.parametrize("name", PIPELINES)
def test_warm_up_and_cool_down_follow_from_the_sleeps(name: str) -> None:
    pipeline = analysis(name).pipeline
    assert pipeline is not None
    bubble = pipeline["bubble"]
    # Stage s begins s forwards (20 ms) late and ends s backwards (40 ms) early.
    assert 30e6 < bubble["warmup_ns"] < 36e6
    assert 60e6 < bubble["cooldown_ns"] < 66e6


def test_every_pipeline_of_the_3d_run_is_found() -> None:
    pipeline = analysis("3d-pp2-dp2-tp2").pipeline
    assert pipeline is not None
    assert pipeline["stage_of_rank"] == {str(rank): rank // 4 for rank in range(8)}
    assert (pipeline["schedule"], pipeline["microbatches"]) == ("1f1b", 4)


@pytest.mark.parametrize("name", PIPELINES)
def test_the_reports_say_it(name: str) -> None:
    result = analysis(name)
    [metric] = [m for m in result.summary.metrics if m.name == "bubble_pct"]
    assert result.pipeline is not None
    assert metric.value == 100 * result.pipeline["bubble"]["measured"]
    assert metric.detail == "predicted 27.3 % for 4 stages, 8 micro-batches"
    assert "The pipeline bubble is" in result.summary.verdict


def test_a_rank_alone_has_no_pipeline() -> None:
    options = tracelens.Options(ranks=frozenset({1}))
    assert tracelens.analyze(SAMPLES / "pipeline-1f1b", options).pipeline is None


def test_runs_without_messages_have_no_pipeline() -> None:
    assert analysis("fsdp2").pipeline is None

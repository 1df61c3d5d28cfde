"""The analysis of the simulated samples agrees with the truth beside them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from samples import EXPECTED, SAMPLES, analysis

SIMULATED = sorted(name for name, run in EXPECTED.items() if run.get("simulated"))


@functools.cache
def truth(name: str) -> dict[str, Any]:
    return dict(json.loads((SAMPLES / name / "truth.json").read_text()))


@pytest.mark.parametrize("name", SIMULATED)
def test_it_is_small(name: str) -> None:
    assert sum(file.stat().st_size for file in (SAMPLES / name).iterdir()) < 3_000_000


@pytest.mark.parametrize("name", SIMULATED)
def test_every_step_of_every_rank_is_exact(name: str) -> None:
    names = ("window", "compute", "comm", "exposed_comm", "copy", "exposed_copy", "idle")
    for rank, true in zip(analysis(name).ranks, truth(name)["ranks"], strict=True):
        found = [
            {"step": step.step}
            | {f"{part}_ns": getattr(step.partition, f"{part}_ns") for part in names}
            for step in rank.devices[0].steps
        ]
        assert found == true["steps"]


@pytest.mark.parametrize("name", SIMULATED)
def test_slow_ranks_are_the_stragglers(name: str) -> None:
    slow = [rank["rank"] for rank in truth(name)["ranks"] if rank["slow"] > 1]
    assert [straggler.rank for straggler in analysis(name).stragglers] == slow


@pytest.mark.parametrize("name", SIMULATED)
def test_layout_hosts_and_groups(name: str) -> None:
    result, true = analysis(name), truth(name)
    asked = dict(part.split("=") for part in true["options"]["layout"].split(","))
    dims = {dim: size for dim, size in result.parallelism.dims.items() if size > 1}
    assert dims == {dim: int(size) for dim, size in asked.items()}
    used = {tuple(group.ranks or ()) for group in result.groups}
    assert used <= {tuple(group["ranks"]) for group in true["groups"]} | {()}


@pytest.mark.parametrize("name", [name for name in SIMULATED if truth(name)["pipeline"]])
def test_the_pipeline(name: str) -> None:
    found, true = analysis(name).pipeline, truth(name)["pipeline"]
    assert found is not None
    assert found.schedule == true["schedule"]
    assert (found.stages, found.microbatches) == (true["stages"], true["micro_batches"])
    assert found.stage_of_rank == {int(rank): s for rank, s in true["stage_of_rank"].items()}
    assert found.bubble.measured == pytest.approx(true["bubble"]["overall"], abs=0.005)


def test_the_verdict_counts_the_bubble_apart() -> None:
    result = analysis("simulated-3d-pp2-dp2-tp2")
    parts = [rank.devices[0].breakdown for rank in result.ranks]
    bubble = sum((part.bubble_ns if part else None) or 0 for part in parts) / len(parts)
    assert f"{bubble / 1e6:.3g} ms (17.2 %) are pipeline bubble and " in result.summary.verdict
    [exposed] = [m for m in result.summary.metrics if m.name == "exposed_comm_pct"]
    assert exposed.detail == "share of the step; 17.2 points of it are in the bubble"

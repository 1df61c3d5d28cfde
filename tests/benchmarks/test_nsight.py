"""The generated export is one a reader can be held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tracelens
from benchmarks.nsight import Plan, write

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis

PLAN = Plan(processes=2, steps=3, layers=4, kernels_a_layer=21)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    path: Path = tmp_path_factory.mktemp("export") / "x.sqlite"
    write(path, PLAN)
    return tracelens.analyze(path)


def test_it_holds_what_the_plan_says(analysis: Analysis) -> None:
    kernels = sum(rank.devices[0].total.kernels for rank in analysis.ranks)
    assert kernels == PLAN.kernels
    assert analysis.run.steps == list(range(PLAN.steps))
    assert analysis.run.ranks_present == list(range(PLAN.processes))


def test_its_bytes_are_those_of_the_plan(analysis: Analysis) -> None:
    sent = [one.bytes_per_step.message for one in analysis.collectives]
    assert sum(value or 0 for value in sent) == PLAN.message_bytes
    assert analysis.run.world_size == PLAN.processes


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        write(path, Plan(processes=1, steps=1, layers=1, kernels_a_layer=3))
    assert paths[0].read_bytes() == paths[1].read_bytes()

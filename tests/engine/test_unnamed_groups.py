"""Groups that no trace describes (Nsight, DeepSpeed, plain `new_group`): traffic tells the role."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tracelens
from tracelens.operations import CODE
from tracelens.roles import _by_threads, _Traffic
from tracelens.simulate import Layout, Machine, Model, Options, kineto, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis
    from tracelens.simulate.recording import Recording

_MODEL = Model(layers=4, hidden=256, vocabulary=1024, sequence=256)
_EXPERTS = replace(_MODEL, layers=2, experts=4)
_RUN = Options(Layout(dp=2), _MODEL, Machine(), steps=2)
RUNS = {
    "fsdp": replace(_RUN, layout=Layout(dp=4), strategy="zero3"),
    "tensor, pipeline and data": replace(_RUN, layout=Layout(dp=2, tp=2, pp=2), micro_batches=4),
    "sequence parallel": replace(_RUN, layout=Layout(dp=2, tp=2), sequence_parallel=True),
    "tied embedding": replace(
        _RUN, layout=Layout(dp=2, pp=4), model=replace(_MODEL, tied=True), micro_batches=4
    ),
    "context ring": replace(_RUN, layout=Layout(dp=2, cp=2, tp=2)),
    "context gathers": replace(_RUN, layout=Layout(dp=2, cp=2), context="all-gather"),
    "experts": replace(_RUN, layout=Layout(dp=4, ep=2), model=_EXPERTS),
    "experts and tensor": replace(
        _RUN, layout=Layout(dp=4, ep=2, tp=2), model=_EXPERTS, sequence_parallel=True
    ),
}


def without_names(recording: Recording) -> Recording:
    groups = [replace(group, description="undefined") for group in recording.groups]
    return dataclasses.replace(recording, groups=groups)


def analysed(recording: Recording, folder: Path) -> Analysis:
    folder.mkdir()
    kineto.write(recording, folder, torch="2.12")
    return tracelens.analyze(folder)


@pytest.mark.parametrize("name", RUNS)
def test_roles_are_those_of_the_named_groups(name: str, tmp_path: Path) -> None:
    recording = simulate(RUNS[name])
    named = analysed(recording, tmp_path / "named")
    unnamed = analysed(without_names(recording), tmp_path / "unnamed")

    roles = {tuple(group.ranks or ()): group.role for group in named.groups}
    assert {tuple(group.ranks or ()): group.role for group in unnamed.groups} == roles
    assert unnamed.parallelism.dims == named.parallelism.dims
    assert unnamed.parallelism.strategy == named.parallelism.strategy
    assert named.topology is not None
    assert unnamed.topology is not None
    assert unnamed.topology.positions == named.topology.positions
    known = [group for group in unnamed.groups if group.role != "unknown"]
    assert {group.role_confidence for group in known} <= {"high", "medium", "low"}


def step(*calls: tuple[str, int, int]) -> _Traffic:
    """Return calls as operation, bytes and thread."""
    columns = [[CODE[op] for op, _, _ in calls], *([c[i] for c in calls] for i in (1, 2))]
    return _Traffic(*(np.array(column, np.int64) for column in columns))


@pytest.mark.parametrize(
    ("traffic", "role"),
    [
        # DDP's buckets may have equal sizes, but all come from autograd's thread.
        (step(*[("all_reduce", 9000, 2)] * 20), None),
        # Statistics of synchronised batch norm are activations, on a group of gradients.
        (step(*[("all_reduce", 9000, 2)] * 20, *[("all_reduce", 500, n) for n in (1, 2)]), None),
        (step(("all_reduce", 9000, 1), ("all_reduce", 9000, 2)), "tp"),
        (step(("reduce_scatter", 9000, 1), ("reduce_scatter", 9000, 2)), "tp"),
        # FSDP gathers in forward and backward, and reduces in backward only.
        (step(("all_gather", 9, 1), ("all_gather", 9, 2), ("reduce_scatter", 9, 2)), None),
        (step(("send", 9, 1), ("recv", 9, 1), ("send", 9, 1)), "pp"),
        (step(("send", 9, 1), ("recv", 9, 1), ("send", 9, 2), ("recv", 9, 2)), "cp"),
        (step(("send", 9, 1), ("all_reduce", 9, 1)), None),
        (step(("all_to_all", 9, 1), ("all_to_all", 9, 2)), "ep"),
        (step(), None),
    ],
)  # fmt: skip
def test_what_two_threads_call_is_activations(traffic: _Traffic, role: str | None) -> None:
    found = _by_threads(traffic)
    assert (None if found is None else found[0]) == role

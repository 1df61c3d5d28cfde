"""Exports that lack something of a simulated run: what is there is right, the rest unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from simulated_runs import recorded

import tracelens
from tracelens.simulate import kineto, nsight

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis

THREE_D = "3D on two nodes"


def analysed(name: str, folder: Path, options: nsight.Options) -> tuple[Analysis, Analysis]:
    """Return the analyses of the run's Kineto files, and of an export."""
    kineto.write(recorded(name), folder / "kineto")
    nsight.write(recorded(name), folder / "nsight", options=options)
    return tracelens.analyze(folder / "kineto"), tracelens.analyze(folder / "nsight")


def codes(analysis: Analysis) -> set[str]:
    return {notice.code for notice in analysis.notices}


@pytest.mark.parametrize("name", ["zero-3", THREE_D])
def test_communicators_made_before_the_recording(name: str, tmp_path: Path) -> None:
    first, second = analysed(name, tmp_path, nsight.Options(setup=False))
    assert "group-size-seen" in codes(second)
    assert [group.ranks for group in first.groups] == [group.ranks for group in second.groups]
    assert [one.bytes_per_step for one in first.collectives] == [
        one.bytes_per_step for one in second.collectives
    ]


@pytest.mark.parametrize(
    ("setup", "code"), [(True, "ranks-by-communicator"), (False, "ranks-by-device")]
)
def test_without_a_mark_ranks_follow_the_communicator_or_the_devices(
    setup: bool, code: str, tmp_path: Path
) -> None:
    first, second = analysed("zero-3", tmp_path, nsight.Options(mark=False, setup=setup))
    assert [rank.devices[0].total for rank in first.ranks] == [
        rank.devices[0].total for rank in second.ranks
    ]
    assert code in codes(second)
    if setup:  # else the size of the group is not known either
        assert first.volumes.per_step == second.volumes.per_step


def test_without_payloads_times_are_the_same_and_bytes_unknown(tmp_path: Path) -> None:
    first, second = analysed(THREE_D, tmp_path, nsight.Options(blobs=False))
    for one, other in zip(first.ranks, second.ranks, strict=True):
        mine, theirs = one.devices[0].total, other.devices[0].total
        by_op = mine.comm_by_op_ns, mine.exposed_by_op_ns  # batches of messages are not told apart
        assert mine == replace(theirs, comm_by_op_ns=by_op[0], exposed_by_op_ns=by_op[1])
    assert {one.bytes_per_step.message for one in second.collectives} == {None}
    assert "payloads-not-exported" in codes(second)

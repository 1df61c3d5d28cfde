"""Process groups of one name, and lists of ranks that are cut, empty or wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import Group, Trace
from standard_run import BYTES, codes, holds, is_standard, rank, rank_of

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis, CollectiveResult


def write(
    folder: Path, numbers: list[int], group_of: dict[int, Group], *, world: int, listed: bool
) -> None:
    """Write standard ranks whose all-reduces run on a group of their own."""
    for number in numbers:
        mine = group_of[number]
        trace = Trace(rank=number, world=world, pid=4000 + number, groups=(mine,) if listed else ())
        for step in (0, 1):
            at = 1000 * step
            trace.step(10 + step, at, 1000)
            trace.kernel("gemm", at + 100, 300).kernel("gelu", at + 400, 200)
            trace.all_reduce(at + 500, 300, group=mine).kernel("norm", at + 700, 200)
        trace.write(folder / f"rank{number}.json")


def rows(result: Analysis) -> dict[tuple[int, ...], CollectiveResult]:
    """Return the rows of collectives by who called them."""
    return {tuple(sorted(row.by_rank)): row for row in result.collectives}


def are_two(result: Analysis, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    found = rows(result)
    assert set(found) == {first, second}
    for row in found.values():
        assert (row.calls, row.message_bytes) == (2, 2 * 2 * BYTES)
        assert row.bytes_per_step.message == 2 * BYTES
        assert row.time_ns == 600_000
    for one in result.ranks:
        holds(one.devices[0].mean_step)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("description", ["mesh_tp", "undefined", ""])
def test_two_groups_of_one_name(listed: bool, description: str, tmp_path: Path) -> None:
    """Each rank numbers its groups on its own, so names repeat: the list of ranks tells."""
    groups = {r: Group((r // 2 * 2, r // 2 * 2 + 1), "7", description) for r in range(4)}
    write(tmp_path, [0, 1, 2, 3], groups, world=4, listed=listed)
    result = tracelens.analyze(tmp_path)
    are_two(result, (0, 1), (2, 3))
    assert sorted(group.ranks or [] for group in result.groups if group.size == 2) == (
        [[0, 1], [2, 3]]
    )
    assert {row.wait_ns for row in result.collectives} == {0}, "matched within each"
    assert [sum(row.matched_calls.values()) for row in result.collectives] == [2, 2]


def test_one_group_of_two_names(tmp_path: Path) -> None:
    groups = {0: Group((0, 1), "3", "default_pg"), 1: Group((0, 1), "5", "default_pg")}
    write(tmp_path, [0, 1], groups, world=2, listed=True)
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    (row,) = result.collectives
    assert tuple(sorted(row.by_rank)) == (0, 1)
    (group,) = result.groups
    assert sorted(group.names) == ["3", "5"]


EVEN, ODD = tuple(range(0, 128, 2)), tuple(range(1, 128, 2))


def test_cut_lists_of_one_name_stay_apart(tmp_path: Path) -> None:
    """torch prints 30 ranks and "...": not who is in it, but that it is another group."""
    groups = {r: Group((EVEN, ODD)[r % 2], "7", "dp") for r in range(4)}
    write(tmp_path, [0, 1, 2, 3], groups, world=128, listed=False)
    result = tracelens.analyze(tmp_path)
    are_two(result, (0, 2), (1, 3))
    big = [group for group in result.groups if group.size == 64]
    assert [group.ranks for group in big] == [None, None], "the members are not known"
    assert {row.wait_ns for row in result.collectives} == {None}, "so nothing is matched"
    assert "wait-unknown" in codes(result)


def test_the_header_has_the_whole_list(tmp_path: Path) -> None:
    groups = {r: Group((EVEN, ODD)[r % 2], "7", "dp") for r in range(4)}
    write(tmp_path, [0, 1, 2, 3], groups, world=128, listed=True)
    result = tracelens.analyze(tmp_path)
    are_two(result, (0, 2), (1, 3))
    assert sorted(group.ranks or [] for group in result.groups if group.size == 64) == (
        [list(EVEN), list(ODD)]
    )
    assert {row.wait_ns for row in result.collectives} == {0}


def test_a_cut_list_of_the_whole_world_is_the_world(tmp_path: Path) -> None:
    world = Group(tuple(range(64)), "0", "default_pg")
    write(tmp_path, [0, 1], {0: world, 1: world}, world=64, listed=False)
    result = tracelens.analyze(tmp_path)
    (row,) = result.collectives
    assert row.calls == 2
    assert [group.ranks for group in result.groups if group.size == 64] == [list(range(64))]
    assert row.wait_ns == 0


WRONG = {
    "empty": "[]",
    "no text": "",
    "a word": "unknown",
    "too short": "[0]",
    "too long": "[0, 1, 2, 3]",
    "cut at once": "[...]",
    "cut": "[0, ...",
}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_list_that_cannot_be_believed(text: str, world: int, tmp_path: Path) -> None:
    """The recorded size stays, and with it the bytes; in a larger world nobody is guessed."""
    for number in (0, 1):
        pair = Group((0, 1))
        made = Trace(rank=number, world=world, pid=4000 + number, groups=())
        for step in (0, 1):
            at = 1000 * step
            made.step(10 + step, at, 1000)
            made.kernel("gemm", at + 100, 300).kernel("gelu", at + 400, 200)
            made.all_reduce(at + 500, 300, group=pair).kernel("norm", at + 700, 200)
        made.events = [event.replace('"[0, 1]"', json.dumps(text)) for event in made.events]
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    (row,) = result.collectives
    assert row.message_bytes == 2 * 2 * BYTES
    assert row.wire_bytes == 2 * 2 * BYTES // 2, "a ring of two sends half of that"
    assert row.time_ns == 600_000
    (group,) = [group for group in result.groups if group.id == row.group]
    assert (group.size, group.ranks) == (2, [0, 1] if world == 2 else None)
    assert (row.wait_ns is None) == (world == 4)
    holds(rank_of(result, 0).devices[0].mean_step)


def test_lists_of_the_header_that_cannot_be(tmp_path: Path) -> None:
    """What a call says is believed, where the header's list is empty, cut or no list."""
    bad: tuple[object, ...] = ([], "[]", ["...", 1], "0, 1", None, [0, 1, 2], {"0": 1})
    for ranks in bad:
        for number in (0, 1):
            made = rank(number)
            info = made.header()["distributedInfo"]
            info["pg_config"] = [{"pg_name": "0", "pg_size": 2, "ranks": ranks}]
            made.keys = {"distributedInfo": info}
            made.write(tmp_path / f"rank{number}.json")
        result = tracelens.analyze(tmp_path)
        is_standard(result)
        (row,) = result.collectives
        (group,) = [group for group in result.groups if group.id == row.group]
        assert (group.ranks, row.wait_ns) == ([0, 1], 0), ranks


def test_members_that_disagree_are_named_and_never_matched(tmp_path: Path) -> None:
    groups = {0: Group((0, 1, 2), "0", "default_pg"), 1: Group((0, 1), "0", "default_pg")}
    write(tmp_path, [0, 1], groups, world=3, listed=True)
    result = tracelens.analyze(tmp_path)
    assert codes(result) & {"groups-contradict", "mixed-runs"}
    assert {row.wait_ns for row in result.collectives} == {None}

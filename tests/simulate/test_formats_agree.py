"""The same simulated run gives the same analysis, whatever profiler's format it is written in."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest
from simulated_runs import RUNS, recorded
from whole_run import everything

import tracelens
from tracelens.simulate import kineto, nsight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.model.result import Analysis

# What formats say in their own words, or only one of them says: names, no numbers.
OWN_WORDS = re.compile(
    r"\.source\b|\.notices\b"
    r"|\.ranks\[\]\.files\[\]"  # their names
    r"|\.run\.(nccl_version|step_source)$"
    r"|\.collectives\[\]\.sources\[\]"  # args or payload
    r"|\.groups\[\]\.names\[\]"  # "3", or a communicator's id
    # NCCL does not say which of several groups of the same ranks a communicator serves.
    r"|\.groups\[\]\.(description|role_confidence)$"
)
# Known to one format only, the other one must call it unknown. Kineto names the host only in the
# name of the file.
ONE_SIDED = {".ranks[].host", ".run.hosts[]", ".groups[].nodes"}


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a result with the way to it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{at}[{index}]")
    else:
        yield at, value


def differences(one: Analysis, other: Analysis) -> list[tuple[str, Any, Any]]:
    """Return the way to each value that is not the same, with both values."""
    first, second = dict(leaves(one)), dict(leaves(other))
    found = []
    for way in dict.fromkeys([*first, *second]):
        plain = re.sub(r"\[\d+\]", "[]", way)
        mine, theirs = first.get(way), second.get(way)
        unknown_to_one = (mine is None) != (theirs is None) and plain in ONE_SIDED
        if mine != theirs and not unknown_to_one and not OWN_WORDS.search(plain):
            found.append((way, mine, theirs))
    return found


def codes(analysis: Analysis) -> list[str]:
    return sorted(notice.code for notice in analysis.notices)


@pytest.mark.parametrize("name", RUNS)
def test_kineto_and_nsight_agree(name: str, tmp_path: Path) -> None:
    run = recorded(name)
    kineto.write(run, tmp_path / "kineto")
    nsight.write(run, tmp_path / "nsight")
    one, other = (tracelens.analyze(tmp_path / each) for each in ("kineto", "nsight"))
    assert differences(one, other) == []
    assert codes(one) == codes(other)
    assert sum(isinstance(value, int | float) for _, value in leaves(one)) > 300


@pytest.mark.parametrize("name", ["zero-3", "interleaved", "experts", "3D on two nodes"])
def test_files_of_nodes_and_of_ranks_agree(name: str, tmp_path: Path) -> None:
    run = recorded(name)
    nsight.write(run, tmp_path / "nodes")
    nsight.write(run, tmp_path / "ranks", per_node=False)
    one, other = (tracelens.analyze(tmp_path / each) for each in ("nodes", "ranks"))
    assert differences(one, other) == []


@pytest.mark.parametrize("name", ["zero-3", "interleaved", "experts"])
@pytest.mark.parametrize(
    "options",
    [
        nsight.Options(schema="3.24.0"),
        nsight.Options(schema="3.28.1", blobs=False, json=True),
        nsight.Options(torch="names", nccl="2.30"),
    ],
    ids=["2025.5", "2026.4 with JSON", "named ranges"],
)
def test_exports_of_all_kinds_agree(name: str, options: nsight.Options, tmp_path: Path) -> None:
    run = recorded(name)
    nsight.write(run, tmp_path / "usual")
    nsight.write(run, tmp_path / "other", options=options)
    one, other = (tracelens.analyze(tmp_path / each) for each in ("usual", "other"))
    assert differences(one, other) == []


@pytest.mark.parametrize("name", ["zero-2", "1F1B", "experts"])
def test_releases_of_torch_agree(name: str, tmp_path: Path) -> None:
    run = recorded(name)
    for torch in kineto.SCHEMAS:
        kineto.write(run, tmp_path / torch, torch=torch)
    one, other = (tracelens.analyze(tmp_path / torch) for torch in kineto.SCHEMAS)
    assert differences(one, other) == []


@pytest.mark.parametrize("name", ["ddp", "zero-3", "interleaved", "experts", "3D on two nodes"])
def test_what_no_mark_says_changes_no_time_and_no_byte(name: str, tmp_path: Path) -> None:
    run = recorded(name)
    options = nsight.Options(mark=False, torch="none")
    kineto.write(run, tmp_path / "kineto")
    nsight.write(run, tmp_path / "nsight", per_node=False, options=options)
    one, other = (tracelens.analyze(tmp_path / each) for each in ("kineto", "nsight"))
    measured = (".ranks", ".lateness", ".stragglers")
    found = differences(one, other)
    assert [each for each in found if each[0].startswith(measured)] == []
    assert totals(one) == totals(other)


def test_types_that_no_one_says_are_called_unknown(tmp_path: Path) -> None:
    """This run sends several types, so its mark names none, and uneven all-to-alls."""
    run = everything()
    kineto.write(run, tmp_path / "kineto")
    nsight.write(run, tmp_path / "nsight")
    one, other = (tracelens.analyze(tmp_path / each) for each in ("kineto", "nsight"))
    found = differences(one, other)
    assert {re.sub(r"\[\d+\]", "", way) for way, _, _ in found} == {
        ".collectives.dtype",
        ".collectives.message_elements_per_step",
    }
    assert {theirs for _, _, theirs in found} == {None}
    assert totals(one) == totals(other)


def totals(analysis: Analysis) -> list[tuple[Any, ...]]:
    """Return what the collectives of each kind and members moved, and how long it took."""
    members = {group.id: group.ranks for group in analysis.groups}
    return sorted(
        (
            each.op, members[each.group], each.calls, each.message_bytes, each.wire_bytes,
            each.time_ns, each.exposed_ns, each.wait_ns, each.transfer_ns,
        )
        for each in analysis.collectives
    )  # fmt: skip

"""The same run, recorded by Kineto and by Nsight Systems, gives the same analysis.

Every number both formats can tell is equal, to the nanosecond and the byte. What an export of
Nsight Systems cannot tell is listed here, and nothing else may differ.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated_runs import RUNS, recorded

import tracelens
from tracelens.simulate import kineto, nsight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Analysis

Difference = tuple[str, Any, Any]

# Where a difference is none of the numbers.
_OTHER_WORDS = re.compile(
    r"source\b|notices\b|groups\[\d+\]\.(names|description|role_confidence)|ranks\[\d+\]\.files"
    r"|collectives\[\d+\]\.(sources|matched_calls)"  # Kineto numbers the calls
    r"|run\.(nccl_version|step_source|framework_version)"
)
# Payloads of NCCL state bytes, and kernel names the type of reductions only.
_OF_TYPES = re.compile(r"collectives\[\d+\]\.(dtype|message_elements_per_step)")


def differences(one: Any, other: Any, path: str = "") -> Iterator[Difference]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, f"{path}[{place}]")
    elif one != other:
        yield path, one, other


def telling(first: Analysis, second: Analysis) -> list[Difference]:
    """Return the differences that are none of format."""
    found = differences(json.loads(first.to_json()), json.loads(second.to_json()))
    return [
        (path, one, other)
        for path, one, other in found
        if not _OTHER_WORDS.match(path) and not (other is None and _OF_TYPES.match(path))
    ]


@functools.cache
def of_kineto(name: str) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        kineto.write(recorded(name), Path(folder))
        return tracelens.analyze(folder)


def analysed(
    name: str, folder: Path, options: nsight.Options | None = None, *, per_node: bool
) -> tuple[Analysis, Analysis]:
    nsight.write(recorded(name), folder, per_node=per_node, options=options)
    return of_kineto(name), tracelens.analyze(folder)


@pytest.mark.parametrize("per_node", [True, False], ids=["one file a node", "one file a rank"])
@pytest.mark.parametrize("name", RUNS)
def test_both_formats_say_the_same(name: str, per_node: bool, tmp_path: Path) -> None:
    first, second = analysed(name, tmp_path, per_node=per_node)
    assert telling(first, second) == []
    assert first.run.ranks_present == second.run.ranks_present


def test_bytes_are_there_to_be_compared(tmp_path: Path) -> None:
    _, second = analysed("3D", tmp_path, per_node=True)
    assert all(one.calls_without_bytes == 0 for one in second.collectives)
    assert all(one.bytes_per_step.message is not None for one in second.collectives)


OTHER_EXPORTS = {
    "JSON instead of blobs": nsight.Options(blobs=False, json=True),
    "named ranges only": nsight.Options(torch="names"),
    "nsys 2025.5": nsight.Options(schema="3.24.0"),
    "nsys 2026.4": nsight.Options(schema="3.28.1"),
    "NCCL 2.25": nsight.Options(nccl="2.25"),
    "NCCL 2.30": nsight.Options(nccl="2.30"),
    "communicators made before": nsight.Options(setup=False),
}


@pytest.mark.parametrize("export", OTHER_EXPORTS)
@pytest.mark.parametrize("name", ["zero-3", "3D"])
def test_however_the_export_was_made(name: str, export: str, tmp_path: Path) -> None:
    first, second = analysed(name, tmp_path, OTHER_EXPORTS[export], per_node=True)
    assert telling(first, second) == []


def test_without_ranges_of_torch_times_and_bytes_are_the_same(tmp_path: Path) -> None:
    options = nsight.Options(torch="none")
    first, second = analysed("zero-3", tmp_path, options, per_node=True)
    for one, other in zip(first.ranks, second.ranks, strict=True):
        assert one.devices[0].steps == other.devices[0].steps
    assert [c.bytes_per_step for c in first.collectives] == [
        c.bytes_per_step for c in second.collectives
    ]


def test_without_a_mark_ranks_follow_the_devices(tmp_path: Path) -> None:
    options = nsight.Options(mark=False)
    first, second = analysed("zero-3", tmp_path, options, per_node=True)
    assert [rank.devices[0].total for rank in first.ranks] == [
        rank.devices[0].total for rank in second.ranks
    ]
    assert "ranks-by-device" in {notice.code for notice in second.notices}
    assert first.volumes.per_step == second.volumes.per_step


def test_without_payloads_times_are_the_same_and_bytes_unknown(tmp_path: Path) -> None:
    options = nsight.Options(blobs=False)
    first, second = analysed("3D", tmp_path, options, per_node=True)
    for one, other in zip(first.ranks, second.ranks, strict=True):
        assert one.devices[0].total == replace(
            other.devices[0].total,
            comm_by_op_ns=one.devices[0].total.comm_by_op_ns,
            exposed_by_op_ns=one.devices[0].total.exposed_by_op_ns,
        )
    assert {one.bytes_per_step.message for one in second.collectives} == {None}
    assert "payloads-not-exported" in {notice.code for notice in second.notices}

"""The same simulated run gives the same analysis, whatever profiler's format it is written in.

Here an export says all it can, and nothing may differ; `test_same_analysis` has exports that say
less.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
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
    from tracelens.simulate.recording import Recording

# What formats say in their own words, or only one of them says: names, no numbers.
OWN_WORDS = re.compile(
    r"\.source\b|\.notices\b"
    r"|\.ranks\[\]\.files\[\]"  # their names
    r"|\.run\.(nccl_version|step_source)$"
    r"|\.collectives\[\]\.sources\[\]"  # args or payload
    r"|\.collectives\[\]\.matched_calls\."  # by number, or in order: see `totals`
    r"|\.groups\[\]\.names\[\]"  # "3", or a communicator's id
    # NCCL does not say which of several groups of the same ranks a communicator serves.
    r"|\.groups\[\]\.(description|role_confidence)$"
)


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
        if mine != theirs and not OWN_WORDS.search(plain):
            found.append((way, mine, theirs))
    return found


def codes(analysis: Analysis) -> list[str]:
    return sorted(notice.code for notice in analysis.notices)


WRITERS: dict[str, Callable[[Recording, Path], list[Path]]] = {
    **{torch: functools.partial(kineto.write, torch=torch) for torch in kineto.SCHEMAS},
    "nsight": nsight.write,
    "no mark": functools.partial(nsight.write, per_node=False, options=nsight.Options(mark=False)),
    "nothing but NCCL": functools.partial(
        nsight.write, per_node=False, options=nsight.Options(mark=False, torch="none")
    ),
}
Read = Callable[[str, str], "Analysis"]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Return what analyses a run (by name) as written (by name), each once."""

    @functools.cache
    def analyse(name: str, how: str) -> Analysis:
        folder = tmp_path_factory.mktemp("run")
        WRITERS[how](everything() if name == "by hand" else recorded(name), folder)
        return tracelens.analyze(folder)

    return analyse


@pytest.mark.parametrize("name", RUNS)
def test_kineto_and_nsight_agree(name: str, read: Read) -> None:
    one, other = read(name, "2.12"), read(name, "nsight")
    assert differences(one, other) == []
    assert totals(one) == totals(other)
    assert codes(one) == codes(other)
    assert sum(isinstance(value, int | float) for _, value in leaves(one)) > 300


@pytest.mark.parametrize("writer", ["no mark", "nothing but NCCL"])
def test_rings_are_no_stages_whatever_says_so(writer: str, read: Read) -> None:
    """Both groups are of two ranks and carry messages; only threads tell them apart."""
    one, other = (read("1F1B with context", how).pipeline for how in ("2.12", writer))
    assert one is not None
    assert other is not None
    assert (other.schedule, other.stages, other.microbatches) == ("1f1b", 2, 4)
    assert one.bubble is not None
    assert other.bubble is not None
    assert other.bubble.measured == pytest.approx(one.bubble.measured, abs=0.002)


@pytest.mark.parametrize("name", ["zero-2", "1F1B", "experts"])
def test_releases_of_torch_agree(name: str, read: Read) -> None:
    assert differences(read(name, "2.12"), read(name, "2.4")) == []


@pytest.mark.parametrize("name", ["ddp", "zero-3", "interleaved", "experts", "3D on two nodes"])
def test_what_no_mark_says_changes_no_time_and_no_byte(name: str, read: Read) -> None:
    one, other = read(name, "2.12"), read(name, "nothing but NCCL")
    measured = (".ranks", ".lateness", ".stragglers")
    found = [way for way, _, _ in differences(one, other) if way.startswith(measured)]
    told = ("_by_dimension_ns", "wait_ns", "bubble_ns")  # by roles; by the optimizer's ranges
    assert [way for way in found if not any(name in way for name in told)] == []
    assert waited(one) == waited(other)
    assert totals(one) == totals(other)


def waited(analysis: Analysis) -> list[int]:
    """Return the exposed waiting of each rank and what a pipeline's bubble takes of it.

    Where no range says that gradients are zeroed, the first stage begins its first pass with that.
    """
    steps = [rank.devices[0].breakdown for rank in analysis.ranks]
    return [(one.wait_ns or 0) + (one.bubble_ns or 0) for one in steps if one is not None]


def test_types_that_no_one_says_are_called_unknown(read: Read) -> None:
    """This run sends several types, so its mark names none, and uneven all-to-alls."""
    one, other = read("by hand", "2.12"), read("by hand", "nsight")
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
    rows = [
        (
            each.op, members[each.group], each.calls, each.message_bytes, each.wire_bytes,
            each.time_ns, each.exposed_ns, each.wait_ns, each.transfer_ns,
            sum(each.matched_calls.values()),
        )
        for each in analysis.collectives
    ]  # fmt: skip
    return sorted(rows, key=repr)

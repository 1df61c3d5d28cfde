"""Elements of calls whose bytes are known and whose type is not: concluded, given, or unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from nsight_exports import Export

from tracelens import Options, analyze
from tracelens.strategy.inference import Given

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis, CollectiveResult

RANKS = 2


class Call(NamedTuple):
    """A call of a step: bytes as NCCL states them, of one member's part."""

    name: str
    size: int


def reduced(elements: int) -> Call:
    """Reduce-scatter float32, the type of the test's kernel name."""
    return Call("ncclReduceScatter", elements * 4 // RANKS)


def gathered(size: int) -> Call:
    return Call("ncclAllGather", size // RANKS)


def analysed(folder: Path, calls: list[Call], dtype: str | None = None) -> Analysis:
    for rank in range(RANKS):
        export = Export().mark(rank=rank, world=RANKS)
        export.call("ncclCommInitRank", 10, comm=7, nranks=RANKS, rank=rank)
        for step in (1, 2):
            begin = 100_000 * step
            export.step(step, begin, begin + 90_000).kernel("gemm", begin + 500)
            for place, call in enumerate(calls):
                at = begin + 2_000 + 1_000 * place
                export.collective(call.name, at, comm=7, size=call.size)
        export.write(folder / f"{rank}.sqlite")
    return analyze(folder, Options(given=Given(dtype=dtype)))


def gathers(analysis: Analysis) -> CollectiveResult:
    (found,) = [one for one in analysis.collectives if one.op == "all_gather"]
    return found


def concluded(analysis: Analysis) -> int | None:
    return next((n.count for n in analysis.notices if n.code == "type-concluded"), None)


UNITS = [4096, 8192, 6144]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_units_are_gathered_as_they_are_reduced(size: int, tmp_path: Path) -> None:
    calls = [gathered(unit * size) for unit in UNITS] + [reduced(unit) for unit in UNITS]
    analysis = analysed(tmp_path, calls)
    assert gathers(analysis).message_elements_per_step == sum(UNITS)
    assert gathers(analysis).dtype is None, "its size is concluded, not its type"
    assert concluded(analysis) == len(UNITS) * 2 * RANKS


def test_also_twice_as_fsdp_does(tmp_path: Path) -> None:
    calls = [gathered(unit * 2) for unit in (*UNITS, *UNITS)] + [reduced(unit) for unit in UNITS]
    assert gathers(analysed(tmp_path, calls)).message_elements_per_step == 2 * sum(UNITS)


def test_a_gather_after_all_reductions_is_of_as_many_parameters(tmp_path: Path) -> None:
    calls = [*(reduced(unit) for unit in UNITS), gathered(2 * sum(UNITS))]
    analysis = analysed(tmp_path, calls)
    assert gathers(analysis).message_elements_per_step == sum(UNITS)
    assert analysis.volumes.per_step.multiple_of_parameters == 2.0


def test_before_them_it_may_be_two_gathers_of_half_the_size(tmp_path: Path) -> None:
    calls = [gathered(4 * sum(UNITS)), *(reduced(unit) for unit in UNITS)]
    analysis = analysed(tmp_path, calls)
    assert gathers(analysis).message_elements_per_step is None
    assert gathers(analysis).bytes_per_step.message == 4 * sum(UNITS)
    per_step = analysis.volumes.per_step
    assert (per_step.multiple_of_parameters, per_step.message_elements) == (None, None)
    assert per_step.coverage == 1.0, "the bytes are all known"
    assert analysis.volumes.verdict == "unknown"
    assert "give --dtype" in (analysis.volumes.explanation or "")
    assert analysis.parallelism.strategy is None
    assert concluded(analysis) is None


def test_sizes_that_fit_two_types_are_of_neither(tmp_path: Path) -> None:
    units = [4096, 8192, 16384]  # 2 bytes of one are 4 of the other: nearly all match either way
    calls = [gathered(4 * 4096), gathered(4 * 8192), *(reduced(unit) for unit in units)]
    assert gathers(analysed(tmp_path, calls)).message_elements_per_step is None


def test_the_users_type_wins(tmp_path: Path) -> None:
    calls = [gathered(4 * sum(UNITS)), *(reduced(unit) for unit in UNITS)]
    analysis = analysed(tmp_path, calls, dtype="bfloat16")
    assert gathers(analysis).message_elements_per_step == 2 * sum(UNITS)
    assert concluded(analysis) is None, "it was given"


def test_frozen_parameters_are_gathered_only(tmp_path: Path) -> None:
    calls = [gathered(2 * unit) for unit in (*UNITS, 1024)] + [reduced(unit) for unit in UNITS]
    assert gathers(analysed(tmp_path, calls)).message_elements_per_step == sum(UNITS) + 1024


def test_alone_a_gather_says_nothing(tmp_path: Path) -> None:
    assert gathers(analysed(tmp_path, [gathered(8192)])).message_elements_per_step is None


def test_bandwidth_needs_no_type(tmp_path: Path) -> None:
    found = gathers(analysed(tmp_path, [gathered(8192)]))
    assert found.busbw_gbps is not None
    assert found.algbw_gbps == pytest.approx(2 * found.busbw_gbps)

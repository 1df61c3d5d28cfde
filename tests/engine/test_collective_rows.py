"""Rows of collectives: numbers per step are of the steps in the mean, hidden or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import Trace

from tracelens import analyze

if TYPE_CHECKING:
    from pathlib import Path

US = 1000
STEPS = [(1, 0, 5000), (2, 5000, 1000), (3, 6000, 1000), (4, 7000, 1000)]


@pytest.mark.parametrize("hidden", [True, False])
def test_waiting_of_a_step_is_that_of_the_steps_in_the_mean(
    tmp_path: Path, *, hidden: bool
) -> None:
    """The slow first step waits for nobody; in each of the others rank 0 waits 100 us."""
    for rank in (0, 1):
        trace = Trace(rank=rank, world=2)
        for number, at, length in STEPS:
            late = 100 if rank and number > 1 else 0
            trace.step(number, at, length)
            trace.kernel("gemm", at + 50, length - 100 if hidden else 50)
            trace.all_reduce(at + 200 + late, 300 - late)
        trace.write(tmp_path / f"rank{rank}.json")
    result = analyze(tmp_path)
    [row] = result.collectives
    assert [s.in_mean for s in result.ranks[0].devices[0].steps] == [False, True, True, True]
    assert row.wait_ns == 3 * (100 + 0) * US / 2
    assert row.wait_per_step_ns == (100 + 0) * US / 2
    assert row.exposed_per_step_ns == (0 if hidden else (300 + 200) * US / 2)
    assert row.exposed_transfer_per_step_ns == (0 if hidden else 200 * US)

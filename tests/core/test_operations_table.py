"""The table of all ranks' operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders import Trace

import tracelens

if TYPE_CHECKING:
    from pathlib import Path


def test_a_collective_launched_after_the_only_step(tmp_path: Path) -> None:
    trace = Trace().step(7, 1_000, 1_000).kernel("gemm", 1_100, 300)
    trace.all_reduce(1_500, 200).all_reduce(2_500, 200, launch=2_400)
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    (collective,) = result.collectives
    assert (result.run.steps, collective.calls, collective.calls_per_step) == ([7], 2.0, 1.0)

"""The benchmark of the cross-rank passes names passes there are, and measures clocks."""

from __future__ import annotations

import functools
import importlib
import json
from typing import TYPE_CHECKING

import pytest
from builders import Trace

from benchmarks import cross_rank

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("place", "name", "label"), cross_rank.PASSES)
def test_every_pass_is_there(place: str, name: str, label: str) -> None:
    first, *rest = place.split(".")
    module = functools.reduce(getattr, rest, importlib.import_module(f"tracelens.{first}"))
    assert callable(getattr(module, name)), label


def test_a_folder_is_timed_pass_by_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        made = Trace(rank=rank).step(1, 0, 900).all_reduce(300 - 100 * rank, 50 + 100 * rank, seq=1)
        made.write(tmp_path / f"rank{rank}.json")
    for place, name, _ in cross_rank.PASSES:  # what is wrapped is unwrapped after the test
        first, *rest = place.split(".")
        module = functools.reduce(getattr, rest, importlib.import_module(f"tracelens.{first}"))
        monkeypatch.setattr(module, name, getattr(module, name))
    cross_rank.analyse_here(tmp_path, 1)
    said = json.loads(capsys.readouterr().out)
    assert set(said["spent"]) >= {label for _, _, label in cross_rank.PASSES}
    assert said["spent"][cross_rank.WHOLE] >= said["spent"]["cross-rank passes and result"] > 0


def test_clocks_of_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    cross_rank.align_many(ranks=16, tp=4, calls=50, shared=10)
    said = capsys.readouterr().out
    assert "Clocks of 16 ranks, 240 instances, 960 calls" in said
    assert "95 %" in said

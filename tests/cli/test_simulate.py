"""`tracelens simulate`: traces that can be analysed, and folders that stay safe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from command import run

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["--model", "layers=2,hidden=256,vocabulary=512,sequence=64", "--steps", "2"]


def test_a_simulated_run_is_analysed_as_what_it_is(tmp_path: Path) -> None:
    done = run(
        "simulate", "-o", "made", "--layout", "dp=2,tp=2", *SMALL, "--strategy", "zero3",
        "--sequence-parallel", "--slow", "1:1.4", "--skew", "500", "--drift", "5",
        "--gpus-per-node", "2", "--drop-edges", "10", cwd=tmp_path,
    )  # fmt: skip
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("Wrote made (5 files, ")
    truth = json.loads((tmp_path / "made" / "truth.json").read_text())
    assert [rank["slow"] for rank in truth["ranks"]] == [1, 1.4, 1, 1]
    assert [rank["host"] for rank in truth["ranks"]] == ["node00", "node00", "node01", "node01"]
    analysis = tracelens.analyze(tmp_path / "made")
    assert analysis.run.ranks_present == [0, 1, 2, 3]
    assert "simulated" in {notice.code for notice in analysis.notices}


@pytest.mark.parametrize(("kind", "files"), [("nsight", 2), ("nsight-per-rank", 4)])
def test_nsight_exports(tmp_path: Path, kind: str, files: int) -> None:
    done = run(
        "simulate", "-q", "-o", "made", "--layout", "dp=4", *SMALL, "--format", kind,
        "--gpus-per-node", "2", cwd=tmp_path,
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert len(list((tmp_path / "made").glob("*.sqlite"))) == files


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for folder, seed in (("one", 7), ("two", 7), ("other", 8)):
        arguments = ["-q", "-o", folder, "--layout", "dp=2", *SMALL, "--seed", str(seed)]
        assert run("simulate", *arguments, cwd=tmp_path).code == 0
    one, two, other = (
        [path.read_bytes() for path in sorted((tmp_path / name).iterdir())]
        for name in ("one", "two", "other")
    )
    assert one == two
    assert one != other


def test_only_an_earlier_simulation_is_replaced_and_only_if_asked(tmp_path: Path) -> None:
    again = ["simulate", "-q", "-o", "made", "--layout", "dp=2", *SMALL]
    assert run(*again, cwd=tmp_path).code == 0
    refused = run(*again, cwd=tmp_path)
    assert refused.code == 1
    assert "holds an earlier simulation" in refused.err
    assert run(*again, "--seed", "3", "-f", cwd=tmp_path).code == 0
    assert len(list((tmp_path / "made").iterdir())) == 3

    foreign = tmp_path / "made" / "notes.txt"
    foreign.write_text("mine")
    refused = run(*again, "-f", cwd=tmp_path)
    assert refused.code == 1
    assert "is not empty" in refused.err
    assert len(list((tmp_path / "made").iterdir())) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layout", "pp=2", "--strategy", "zero3"], "pipeline"),
        (["--layout", "dp=x"], "no part of a layout"),
        (["--model", "gpt-5"], "no model"),
        (["--slow", "9:2", "--layout", "dp=2"], "no rank 9"),
        (["--slow", "fast"], "no rank and factor"),
        (["--schedule", "dualpipe"], "dualpipe"),
        (["--torch", "1.13"], "1.13"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run("simulate", "-o", "made", *SMALL, *arguments, cwd=tmp_path)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "made").exists()

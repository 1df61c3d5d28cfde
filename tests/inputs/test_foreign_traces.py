"""Traces of other tools beside a run's: they take no rank's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from command import run
from standard_run import codes, is_standard, rank, rank_of, said, write_ranks

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

SPAN = [
    {"name": "x", "ph": "B", "ts": 0, "pid": 1, "tid": 1},
    {"name": "x", "ph": "E", "ts": 9, "pid": 1, "tid": 1},
]
NAMED = {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "Browser"}}
BROWSER = {"name": "RunTask", "cat": "toplevel", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
PYTHON = {"name": "main (a.py:1)", "cat": "FEE", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
JAX = {"name": "fusion.3", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1, "args": {"hlo_op": ""}}
FOREIGN = {
    "a list of spans": SPAN,
    "an object of spans": {"traceEvents": SPAN, "displayTimeUnit": "ms"},
    "a browser's": {"traceEvents": [NAMED, BROWSER], "metadata": {"os-name": "Linux"}},
    "a tracer of Python's": {"traceEvents": [NAMED, PYTHON], "viztracer_metadata": {"version": 1}},
    "a compiler's": {"displayTimeUnit": "ns", "metadata": {}, "traceEvents": [NAMED, JAX]},
    "metadata only": {"traceEvents": [NAMED]},
    "no events": {"traceEvents": [], "displayTimeUnit": "ms"},
    "asynchronous spans": [{**SPAN[0], "ph": "b", "cat": "async", "id": 1}],
}


@pytest.mark.parametrize("name", ["notes.json", "rank3.json"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_trace_is_no_missing_rank(kind: str, name: str, tmp_path: Path) -> None:
    write_ranks(tmp_path, world=4)
    (tmp_path / "rank3.json").unlink()
    (tmp_path / name).write_text(json.dumps(FOREIGN[kind]))
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_missing == [3]
    assert [one.rank for one in result.ranks] == [0, 1, 2]
    assert {"missing-ranks", "foreign-trace"} <= codes(result)
    assert "a trace of another tool" in said(result, "foreign-trace")
    assert not codes(result) & {"rank-unknown", "unreadable-file", "unknown-categories"}
    (line,) = [one for one in run("inspect", ".", cwd=tmp_path).out.splitlines() if name in one]
    assert "left out: a trace of another tool" in line
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


def test_a_foreign_trace_beside_a_whole_run_changes_nothing(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    (tmp_path / "browser.json").write_text(json.dumps(FOREIGN["a browser's"]))
    is_standard(tracelens.analyze(tmp_path))
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 0


def test_nothing_but_a_foreign_trace_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(SPAN))
    done = run("analyze", ".", cwd=tmp_path)
    assert done.code == 1
    assert "rank0.json: a trace of another tool" in done.err
    assert done.err.count("Error") == 1


def test_behind_a_trace_in_its_file_it_is_left_out(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    with (tmp_path / "rank1.json").open("a") as file:
        json.dump({"traceEvents": SPAN}, file)
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "1 of the 2 traces in it" in said(result, "foreign-trace")


OWN = {
    "labels only": [{**NAMED, "name": "process_labels", "args": {"labels": "GPU 0"}}],
    "a profiler before Kineto": [{**JAX, "pid": "CUDA functions", "name": "gemm"}],
    "a recording of nothing": {"schemaVersion": 1, "traceEvents": []},
    "a device nobody knows": [{**BROWSER, "cat": "odd", "args": {"stream": 7}}],
    "operators only": [{**BROWSER, "cat": "Operator"}],
    "a mark only": [{**BROWSER, "cat": "user_annotation", "name": "ProfilerStep#1"}],
}


@pytest.mark.parametrize("kind", OWN)
def test_a_profiler_s_trace_with_next_to_nothing_in_it_is_a_rank(kind: str, tmp_path: Path) -> None:
    """What it lacks is said of it; it is not another tool's."""
    rank(0).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text(json.dumps(OWN[kind]))
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [0, 1]
    assert "foreign-trace" not in codes(result)
    assert "left out" not in run("inspect", ".", cwd=tmp_path).out


def test_a_recording_without_events_that_a_sidecar_describes_is_a_rank(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank0.json")
    (tmp_path / "b.json").write_text('{"traceEvents": []}')
    (tmp_path / "b.json.tracelens.json").write_text('{"rank": 1, "world_size": 2}')
    assert tracelens.analyze(tmp_path).run.ranks_missing == []


def test_what_ends_before_anything_that_is_known_may_be_a_rank(tmp_path: Path) -> None:
    """Nobody can tell what it was: its rank is said to be missing."""
    rank(0).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text(json.dumps({"traceEvents": [NAMED, BROWSER]})[:-4])
    result = tracelens.analyze(tmp_path)
    assert "it ends early, and no event before that" in said(result, "unreadable-file")
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


def test_a_damaged_trace_of_a_run_is_none_of_another_tool(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text(
        '{"traceEvents": [{"ph": "X", "dur": "x" y}, {"ph": "M", "name": "a"}]}'
    )
    result = tracelens.analyze(tmp_path)
    assert "foreign-trace" not in codes(result)
    assert rank_of(result, 1).partial

"""`tracelens doctor` through the real command: words, order, exit codes, hostile names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import Trace
from command import run
from samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path


def poor(rank: int, world: int = 2, pid: int = 4012) -> Trace:
    """A trace with stacks, without a collective, that begins with step 1."""
    trace = Trace(rank=rank, world=world, pid=pid, keys={"host_name": f"node{rank}"})
    for number in (1, 2):
        at = 1000 * number
        trace.step(number, at, 1000).mark("Optimizer.step#SGD.step", at + 800, 100)
        trace.kernel("gemm", at + 100, 300)
    return trace.event("python_function", "train.py(3): main", 1000, 2000)


def write(folder: Path, *traces: Trace) -> None:
    for number, trace in enumerate(traces):
        trace.write(folder / f"rank{number}.json")


def test_without_a_path_it_checks_the_installation(tmp_path: Path) -> None:
    result = run("doctor", cwd=tmp_path)
    assert result.code == 0
    assert result.out.startswith("tracelens ")
    for name in ("pandas", "numpy", "msgspec", "plotly"):
        assert f"\n  {name} " in result.out
    assert "missing" not in result.out


def test_a_whole_capture_in_one_line(tmp_path: Path) -> None:
    result = run("doctor", SAMPLES / "tp2", cwd=tmp_path)
    assert result.code == 0
    assert result.out.splitlines() == [
        "2 traces (kineto), ranks 0-1 of 2, steps 6-8",
        "✓ no section of the report lacks anything",
        "– 1 remark that changes no number: -v",
    ]
    assert run("doctor", SAMPLES / "tp2", "--strict", cwd=tmp_path).code == 0


def test_remarks_are_said_when_asked_for(tmp_path: Path) -> None:
    lines = run("doctor", SAMPLES / "tp2", "-v", cwd=tmp_path).out.splitlines()
    assert lines[1] == "– Step: the run has no device (all ranks)"
    assert lines[-1] == "✓ no section of the report lacks anything"


def test_what_lacks_what_it_costs_and_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, poor(0), poor(1))
    result = run("doctor", ".", cwd=tmp_path, COLUMNS="200")
    assert result.code == 0
    assert result.out.splitlines() == [
        "2 traces (kineto), ranks 0-1 of 2, steps 1-2",
        "✗ Collectives, Volume, Layout, Stability: no collective was recorded (all ranks)",
        "    costs  these sections stay empty",
        "    do     nothing if the run has one process; else record whole training steps after",
        "           dist.init_process_group, CPU and CUDA activities both",
        "▲ Step, Volume: the recording begins with step 1 of the process (all ranks)",
        "    costs  set-up is in the numbers: DDP rebuilds its buckets after the first step, "
        "ZeRO-3 learns",
        "           its order of parameters, allocators grow",
        "    do     schedule(skip_first=10, wait=1, warmup=2, active=4, repeat=1)",
        "▲ Step: 2 of 18 events are Python frames (all ranks)",
        "    costs  recording them slows the host, so steps and idle time are longer than in a "
        "real run, and",
        "           files are larger; no section reads them",
        "    do     profile(with_stack=False)",
        "✓ nothing is lacking for Pipeline, Kernels, Trust",
        "– 1 remark that changes no number: -v",
        "How to record: docs/recording.md",
    ]


def test_lines_fit_a_narrow_terminal(tmp_path: Path) -> None:
    write(tmp_path, poor(0))
    lines = run("doctor", ".", cwd=tmp_path, COLUMNS="60").out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("           ") for line in lines)


def test_ranks_that_lack_something_are_named(tmp_path: Path) -> None:
    traces = [poor(rank, world=5) for rank in range(5)]
    for rank in (0, 1, 3):
        traces[rank].call("cudaLaunchKernel", 2500, correlation=7)
    write(tmp_path, *traces)
    out = run("doctor", ".", cwd=tmp_path).out
    assert "3 launches have no device record" in out
    assert "(ranks 0-1, 3)" in out


def test_files_are_named_where_ranks_are_not_known(tmp_path: Path) -> None:
    for name, pid in (("a", 1), ("b", 2)):
        trace = poor(0, pid=pid)
        trace.rank = None
        if name == "b":
            trace.step(3, 3000, 900)
        trace.write(tmp_path / f"{name}.json")
    out = run("doctor", ".", cwd=tmp_path, COLUMNS="300").out
    assert out.startswith("2 traces (kineto), ranks 0-1, steps 1-3")
    assert "neither in the file nor in its name (all ranks)" in out
    assert "1 of 3 steps hold no optimizer step (b.json)" in out


@pytest.mark.parametrize(("folder", "code"), [("whole", 0), ("poor", 4)])
def test_strict_is_an_exit_code(folder: str, code: int, tmp_path: Path) -> None:
    write(tmp_path, poor(0))
    path = SAMPLES / "ddp" if folder == "whole" else tmp_path
    assert run("doctor", path, "--strict", cwd=tmp_path).code == code
    assert run("doctor", path, cwd=tmp_path).code == 0


def test_json(tmp_path: Path) -> None:
    write(tmp_path, poor(0), poor(1))
    result = run("doctor", ".", "--json", "--strict", cwd=tmp_path)
    assert result.code == 4
    found = json.loads(result.out)
    assert [lack["check"] for lack in found] == [
        "no-collectives", "set-up-steps", "python-stacks", "no-sync-events",
    ]  # fmt: skip
    assert found[2] == {
        "check": "python-stacks",
        "level": "poorer",
        "sections": ["Step"],
        "what": "2 of 18 events are Python frames",
        "costs": found[2]["costs"],
        "remedy": "profile(with_stack=False)",
        "ranks": [0, 1],
        "files": ["rank0.json", "rank1.json"],
    }
    assert json.loads(run("doctor", SAMPLES / "ddp", "--json", cwd=tmp_path).out)[0]["ranks"] == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_files_that_could_not_be_read_come_first(tmp_path: Path) -> None:
    write(tmp_path, poor(0))
    (tmp_path / "rank1.json").write_text('{"traceEvents": ')
    (tmp_path / "notes.json").write_text("{}")
    lines = run("doctor", ".", "-v", cwd=tmp_path).out.splitlines()
    assert lines[1].startswith("✗ Trust: could not be read:")
    assert lines[1].endswith("(rank1.json)")
    assert any("left out: JSON, but no profiler trace" in line for line in lines)


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_nothing_to_look_at(path: str, tmp_path: Path) -> None:
    result = run("doctor", path, cwd=tmp_path)
    assert result.code == 1
    assert result.err.startswith("Error: ")
    assert len(result.err.splitlines()) <= 3


def test_a_pattern_that_is_none(tmp_path: Path) -> None:
    result = run("doctor", SAMPLES / "ddp", "--step-pattern", "(", cwd=tmp_path)
    assert result.code == 2
    assert "no regular expression" in result.err


def test_names_from_files_never_drive_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[31mred\x1b]0;title\x07\u202e{count}"
    trace = poor(0)
    trace.keys["deviceProperties"] = [{"id": 0, "name": evil}]
    trace.events = [event for event in trace.events if '"cat": "kernel"' not in event]
    trace.write(tmp_path / f"{evil}.json")
    poor(1).write(tmp_path / "rank1.json")
    for arguments in ((), ("-v",), ("--json",)):
        result = run("doctor", ".", *arguments, cwd=tmp_path)
        assert result.code == 0
        assert "{count}" in result.out
        assert "\x1b" not in result.out + result.err
        assert "\x07" not in result.out + result.err
        assert "--json" in arguments or "\u202e" not in result.out

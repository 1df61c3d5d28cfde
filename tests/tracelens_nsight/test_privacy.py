"""What an export knows of the machine and the user stays there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command import run
from nsight_exports import Export

import tracelens
from tracelens_nsight import NsightParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace

SECRET = "hf_abcdefSECRETghijkl"


def export(path: Path) -> Path:
    """Write an export with the secret in every place that captures hold one."""
    made = Export().mark(rank=0, world=2).call("ncclCommInitRank", 10, comm=7, nranks=2, rank=0)
    for step in range(2):
        begin = 10_000 * (step + 1)
        made.step(step, begin, begin + 9_000)
        made.range(f"token {SECRET}", begin + 10, begin + 8_000)
        made.range(SECRET, begin + 20, begin + 40, kind=34)
        made.kernel("gemm", begin + 1_000).collective(
            "ncclAllReduce", begin + 5_000, comm=7, size=64
        )
    made.range(f"registered {SECRET}", 500, 600, registered=True)
    made.variable("HF_TOKEN", SECRET).variable("RANK", SECRET).variable("WORLD_SIZE", f"2{SECRET}")
    made.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_0", value=f"--token={SECRET}")
    made.add("META_DATA_CAPTURE", name="PROCESS_0:WORKING_DIR", value=f"/home/{SECRET}")
    made.add("META_DATA_EXPORT", name="EXPORT_USER", value=SECRET)
    made.add("META_DATA_EXPORT", name="EXPORT_PARAM_INPUT_PATH_ABS", value=f"/home/{SECRET}/x")
    environment = f"PATH=/usr/bin\0HF_TOKEN={SECRET}\0"
    made.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=environment)
    made.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
    printed = made.string(f"using token {SECRET}")
    made.add("ProcessStreams", globalPid=1, filenameId=printed, contentId=printed)
    made.add("ANALYSIS_FILE", id=1, filename=f"/home/{SECRET}", contentId=printed, globalPid=1)
    made.add("PROCESSES", globalPid=1, pid=1, name=SECRET)
    made.add("ThreadNames", nameId=printed, globalTid=1)
    made.add("DIAGNOSTIC_EVENT", timestamp=1, severity=1, text=SECRET)
    return made.write(path / "run.sqlite")


@pytest.fixture
def outputs(tmp_path: Path) -> dict[str, str]:
    """Return everything the commands write and print about such a file."""
    export(tmp_path)
    reports = [option for name in ("json", "html", "md") for option in ("-o", f"out.{name}")]
    done = run("analyze", "run.sqlite", "-v", *reports, cwd=tmp_path)
    assert done.code == 0
    texts = {
        f"out.{name}": (tmp_path / f"out.{name}").read_text() for name in ("json", "html", "md")
    }
    for command in ("inspect", "doctor"):
        done = run(command, "run.sqlite", cwd=tmp_path)
        texts[command] = done.out + done.err
    return texts


def test_no_output_holds_the_secret(outputs: dict[str, str]) -> None:
    assert not [name for name, text in outputs.items() if SECRET in text]
    assert "SECRET" not in "".join(outputs.values())


def test_outputs_hold_what_they_should(outputs: dict[str, str]) -> None:
    assert "node7" in outputs["out.json"]
    assert "gemm" in outputs["out.html"]


def test_what_was_printed_is_not_even_read(tmp_path: Path) -> None:
    (trace,) = NsightParser().parse(export(tmp_path))
    assert SECRET not in repr(trace.info)
    assert not [text for text in named(trace) if f"using token {SECRET}" in text]


def named(trace: RankTrace) -> list[str]:
    """Return every text in the tables."""
    return [
        str(value)
        for table in (trace.device_events, trace.communications, trace.marks, trace.host_calls)
        for column in table.columns
        if table[column].dtype != "int64"
        for value in table[column].unique()
    ]


def test_texts_of_ranges_reach_the_marks_only(tmp_path: Path) -> None:
    """A program's own ranges are needed there: steps and phases are found by their names."""
    (trace,) = NsightParser().parse(export(tmp_path))
    with_it = [text for text in named(trace) if SECRET in text]
    assert set(with_it) <= set(trace.marks["name"].astype(str))


def test_numbers_of_ranks_are_read(tmp_path: Path) -> None:
    Export().kernel("gemm", 1_000).variable("RANK", "3").write(tmp_path / "x.sqlite")
    assert tracelens.analyze(tmp_path).run.ranks_present == [3]

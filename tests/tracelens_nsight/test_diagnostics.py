"""What nsys says it lost is named once, makes the rank partial, and is never quoted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command import run
from nsight_exports import Export, process

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis

NOBODY = -144115188075855872  # the host's, or the analysis'
SECRET = "/home/hf_abcdefSECRETghijkl/streams"


def two() -> Export:
    """Two ranks of two steps in one export."""
    export = Export()
    for pid in (4000, 4001):
        export.mark(pid, rank=pid - 4000, world=2)
        for step in (1, 2):
            begin = 10_000 * step
            export.step(step, begin, begin + 9_000, pid).kernel("gemm", begin + 1_000, pid=pid)
            export.collective("ncclAllReduce", begin + 5_000, pid=pid, comm=7, size=64)
    return export


def said(export: Export, text: str, owner: int = process(4001)) -> Export:
    return export.add(
        "DIAGNOSTIC_EVENT", timestamp=5, timestampType=1, source=1, severity=2, text=text,
        globalPid=owner,
    )  # fmt: skip


def analysed(export: Export, folder: Path) -> Analysis:
    return tracelens.analyze(export.write(folder / "run.sqlite"))


def reported(analysis: Analysis) -> list[tuple[str, int | None]]:
    return [(n.code, n.rank) for n in analysis.notices if n.code.startswith("reported-")]


def messages(analysis: Analysis, code: str) -> list[str]:
    return [n.message for n in analysis.notices if n.code == code]


DEVICE = (
    "CUPTI dropped 12 records. Some CUPTI events might be missing.",
    "Number of incomplete CUPTI events dropped: 12. Incomplete events appear when …",
    "12 CUPTI events were detected incomplete while processing a buffer",
    "12 GPU events were discarded as their timestamps could not be converted.",
    "Number of CUDA events dropped: \t12.",
)
UNNUMBERED = (
    "Not all CUDA events might have been collected.",
    "Number of CUPTI events produced: \t70, CUPTI buffers: 3 of 50. Some CUPTI events might be "
    "missing. To make sure all the events are collected, …",
    "Couldn't allocate CUPTI buffers 3 times.Some CUPTI events might be missing.",
    f"CUPTI dropped {'9' * 5000} records.",
)


@pytest.mark.parametrize("text", [*DEVICE, *UNNUMBERED])
def test_lost_device_events_make_their_rank_partial(text: str, tmp_path: Path) -> None:
    analysis = analysed(said(two(), text), tmp_path)
    assert analysis.run.ranks_partial == [1]
    assert reported(analysis) == [("reported-device-loss", 1)]
    (message,) = messages(analysis, "reported-device-loss")
    assert f"lost {'12' if text in DEVICE else 'some'} device events" in message
    assert [file.status for file in analysis.source.files] == ["partial"]


def test_one_loss_said_in_several_ways_is_one_number(tmp_path: Path) -> None:
    export = said(two(), "CUPTI dropped 5 records.")
    said(export, "CUPTI dropped 7 records.")
    said(export, "12 CUPTI events were detected incomplete while processing a buffer")
    said(export, "Not all CUDA events might have been collected.")
    (message,) = messages(analysed(export, tmp_path), "reported-device-loss")
    assert "lost 12 device events" in message


@pytest.mark.parametrize(
    "text",
    [
        "Profiling has started.",
        "Number of CUDA events collected: \t37.",
        "Number of CUPTI events produced: \t70, CUPTI buffers: 50.",
        "Number of incomplete CUPTI events dropped: 0.",
        "No NVTX events collected. Does the process use NVTX?",
        "Not all OS runtime libraries events might have been collected.",
        "Scheduling information is absent.",
        "",
    ],
)
def test_other_messages_are_no_loss(text: str, tmp_path: Path) -> None:
    analysis = analysed(said(two(), text), tmp_path)
    assert reported(analysis) == []
    assert analysis.run.ranks_partial == []


def test_a_message_about_nobody_concerns_all(tmp_path: Path) -> None:
    export = said(two(), "Not all NVTX events might have been collected.", NOBODY)
    analysis = analysed(export, tmp_path)
    assert reported(analysis) == [("reported-range-loss", 0), ("reported-range-loss", 1)]
    assert analysis.run.ranks_partial == [], "no time of the device is affected"


def test_a_message_about_a_launcher_concerns_none(tmp_path: Path) -> None:
    assert reported(analysed(said(two(), DEVICE[0], process(77)), tmp_path)) == []


def test_lost_samples(tmp_path: Path) -> None:
    export = said(two(), "NIC metric data is incomplete", NOBODY)
    said(export, "NVPW internal error (8 dropped samples)", NOBODY)
    analysis = analysed(export, tmp_path)
    assert reported(analysis) == [("reported-counter-loss", 0), ("reported-counter-loss", 1)]
    assert "lost 8 samples" in messages(analysis, "reported-counter-loss")[0]


def test_a_loss_that_launches_show_is_named_once(tmp_path: Path) -> None:
    export = said(two(), DEVICE[0])
    export.runtime("cudaLaunchKernel_v7000", 12_000, 12_050, pid=4001)
    analysis = analysed(export, tmp_path)
    assert reported(analysis) == []
    assert [n.rank for n in analysis.notices if n.code == "lost-device-records"] == [1]
    assert analysis.run.ranks_partial == [1]


def test_no_text_is_quoted(tmp_path: Path) -> None:
    path = said(two(), f"{DEVICE[0]} see {SECRET}").write(tmp_path / "run.sqlite")
    analysis = run("analyze", str(path), "-o", "x.json", "--strict", cwd=tmp_path)
    examined = run("doctor", str(path), "-v", cwd=tmp_path)
    assert analysis.code == 4
    assert "nsys itself reports" in examined.out
    written = (tmp_path / "x.json").read_text()
    assert "SECRET" not in analysis.out + analysis.err + examined.out + examined.err + written

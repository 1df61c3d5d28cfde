"""Reports are exported by nsys: where it is found, how it is asked, what is kept."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from nsight_exports import Export

import tracelens
from tracelens.discovery import discover
from tracelens.errors import UnreadableTrace
from tracelens.registry import parsers
from tracelens_nsight import NsightParser, report

if TYPE_CHECKING:
    from pathlib import Path

# Copies a prepared export to where it is asked to write, and notes how it was called.
FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2026.2.1.210-0"; exit 0; fi
echo "$@" >> {log}
{body}
while [ $# -gt 1 ]; do if [ "$1" = -o ]; then out=$2; fi; shift; done
cp {export} "$out"
"""


class Nsys:
    """A fake nsys, and a report for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "calls"
        self.export = Export().kernel("gemm", 1_000).write(folder / "prepared.db")
        self.report = folder / "runs" / "run_rank3.nsys-rep"
        self.report.parent.mkdir()
        self.report.write_bytes(b"a report")

    def install(self, where: Path, body: str = "") -> Path:
        where.mkdir(parents=True, exist_ok=True)
        program = where / "nsys"
        program.write_text(FAKE.format(log=self.log, export=self.export, body=body))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nsys:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NSYS_HOME", raising=False)
    monkeypatch.setattr(report, "_INSTALLED", ())
    return Nsys(tmp_path)


def test_a_report_is_exported_with_its_payloads(nsys: Nsys) -> None:
    nsys.install(nsys.folder / "bin")
    (trace,) = NsightParser().parse(nsys.report)
    assert (trace.info.rank, trace.info.format) == (3, "nsight-report")
    assert trace.info.path == str(nsys.report)
    (call,) = nsys.calls
    assert call.startswith("export -t sqlite --include-blobs=true --include-json=true -f true -o ")
    assert call.endswith(str(nsys.report))


def test_nothing_is_written_beside_it(nsys: Nsys) -> None:
    nsys.install(nsys.folder / "bin")
    list(NsightParser().parse(nsys.report))
    assert list(nsys.report.parent.iterdir()) == [nsys.report]
    (kept,) = (nsys.folder / "cache" / "tracelens" / "nsight").iterdir()
    assert kept.suffix == ".sqlite"


def test_it_is_exported_again_only_if_it_changed(nsys: Nsys) -> None:
    nsys.install(nsys.folder / "bin")
    for _ in range(2):
        list(NsightParser().parse(nsys.report))
    assert len(nsys.calls) == 1
    nsys.report.write_bytes(b"a longer report")
    list(NsightParser().parse(nsys.report))
    assert len(nsys.calls) == 2
    os.utime(nsys.report, ns=(1, 1))
    list(NsightParser().parse(nsys.report))
    assert len(nsys.calls) == 3


def test_nsys_home_wins(nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys.install(nsys.folder / "bin", body="exit 9")
    nsys.install(nsys.folder / "home" / "bin")
    monkeypatch.setenv("NSYS_HOME", str(nsys.folder / "home"))
    assert len(list(NsightParser().parse(nsys.report))) == 1


def test_it_is_found_where_it_installs_itself(nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2024.1.1", "2025.5.2"):
        nsys.install(nsys.folder / f"nsight-systems-{version}" / "target" / "bin")
    pattern = str(nsys.folder / "nsight-systems*/*/bin/nsys").lstrip("/")
    monkeypatch.setattr(report, "_INSTALLED", (pattern,))
    found = report.find_nsys()
    assert found is not None
    assert "2025.5.2" in str(found)


def test_without_one_the_command_is_given(nsys: Nsys) -> None:
    with pytest.raises(UnreadableTrace) as caught:
        list(NsightParser().parse(nsys.report))
    assert "\n" not in caught.value.message
    assert (
        "`nsys export -t sqlite --include-blobs=true --include-json=true -f true "
        "-o run_rank3.sqlite run_rank3.nsys-rep`"
    ) in caught.value.message


def test_an_old_nsys_is_asked_without_what_it_does_not_know(nsys: Nsys) -> None:
    complaint = "echo \"unrecognised option '--include-blobs=true'\" >&2; exit 1"  # nsys 2023.4
    nsys.install(nsys.folder / "bin", body=f'case "$*" in *--include*) {complaint};; esac')
    assert len(list(NsightParser().parse(nsys.report))) == 1
    assert ["--include" in call for call in nsys.calls] == [True, False]


_WRITE = 'while [ "$1" != -o ]; do shift; done; {} > "$2"; exit 0'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('echo "The report was made by a newer version" >&2; exit 1', "made by a newer version"),
        ("exit 3", "exit code 3"),
        ("exit 0", "it wrote no file"),
        (_WRITE.format("head -c 5000 {export}"), "damaged SQLite database"),
        (_WRITE.format("echo nothing"), "damaged SQLite database"),
        (_WRITE.format("true"), "it wrote an empty file"),
        ('while [ "$1" != -o ]; do shift; done; mkdir "$2"; exit 0', "it wrote no file"),
    ],
)
def test_what_it_cannot_export(nsys: Nsys, body: str, reason: str) -> None:
    nsys.install(nsys.folder / "bin", body=body.replace("{export}", str(nsys.export)))
    with pytest.raises(UnreadableTrace, match=reason) as caught:
        list(NsightParser().parse(nsys.report))
    assert "nsys 2026.2.1.210 could not export it" in caught.value.message
    assert "at least as new" in caught.value.message
    kept = (nsys.folder / "cache" / "tracelens" / "nsight").iterdir()
    assert not [path for path in kept if path.is_file()], "the next run asks nsys again"


def test_a_name_with_spaces_stands_in_quotes_in_the_command(nsys: Nsys) -> None:
    path = nsys.report.rename(nsys.report.with_name("my run.nsys-rep"))
    with pytest.raises(UnreadableTrace, match=r"-o 'my run\.sqlite' 'my run\.nsys-rep'`"):
        list(NsightParser().parse(path))


def test_a_cache_that_cannot_be_written(nsys: Nsys) -> None:
    nsys.install(nsys.folder / "bin")
    (nsys.folder / "cache").write_text("a file")
    with pytest.raises(UnreadableTrace, match=r"cannot be kept in .*XDG_CACHE_HOME"):
        list(NsightParser().parse(nsys.report))


def test_inspecting_exports_nothing(nsys: Nsys) -> None:
    facts = NsightParser().inspect(nsys.report)
    assert (facts.rank, facts.note) == (3, "no nsys to export it with")
    nsys.install(nsys.folder / "bin")
    assert NsightParser().inspect(nsys.report).note == "exported when it is analysed"
    assert nsys.calls == []
    list(NsightParser().parse(nsys.report))
    assert NsightParser().inspect(nsys.report).device_events == 1


def test_an_export_beside_it_is_read_instead(nsys: Nsys) -> None:
    Export().kernel("gemm", 1_000).write(nsys.report.with_suffix(".sqlite"))
    found = {c.shown: c.reason for c in discover([nsys.report.parent], parsers())}
    assert found == {
        "run_rank3.nsys-rep": "the same recording as run_rank3.sqlite",
        "run_rank3.sqlite": None,
    }
    assert tracelens.analyze(nsys.report.parent).run.ranks_present == [3]
    (alone,) = discover([nsys.report], parsers())
    assert alone.parser == "nsight"


def test_old_reports_are_reports(nsys: Nsys) -> None:
    path = nsys.report.with_suffix(".qdrep")
    path.write_bytes(b"x")
    assert NsightParser().recognise(path, b"x") == "nsight-report"

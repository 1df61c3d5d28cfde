"""What lies in a folder, and what becomes of each of it: once, never blocking, always named."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import run
from standard_run import codes, is_standard, rank, said, write_ranks

import tracelens
from tracelens.errors import InputError
from tracelens.gzip_head import head_of
from tracelens.listing import list_files
from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from collections.abc import Iterator


def reasons(*paths: Path | str) -> dict[str, str | None]:
    """Return why each file is left out; None if it is not."""
    return {file.path: file.reason for file in list_files(list(paths))}


def shown(*paths: Path | str) -> list[str]:
    return [file.path for file in tracelens.analyze(list(paths)).source.files]


# folders and links -------------------------------------------------------------------------------


def test_nested_folders(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"node{number // 2}" / "iteration_10" / f"rank_{number}"
        folder.mkdir(parents=True)
        rank(None, 4, pid=4000 + number).write(folder / "trace.json")
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [0, 1, 2, 3]
    assert [one.files for one in result.ranks] == [
        [f"node{number // 2}/iteration_10/rank_{number}/trace.json"] for number in range(4)
    ]


def test_hidden_names_and_our_own_folder_are_passed_over(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    for name in (".cache", "tracelens-report"):
        write_ranks(tmp_path / name)
    rank(0).write(tmp_path / ".rank0.json")
    is_standard(tracelens.analyze(tmp_path))
    assert shown(tmp_path) == ["rank0.json", "rank1.json"]


def test_loops_of_folders_end(tmp_path: Path) -> None:
    write_ranks(tmp_path / "b")
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a_link").symlink_to(tmp_path / "b")
    (tmp_path / "self").symlink_to("self")
    is_standard(tracelens.analyze(tmp_path))
    assert reasons(tmp_path) == {
        "a_link": "a link to a folder that is searched as b",
        "b/rank0.json": None,
        "b/rank1.json": None,
        "b/up": f"a link to a folder that is searched as {tmp_path.name}",
    }


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    (tmp_path / "rank2.json").symlink_to(tmp_path / "gone.json")
    (tmp_path / "rank3.json").symlink_to("rank3.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    lost = [n for n in result.notices if n.code == "unreadable-file"]
    assert [(n.file, n.level) for n in lost] == [
        ("rank2.json", "warning"),
        ("rank3.json", "warning"),
    ]
    assert all("a link that leads nowhere; its rank is missing" in n.message for n in lost)
    with pytest.raises(InputError, match=r"rank3\.json"):
        tracelens.analyze(tmp_path / "rank3.json")


@pytest.mark.parametrize("link", ["a.json", "z.json"])
@pytest.mark.parametrize("hard", [False, True])
def test_one_file_by_two_names_is_one_file(link: str, hard: bool, tmp_path: Path) -> None:
    write_ranks(tmp_path)
    if hard:
        os.link(tmp_path / "rank1.json", tmp_path / link)
    else:
        (tmp_path / link).symlink_to("rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert result.run.ranks_duplicated == []
    first = "a.json" if hard and link == "a.json" else "rank1.json"
    assert f"the same file as {first}" in said(result, "skipped-file")


def test_links_out_of_the_folder_are_followed(tmp_path: Path) -> None:
    write_ranks(tmp_path / "store")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank0.json").symlink_to(tmp_path / "store" / "rank0.json")
    (folder / "more").symlink_to(tmp_path / "store")
    result = tracelens.analyze(folder)
    is_standard(result)
    assert shown(folder) == ["more/rank0.json", "more/rank1.json", "rank0.json"]
    assert "the same file as rank0.json (more/rank0.json)" in said(result, "skipped-file")


# several paths -----------------------------------------------------------------------------------


def test_overlapping_paths_count_once(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run")
    folder = tmp_path / "run"
    result = tracelens.analyze([folder, folder / "rank0.json", folder / "." / "rank1.json", folder])
    is_standard(result)
    assert len(result.source.files) == 2
    result = tracelens.analyze([folder / "rank0.json", str(folder / "*.json"), tmp_path])
    is_standard(result)
    assert len(result.source.files) == 2
    assert "skipped-file" not in codes(result)


def test_globs_that_match_several_folders_keep_their_names_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        rank(number).write(folder / "trace.json")
    for pattern in ("host*", "host*/*.json", "**/trace.json", "host[01]"):
        is_standard(tracelens.analyze(tmp_path / pattern))
        assert shown(tmp_path / pattern) == ["host0/trace.json", "host1/trace.json"]
    monkeypatch.chdir(tmp_path)
    assert shown("host*") == ["host0/trace.json", "host1/trace.json"]
    assert shown("host0/*.json") == ["trace.json"]


def test_a_name_with_the_signs_of_a_glob(tmp_path: Path) -> None:
    rank(0, 1).write(tmp_path / "run[1]*.json")
    is_standard(tracelens.analyze(tmp_path / "run[1]*.json"), world=1)
    is_standard(tracelens.analyze(tmp_path), world=1)


@pytest.mark.parametrize("path", ["nothing*.json", "a/b/c", "x" * 300, "y/" * 3000, "\0", "a\0b*"])
def test_what_is_not_there_is_one_line(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        tracelens.analyze(str(tmp_path / path))


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(InputError, match="an empty path"):
        tracelens.analyze("")


# what is no trace --------------------------------------------------------------------------------

OTHERS: dict[str, tuple[bytes, str]] = {
    "config.json": (b'{"hidden_size": 4096, "torch_dtype": "bfloat16"}', "no profiler trace"),
    "water.json": (b'{"samples": [{"ph": 7.2, "cat": "well", "name": "a"}]}', "no profiler trace"),
    "image.json": (b'{"schemaVersion": 2, "layers": [{"digest": "x"}]}', "no profiler trace"),
    "gpus.json": (b'{"deviceProperties": [], "distributedInfo": {"rank": 0}}', "no profiler trace"),
    "ds_config.json": (b'{"zero_optimization": {"stage": 3}}', "no profiler trace"),
    "memory.json": (b'[[0, 1, 2], [3, 4, 5]]', "no profiler trace"),
    "memory.json.gz": (gzip.compress(b"[[0, 1], [2, 3]]"), "no profiler trace"),
    "lines.json": (b'{"loss": 1.5}\n{"loss": 1.25}\n', "no profiler trace"),
    "graph.json": (b'{"schema": "1.1", "nodes": [{"id": 1}]}', "execution trace"),
    "model.bin.gz": (gzip.compress(bytes(range(256))), "no format"),
    "log.gz": (gzip.compress(b"step 1 loss 2.5"), "no format"),
    "empty.json": (b"", "an empty file"),
    "blank.json": (b" \n", "nothing but white space"),
    "empty.json.gz": (gzip.compress(b""), "an empty file"),
    "rank9.json.tmp": (b'{"traceEvents": [', "that did not finish"),
    "rank0.json.tmp": (b'{"traceEvents": [', "the profiler left behind"),
    "old.json": (b'{"schema": "tracelens/1", "summary": {}}', "a TraceLens result"),
    "rank1.json.tracelens.json": (b'{"rank": 1}', "facts about the trace beside it"),
    "gone.json.tracelens.json": (b'{"rank": 1}', "a trace that is not here"),
    "rank0.json.tracelens.json": (b'{"rank": "one"}', "not usable"),
}  # fmt: skip


def test_other_files_are_listed_with_a_reason(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    for name, (data, _) in OTHERS.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "events.out.tfevents.1700000000.host.1.0").write_bytes(b"\x18\0\0\0")
    (tmp_path / "snapshot.pickle").write_bytes(b"\x80\x04.")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "unreadable-file" not in codes(result), "none of them is a lost rank"
    found = reasons(tmp_path)
    assert set(found) == {"rank0.json", "rank1.json", *OTHERS}
    for name, (_, reason) in OTHERS.items():
        assert reason in (found[name] or ""), name
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 0


def test_a_file_named_by_hand_is_always_tried(tmp_path: Path) -> None:
    for name in ("rank0.json.tmp", "rank0", ".rank0.json", "rank0.bak"):
        path = rank(0, 1).write(tmp_path / name)
        is_standard(tracelens.analyze(path), world=1)


def test_a_long_header_before_the_events_is_a_trace(tmp_path: Path) -> None:
    trace = rank(0, 1, keys={"deviceProperties": [{"id": i, "name": "G" * 90} for i in range(999)]})
    assert trace.bytes().index(b'"traceEvents"') > 1 << 16
    trace.write(tmp_path / "rank0.json")
    is_standard(tracelens.analyze(tmp_path), world=1)


# what must never be opened -----------------------------------------------------------------------


def test_pipes_sockets_and_devices_never_block(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    os.mkfifo(tmp_path / "rank2.json")
    os.mkfifo(tmp_path / "rank0.json.tracelens.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "null.gz").symlink_to("/dev/null")
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    server.bind("rank3.json")
    os.chdir(here)
    began = time.monotonic()
    with server:
        is_standard(tracelens.analyze(tmp_path))
        found = reasons(tmp_path)
        for name in ("rank2.json", "rank3.json", "zero.json", "null.gz"):
            assert found[name] == "a pipe, a socket or a device, not a file"
            with pytest.raises(InputError, match="a pipe, a socket or a device"):
                tracelens.analyze(tmp_path / name)
    assert time.monotonic() - began < 20


# permission --------------------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, *, folder: bool) -> None:
    """Let the system refuse to open a file, or to list a folder."""
    real_open, real_list = open, os.scandir

    def opened(path: Any, *args: Any, **options: Any) -> Any:
        if Path(str(path)).name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *args, **options)

    def listed(path: Any = ".") -> Any:
        if Path(str(path)).name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real_list(path)

    if folder:
        monkeypatch.setattr(os, "scandir", listed)
    else:
        monkeypatch.setattr("io.open", opened)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path, world=3)
    refuse(monkeypatch, "rank2.json", folder=False)
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_missing == [2]
    assert "rank2.json: could not be read: cannot be opened: Permission denied" in (
        said(result, "unreadable-file")
    )


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path)
    write_ranks(tmp_path / "locked")
    refuse(monkeypatch, "locked", folder=True)
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "locked: could not be read: cannot be opened: Permission denied" in (
        said(result, "unreadable-file")
    )


WARMED = """
import os, sys
from tracelens.cli import main

def call(*arguments):
    try:
        main(list(arguments))
    except SystemExit as end:
        return end.code

kept = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
call("analyze", "warm", "--json", "-")  # loads what the user might not reach later
call("inspect", "warm")
sys.stdout.flush()
os.dup2(kept, 1)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(call(*sys.argv[1:]))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Offer a folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    write_ranks(folder / "warm")
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700)
    shutil.rmtree(folder)


def test_permissions_for_real(open_folder: Path) -> None:
    """Permission bits hold back everybody but root: as root the command runs as nobody."""
    folder = open_folder / "run"
    write_ranks(folder, world=5)
    for number, (name, mode) in {3: ("locked", 0o000), 4: ("blind", 0o444)}.items():
        (folder / name).mkdir()
        (folder / f"rank{number}.json").rename(folder / name / f"rank{number}.json")
        (folder / name).chmod(mode)
    (folder / "rank1.json").chmod(0o000)

    def told(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WARMED, *arguments]
        done = subprocess.run(
            command, cwd=open_folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    done = told("inspect", "run")
    refused = "cannot be read: cannot be opened: Permission denied"
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert done.returncode == 0, done.stderr
    for name in ("locked", "rank1.json", "blind/rank4.json"):
        assert lines[name].endswith(refused), lines[name]
    assert "2 trace files, ranks 0, 2 of 5; missing: 1, 3-4; 3 cannot be read" in done.stdout
    done = told("analyze", "run", "--json", "-")
    assert done.returncode == 0
    for name in ("locked", "rank1.json", "blind/rank4.json"):
        assert done.stderr.count(f"{name}: could not be read: cannot be opened") == 1
    assert json.loads(done.stdout)["run"]["ranks_missing"] == [1, 3, 4]
    assert told("analyze", "run", "--json", "-", "--strict").returncode == 4
    done = told("analyze", "run/blind/rank4.json")
    assert done.returncode == 1
    assert "run/blind/rank4.json: cannot be reached: permission denied" in done.stderr
    done = told("analyze", "run/locked")
    assert done.returncode == 1
    assert "Permission denied" in done.stderr


# names -------------------------------------------------------------------------------------------

NAMES = [
    b"rank0\nrank7.json",
    b"rank0 \x1b[31mred\x1b[0m\x07.json",
    b"rank0-\xff\xfe.json",
    "rank0-\u202etxt.json".encode(),
    b"rank0-" + b"x" * 240 + b".json",
    b"rank0;$(touch x)&'\"|.json",
    b"-rank0.json",
]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    """They are read, shown on one line each, and written into every report."""
    world = len(NAMES)
    for number, name in enumerate(NAMES):
        (tmp_path / os.fsdecode(name)).write_bytes(rank(number, world).bytes())
    done = run("inspect", ".", cwd=tmp_path)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == world + 1
    assert done.out.endswith(f"{world} trace files, ranks 0-{world - 1} of {world}\n")
    listed = json.loads(run("inspect", ".", "--json", cwd=tmp_path).out)
    assert sorted(file["facts"]["rank"] for file in listed) == list(range(world))
    outputs = ("-o", "r.html", "-o", "r.md", "-o", "r.json")
    done = run("analyze", ".", *outputs, "-vv", cwd=tmp_path)
    assert done.code == 0, done.err
    assert all(line.isprintable() for line in (done.out + done.err).splitlines())
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["run"]["ranks_present"] == list(range(world))
    assert len({file["path"] for file in result["source"]["files"]}) == world
    assert sorted(p.name for p in tmp_path.glob("r.*")) == ["r.html", "r.json", "r.md"]


def test_a_path_of_any_bytes(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"run\xff\n\x1b[31m")
    write_ranks(folder)
    done = run("analyze", str(folder), "-o", "r.json", "-o", "r.html", cwd=tmp_path)
    assert done.code == 0, done.err
    assert all(line.isprintable() for line in done.err.splitlines())
    done = run("analyze", str(folder / "nothing*"), cwd=tmp_path)
    assert done.code == 1
    assert len(done.err.splitlines()) == 3


def test_host_names_of_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"host\xff_4000.1767225600111.pt.trace.json")
    rank(0, 1).write(tmp_path / name)
    result = tracelens.analyze(tmp_path)
    assert result.run.hosts == ["host\\xff"]
    result.to_json().encode()


# files that change -------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["recognise", "parse"])
def test_a_file_that_vanishes_while_it_is_read(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path, world=3)
    real = getattr(KinetoParser, moment)

    def vanishing(self: KinetoParser, path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "rank2.json":
            path.unlink(missing_ok=True)
        return real(self, path, *args, **options)

    monkeypatch.setattr(KinetoParser, moment, vanishing)
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [0, 1]
    assert result.run.ranks_missing == [2]
    assert "rank2.json: could not be read: No such file" in said(result, "unreadable-file")


def test_a_file_that_vanishes_before_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path, world=3)

    def vanishing(path: Path) -> bytes:
        if path.name == "rank2.json":
            path.unlink(missing_ok=True)
        return head_of(path)

    monkeypatch.setattr("tracelens.discovery.head_of", vanishing)
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_missing == [2]
    assert "cannot be opened: No such file" in said(result, "unreadable-file")


def test_a_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path)
    write_ranks(tmp_path / "gone")
    real = os.scandir

    def vanishing(path: Any = ".") -> Any:
        if Path(str(path)).name == "gone":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "gone: could not be read: cannot be opened: No such file" in (
        said(result, "unreadable-file")
    )

"""`tracelens inspect` on a folder with everything in it, against files under tests/gold/inspect.

`TRACELENS_UPDATE_GOLD=1 pytest tests/cli/test_inspect.py` writes them anew: read the diff.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import tarfile
import zipfile
from pathlib import Path

import pytest
from builders import Group, Schema, Trace
from command import run
from standard_run import add_step, rank, write_ranks

import tracelens
from tracelens.cli.output import say_notices

GOLD = Path(__file__).parents[1] / "gold" / "inspect"


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every kind of file and every decision."""
    folder = tmp_path_factory.mktemp("rich") / "run"
    (folder / "node1" / "iteration_10").mkdir(parents=True)
    rank(0, 8).write(folder / "rank0.json")
    rank(1, 8).write(folder / "rank1.json.gz", gz=True)
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(rank(2, 8).bytes())
    (folder / "rank2.json.zst").write_bytes(packed)
    data = rank(3, 8).bytes()
    (folder / "rank3.json").write_bytes(data[: len(data) * 3 // 4])
    (folder / "rank4.json.gz").write_bytes(gzip.compress(rank(4, 8).bytes(), mtime=0)[:-9])
    rank(5, 8).write(folder / "rank6.json")
    sided = rank(None, 8).write(folder / "sided.json")
    sided.with_name("sided.json.tracelens.json").write_text('{"rank": 6, "world_size": 8}')
    (folder / "gone.json.tracelens.json").write_text('{"rank": 6}')
    rank(None, 8).write(folder / "node1" / "iteration_10" / "trace_r7.json")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("a/rank0.json", rank(0, 8, at=9000).text())
        archive.writestr("a/notes.json", "{}")
    with tarfile.open(folder / "cut.tar", "w") as tar:
        tar.add(folder / "rank0.json", "rank0.json")
    (folder / "cut.tar").write_bytes((folder / "cut.tar").read_bytes()[:3000])
    two = Trace(rank=None, world=2)
    add_step(two, 1, 0)
    two.pid = 4999
    add_step(two, 1, 0, device=1).write(folder / "merged.json")
    rank(None, 8, schema=Schema(root="array")).write(folder / "legacy.json")
    Trace(groups=(Group((0,)),)).write(folder / "nothing.json")
    for name, text in {
        "config.json": '{"lr": 1}',
        "empty.json": "",
        "rank8.json.tmp": "{",
        "rank0.json.tmp": "{",
        "old.json": '{"schema": "tracelens/1"}',
        "graph.json": '{"schema": "1.1", "nodes": []}',
        "a\x1b[31m\n.json": "{}",
    }.items():
        (folder / name).write_text(text)
    (folder / "noise.gz").write_bytes(bytes(range(256)))
    os.mkfifo(folder / "pipe.json")
    (folder / "again.json").symlink_to("rank0.json")
    (folder / "nowhere.json").symlink_to("gone.json")
    (folder / "loop").symlink_to(".")
    return folder


@pytest.mark.parametrize("form", ["txt", "json"])
def test_a_rich_folder_is_listed_as_it_was(form: str, rich: Path) -> None:
    done = run("inspect", "run", *(["--json"] if form == "json" else []), cwd=rich.parent)
    assert done.code == 0, done.err
    # How many bytes a compressor makes depends on its version.
    text = re.sub(r"\d+\.\d\d MB", "SIZE", re.sub(r'"bytes": \d+', '"bytes": 0', done.out))
    gold = GOLD / f"rich.{form}"
    if os.environ.get("TRACELENS_UPDATE_GOLD"):
        gold.write_text(text)
    assert text == gold.read_text(), f"see {gold}; TRACELENS_UPDATE_GOLD=1 writes it"


def test_both_forms_name_every_file_and_agree(rich: Path) -> None:
    text = run("inspect", "run", cwd=rich.parent).out.splitlines()
    listed = json.loads(run("inspect", "run", "--json", cwd=rich.parent).out)
    assert len(text) == len(listed) + 1
    for line, file in zip(text, listed, strict=False):
        assert ("left out: " in line or "cannot be read: " in line) == (file["facts"] is None)
        assert (file["reason"] is None) == (file["facts"] is not None)
    named = {path.name for path in rich.iterdir() if path.suffix not in (".zip", ".tar")}
    assert named - {"node1"} <= {file["path"].split("/")[0] for file in listed}


# many files --------------------------------------------------------------------------------------


def many(folder: Path) -> None:
    """Write 2,000 files of every kind: 12 whole ranks of 24, 88 that are cut, and other things."""
    whole = {number: rank(number, 24, steps=1).bytes() for number in range(24)}
    for index in range(2000):
        place = folder / f"node{index % 40}"
        place.mkdir(parents=True, exist_ok=True)
        kind = index % 20
        if index < 12:
            (place / f"rank{index}.json").write_bytes(whole[index])
        elif index < 100:
            data = whole[12 + index % 12]
            (place / f"cut{index}.json").write_bytes(data[: len(data) // 2 + index])
        elif kind < 5:
            (place / f"config{index}.json").write_text(json.dumps({"lr": index}))
        elif kind < 8:
            (place / f"memory{index}.json.gz").write_bytes(gzip.compress(b"[[0, 1]]"))
        elif kind < 12:
            (place / f"x{index}.json.tmp").write_text("{")
        elif kind < 14:
            (place / f"broken{index}.zip").write_bytes(b"PK\x03\x04 no zip")
        elif kind < 17:
            (place / f"link{index}.json").symlink_to("nowhere")
        else:
            (place / f"empty{index}.json").write_text("")


def test_two_thousand_files_take_seconds_and_stay_readable(tmp_path: Path) -> None:
    many(tmp_path / "run")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    outputs = ("-o", "r.html", "-o", "r.md", "-o", "r.json")
    done = run("analyze", "run", *outputs, "-v", cwd=tmp_path)
    assert done.code == 0
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert took < 40, "CPU seconds, on a machine that does other things too"
    result = json.loads((tmp_path / "r.json").read_text())
    assert [one["rank"] for one in result["ranks"] if one["in_means"]] == list(range(12))
    assert len(result["source"]["files"]) == 2000
    lines = done.err.splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) < 600
    more = [line for line in lines if "more of this kind" in line]
    assert any("[unreadable-file]" in line for line in more)
    lost = sum(n["code"] == "unreadable-file" for n in result["notices"])
    assert f"{lost - 5:,} more of this kind; -vv prints them" in done.err
    assert (tmp_path / "r.md").stat().st_size < 60_000
    done = run("inspect", "run", cwd=tmp_path)
    assert len(done.out.splitlines()) == 2001
    assert "cannot be read" in done.out.splitlines()[-1]


def test_a_few_of_a_kind_are_all_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ranks(tmp_path)
    for number in range(6):
        (tmp_path / f"l{number}.json").symlink_to("nowhere")
    notices = tracelens.analyze(tmp_path).notices
    say_notices(notices, 0)
    assert capsys.readouterr().err.count("[unreadable-file]") == 6
    (tmp_path / "l6.json").symlink_to("nowhere")
    notices = tracelens.analyze(tmp_path).notices
    for verbosity, count in ((0, 6), (1, 6), (2, 7)):
        say_notices(notices, verbosity)
        assert capsys.readouterr().err.count("[unreadable-file]") == count

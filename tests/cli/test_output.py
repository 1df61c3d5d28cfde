"""What is written: whole or not at all, through links, and never over what is no file."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import analysis_builder
import pytest
from command import INSTALLED, run
from standard_run import rank

from tracelens.cli.output import check_target, render, write
from tracelens.errors import OutputError
from tracelens_html import HtmlReport

if TYPE_CHECKING:
    from tracelens.model.result import Analysis

OLD = b"the old report\n"
NEW = b"x" * 3_000_000
NULL = Path(os.devnull)


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_bytes(OLD)
    write(path, NEW)
    assert path.read_bytes() == NEW
    assert left_behind(tmp_path) == ["r.html"]


def test_a_full_disk_leaves_the_old_one_whole(tmp_path: Path) -> None:
    """No file may grow beyond 1 MB here: writing fails in the middle, as on a full disk."""
    (tmp_path / "r.json").write_bytes(OLD)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))\n"
        "from pathlib import Path\n"
        "from tracelens.cli.output import write\n"
        "write(Path('r.json'), b'x' * 3_000_000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "OutputError: r.json: File too large" in done.stderr
    assert (tmp_path / "r.json").read_bytes() == OLD
    assert left_behind(tmp_path) == ["r.json"]


def test_a_kill_in_the_middle_leaves_the_old_one_whole(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(OLD)
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from tracelens.cli.output import write\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write(Path('r.json'), b'x' * 3_000_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "r.json").read_bytes() == OLD


class Failing:
    name, suffixes = "failing", (".html",)

    def render(self, analysis: Analysis) -> bytes:
        raise KeyError("rank")


def test_a_report_that_fails_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracelens.cli import main

    saved = tmp_path / "a.json"
    saved.write_text(analysis_builder.one_rank().to_json())
    page = tmp_path / "r.html"
    page.write_bytes(OLD)
    monkeypatch.setattr("tracelens.registry.report_for", lambda _: Failing())
    with pytest.raises(SystemExit) as ended:
        main(["report", str(saved), "-f", "-o", str(page)])
    assert ended.value.code == 1
    assert page.read_bytes() == OLD
    with pytest.raises(OutputError, match="the report failing failed"):
        render(analysis_builder.one_rank(), ".html")


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("old.json", "new.json"):
        (tmp_path / name).symlink_to(Path("there", name))
    (tmp_path / "there" / "old.json").write_bytes(OLD)
    for name in ("old.json", "new.json"):
        write(tmp_path / name, NEW)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / name).read_bytes() == NEW
    assert left_behind(tmp_path / "there") == ["new.json", "old.json"]


def test_links_in_a_circle(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.symlink_to(path)
    with pytest.raises(OutputError, match=r"r\.json"):
        write(path, NEW)


def test_a_device_stays_one(tmp_path: Path) -> None:
    assert NULL.is_char_device()
    check_target(NULL, force=False)
    write(NULL, NEW)
    (tmp_path / "link.json").symlink_to(NULL)
    write(tmp_path / "link.json", NEW)
    assert NULL.is_char_device()
    assert (tmp_path / "link.json").is_char_device()
    assert not [path for path in NULL.parent.iterdir() if path.name.startswith(".null")]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    os.mkfifo(path)
    check_target(path, force=False)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write(path, NEW)
    reader.join(timeout=30)
    assert found == [NEW]
    assert path.is_fifo()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_target(tmp_path, force=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(OutputError, match="not a file"):
            check_target(tmp_path / "s", force=True)


def test_through_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(analysis_builder.one_rank().to_json())
    (tmp_path / "link.md").symlink_to("real.md")
    (tmp_path / "real.md").write_bytes(OLD)
    done = run("report", "a.json", "-o", "link.md", cwd=tmp_path)
    assert (done.code, "link.md exists already" in done.err) == (1, True)
    assert run("report", "a.json", "-f", "-o", "link.md", cwd=tmp_path).code == 0
    assert (tmp_path / "link.md").is_symlink()
    assert (tmp_path / "real.md").read_bytes() != OLD


def test_names_that_are_no_text_are_written_as_escapes() -> None:
    text = analysis_builder.hostile().to_json()
    assert "\\udc80" in json.loads(text)["run"]["started"]
    assert HtmlReport().render(analysis_builder.hostile())


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"rank0-\xff\x1b[31m.json")
    rank(0, 1).write(tmp_path / name)
    reports = ["-o", "r.json", "-o", "r.html", "-o", "r.md"]
    done = run("analyze", ".", *reports, cwd=tmp_path)
    assert done.code == 0
    assert "\x1b" not in done.out + done.err
    assert "rank0-\\xff\\x1b[31m.json" in (tmp_path / "r.html").read_text()
    assert run("report", "r.json", "-o", "again.html", cwd=tmp_path).code == 0
    assert run("inspect", ".", cwd=tmp_path).code == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str, tmp_path: Path) -> None:
    """As a daemon starts it: the report is written, and nothing else into its file."""
    rank(0, 1).write(tmp_path / "rank0.json")
    shell = f'exec "$0" analyze rank0.json -o r.json {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, *INSTALLED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["run"]["ranks_present"] == [0]
    assert "Error" not in done.stderr

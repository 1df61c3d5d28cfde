"""Every exit code of every command, through the command that is installed."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command import INSTALLED, Result, run, run_here
from standard_run import rank, write_ranks

DOCUMENTED = Path(__file__).parents[2] / "docs" / "result.md"
LONG = "x" * 300
FOLDERS = (
    "empty", "other", "useless", "unreadable", "packed", "lacking", "lacking-extras", "folder.md",
)  # fmt: skip
NOWHERE = "/proc/nowhere"  # nobody can make a file there, root neither
LACKING = {"PYTHONPATH": "lacking-extras"}
TINY = "--layout=dp=2 --steps=1 --model=layers=1,hidden=64,vocabulary=128,sequence=32"


@dataclass(frozen=True)
class Row:
    """A command line, its exit code, and what its one line of error holds."""

    code: int
    line: str
    says: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        return self.line.split()[0]

    def __str__(self) -> str:
        return f"{self.code} {self.line}".replace(LONG, "LONG")


ROWS = [
    # done
    Row(0, "--help"),
    Row(0, "--version"),
    Row(0, "analyze good -o 0.md"),
    Row(0, "analyze good -o 1.md --strict"),
    Row(0, "analyze half -o 2.md"),
    Row(0, "analyze cut -o 3.md"),
    Row(0, "analyze good -o old.md -f"),
    Row(0, "inspect good"),
    Row(0, "doctor"),
    Row(0, "doctor lacking"),
    Row(0, "report saved.json -o 4.md"),
    Row(0, f"simulate -o made {TINY}"),
    Row(0, "formats"),
    Row(0, "schema"),
    # could not do it: nothing to analyse
    Row(1, "analyze nowhere", "nowhere: no such file or folder"),
    Row(1, f"analyze {LONG}", "File name too long"),
    Row(1, "analyze empty", "empty: no trace file in it"),
    Row(1, "analyze other/notes.txt", "notes.txt: no format an installed parser knows"),
    Row(1, "analyze other", "config.json: JSON, but no profiler trace"),
    Row(1, "analyze useless", "nothing can be analysed: rank0.json: it holds no traceEvents"),
    Row(1, "analyze unreadable", "cannot be opened: Permission denied"),
    Row(1, "analyze good --ranks 7", "none of the ranks [7] is there (found: [0, 1])"),
    Row(1, "analyze good --steps 99:", "none of the selected steps is in the traces (found: 10-1"),
    Row(1, "analyze memory://run", "memory://run: remote paths need fsspec", LACKING),
    Row(1, "analyze packed", "tracelens-distributed[zstd]", LACKING),
    Row(1, "inspect nowhere", "nowhere: no such file or folder"),
    Row(1, "inspect empty", "empty: no trace file in it"),
    Row(1, "doctor nowhere", "nowhere: no such file or folder"),
    Row(1, "doctor useless --strict", "nothing can be analysed"),
    Row(1, "report nowhere.json -o x.md", "nowhere.json: No such file or directory"),
    Row(1, "report other/config.json -o x.md", "config.json: not a TraceLens result"),
    Row(1, "report newer.json -o x.md", "schema tracelens/99"),
    # ... or nowhere to write it
    Row(1, "analyze good -o taken.md", "taken.md exists already"),
    Row(1, "analyze good --json taken.md", "taken.md exists already"),
    Row(1, "analyze good -o folder.md", "folder.md is a folder"),
    Row(1, "analyze good -o x.pdf", "no report writes .pdf"),
    Row(1, "analyze good -o nowhere/x.md", "nowhere: no such folder"),
    Row(1, f"analyze good -o {NOWHERE}.md", f"{NOWHERE}.md: No such file or directory"),
    Row(1, f"analyze good -o {LONG}.md", "File name too long"),
    Row(1, "report saved.json -o taken.md", "taken.md exists already"),
    Row(1, f"report saved.json -o {NOWHERE}.md", f"{NOWHERE}.md: No such file or directory"),
    Row(1, f"simulate -o good {TINY}", "good is not empty"),
    Row(1, f"simulate -o {NOWHERE} {TINY}", f"{NOWHERE}: No such file or directory"),
    Row(1, f"simulate -o saved.json/made {TINY}", "saved.json/made: Not a directory"),
    # wrong usage
    Row(2, "nothing", "No such command 'nothing'"),
    Row(2, "--nothing", "--nothing"),
    Row(2, "analyze", "Missing argument 'PATH…'"),
    Row(2, "analyze good --nothing", "--nothing"),
    Row(2, "analyze good --steps ten", "Invalid value for '--steps'"),
    Row(2, "analyze good", "Invalid value for '--steps'", {"TRACELENS_ANALYZE_STEPS": "ten"}),
    Row(2, "inspect", "Missing argument 'PATH…'"),
    Row(2, "inspect good --nothing", "--nothing"),
    Row(2, "doctor good --step-pattern (", "Invalid value for '--step-pattern'"),
    Row(2, "report saved.json", "Missing option '-o'"),
    Row(2, "report -o x.md", "Missing argument 'ANALYSIS.json'"),
    Row(2, "simulate", "Missing option '-o'"),
    Row(2, "simulate -o new --schedule nothing", "Invalid value for '--schedule'"),
    Row(2, "simulate -o new --layout pp=2 --strategy zero3", "pipeline"),
    Row(2, "formats good", "Got unexpected extra argument (good)"),
    Row(2, "schema good", "Got unexpected extra argument (good)"),
    # done, but something is missing
    Row(4, "analyze half -o 5.md --strict"),
    Row(4, "analyze cut -o 6.md --strict"),
    Row(4, "analyze good/rank0.json -o 7.md --strict"),
    Row(4, "analyze half -q --json - --strict"),
    Row(4, "doctor lacking --strict"),
]  # fmt: skip


FIRST: dict[tuple[str, int], Row] = {}
for _row in ROWS:
    FIRST.setdefault((_row.command, _row.code), _row)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folders the rows name."""
    top = tmp_path_factory.mktemp("runs")
    write_ranks(top / "good")
    write_ranks(top / "half")[1].write_bytes(gzip.compress(b"{"))
    whole = write_ranks(top / "cut")[1]
    whole.write_bytes(whole.read_bytes()[:-200])
    for name in FOLDERS:
        (top / name).mkdir()
    (top / "other" / "notes.txt").write_text("hello")
    (top / "other" / "config.json").write_text('{"lr": 1}')
    (top / "useless" / "rank0.json").write_text('{"schemaVersion": 1}')
    (top / "useless" / "rank1.json.gz").write_bytes(gzip.compress(rank(1).bytes())[:12])
    (top / "unreadable" / "rank0.json").symlink_to("/proc/1/mem")
    (top / "packed" / "rank0.json.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\x00\x01\x00\x00")
    rank(0, 1, steps=1).write(top / "lacking" / "rank0.json")
    for extra in ("fsspec", "zstandard", "compression"):
        (top / "lacking-extras" / f"{extra}.py").write_text(f"raise ModuleNotFoundError('{extra}')")
    done = run("analyze", "good", "--json", "saved.json", "-q", cwd=top)
    assert (done.code, done.out, done.err) == (0, "", "")
    for name in ("taken.md", "old.md"):
        (top / name).write_text("mine")
    newer = json.loads((top / "saved.json").read_text()) | {"schema": "tracelens/99"}
    (top / "newer.json").write_text(json.dumps(newer))
    return top


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_code_and_streams(row: Row, folder: Path) -> None:
    """Ask a process for each code of each command, and this one for what else leads to it."""
    before = sorted(folder.rglob("*"))
    if row is FIRST[row.command, row.code] or row.environment:
        done = run(*row.line.split(), cwd=folder, **row.environment)
    else:
        done = run_here(*row.line.split(), cwd=folder)
    assert done.code == row.code, done.err
    if row.code in (1, 2):
        assert_one_clear_line(done, row.says)
        assert sorted(folder.rglob("*")) == before, "nothing was made"
        assert (folder / "taken.md").read_text() == "mine"
    else:
        assert "Error" not in done.err
    if row.line.startswith("analyze") and row.code == 4:
        assert done.out
        assert "warning:" in done.err or "-q" in row.line


def assert_one_clear_line(done: Result, says: str) -> None:
    assert done.out == ""
    (error,) = (line for line in done.err.splitlines() if line.startswith("Error: "))
    assert says in error
    assert "TraceLens itself failed" not in error


@pytest.mark.skipif(not DOCUMENTED.exists(), reason="no documentation beside an installed wheel")
def test_the_codes_are_those_of_the_documentation() -> None:
    _, _, section = DOCUMENTED.read_text().partition("## Exit codes")
    table = section.partition("\n## ")[0]
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert sorted({row.code for row in ROWS}) == documented


def test_every_command_has_every_code_it_can_end_with() -> None:
    tested = FIRST.keys()
    for command in ("analyze", "inspect", "doctor", "report", "simulate"):
        assert tested >= {(command, code) for code in (0, 1, 2)}
    for command in ("formats", "schema"):
        assert tested >= {(command, 0), (command, 2)}


@pytest.mark.parametrize("line", ["schema", "formats", "inspect good", "analyze good --json -"])
def test_nobody_reads_the_output(line: str, folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(
            [*INSTALLED, *line.split(), *(["-q"] if "analyze" in line else [])],
            cwd=folder, stdout=output, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("line", ["schema", "analyze good --json - -q"])
def test_no_space_for_the_output(line: str, folder: Path) -> None:
    with Path("/dev/full").open("wb") as output:
        done = subprocess.run(
            [*INSTALLED, *line.split()],
            cwd=folder, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert_one_clear_line(Result(1, "", done.stderr), "Error: No space left on device")


def test_interrupted(folder: Path) -> None:
    """A terminal sends the interrupt to the workers too; none of them prints a traceback."""
    process = subprocess.Popen(
        [*INSTALLED, "analyze", "good", "--workers", "2", "-o", "interrupted.md"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 3:  # two workers, and what looks after them
        time.sleep(0.01)
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (1, "", "Aborted!")
    assert not (folder / "interrupted.md").exists()

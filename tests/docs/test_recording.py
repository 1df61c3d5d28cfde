"""The recipes of docs/recording.md and the checks of docs/doctor.md are what they say.

`TRACELENS_UPDATE_GOLD=1` writes the tables of docs/doctor.md anew: read the diff.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import sys
import types
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from recordings import Run

from tracelens.doctor import kineto, nsight, whole_run
from tracelens.engine import examine
from tracelens.simulate import nsight as writer

if TYPE_CHECKING:
    from tracelens.doctor.check import Check

ROOT = Path(__file__).parents[2]
RECORDING = (ROOT / "docs" / "recording.md").read_text()
DOCTOR = ROOT / "docs" / "doctor.md"
SYMBOLS = {"missing": "✗", "poorer": "▲", "remark": "–"}
TABLES: dict[str, tuple[Check[Any], ...]] = {
    "All ranks together": whole_run.CHECKS,
    "torch.profiler": kineto.CHECKS,
    "Nsight Systems": nsight.CHECKS,
}


# docs/doctor.md ----------------------------------------------------------------------------------


def table_of(checks: tuple[Check[Any], ...]) -> str:
    rows = [
        f"| `{check.name}` | {SYMBOLS[check.level]} | {', '.join(check.sections)} | "
        f"{_text(check.what)} | {_text(check.remedy)} |"
        for check in checks
    ]
    return "\n".join(["| check | | section | what | do |", "|---|---|---|---|---|", *rows])


def _text(text: str) -> str:
    letters = {"count": "N", "total": "M", "share": "P", "detail": "…"}
    for field, letter in letters.items():
        text = text.replace(f"{{{field}}}", letter)
    advice, *commands = text.split("\n")
    return " ".join([advice, *(f"`{command}`" for command in commands)]).replace("|", "\\|")


@pytest.mark.parametrize("title", TABLES)
def test_every_check_is_documented(title: str) -> None:
    pattern = re.compile(rf"(## {re.escape(title)}\n\n(?:[^|#]+\n\n)?)(\|.*?)(?=\n\n|\n*\Z)", re.S)
    found = pattern.search(DOCTOR.read_text())
    assert found is not None
    if os.environ.get("TRACELENS_UPDATE_GOLD"):
        text = DOCTOR.read_text()
        DOCTOR.write_text(text[: found.start(2)] + table_of(TABLES[title]) + text[found.end(2) :])
        found = pattern.search(DOCTOR.read_text())
        assert found is not None
    assert found[2] == table_of(TABLES[title])


# the recipes -------------------------------------------------------------------------------------


def commands() -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", RECORDING, re.DOTALL | re.MULTILINE)
    plain = [block.replace("\\\n", " ") for language, block in fenced if not language]
    return [line for block in plain for line in block.splitlines() if line]


def test_commands_of_nsys_hold_what_doctor_asks_for() -> None:
    profiles = [shlex.split(line) for line in commands() if "nsys profile" in line]
    assert len(profiles) == 3
    for words in profiles:
        assert words[words.index("-t") + 1] == "cuda,nvtx"
        assert {"-s", "--cpuctxsw=none", "--cuda-graph-trace=node", "-o"} <= set(words)
    exports = [shlex.split(line) for line in commands() if "nsys export" in line]
    (check,) = [check for check in nsight.CHECKS if check.name == "payloads-not-exported"]
    asked = shlex.split(check.remedy.partition("\n")[2])
    assert exports[0][:-1] == asked[:-1]


def described(rank: int, groups: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the page's function in a process that pretends to be a rank; return the mark it makes."""
    marks: list[str] = []
    distributed = types.SimpleNamespace(
        get_rank=lambda: rank,
        get_world_size=lambda: 2,
        get_process_group_ranks=lambda group: group,
    )
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(nvtx=types.SimpleNamespace(mark=marks.append)),
        distributed=distributed,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    (block,) = re.findall(r"^```python\n(import json\n.*?)^```", RECORDING, re.DOTALL | re.M)
    space: dict[str, Any] = {}
    exec(block, space)
    space["describe_process"](groups)
    (mark,) = marks
    return mark


def test_the_mark_brings_ranks_world_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(2)
    for number in (10, 11, 12):
        with run.step(number):
            run.compute().collective("all_reduce")
    options = writer.Options(setup=False, mark=False, links=True)
    (path,) = writer.write(run.recording(), tmp_path, per_node=True, options=options)
    before = {lack.check for lack in examine(tmp_path)[1]}
    assert before == {"no-rank", "no-members", "no-world-size"}
    insert = (
        "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) "
        "SELECT min(start), 34, ?, globalTid, 0 FROM NVTX_EVENTS WHERE globalTid / (1 << 24) = ?"
    )
    with closing(sqlite3.connect(path)) as database:
        kernels = "SELECT DISTINCT globalPid / (1 << 24) FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1"
        for rank, (process,) in enumerate(database.execute(kernels).fetchall()):
            mark = described(rank, {"dp": [0, 1]}, monkeypatch)
            database.execute(insert, (mark, process))
        database.commit()
    found, lacks = examine(tmp_path)
    assert lacks == []
    assert found.world_size == 2
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert {group.role for rank in found.ranks for c in rank.cycles for group in c.groups} == {"dp"}

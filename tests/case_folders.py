"""The folders of `$TRACELENS_CASES`: what each says, and what the command makes of its input.

`expected.md` holds a json block of right values, and lists of what the tool must and must not do.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command import run_here

from tracelens.model.result import Analysis

if TYPE_CHECKING:
    from tracelens.model.result import Notice, RankResult

FOLDERS = Path(os.environ.get("TRACELENS_CASES") or "no-cases").resolve()
NAMES = sorted(path.parent.name for path in FOLDERS.glob("*/expected.md"))


@dataclass(frozen=True)
class Case:
    """What a folder says.

    Attributes:
        values: The json block.
        must: Sentences, and `must_not`.
    """

    name: str
    input: Path
    values: dict[str, Any]
    must: tuple[str, ...]
    must_not: tuple[str, ...]

    @property
    def number(self) -> int:
        return int(self.name[:2])

    def path(self, file: str) -> Path:
        """Return the one file of the input whose name holds a text."""
        (found,) = (path for path in self.input.iterdir() if file in path.name)
        return found


@dataclass(frozen=True)
class Outcome:
    """What `tracelens analyze -v` gave: its exit code, both streams and every report."""

    case: Case
    code: int
    out: str
    err: str
    page: str = field(repr=False)
    markdown: str = field(repr=False)
    document: str = field(repr=False)

    @functools.cached_property
    def analysis(self) -> Analysis:
        return Analysis.from_json(self.document)

    @property
    def reports(self) -> str:
        """Return everything a reader may see as text, but for the page."""
        return "\n".join((self.out, self.err, self.markdown))

    def rank(self, number: int | str) -> RankResult:
        (found,) = (rank for rank in self.analysis.ranks if rank.rank == int(number))
        return found

    def notices(self, code: str) -> list[Notice]:
        return [notice for notice in self.analysis.notices if notice.code == code]

    def notice(self, code: str) -> Notice:
        """Return the notice of a code; it stands once, in every report too."""
        (found,) = self.notices(code)
        assert self.err.count(f"[{code}]") == 1
        assert self.markdown.count(f"| {code} |") == 1
        assert code in self.page
        return found


@functools.cache
def case(name: str) -> Case:
    """Read a folder's expected.md."""
    text = (FOLDERS / name / "expected.md").read_text(encoding="utf-8")
    block = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert block is not None, f"{name} has no json block"
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    lists = {
        part.partition("\n")[0]: tuple(re.findall(r"^- (.+)$", part, re.MULTILINE))
        for part in parts
    }
    return Case(
        name,
        FOLDERS / name / "input",
        json.loads(block[1]),
        lists["The tool must"],
        lists["The tool must not"],
    )


@functools.cache
def outcome(name: str) -> Outcome:
    """Run the command on a folder's input, once for all tests."""
    read = case(name)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"report.{suffix}" for suffix in ("html", "md", "json")]
        outputs = [part for file in names for part in ("-o", file)]
        done = run_here("analyze", read.input, "-v", *outputs, cwd=Path(folder))
        texts = [(Path(folder) / file).read_bytes().decode("utf-8") for file in names]
    return Outcome(read, done.code, done.out, done.err, *texts)

"""One check of a capture, what it finds, and how that is said once for many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Looked = TypeVar("Looked")
Level = Literal["missing", "poorer", "remark"]

LEVELS: tuple[Level, ...] = ("missing", "poorer", "remark")
SECTIONS = ("Step", "Collectives", "Volume", "Pipeline", "Layout", "Stability", "Kernels", "Trust")
"""The sections of the report, as its navigation names them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found in one file.

    Attributes:
        count: How many things lack something.
        total: Of how many.
        detail: A name or number of the file's own; finds with different details are said apart.
    """

    count: int = 0
    total: int = 0
    detail: str = ""

    def __add__(self, other: Found) -> Found:
        """Sum up two files that lack the same."""
        return Found(self.count + other.count, self.total + other.total, self.detail)


@dataclass(frozen=True, slots=True)
class Check(Generic[Looked]):
    """One row of a table of checks.

    Attributes:
        name: What `--json` calls it.
        level: missing: a section is empty or wrong without it. poorer: a section says less, or
            gives bounds. remark: no number of the report changes.
        sections: Whom it concerns.
        what: What lacks, with the fields {count}, {total}, {share} (in per cent) and {detail}.
        costs: What the report cannot say without it.
        remedy: What would bring it.
        find: Looks at one file (or run) and returns what it finds, or None.
    """

    name: str
    level: Level
    sections: tuple[str, ...]
    what: str
    costs: str
    remedy: str
    find: Callable[[Looked], Found | None]

    def say(self, found: Found) -> str:
        """Put what was found into words."""
        share = f"{100 * found.count / found.total:.0f}" if found.total else "?"
        return self.what.format(
            count=f"{found.count:,}",
            total=f"{found.total:,}",
            share=share,
            detail=found.detail,
        )


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that lacks, on one rank or many."""

    check: str
    level: Level
    sections: tuple[str, ...]
    what: str
    costs: str
    remedy: str
    ranks: tuple[int, ...]
    files: tuple[str, ...]

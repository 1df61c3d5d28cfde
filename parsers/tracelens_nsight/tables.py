"""An export as tables, whatever holds them: what the readers offer, and what they are asked.

Exports of 2019 to 2026 differ in tables and columns, so both are looked up, never assumed from a
version. A missing column reads as `NONE` or "", as NULL does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints


@dataclass(frozen=True, slots=True)
class Between:
    """Rows whose integer lies between two bounds, both included."""

    column: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """Rows whose integer is one of these."""

    column: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """Rows whose text begins with one of these."""

    column: str
    beginnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unlike:
    """Rows whose text begins with none of these and holds none of those; no text passes."""

    column: str
    beginnings: tuple[str, ...]
    parts: tuple[str, ...] = ()


Condition = Between | OneOf | Like | Unlike


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of texts: each distinct text once, and its place per row."""

    codes: NDArray[np.int64]
    names: list[str]

    def texts(self) -> list[str]:
        """Return the text of every row."""
        return [self.names[code] for code in self.codes]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some columns of some rows."""

    integers: dict[str, Ints]
    texts: dict[str, Coded] = field(default_factory=dict)
    blobs: dict[str, list[bytes]] = field(default_factory=dict)

    def __len__(self) -> int:
        lengths = [len(values) for values in self.integers.values()]
        lengths += [len(coded.codes) for coded in self.texts.values()]
        return lengths[0] if lengths else 0


class Tables(Protocol):
    """The tables of one export; rows come in the same order whatever columns are asked for."""

    @property
    def columns(self) -> Mapping[str, frozenset[str]]:
        """The names of the columns of each table."""

    def read(
        self,
        table: str,
        integers: Sequence[str] = (),
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> Rows:
        """Read columns; NULL, and a column or table that is not there, is `NONE` or empty."""

    def distinct(self, table: str, column: str) -> Ints:
        """Return the distinct integers of a column, ascending; NULL is left out."""

    def pairs(self, table: str, first: str, second: str) -> tuple[Ints, Ints]:
        """Return the distinct pairs of integers in two columns; pairs with NULL are left out."""

    def count(self, table: str) -> int:
        """Return the number of rows of a table, 0 if it is not there."""

    def holds(self, table: str) -> bool:
        """Tell whether a table has rows, without counting them."""

    def close(self) -> None:
        """Let go of the files."""


def nothing(integers: Sequence[str], texts: Sequence[str], blobs: Sequence[str]) -> Rows:
    """Return no rows of some columns."""
    return filled({}, {}, {}, 0, integers, texts, blobs)


def filled(
    found: Mapping[str, Ints],
    coded: Mapping[str, Coded],
    raw: Mapping[str, list[bytes]],
    rows: int,
    integers: Sequence[str],
    texts: Sequence[str],
    blobs: Sequence[str],
) -> Rows:
    """Return the columns asked for; those that were not there are empty."""
    return Rows(
        {n: found[n] if n in found else np.full(rows, NONE) for n in integers},
        {n: coded[n] if n in coded else Coded(np.zeros(rows, np.int64), [""]) for n in texts},
        {n: raw[n] if n in raw else [b""] * rows for n in blobs},
    )


_VERSIONED = re.compile(r"_V\d+$")


def resolve(names: Iterable[str]) -> dict[str, str]:
    """Map the plain names of tables to those there are: some exports append `_V2`, `_V3`.

    The highest version wins.
    """
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        found[_VERSIONED.sub("", name)] = name
    return found

"""Rows of single processes out of tables that hold all of an export.

Exports have no indexes, so each question costs a pass over a table. A table of moderate size is
read once and cut by process; one too large for that is asked again for each process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens_nsight.identifiers import last_thread, process_of
from tracelens_nsight.strings import Strings
from tracelens_nsight.tables import Between, Coded, Rows, nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.intervals import Ints
    from tracelens_nsight.tables import Condition, Tables

_KEPT_BYTES = 160 << 20  # of one table

Question = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], "tuple[Condition, ...]"]


class Export:
    """The tables of an export, asked for one process after the other.

    Args:
        tables: The tables.
        alone: Whether the rows of a table that names no process are those of the only one.
    """

    def __init__(self, tables: Tables, *, alone: bool) -> None:
        self.tables = tables
        self.alone = alone
        self.strings = Strings(tables)
        self._rows: dict[str, int] = {}
        self._kept: dict[Question, tuple[Rows, Ints]] = {}

    def of(
        self,
        process: int,
        table: str,
        column: str,
        integers: Sequence[str],
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> Rows:
        """Return the rows of a process.

        Args:
            process: Its globalPid.
            table: The table.
            column: The column with its id or its threads'.
            integers: Integer columns.
            texts: Text columns.
            blobs: Binary columns.
            where: Further conditions.
        """
        if column not in self.tables.columns.get(table, ()):
            if self.alone:
                return self.tables.read(table, integers, texts, blobs, where)
            return nothing(integers, texts, blobs)
        if table not in self._rows:
            self._rows[table] = self.tables.count(table)
        if self._rows[table] * 8 * (len(integers) + len(texts)) > _KEPT_BYTES:
            mine = Between(column, process, last_thread(process))
            return self.tables.read(table, integers, texts, blobs, [mine, *where])
        key = (table, (*integers, column), tuple(texts), tuple(blobs), tuple(where))
        if key not in self._kept:
            wanted = list(dict.fromkeys(key[1]))
            rows = self.tables.read(table, wanted, texts, blobs, where)
            self._kept[key] = rows, process_of(rows.integers[column])
        rows, owner = self._kept[key]
        return _picked(rows, np.flatnonzero(owner == process), integers)


def _picked(rows: Rows, places: Ints, integers: Sequence[str]) -> Rows:
    return Rows(
        {name: rows.integers[name][places] for name in integers},
        {name: _used(coded, places) for name, coded in rows.texts.items()},
        {name: [blobs[place] for place in places.tolist()] for name, blobs in rows.blobs.items()},
    )


def _used(coded: Coded, places: Ints) -> Coded:
    """Return the texts of some rows without those of the others."""
    codes, used = pd.factorize(coded.codes[places])
    return Coded(np.asarray(codes, np.int64), [coded.names[code] for code in used.tolist()])

"""Read an SQLite export: the standard library, or Arrow's driver where it is installed.

The file is opened read-only and immutable: nothing is written into it or beside it, and no lock of
another program stops the reading. That also means SQLite would not look at a journal, so a file
with one is refused: it may miss rows, or hold half of a change.
"""

from __future__ import annotations

import os
import sqlite3
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np

from tracelens.errors import UnreadableTrace
from tracelens.model.trace import NONE
from tracelens_nsight.tables import (
    Between,
    Coded,
    Condition,
    Like,
    OneOf,
    Rows,
    Unlike,
    filled,
    nothing,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tracelens.intervals import Ints

_BATCH = 1 << 15
_LEAST_ROW = 6  # bytes: a cell of a page and its pointer (SQLite's file format, 1.6)
_SHOWN = 200  # letters of what SQLite says
_T = TypeVar("_T")


class SqliteTables:
    """The tables of an SQLite file.

    Raises:
        UnreadableTrace: If it is no sound database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = path.resolve()  # journals lie beside the file itself, not beside a link to it
        _refuse_unfinished(path, whole)
        uri = f"file:{quote(os.fsencode(whole))}?mode=ro&immutable=1"
        self._connection = self._sound(lambda: sqlite3.connect(uri, uri=True))
        self._connection.text_factory = _decoded
        self._arrow = _arrow_driver(uri)
        self._most = whole.stat().st_size // _LEAST_ROW
        self._counts: dict[str, int] = {}
        # Tables with pages alone: a virtual one would run code to make up its rows.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        listed = self._fetch(query)
        self._names = resolve(str(name) for (name,) in listed)
        self.columns = {plain: self._columns_of(name) for plain, name in self._names.items()}

    def _columns_of(self, name: str) -> frozenset[str]:
        return frozenset(str(row[1]) for row in self._fetch(f"PRAGMA table_info({_quoted(name)})"))

    def read(
        self,
        table: str,
        integers: Sequence[str] = (),
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> Rows:
        """Read columns."""
        there = self.columns.get(table, frozenset())
        wanted = [[name for name in names if name in there] for names in (integers, texts, blobs)]
        if not any(wanted):
            return nothing(integers, texts, blobs)
        query, values = self._query(table, wanted, where)
        found = self._sound(lambda: self._run(query, values, wanted))
        rows = len(found)
        parts = found.integers, found.texts, found.blobs
        return filled(*parts, rows, integers, texts, blobs)

    def distinct(self, table: str, column: str) -> Ints:
        """Return the distinct integers of a column."""
        return np.sort(self._distinct(table, column)[:, 0])

    def pairs(self, table: str, first: str, second: str) -> tuple[Ints, Ints]:
        """Return the distinct pairs of integers in two columns."""
        found = self._distinct(table, first, second)
        return found[:, 0], found[:, 1]

    def _distinct(self, table: str, *columns: str) -> NDArray[np.int64]:
        if not self.columns.get(table, frozenset()).issuperset(columns):
            return np.empty((0, len(columns)), np.int64)
        source, values = self._source(table, ())
        shown = ", ".join(map(_quoted, columns))
        found = self._fetch(f"SELECT DISTINCT {shown} FROM {source}", values)  # noqa: S608
        whole = [row for row in found if None not in row]
        return self._sound(lambda: np.array(whole, np.int64).reshape(-1, len(columns)))

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        if table not in self.columns:
            return 0
        if table not in self._counts:
            self._counts[table] = self._counted(_quoted(self._names[table]))
        return self._counts[table]

    def _counted(self, name: str) -> int:
        """Count the rows of a table: pages that lead back to each other would never end."""
        some = f"SELECT 1 FROM {name} NOT INDEXED LIMIT {self._most + 1}"  # noqa: S608
        count = int(self._fetch(f"SELECT count(*) FROM ({some})")[0][0])  # noqa: S608
        if count > self._most:
            raise self._damaged(f"more rows in {name} than fit into the file")
        return count

    def holds(self, table: str) -> bool:
        """Tell whether a table has rows, without counting them."""
        if table not in self.columns:
            return False
        found = self._fetch(f"SELECT EXISTS (SELECT 1 FROM {_quoted(self._names[table])})")  # noqa: S608
        return bool(found[0][0])

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _query(
        self, table: str, wanted: Sequence[Sequence[str]], where: Sequence[Condition]
    ) -> tuple[str, list[Any]]:
        defaults = (str(NONE), "''", "x''")
        shown = ", ".join(
            f"coalesce({_quoted(name)}, {default}) AS {_quoted(name)}"
            for names, default in zip(wanted, defaults, strict=True)
            for name in names
        )
        source, values = self._source(table, where)
        return f"SELECT {shown} FROM {source}", values  # noqa: S608

    def _source(self, table: str, where: Sequence[Condition]) -> tuple[str, list[Any]]:
        """Return what follows FROM, and the values in it; the table is known to end."""
        self.count(table)
        parts = [_sql(one) for one in where if one.column in self.columns[table]]
        tests = " AND ".join(text for text, _ in parts)
        values = [value for _, given in parts for value in given]
        name = f"{_quoted(self._names[table])} NOT INDEXED"  # an index may say something else
        return name + (f" WHERE {tests}" if tests else ""), values

    def _run(self, query: str, values: list[Any], wanted: Sequence[Sequence[str]]) -> Rows:
        if self._arrow is not None:
            found: Rows = self._arrow(query, values, wanted)
            return found
        cursor = self._connection.execute(query, values)
        integers, texts, blobs = wanted
        return _plain(cursor, integers) if not (texts or blobs) else _mixed(cursor, wanted)

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._sound(lambda: self._connection.execute(query, values).fetchall())

    def _sound(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
            raise self._damaged(str(error)[:_SHOWN]) from error

    def _damaged(self, why: str) -> UnreadableTrace:
        return UnreadableTrace(
            f"{self.path}: a damaged SQLite database ({why})", slug="unreadable-file"
        )


def _plain(cursor: Iterable[tuple[Any, ...]], names: Sequence[str]) -> Rows:
    """Read integers only: no row becomes a Python list."""
    table = np.fromiter(chain.from_iterable(cursor), np.int64).reshape(-1, len(names))
    return Rows({name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)})


def _mixed(cursor: sqlite3.Cursor, wanted: Sequence[Sequence[str]]) -> Rows:
    integers, texts, blobs = wanted
    numbers: list[list[Ints]] = [[] for _ in integers]
    known: list[dict[str, int]] = [{} for _ in texts]
    codes: list[list[Ints]] = [[] for _ in texts]
    raw: list[list[bytes]] = [[] for _ in blobs]
    while batch := cursor.fetchmany(_BATCH):
        columns = list(zip(*batch, strict=True))
        for part, values in zip(numbers, columns, strict=False):
            part.append(np.array(values, np.int64))
        for seen, part, values in zip(known, codes, columns[len(integers) :], strict=False):
            part.append(np.array([seen.setdefault(v, len(seen)) for v in map(_text, values)]))
        for found, values in zip(raw, columns[len(integers) + len(texts) :], strict=True):
            found.extend(map(_blob, values))
    return Rows(
        {name: _joined(part) for name, part in zip(integers, numbers, strict=True)},
        {
            name: Coded(_joined(part), list(seen))
            for name, part, seen in zip(texts, codes, known, strict=True)
        },
        dict(zip(blobs, raw, strict=True)),
    )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return _decoded(value)
    return value if isinstance(value, str) else str(value)


def _blob(value: object) -> bytes:
    """Return bytes: the column is declared TEXT, and a reader of texts would decode them."""
    return value if isinstance(value, bytes) else str(value).encode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql(condition: Condition) -> tuple[str, list[Any]]:
    """Return a condition as SQL, and its parameters."""
    column = _quoted(condition.column)
    match condition:
        case Between(_, low, high):
            return f"{column} BETWEEN {int(low)} AND {int(high)}", []
        case OneOf(_, values):
            # Integers of ours: a statement takes only so many parameters.
            return f"{column} IN ({', '.join(str(int(value)) for value in values)})", []
        case Like(_, beginnings):
            globs = " OR ".join(f"{column} GLOB ?" for _ in beginnings)
            patterns = [f"{_glob(text)}*" for text in beginnings]
            # One look at the first letter spares most rows the others.
            return f"({column} GLOB ? AND ({globs}))", [_first_letters(beginnings), *patterns]
        case Unlike(_, beginnings, parts):
            globs = " OR ".join(f"{column} GLOB ?" for _ in (*beginnings, *parts))
            patterns = [f"{_glob(text)}*" for text in beginnings]
            patterns += [f"*{_glob(text)}*" for text in parts]
            return f"({column} IS NULL OR NOT ({globs}))", patterns


def _glob(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _first_letters(beginnings: Sequence[str]) -> str:
    """Return a pattern of all that begins with a letter with which one of these begins."""
    letters = {text[:1] for text in beginnings}
    plain = letters.isdisjoint({"", "]", "^", "-"})  # these have a meaning in a set
    return f"[{''.join(sorted(letters))}]*" if plain else "*"


def _refuse_unfinished(path: Path, whole: Path) -> None:
    """Refuse a database whose last changes are not in the file."""
    for suffix, what in (("-wal", "write-ahead log"), ("-journal", "journal")):
        for beside in (path.with_name(path.name + suffix), whole.with_name(whole.name + suffix)):
            if _is_empty(beside):
                continue
            raise UnreadableTrace(
                f"{path}: its {what} {beside.name} holds changes that are not in the file yet: let "
                "the program that writes it end, or export again",
                slug="unreadable-file",
            )


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return True


def _arrow_driver(uri: str) -> Callable[[str, list[Any], Sequence[Sequence[str]]], Rows] | None:
    """Return the faster reader if Arrow's SQLite driver is installed (extra `nsight`)."""
    try:
        from tracelens_nsight import adbc
    except ImportError:
        return None
    return adbc.reader(uri)

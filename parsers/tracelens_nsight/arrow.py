"""Turn Arrow tables into plain rows, and read exports of one Parquet or Arrow file a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelens import limits
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
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.intervals import Ints

SUFFIXES = (".parquet", ".arrow")
_SHOWN = 200  # letters of what Arrow says


def rows(table: pa.Table, wanted: Sequence[Sequence[str]]) -> Rows:
    """Return integer, text and blob columns of a table."""
    integers, texts, blobs = wanted
    return Rows(
        {name: _integers(table[name]) for name in integers},
        {name: _coded(table[name]) for name in texts},
        {name: _blobs(table[name]) for name in blobs},
    )


def _integers(column: pa.ChunkedArray) -> Ints:
    if pa.types.is_uint64(column.type):  # 64-bit ids keep their bits
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    elif not pa.types.is_int64(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, NONE)
    return np.asarray(column.to_numpy(), np.int64)


def _coded(column: pa.ChunkedArray) -> Coded:
    encoded = pc.dictionary_encode(pc.fill_null(_raw(column), b"")).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no rows
        return Coded(np.empty(0, np.int64), [])
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
    return Coded(codes, [raw.decode("utf-8", "replace") for raw in encoded.dictionary.to_pylist()])


def _raw(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as bytes: what a program wrote need not be UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _blobs(column: pa.ChunkedArray) -> list[bytes]:
    return [_bytes(value) for value in column.to_pylist()]


def _bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode()


class ArrowTables:
    """The tables of a folder that `nsys export -t parquetdir` or `-t arrowdir` wrote.

    Raises:
        UnreadableTrace: If a file in it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES}
        self._files = {plain: files[name] for plain, name in resolve(files).items()}
        self.columns = {plain: frozenset(self._names(file)) for plain, file in self._files.items()}

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
        tests = [one for one in where if one.column in there]
        if not any(wanted):
            return nothing(integers, texts, blobs)
        kept = self._sound(lambda: self._rows(table, wanted, tests))
        parts = kept.integers, kept.texts, kept.blobs
        return filled(*parts, len(kept), integers, texts, blobs)

    def _rows(self, table: str, wanted: list[list[str]], tests: list[Condition]) -> Rows:
        names = [name for part in wanted for name in part]
        found = self._table(self._files[table], [*names, *(one.column for one in tests)])
        for test in tests:
            found = found.filter(_mask(found[test.column], test))
        return rows(found, wanted)

    def distinct(self, table: str, column: str) -> Ints:
        """Return the distinct integers of a column."""
        values = np.unique(self.read(table, [column]).integers[column])
        return np.asarray(values[values != NONE], np.int64)

    def pairs(self, table: str, first: str, second: str) -> tuple[Ints, Ints]:
        """Return the distinct pairs of integers in two columns."""
        found = self.read(table, [first, second]).integers
        both = np.unique(np.column_stack([found[first], found[second]]), axis=0)
        whole = both[(both != NONE).all(axis=1)]
        return whole[:, 0], whole[:, 1]

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        file = self._files.get(table)
        if file is None:
            return 0
        if file.suffix == ".parquet":
            return int(self._sound(lambda: pq.read_metadata(file).num_rows))
        names = sorted(self.columns[table])[:1]
        return len(self._table(file, names))

    def holds(self, table: str) -> bool:
        """Tell whether a table has rows."""
        return self.count(table) > 0

    def close(self) -> None:
        """Nothing stays open."""

    def _names(self, file: Path) -> list[str]:
        read = pq.read_schema if file.suffix == ".parquet" else _schema
        return list(self._sound(lambda: read(file).names))

    def _table(self, file: Path, names: Sequence[str]) -> pa.Table:
        distinct = list(dict.fromkeys(names))
        if file.suffix == ".parquet":
            self._bound(file)
            return self._sound(lambda: pq.read_table(file, columns=distinct))
        return self._sound(lambda: _checked(_stream(file).read_all().select(distinct)))

    def _bound(self, file: Path) -> None:
        """Refuse a table that is far larger than its file: equal values take next to no room."""
        shape = self._sound(lambda: pq.read_metadata(file))
        allowed = limits.current().bytes_for(file.stat().st_size)
        if shape.num_rows * shape.num_columns * 8 > allowed:
            raise UnreadableTrace(
                f"{self.path}: {file.name}: {limits.exceeded(allowed)}", slug="unreadable-file"
            )

    def _sound(self, read: Any) -> Any:
        try:
            return read()
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0][:_SHOWN]
            raise UnreadableTrace(
                f"{self.path}: a damaged table ({reason})", slug="unreadable-file"
            ) from error


def _stream(file: Path) -> Any:
    """Open an Arrow file: with a footer, or a stream without."""
    source = pa.memory_map(str(file))
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(pa.memory_map(str(file)))


def _schema(file: Path) -> Any:
    return _stream(file).schema


def _checked(table: pa.Table) -> pa.Table:
    """Hold the places of texts against the memory there is: Arrow files are mapped as they are.

    Texts are taken for bytes, as they need not be UTF-8.
    """
    fields = [f.with_type(pa.binary()) if pa.types.is_string(f.type) else f for f in table.schema]
    checked = table.cast(pa.schema(fields))
    checked.validate(full=True)
    return checked


def _mask(column: pa.ChunkedArray, condition: Condition) -> pa.ChunkedArray:
    match condition:
        case Between(_, low, high):
            values = _integers(column)
            return pa.array((values >= low) & (values <= high))
        case OneOf(_, listed):
            return pa.array(np.isin(_integers(column), listed))
        case Like(_, beginnings):
            return _any(column, beginnings, ())
        case Unlike(_, beginnings, parts):
            return pc.invert(_any(column, beginnings, parts))


def _any(column: pa.ChunkedArray, beginnings: Sequence[str], parts: Sequence[str]) -> Any:
    texts = pc.fill_null(_raw(column), b"")
    found = pc.match_substring(texts, "\0never\0")
    for text in beginnings:
        found = pc.or_(found, pc.starts_with(texts, text))
    for text in parts:
        found = pc.or_(found, pc.match_substring(texts, text))
    return found

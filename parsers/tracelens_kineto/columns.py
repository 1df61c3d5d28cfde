"""Grow tables block by block: python lists for one block, numpy arrays for all blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracelens.model.facts import LARGEST_SIZE
from tracelens.model.trace import INT, NAME, NONE, frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def integers(values: Iterable[Any]) -> NDArray[np.int64]:
    """Convert recorded numbers (or strings of numbers) to int64; what is none becomes `NONE`."""
    items = list(values)
    try:
        return np.array(items, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((integer(item) for item in items), np.int64, len(items))


def sizes(values: Iterable[Any], largest: int = LARGEST_SIZE) -> NDArray[np.int64]:
    """Convert recorded sizes and counts; what is negative or too large becomes `NONE`."""
    numbers = (_number(value) for value in values)
    return np.array([n if 0 <= n <= largest else NONE for n in numbers], np.int64)


def integer(value: object) -> int:
    """Convert one recorded number; 64-bit ids beyond 2^63 keep their bits."""
    return (_number(value) + (1 << 63)) % (1 << 64) - (1 << 63)


def _number(value: object) -> int:
    if value is None or isinstance(value, bool):
        return NONE
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError, OverflowError):
        return _integer_from_text(str(value))


def _integer_from_text(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return NONE


class Names:
    """Strings as codes: each distinct name is kept once."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def codes(self, names: Iterable[str]) -> NDArray[np.int32]:
        """Return the code of each name."""
        table = self._codes
        return np.array([table.setdefault(name, len(table)) for name in names], np.int32)

    def categorical(self, codes: NDArray[np.int32]) -> pd.Categorical:
        """Turn codes back into a categorical column."""
        return pd.Categorical.from_codes(
            codes, categories=pd.Index(list(self._codes), dtype=object)
        )


class Columns:
    """One table under construction, with the columns of a schema of tracelens.model.trace."""

    def __init__(self, schema: dict[str, str]) -> None:
        self._schema = schema
        self._names = {name: Names() for name, kind in schema.items() if kind == NAME}
        self._parts: list[dict[str, Any]] = []

    def append(self, **columns: Any) -> None:
        """Add a block; integers may be arrays or lists, names are lists of strings."""
        part: dict[str, Any] = {}
        for name, values in columns.items():
            if self._schema[name] == NAME:
                part[name] = self._names[name].codes(values)
            elif self._schema[name] == INT:
                is_array = isinstance(values, np.ndarray)
                part[name] = values if is_array else integers(values)
            else:
                part[name] = list(values)
        self._parts.append(part)

    def arrays(self) -> dict[str, Any]:
        """Join the blocks; a column no block gave is missing from the result."""
        given = {name for part in self._parts for name in part}
        return {name: self._join(name) for name in self._schema if name in given}

    def _join(self, name: str) -> Any:
        parts = [self._part(name, part) for part in self._parts]
        if self._schema[name] == NAME:
            return self._names[name].categorical(np.concatenate(parts))
        if self._schema[name] == INT:
            return np.concatenate(parts)
        return [value for part in parts for value in part]

    def _part(self, name: str, part: dict[str, Any]) -> Any:
        if name in part:
            return part[name]
        rows = len(next(iter(part.values())))
        if self._schema[name] == NAME:
            return self._names[name].codes([""] * rows)
        return np.full(rows, NONE) if self._schema[name] == INT else [""] * rows

    def table(self) -> pd.DataFrame:
        """Return the finished table."""
        return frame(self._schema, self.arrays())

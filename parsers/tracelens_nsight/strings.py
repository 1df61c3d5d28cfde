"""Look up strings by id, only those that are asked for.

The table of strings also holds what the program printed and every path it opened; none of that is
ever read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.model.trace import NONE
from tracelens_nsight.tables import OneOf

if TYPE_CHECKING:
    from tracelens.intervals import Ints
    from tracelens_nsight.tables import Tables

_AT_ONCE = 20_000  # ids in one statement


class Strings:
    """The strings of an export; each is read once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: dict[int, str] = {NONE: ""}

    def of(self, ids: Ints) -> list[str]:
        """Return the strings of some distinct ids; an id that is not there gives ""."""
        missing = [int(one) for one in ids if int(one) not in self._known]
        for low in range(0, len(missing), _AT_ONCE):
            part = tuple(missing[low : low + _AT_ONCE])
            found = self._tables.read("StringIds", ["id"], ["value"], where=[OneOf("id", part)])
            texts = found.texts["value"].texts()
            self._known.update(zip(found.integers["id"].tolist(), texts, strict=True))
        return [self._known.get(int(one), "") for one in ids]

    def coded(self, ids: Ints) -> tuple[Ints, list[str]]:
        """Return per row the place of its string in a list of distinct strings."""
        place, found = pd.factorize(ids)
        names = self.of(np.asarray(found, np.int64))
        kept = list(dict.fromkeys(names))
        where = {name: number for number, name in enumerate(kept)}
        renumbered = np.array([where[name] for name in names], np.int64)
        return (renumbered[place] if len(ids) else np.empty(0, np.int64)), kept

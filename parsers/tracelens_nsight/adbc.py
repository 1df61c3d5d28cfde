"""Read SQLite through Arrow's driver: two to three times as fast (extra `nsight`)."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import adbc_driver_sqlite.dbapi as driver
import pyarrow as pa

from tracelens_nsight import arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_nsight.tables import Rows


def reader(uri: str) -> Callable[[str, list[Any], Sequence[Sequence[str]]], Rows]:
    """Return a function that runs a query and gives its columns as arrays."""

    def read(query: str, values: list[Any], wanted: Sequence[Sequence[str]]) -> Rows:
        try:
            with driver.connect(uri) as connection, connection.cursor() as cursor:
                cursor.execute(query, values or None)
                return arrow.rows(cursor.fetch_arrow_table(), wanted)
        except (driver.Error, pa.ArrowException, OSError) as error:
            raise sqlite3.DatabaseError(str(error).partition("\n")[0]) from error

    return read

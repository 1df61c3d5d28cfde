"""The plugin: recognise and inspect an export; parsing is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.errors import UnreadableTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelens.model.facts import FileFacts
    from tracelens.model.trace import RankTrace
    from tracelens_nsight.tables import Tables

_SQLITE = b"SQLite format 3\x00"
_OURS = frozenset(
    {"META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE", "CUPTI_ACTIVITY_KIND_RUNTIME"}
)


class NsightParser:
    """Reads exports of Nsight Systems: SQLite."""

    name = "nsight"
    formats: tuple[str, ...] = ("nsight-sqlite",)
    suffixes: tuple[str, ...] = (".sqlite",)

    def recognise(self, path: Path, head: bytes) -> str | None:
        """Return the format of an export; a damaged database is taken too, to say so."""
        if not head.startswith(_SQLITE):
            return None
        try:
            tables = _open(path)
        except UnreadableTrace:
            return "nsight-sqlite"
        try:
            return "nsight-sqlite" if _OURS & tables.columns.keys() else None
        finally:
            tables.close()

    def inspect(self, path: Path) -> FileFacts:
        """Say what an export holds without reading its events."""
        from tracelens_nsight.inspection import inspect

        return inspect(_open(path), path, "nsight-sqlite")

    def parse(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> Iterator[RankTrace]:
        """Yield one `RankTrace` for each process that used a GPU.

        Raises:
            UnreadableTrace: If the export holds no work of a GPU, or is damaged.
        """
        from tracelens_nsight.reading import read

        yield from read(_open(path), path, "nsight-sqlite", path.stat().st_size, on_bytes)


def _open(path: Path) -> Tables:
    from tracelens_nsight.sqlite import SqliteTables

    return SqliteTables(path)

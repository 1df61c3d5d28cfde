"""The plugin: recognise and inspect exports and reports; parsing is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.errors import UnreadableTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelens.model.facts import FileFacts
    from tracelens.model.trace import RankTrace
    from tracelens_nsight.tables import Tables

SQLITE, PARQUET, ARROW, REPORT = (
    "nsight-sqlite",
    "nsight-parquet",
    "nsight-arrow",
    "nsight-report",
)
_MAGIC = b"SQLite format 3\x00"
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_OURS = frozenset(
    {
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "META_DATA_CAPTURE",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        _KERNELS,
    }
)
_FOLDERS = {".parquet": PARQUET, ".arrow": ARROW}
_REPORTS = (".nsys-rep", ".qdrep")


class NsightParser:
    """Reads exports of Nsight Systems, and reports where `nsys` is installed."""

    name = "nsight"
    formats: tuple[str, ...] = (SQLITE, PARQUET, ARROW, REPORT)
    suffixes: tuple[str, ...] = (".sqlite", *_REPORTS)

    def recognise(self, path: Path, head: bytes) -> str | None:
        """Return the format of an export; a damaged database is taken too, to say so."""
        if path.is_dir():
            return _folder(path)
        if path.suffix.lower() in _REPORTS:
            return REPORT
        plain = head.startswith(_MAGIC) and _head(path).startswith(_MAGIC)
        return SQLITE if plain and _is_ours(path) else None

    def superseded_by(self, path: Path) -> Path | None:
        """Return the export that says the same as a report or another export, if it is there.

        `nsys recipe` leaves folders with single tables beside a report: those do not stand for it.
        """
        stem = path.stem.removesuffix("_pqtdir").removesuffix("_arwdir")
        for ending in (".sqlite", "_pqtdir", "_arwdir"):
            beside = path.with_name(stem + ending)
            if beside == path:
                return None
            if beside.is_file() or _has_kernels(beside):
                return beside
        return None

    def inspect(self, path: Path) -> FileFacts:
        """Say what an export holds without reading its events."""
        from tracelens_nsight import inspection

        form = self.recognise(path, _head(path)) or SQLITE
        if form == REPORT:
            return inspection.inspect_report(path, form)
        return inspection.inspect(_open(path, form), path, form)

    def parse(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> Iterator[RankTrace]:
        """Yield one `RankTrace` for each process that used a GPU.

        Raises:
            UnreadableTrace: If there is no work of a GPU, or if it is damaged.
        """
        from tracelens_nsight.reading import read

        form = self.recognise(path, _head(path)) or SQLITE
        files = path.iterdir() if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in files)
        yield from read(_open(path, form), path, form, size, on_bytes)


def _head(path: Path) -> bytes:
    if path.is_dir():
        return b""
    with path.open("rb") as file:
        return file.read(len(_MAGIC))


def _folder(path: Path) -> str | None:
    """Return the format of a folder with one file a table; names of tables are enough."""
    for suffix, form in _FOLDERS.items():
        if any((path / f"{name}{suffix}").is_file() for name in (*_OURS, "StringIds")):
            return form
    return None


def _has_kernels(folder: Path) -> bool:
    """Tell whether a folder holds the table a recording is read for."""
    names = (f"{_KERNELS}{suffix}" for suffix in _FOLDERS)
    return any((folder / name).is_file() for name in names)


def _is_ours(path: Path) -> bool:
    from tracelens_nsight.sqlite import SqliteTables

    try:
        tables = SqliteTables(path)
    except UnreadableTrace:
        return True
    try:
        return bool(_OURS & tables.columns.keys())
    finally:
        tables.close()


def _open(path: Path, form: str) -> Tables:
    """Open an export.

    Raises:
        UnreadableTrace: If it is damaged, or if what is needed to read it is not installed.
    """
    if form in _FOLDERS.values():
        return _open_folder(path)
    from tracelens_nsight.sqlite import SqliteTables

    if form != REPORT:
        return SqliteTables(path)
    from tracelens_nsight.report import exported

    return SqliteTables(exported(path))


def _open_folder(path: Path) -> Tables:
    try:
        from tracelens_nsight.arrow import ArrowTables
    except ImportError as error:
        raise UnreadableTrace(
            f"{path}: Parquet and Arrow files need pyarrow: `pip install "
            "'tracelens-distributed[nsight]'`, or export as SQLite",
            slug="unreadable-file",
        ) from error
    return ArrowTables(path)

"""Write results: whole or not at all, never over a file the user did not offer."""

from __future__ import annotations

import os
import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.addresses import is_remote, shown
from tracelens.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from io import FileIO

    from tracelens.model.result import Analysis, Notice

_ALIKE = 5
DEFAULT_FOLDER = Path("tracelens-report")
STDOUT = "-"


def check_targets(targets: list[Path], *, force: bool) -> None:
    """Refuse to overwrite and catch unknown formats before anything is read.

    Raises:
        OutputError: If a target exists (without `-f`) or its folder does not.
        PluginError: If no report writes a target's format.
    """
    from tracelens.registry import report_for

    for target in targets:
        refuse_address(target)
        if target.suffix.lower() != ".json":
            report_for(target.suffix)
        check_target(target, force=force)


def check_target(target: Path, *, force: bool) -> None:
    """Refuse one target that exists already or has no folder.

    Raises:
        OutputError: Naming it.
    """
    refuse_address(target)
    if target.is_dir():
        raise OutputError(f"{target} is a folder", slug="cannot-write")
    if target.exists() and not force and not _is_stream(target):
        raise OutputError(
            f"{target} exists already", hint="add -f to overwrite it", slug="would-overwrite"
        )
    if not target.parent.is_dir():
        raise OutputError(f"{target.parent}: no such folder", slug="cannot-write")
    if target.is_block_device() or target.is_socket():
        raise OutputError(f"{target} is a disk or a socket, not a file", slug="cannot-write")


def refuse_address(target: Path) -> None:
    """Refuse to write to another machine, before a folder called `s3:` comes of it.

    Raises:
        OutputError: If the target is an address such as `s3://bucket/report.html`.
    """
    if is_remote(target):
        raise OutputError(
            f"{shown(target)}: results are written to local files only",
            hint="name a local file with -o, and copy it there afterwards",
            slug="cannot-write",
        )


def check_default_folder(*, force: bool) -> list[Path]:
    """Return the default targets; the folder is refreshed only if TraceLens wrote it.

    Raises:
        OutputError: If something else is in the way.
    """
    targets = [DEFAULT_FOLDER / "report.html", DEFAULT_FOLDER / "analysis.json"]
    if DEFAULT_FOLDER.exists() and not force and not _ours(targets[1]):
        foreign = not DEFAULT_FOLDER.is_dir() or any(DEFAULT_FOLDER.iterdir())
        if foreign:
            raise OutputError(
                f"{DEFAULT_FOLDER}/ exists and was not written by TraceLens",
                hint="name a file with -o, or add -f",
                slug="would-overwrite",
            )
    return targets


def _ours(path: Path) -> bool:
    return _marked(path, b'"tracelens/')


def _marked(path: Path, mark: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return mark in file.read(200)
    except OSError:
        return False


def clear_folder(folder: Path, patterns: Sequence[str], mark: bytes, *, force: bool) -> None:
    """Make room for files in a folder: nothing foreign is ever deleted.

    Args:
        folder: May be missing or empty.
        patterns: The files to delete.
        mark: What stands near the beginning of one of them if TraceLens wrote them.
        force: Whether to delete them.

    Raises:
        OutputError: If something is in the way.
    """
    refuse_address(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return
    found = [path for pattern in patterns for path in folder.glob(pattern)]
    ours = len(found) == sum(1 for _ in folder.iterdir()) and any(_marked(f, mark) for f in found)
    if not (ours and force):
        what = "holds an earlier simulation" if ours else "is not empty"
        hint = "add -f to replace it" if ours else "name another folder with -o"
        raise OutputError(f"{folder} {what}", hint=hint, slug="would-overwrite")
    for path in found:
        path.unlink()


def render(analysis: Analysis, suffix: str) -> bytes:
    """Render an analysis in the format a suffix names."""
    from tracelens.registry import report_for

    if suffix.lower() == ".json":
        return analysis.to_json().encode()
    report = report_for(suffix)
    try:
        return report.render(analysis)
    except Exception as error:  # a plugin may raise anything; the other outputs are still written
        reason = f"{type(error).__name__}: {error}"
        raise OutputError(
            f"the report {report.name} failed ({reason})", slug="report-failed"
        ) from error


def write(path: Path, data: bytes) -> None:
    """Write a file atomically: a failed run leaves the old one whole.

    A link stays and what it points to is written; a pipe or a device is written into.

    Raises:
        OutputError: If it cannot be written.
    """
    try:
        if _is_stream(path):
            with path.open("wb", buffering=0) as stream:
                _write_all(stream, data)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise OutputError(f"{path}: {reason}", slug="cannot-write") from error


def _is_stream(path: Path) -> bool:
    """Tell whether what is written goes by: nothing is lost there, and nothing may replace it."""
    return path.is_fifo() or path.is_char_device()


def _replace(target: Path, data: bytes) -> None:
    """Put a whole file in the place of another."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a crash can leave the new name with nothing behind it
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_all(stream: FileIO, data: bytes) -> None:
    """Write everything into something that may take only a part at a time."""
    left = memoryview(data)
    while left:
        left = left[stream.write(left) or 0 :]


def say_written(path: Path, size: int) -> None:
    """Tell on stderr what was written."""
    shown = f"{size / 1e6:.3g} MB" if size >= 10**6 else f"{max(round(size / 1e3), 1)} kB"
    click.echo(f"Wrote {path} ({shown})", err=True)


def say_notices(notices: list[Notice], verbosity: int, several: Collection[str] = ()) -> None:
    """Print notices on stderr: warnings always, information with -v, all of a kind with -vv.

    Args:
        notices: The notices.
        verbosity: How many -v were given.
        several: Files that hold several ranks: which one is meant, is said.
    """
    from tracelens.reporting.words import visible

    told = [one for one in notices if one.level != "info" or verbosity > 0]
    for (code, level), alike in groupby(told, key=lambda one: (one.code, one.level)):
        of_a_kind = list(alike)
        # One line in place of another would be none less.
        shown = _ALIKE if verbosity < 2 and len(of_a_kind) > _ALIKE + 1 else len(of_a_kind)
        for one in of_a_kind[:shown]:
            rank = f", rank {one.rank}" if one.file in several and one.rank is not None else ""
            where = f"{one.file}{rank}: " if one.file else ""
            click.echo(f"{level}: {visible(where + one.message)} [{code}]", err=True)
        if more := len(of_a_kind) - shown:
            text = f"{level}: {more:,} more of this kind; -vv prints them, analysis.json has them"
            click.echo(f"{text} [{code}]", err=True)

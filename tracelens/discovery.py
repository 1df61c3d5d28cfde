"""Find the trace files among what the user pointed at, and say what was left out and why."""

from __future__ import annotations

import contextlib
import glob
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.gzip_head import HEAD, head_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.registry import Parser

# Looked at as well, so that a folder of these is not called empty.
_KNOWN_SUFFIXES = (".zip", ".zst", ".tar")
_OWN_FOLDER = "tracelens-report"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file, or one folder that a format keeps in many: its parser, or why none takes it."""

    path: Path
    shown: str
    size: int
    parser: str | None
    format: str | None
    reason: str | None = None


def discover(paths: Sequence[str | Path], parsers: Sequence[Parser]) -> list[Candidate]:
    """List every file under the given paths, with the parser that recognises it.

    Args:
        paths: Files, folders (searched in depth; symbolic links are followed once) or globs.
        parsers: The parsers to ask, in order.

    Raises:
        InputError: If a path does not exist.
    """
    found: list[Candidate] = []
    seen: set[Path] = set()
    suffixes = (*_KNOWN_SUFFIXES, *(suffix for parser in parsers for suffix in parser.suffixes))
    for given in paths:
        for root, path in _files(str(given), suffixes, parsers):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                # Several folders hold files of one name: then the whole path tells them apart.
                shown = _shown(root, path) if len(paths) == 1 else path.as_posix()
                found.append(_candidate(path, shown, parsers))
    return _without_copies(found, parsers)


def _without_copies(found: list[Candidate], parsers: Sequence[Parser]) -> list[Candidate]:
    """Leave out what lies there in another form as well: a parser may know a recording's forms."""
    better = {parser.name: getattr(parser, "superseded_by", None) for parser in parsers}
    taken = {candidate.path.resolve() for candidate in found if candidate.parser is not None}
    kept = []
    for candidate in found:
        ask = better.get(candidate.parser or "")
        other = ask(candidate.path) if ask else None
        if other is not None and other.resolve() in taken:
            reason = f"the same recording as {other.name}"
            candidate = replace(candidate, parser=None, reason=reason)  # noqa: PLW2901
        kept.append(candidate)
    return kept


def _files(
    given: str, suffixes: tuple[str, ...], parsers: Sequence[Parser]
) -> Iterator[tuple[Path, Path]]:
    """Yield (root, file) for one argument; a file named by hand is its own root's child."""
    path = Path(given)
    if path.is_dir() and not _is_one_input(path, parsers):
        yield from ((path, file) for file in _walk(path, suffixes, parsers))
    elif path.exists():
        yield path.parent, path
    else:
        matches = sorted(glob.glob(given, recursive=True))  # noqa: PTH207 - may be absolute
        if not matches:
            raise InputError(
                f"{given}: no such file or folder",
                hint="give a folder with traces, trace files, or a glob in quotes",
                slug="no-such-path",
            )
        for match in matches:
            yield from _files(match, suffixes, parsers)


def _walk(folder: Path, suffixes: tuple[str, ...], parsers: Sequence[Parser]) -> Iterator[Path]:
    visited: set[Path] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()  # a link back into the tree
            continue
        visited.add(real)
        named = sorted(f for f in folders if f != _OWN_FOLDER and not f.startswith("."))
        inputs = [f for f in named if _is_one_input(Path(parent) / f, parsers)]
        folders[:] = [f for f in named if f not in inputs]
        yield from (Path(parent) / name for name in inputs)
        for name in sorted(files):
            if _looks_like_trace(name, suffixes):
                yield Path(parent) / name


def _is_one_input(folder: Path, parsers: Sequence[Parser]) -> bool:
    """Tell whether a folder is one trace: some formats keep a file for each table."""
    for parser in parsers:
        with contextlib.suppress(Exception):  # a plugin may raise anything
            if parser.recognise(folder, b"") is not None:
                return True
    return False


def _looks_like_trace(name: str, suffixes: tuple[str, ...]) -> bool:
    lowered = name.lower().removesuffix(".tmp")
    return not name.startswith(".") and lowered.endswith(suffixes)


def _shown(root: Path, path: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.name


def _candidate(path: Path, shown: str, parsers: Sequence[Parser]) -> Candidate:
    try:
        size = _size(path)
        head = b"" if path.is_dir() else head_of(path)
    except OSError as error:
        return Candidate(path, shown, 0, None, None, f"cannot be opened: {error.strerror}")
    if path.name.lower().endswith(".tmp"):
        return Candidate(path, shown, size, None, None, "a temporary file the profiler left behind")
    if size == 0:
        return Candidate(path, shown, size, None, None, "an empty file")
    failed = []
    for parser in parsers:
        try:
            recognised = parser.recognise(path, head)
        except Exception as error:  # a plugin may raise anything; the others are still asked
            failed.append(f"the parser {parser.name} failed ({type(error).__name__}: {error})")
            continue
        if recognised is not None:
            return Candidate(path, shown, size, parser.name, recognised)
    return Candidate(path, shown, size, None, None, "; ".join(failed) or _why_not(head))


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _why_not(head: bytes) -> str:
    text = head.lstrip()
    if head.startswith(b"SQLite format 3"):
        return "an SQLite database, but no export of Nsight Systems"
    if b'"schema"' in text[:200] and b"tracelens/" in text[:200]:
        return "a TraceLens result, not a trace (see `tracelens report`)"
    if b'"nodes"' in text[:4096]:
        return "a PyTorch execution trace, not a profiler trace"
    if text.startswith((b"{", b"[")):
        whole = text.rstrip().endswith((b"}", b"]")) or len(head) >= HEAD
        return "JSON, but no profiler trace" if whole else "JSON that is cut before any event"
    return "no format an installed parser knows (see `tracelens formats`)"

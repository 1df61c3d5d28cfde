"""Find the trace files among what the user pointed at, and say what was left out and why."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.gzip_head import head_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.registry import Parser

_TRACE_SUFFIXES = (".json", ".gz", ".trace", ".zip", ".zst", ".sqlite", ".nsys-rep")
_OWN_FOLDER = "tracelens-report"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file: the parser that takes it, or the reason why none does."""

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
    for given in paths:
        for root, path in _files(str(given)):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                found.append(_candidate(path, _shown(root, path), parsers))
    return found


def _files(given: str) -> Iterator[tuple[Path, Path]]:
    """Yield (root, file) for one argument; a file named by hand is its own root's child."""
    path = Path(given)
    if path.is_dir():
        yield from ((path, file) for file in _walk(path))
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
            yield from _files(match)


def _walk(folder: Path) -> Iterator[Path]:
    visited: set[Path] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()  # a link back into the tree
            continue
        visited.add(real)
        folders[:] = sorted(f for f in folders if f != _OWN_FOLDER and not f.startswith("."))
        for name in sorted(files):
            if _looks_like_trace(name):
                yield Path(parent) / name


def _looks_like_trace(name: str) -> bool:
    lowered = name.lower().removesuffix(".tmp")
    return not name.startswith(".") and lowered.endswith(_TRACE_SUFFIXES)


def _shown(root: Path, path: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.name


def _candidate(path: Path, shown: str, parsers: Sequence[Parser]) -> Candidate:
    try:
        size = path.stat().st_size
        head = head_of(path)
    except OSError as error:
        return Candidate(path, shown, 0, None, None, f"cannot be opened: {error.strerror}")
    if path.name.lower().endswith(".tmp"):
        return Candidate(path, shown, size, None, None, "a temporary file the profiler left behind")
    if size == 0:
        return Candidate(path, shown, size, None, None, "an empty file")
    for parser in parsers:
        recognised = parser.recognise(path, head)
        if recognised is not None:
            return Candidate(path, shown, size, parser.name, recognised)
    return Candidate(path, shown, size, None, None, _why_not(head))


def _why_not(head: bytes) -> str:
    text = head.lstrip()
    if b'"schema"' in text[:200] and b"tracelens/" in text[:200]:
        return "a TraceLens result, not a trace (see `tracelens report`)"
    if b'"nodes"' in text[:4096]:
        return "a PyTorch execution trace, not a profiler trace"
    if text.startswith((b"{", b"[")):
        return "JSON, but no profiler trace"
    return "no format an installed parser knows (see `tracelens formats`)"

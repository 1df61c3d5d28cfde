"""Find the trace files among what the user pointed at, and say what was left out and why."""

from __future__ import annotations

import contextlib
import glob
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens import addresses, archives, remote, sidecar
from tracelens.errors import InputError
from tracelens.gzip_head import HEAD, head_of, missing_decoder, packed
from tracelens.remote_listing import Wanted
from tracelens.workspace import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.registry import Parser
    from tracelens.workspace import Workspace

# Looked at as well, so that a folder of these is not called empty.
_KNOWN_SUFFIXES = (".zip", ".zst", ".tar", ".tgz", ".tar.bz2", ".tar.xz")
_MOST_TABLES = 1000
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
    lost: bool = False  # left out, though a trace may be in it


@dataclass(frozen=True, slots=True)
class _Found:
    """A file or folder to look at, or the reason why it cannot be."""

    path: Path
    shown: str
    reason: str | None = None


def discover(
    paths: Sequence[str | Path], parsers: Sequence[Parser], workspace: Workspace | None = None
) -> list[Candidate]:
    """List every file under the given paths, with the parser that recognises it.

    Args:
        paths: Files, folders (searched in depth; symbolic links are followed once), globs, or
            addresses such as `s3://bucket/run`.
        parsers: The parsers to ask, in order.
        workspace: Where archives are unpacked and remote files are copied to. Without one, both
            are named and left out.

    Raises:
        InputError: If a path does not exist.
    """
    look = _Look(paths, parsers, workspace)
    candidates = [candidate for given in paths for candidate in look.under(str(given))]
    return _without_copies(candidates, parsers)


class _Look:
    """One search: remembers what it has seen, so that nothing counts twice."""

    def __init__(
        self, paths: Sequence[str | Path], parsers: Sequence[Parser], workspace: Workspace | None
    ) -> None:
        self.parsers, self.workspace = parsers, workspace
        self.suffixes = (*_KNOWN_SUFFIXES, *(s for parser in parsers for s in parser.suffixes))
        self.seen: set[Path] = set()
        self.fetched: set[str] = set()
        # Several folders hold files of one name: then the whole path tells them apart.
        self.several = len(paths) > 1

    def under(self, given: str) -> Iterator[Candidate]:
        """Yield the candidates of one argument."""
        for found in self._remote(given) if addresses.is_remote(given) else self._local(given):
            if found.reason is not None:
                yield _lost(found)
                continue
            real = found.path.resolve()
            if real not in self.seen:
                self.seen.add(real)
                yield from self._candidates(found)

    def wanted(self, name: str) -> bool:
        """Tell by its name whether a file in an archive or a remote folder may be a trace."""
        *folders, last = name.split("/")
        passed_over = any(_passed_over(folder) for folder in folders if folder not in (".", ".."))
        return not passed_over and _looks_like_trace(last, self.suffixes)

    def wanted_folder(self, name: str, files: list[str]) -> bool:
        """Tell by the names in a remote folder whether it is one trace: it is tried with such."""
        if self.workspace is None or len(files) > _MOST_TABLES or not self.wanted(f"{name}/x.json"):
            return False
        folder = self.workspace.folder(name)
        for file in files:
            place(folder, file).touch()
        return _is_one_input(folder, self.parsers)

    def _remote(self, given: str) -> Iterator[_Found]:
        if self.workspace is None:
            shown = addresses.shown(given)
            yield _Found(Path(shown), shown, "a remote path")
            return
        wanted = Wanted(self.wanted, self.wanted_folder)
        for file in remote.fetch(given, wanted, self.workspace, self.fetched):
            name = file.address if self.several else file.shown
            if file.path is not None and _is_one_input(file.path.parent, self.parsers):
                folder = name.rpartition("/")[0] or file.address.split("/")[-2]
                yield _Found(file.path.parent, folder)
                continue
            yield _Found(file.path or Path(name), name, file.reason)

    def _local(self, given: str) -> Iterator[_Found]:
        given = addresses.local(given)
        unreadable: list[OSError] = []
        for root, path in _files(given, self.suffixes, self.parsers, unreadable):
            yield _Found(path, path.as_posix() if self.several else _shown(root, path))
        for error in unreadable:
            path = Path(str(error.filename))
            shown = path.as_posix() if self.several else _shown(Path(given), path)
            yield _Found(path, shown, f"cannot be opened: {error.strerror}")

    def _candidates(self, found: _Found) -> Iterator[Candidate]:
        """Yield a file, or the members of an archive."""
        kind = _archive_kind(found.path)
        if kind is None:
            yield _candidate(found.path, found.shown, self.parsers)
            return
        if self.workspace is None:
            yield _lost(replace(found, reason=f"a {kind} archive"))
            return
        nothing = True
        members = archives.unpack(found.path, found.shown, kind, self.wanted, self.workspace)
        for member in members:
            nothing = False
            shown = f"{found.shown}/{member.name}".rstrip("/")
            if member.path is not None:
                yield self._member(member.path, shown)
            if member.cut:
                reason = f"damaged: {member.name} is cut or does not match its checksum"
                yield _lost(replace(found, reason=reason))
            elif member.path is None:
                yield _lost(_Found(found.path, shown, member.reason))
        if nothing:
            reason = f"a {kind} archive with no trace in it"
            yield Candidate(found.path, found.shown, _size(found.path), None, None, reason)

    def _member(self, path: Path, shown: str) -> Candidate:
        if _archive_kind(path) is not None:
            reason = "an archive inside an archive: unpack it first"
            return Candidate(path, shown, path.stat().st_size, None, None, reason, lost=True)
        return _candidate(path, shown, self.parsers)


def _lost(found: _Found) -> Candidate:
    return Candidate(found.path, found.shown, 0, None, None, found.reason, lost=True)


def _archive_kind(path: Path) -> archives.Kind | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            raw = file.read(512)
        return archives.kind_of(raw, head_of(path) if packed(raw) else raw)
    except OSError:
        return None


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
    given: str, suffixes: tuple[str, ...], parsers: Sequence[Parser], unreadable: list[OSError]
) -> Iterator[tuple[Path, Path]]:
    """Yield (root, file) for one argument; a file named by hand is its own root's child.

    Folders that cannot be listed are added to `unreadable`.
    """
    path = Path(given)
    if path.is_dir() and not _is_one_input(path, parsers):
        yield from ((path, file) for file in _walk(path, suffixes, parsers, unreadable))
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
            yield from _files(match, suffixes, parsers, unreadable)


def _walk(
    folder: Path, suffixes: tuple[str, ...], parsers: Sequence[Parser], unreadable: list[OSError]
) -> Iterator[Path]:
    visited: set[Path] = set()
    for parent, folders, files in os.walk(folder, onerror=unreadable.append, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()  # a link back into the tree
            continue
        visited.add(real)
        named = sorted(f for f in folders if not _passed_over(f))
        inputs = [f for f in named if _is_one_input(Path(parent) / f, parsers)]
        folders[:] = [f for f in named if f not in inputs]
        yield from (Path(parent) / name for name in inputs)
        for name in sorted(files):
            if _looks_like_trace(name, suffixes):
                yield Path(parent) / name


def _passed_over(folder: str) -> bool:
    return folder == _OWN_FOLDER or folder.startswith(".")


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
        if path.exists() and not path.is_dir() and not path.is_file():
            return Candidate(path, shown, 0, None, None, "a pipe, a socket or a device, not a file")
        size = _size(path)
        head = b"" if path.is_dir() else head_of(path)
    except OSError as error:
        reason = f"cannot be opened: {error.strerror}"
        return Candidate(path, shown, 0, None, None, reason, lost=True)
    if path.name.lower().endswith(sidecar.SUFFIX):
        return Candidate(path, shown, size, None, None, "facts about the trace beside it")
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
    if failed:
        return Candidate(path, shown, size, None, None, "; ".join(failed), lost=True)
    if not head and (missing := missing_decoder(path)) is not None:
        return Candidate(path, shown, size, None, None, missing, lost=True)
    return Candidate(path, shown, size, None, None, _why_not(head))


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _why_not(head: bytes) -> str:
    text = head.lstrip()
    if head and not text:
        return "nothing but white space at its beginning"
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

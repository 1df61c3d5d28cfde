"""Find the trace files among what the user pointed at, and say what was left out and why."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens import addresses, archives, remote, sidecar
from tracelens.gzip_head import HEAD, head_of, holds_nothing, missing_decoder, packed
from tracelens.names import printable
from tracelens.remote_listing import Wanted
from tracelens.walking import Found, Walker, passed_over
from tracelens.workspace import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.registry import Parser
    from tracelens.workspace import Workspace

# Looked at as well, so that a folder of these is not called empty.
_KNOWN_SUFFIXES = (
    ".zip", ".zst", ".tar", ".tgz", ".tar.bz2", ".tar.xz", ".json.bz2", ".json.xz",
)  # fmt: skip
_MOST_TABLES = 1000
_CUT_EARLY = "JSON that is cut before any event"  # it may have been a trace
_DATABASE = b"SQLite format 3"


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
    damage: str | None = None  # what unpacking found wrong with it


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
        self.fetched: set[str] = set()
        # Several folders hold files of one name: then the whole path tells them apart.
        self.several = len(paths) > 1
        one_input = partial(_is_one_input, parsers=parsers)
        self.walker = Walker(self.wanted, one_input, whole_names=self.several)

    def under(self, given: str) -> Iterator[Candidate]:
        """Yield the candidates of one argument, by name."""
        elsewhere = addresses.is_remote(given)
        found = self._remote(given) if elsewhere else self.walker.under(addresses.local(given))
        for one in sorted(found, key=lambda one: one.shown):
            if one.reason is not None:
                yield _left_out(one)
            else:
                yield from self._candidates(one)

    def wanted(self, name: str) -> bool:
        """Tell by its name whether a file in a folder or an archive may be a trace."""
        *folders, last = name.split("/")
        hidden = any(passed_over(folder) for folder in folders if folder not in (".", ".."))
        return not hidden and _looks_like_trace(last, self.suffixes)

    def wanted_folder(self, name: str, files: list[str]) -> bool:
        """Tell by the names in a remote folder whether it is one trace: it is tried with such."""
        if self.workspace is None or len(files) > _MOST_TABLES or not self.wanted(f"{name}/x.json"):
            return False
        folder = self.workspace.folder(name)
        for file in files:
            place(folder, file).touch()
        return _is_one_input(folder, self.parsers)

    def _remote(self, given: str) -> Iterator[Found]:
        if self.workspace is None:
            shown = addresses.shown(given)
            yield Found(Path(shown), shown, "a remote path")
            return
        wanted = Wanted(self.wanted, self.wanted_folder)
        inputs: set[Path] = set()
        for file in remote.fetch(given, wanted, self.workspace, self.fetched):
            name = printable(file.address if self.several else file.shown)
            if file.path is None or not _is_one_input(file.path.parent, self.parsers):
                yield Found(file.path or Path(name), name, file.reason)
            elif file.path.parent not in inputs:
                inputs.add(file.path.parent)
                folder = name.rpartition("/")[0] or file.address.split("/")[-2]
                yield Found(file.path.parent, folder)

    def _candidates(self, found: Found) -> Iterator[Candidate]:
        """Yield a file, or the members of an archive."""
        kind = _archive_kind(found.path)
        if kind is None:
            yield _candidate(found, self.parsers)
            return
        if self.workspace is None:
            yield _left_out(replace(found, reason=f"a {kind} archive"))
            return
        nothing = True
        members = archives.unpack(found.path, found.shown, kind, self.wanted, self.workspace)
        for member in members:
            nothing = False
            shown = printable(f"{found.shown}/{member.name}".rstrip("/"))
            if member.path is None:
                yield _left_out(Found(found.path, shown, member.reason))
                continue
            candidate = replace(self._member(member.path, shown), damage=member.damage)
            if candidate.parser is not None or not (member.damage or member.cut):
                yield candidate
            elif member.damage:
                yield _left_out(Found(member.path, shown, member.damage))
        if nothing:
            reason = f"a {kind} archive with no trace in it"
            yield Candidate(found.path, found.shown, _size(found.path), None, None, reason)

    def _member(self, path: Path, shown: str) -> Candidate:
        if _archive_kind(path) is not None:
            reason = "an archive inside an archive: unpack it first"
            return Candidate(path, shown, path.stat().st_size, None, None, reason, lost=True)
        return _candidate(Found(path, shown), self.parsers)


def _left_out(found: Found) -> Candidate:
    return Candidate(found.path, found.shown, 0, None, None, found.reason, lost=found.lost)


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


def _candidate(found: Found, parsers: Sequence[Parser]) -> Candidate:
    path, shown = found.path, found.shown
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            return Candidate(path, shown, 0, None, None, "a pipe, a socket or a device, not a file")
        size = _size(path)
        head = b"" if path.is_dir() else head_of(path)
    except OSError as error:
        reason = f"cannot be opened: {error.strerror or error}"
        return Candidate(path, shown, 0, None, None, reason, lost=True)
    purpose = _by_name(found)
    if purpose is not None:
        return Candidate(path, shown, size, None, None, purpose)
    if size == 0 or (not head and path.is_file() and holds_nothing(path)):
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
    if _is_still_packed(path, head):
        reason = "packed in a way that is not undone: unpack it first"
        return Candidate(path, shown, size, None, None, reason, lost=True)
    if not head and (missing := missing_decoder(path)) is not None:
        return Candidate(path, shown, size, None, None, missing, lost=True)
    if not head and path.is_file() and _is_packed(path):
        reason = "nothing comes out of it when it is unpacked: cut or damaged at its beginning"
        return Candidate(path, shown, size, None, None, reason, lost=True)
    reason = _why_not(head)
    return Candidate(path, shown, size, None, None, reason, lost=reason == _CUT_EARLY)


def _is_still_packed(path: Path, head: bytes) -> bool:
    """Tell whether what was inflated is packed itself, or a database, which is not inflated."""
    if packed(head) or archives.kind_of(head, b"") is not None:
        return True
    return head.startswith(_DATABASE) and _is_packed(path)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return packed(file.read(len(_DATABASE)))


def _by_name(found: Found) -> str | None:
    """Say what a file is for, if its name says so and the user did not ask for it."""
    name = found.path.name.lower()
    if name.endswith(sidecar.SUFFIX):
        return sidecar.purpose(found.path)
    if name.endswith(".tmp") and not found.by_hand:
        if found.path.with_suffix("").exists():
            return "a temporary file the profiler left behind"
        return "a temporary file of a profiler that did not finish; name it to have it read"
    return None


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _why_not(head: bytes) -> str:
    text = head.lstrip()
    if head and not text:
        return "nothing but white space at its beginning"
    if head.startswith(_DATABASE):
        return "an SQLite database, but no export of Nsight Systems"
    if b'"schema"' in text[:200] and b"tracelens/" in text[:200]:
        return "a TraceLens result, not a trace (see `tracelens report`)"
    if b'"nodes"' in text[:4096]:
        return "a PyTorch execution trace, not a profiler trace"
    if text.startswith((b"{", b"[")):
        whole = text.rstrip().endswith((b"}", b"]")) or len(head) >= HEAD
        return "JSON, but no profiler trace" if whole else _CUT_EARLY
    return "no format an installed parser knows (see `tracelens formats`)"

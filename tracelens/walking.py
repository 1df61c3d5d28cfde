"""List what lies under a local path: every file once, whatever links lead to it.

Files and folders are told apart by device and inode, so a link, a hard link and an overlapping
argument are the same file again. Real names come before links, whatever their order by name.
"""

from __future__ import annotations

import glob
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError
from tracelens.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OWN_FOLDER = "tracelens-report"
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Found:
    """A file or folder to look at, or the reason why it is left out.

    Attributes:
        path: Where it is.
        shown: What it is called towards the user.
        reason: Why it is left out.
        lost: If it is left out: a trace may be in it.
        by_hand: The user named this very file.
    """

    path: Path
    shown: str
    reason: str | None = None
    lost: bool = True
    by_hand: bool = False


class Walker:
    """Searches local paths; remembers what it has seen, so that nothing counts twice.

    Args:
        wanted: Tells by its name whether a file in a folder may be a trace.
        is_one_input: Tells whether a folder is one trace: some formats keep a file for each table.
        whole_names: Show paths as given and not relative to the folder that was given.
    """

    def __init__(
        self,
        wanted: Callable[[str], bool],
        is_one_input: Callable[[Path], bool],
        *,
        whole_names: bool,
    ) -> None:
        self._wanted, self._is_one_input = wanted, is_one_input
        self._whole_names = whole_names
        self._seen: dict[tuple[int, int], Found] = {}
        self._root = Path()

    def under(self, given: str) -> Iterator[Found]:
        """Yield what lies under one argument: a file, a folder or a glob.

        Raises:
            InputError: If nothing is there.
        """
        if not given:  # pathlib takes it for the current folder
            raise InputError(
                "an empty path, as from a variable that is not set", slug="no-such-path"
            )
        path = Path(given)
        try:
            is_folder = os.path.isdir(given)  # noqa: PTH112 - False where pathlib raises
            path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            yield from self._matches(given)
        except OSError as error:
            if not os.path.lexists(path):  # a long pattern, or a folder that may not be searched
                yield from self._matches(given, error)
                return
            self._root = path.parent
            yield self._unreadable(path, error)
        else:
            self._root = path if is_folder else path.parent
            yield from self._path(path, by_hand=True)

    def _matches(self, given: str, error: OSError | None = None) -> Iterator[Found]:
        try:
            names = sorted(glob.glob(given, recursive=True))  # noqa: PTH207 - may be absolute
        except (OSError, ValueError):
            names = []
        if not names:
            why = "no such file or folder"
            if isinstance(error, PermissionError):
                why = "cannot be reached: permission denied"
            raise InputError(
                f"{printable(given)}: {why}",
                hint="give a folder with traces, trace files, or a glob in quotes",
                slug="no-such-path",
            )
        first = min(given.find(sign) for sign in _MAGIC if sign in given)
        root = Path(given[:first].rpartition("/")[0] or ("/" if given.startswith("/") else "."))
        for name in names:
            self._root = root
            yield from self._path(Path(name), by_hand=False)

    def _path(self, path: Path, *, by_hand: bool) -> Iterator[Found]:
        if path.is_dir() and not self._is_one_input(path):
            yield from self._folder(path)
        else:
            yield from self._file(path, by_hand=by_hand)

    def _folder(self, top: Path) -> Iterator[Found]:
        """Walk a folder: what is really there first, then linked files, then linked folders."""
        waiting = deque([top])
        while waiting:
            folder = waiting.popleft()
            links: list[Path] = []
            problems: list[OSError] = []
            for name, folders, files in os.walk(folder, onerror=problems.append):
                parent = Path(name)
                if (again := self._searched_before(parent, problems)) is not None:
                    folders.clear()
                    yield from again
                    continue
                named = sorted(f for f in folders if not passed_over(f))
                inputs = [f for f in named if self._is_one_input(parent / f)]
                linked = [f for f in named if f not in inputs and _is_link(parent / f)]
                waiting += (parent / f for f in linked)
                folders[:] = [f for f in named if f not in inputs and f not in linked]
                for entry in (*inputs, *sorted(filter(self._wanted, files))):
                    if _is_link(parent / entry):
                        links.append(parent / entry)
                    else:
                        yield from self._file(parent / entry)
            for link in links:
                yield from self._file(link)
            yield from (self._unreadable(Path(str(e.filename)), e) for e in problems)

    def _searched_before(self, folder: Path, problems: list[OSError]) -> list[Found] | None:
        """Say that a folder was searched already; None if it was not."""
        try:
            first = self._seen_before(folder)
        except OSError as error:  # it is gone
            problems.append(error)
            return []
        if first is None:
            return None
        reason = f"a link to a folder that is searched as {first.shown}"
        return [self._found(folder, reason=reason, lost=False)] if _is_link(folder) else []

    def _file(self, path: Path, *, by_hand: bool = False) -> Iterator[Found]:
        try:
            first = self._seen_before(path)
        except OSError as error:
            yield self._unreadable(path, error)
            return
        if first is None:
            yield self._found(path, by_hand=by_hand)
        elif os.path.abspath(path) != os.path.abspath(first.path):  # noqa: PTH100 - resolves ..
            reason = f"the same file as {first.shown}"
            yield self._found(path, reason=reason, lost=False)

    def _seen_before(self, path: Path) -> Found | None:
        """Return what a file or folder was found as before; None, and remember it, if it was not.

        Raises:
            OSError: If it cannot be looked at.
        """
        state = path.stat()
        key = state.st_dev, state.st_ino
        first = self._seen.get(key)
        if first is None:
            self._seen[key] = self._found(path)
        return first

    def _unreadable(self, path: Path, error: OSError) -> Found:
        if _is_link(path) and not os.path.exists(path):  # noqa: PTH110 - never raises
            return self._found(path, reason="a link that leads nowhere")
        return self._found(path, reason=f"cannot be opened: {error.strerror or error}")

    def _found(
        self, path: Path, *, reason: str | None = None, lost: bool = True, by_hand: bool = False
    ) -> Found:
        return Found(path, printable(self._name(path)), reason, lost, by_hand)

    def _name(self, path: Path) -> str:
        if self._whole_names or not path.is_relative_to(self._root):
            return path.as_posix()
        relative = path.relative_to(self._root).as_posix()
        return path.name if relative == "." else relative


def passed_over(folder: str) -> bool:
    """Tell whether a folder is not searched: hidden ones, and our own reports."""
    return folder == _OWN_FOLDER or folder.startswith(".")


def _is_link(path: Path) -> bool:
    return os.path.islink(path)  # noqa: PTH114 - pathlib raises where nothing may be looked at

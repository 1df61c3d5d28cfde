"""Fetch traces from where fsspec can read: `s3://`, `gs://`, `memory://`, `http(s)://` and others.

Files are copied into the workspace and read there: a trace is read more than once, and SQLite needs
a real file. Passwords and signatures in an address never leave this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tracelens.errors import InputError
from tracelens.limits import LARGEST
from tracelens.names import printable
from tracelens.workspace import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens.workspace import Workspace

# Two letters at least: C:/ is a drive. One slash: pathlib makes s3:/bucket of s3://bucket.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/(/?)", re.IGNORECASE)
_PIECE = 1 << 20
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A remote file: where its copy is, or why there is none."""

    shown: str
    path: Path | None
    reason: str | None = None


def is_remote(given: str | Path) -> bool:
    """Tell whether a path names something another machine holds."""
    match = _ADDRESS.match(str(given))
    if match is None or match[1].lower() in ("file", "local"):
        return False
    return bool(match[2]) or not Path(given).exists()


def shown(given: str | Path) -> str:
    """Return a path as it may be shown: without user, password, query and fragment."""
    text = str(given)
    if not is_remote(text):
        return printable(text)
    parts = urlsplit(_address(text))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _address(text: str) -> str:
    return _ADDRESS.sub(lambda match: f"{match[1]}://", text, count=1)


def fetch(given: str, wanted: Callable[[str], bool], workspace: Workspace) -> Iterator[Fetched]:
    """Copy the traces under an address: a file, a folder or a glob.

    Args:
        given: The address.
        wanted: Tells by a file's name whether it may be a trace; a file named whole is one.
        workspace: Where to copy to.

    Raises:
        InputError: If it cannot be reached.
    """
    system, path = _system(given)
    try:
        names, base = _names(system, path, wanted)
    except Exception as error:  # every file system raises its own kinds
        raise _failed(given, error) from error
    if not names:
        raise InputError(
            f"{shown(given)}: no trace file there",
            hint="give a folder with traces, trace files, or a glob in quotes",
            slug="no-such-path",
        )
    folder = workspace.folder(shown(given).rstrip("/"))
    for name in names:
        inside = name.removeprefix(base).lstrip("/") if base else name.rpartition("/")[2]
        inside = inside.partition("?")[0]
        target = place(folder, inside)
        try:
            _copy(system, name, target)
        except Exception as error:
            yield Fetched(inside, None, f"cannot be fetched: {_why(error)}")
        else:
            yield Fetched(inside, target)


def _system(given: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(
            f"{shown(given)}: remote paths need fsspec",
            hint="run `pip install 'tracelens-distributed[remote]'`",
            slug="no-remote",
        ) from error
    try:
        system, path = url_to_fs(_address(given))
    except ImportError as error:
        raise InputError(
            f"{shown(given)}: {_why(error)}",
            hint="fsspec needs one more package for this kind of address",
            slug="no-remote",
        ) from error
    except Exception as error:
        raise _failed(given, error) from error
    return system, str(path)


def _names(system: Any, path: str, wanted: Callable[[str], bool]) -> tuple[list[str], str]:
    """Return the files to fetch, and the folder their names are shown relative to."""
    if path.startswith(("http://", "https://")) and not path.endswith("/"):
        return [path], ""  # a server does not say whether it is a folder
    if _MAGIC & set(path):
        found = [str(name) for name in system.glob(path)]
        names = [name for name in found if not system.isdir(name)]
        inside = [n for name in found if name not in names for n in system.find(name)]
        return sorted({*names, *(n for n in inside if wanted(str(n)))}), _common(path)
    if system.isdir(path):
        return sorted(str(name) for name in system.find(path) if wanted(str(name))), path
    system.info(path)  # says that it is not there
    return [path], ""


def _common(pattern: str) -> str:
    first = min(pattern.find(sign) for sign in _MAGIC if sign in pattern)
    return pattern[:first].rpartition("/")[0]


def _copy(system: Any, name: str, target: Path) -> None:
    size = 0
    with system.open(name, "rb") as source, target.open("wb") as file:
        while piece := source.read(_PIECE):
            size += file.write(piece)
            if size > LARGEST:
                raise OSError(f"it is longer than {LARGEST / 1e9:.0f} GB")


def _failed(given: str, error: Exception) -> InputError:
    return InputError(
        f"{shown(given)}: cannot be reached ({_why(error)})",
        hint="check the address, and the credentials in the environment",
        slug="no-such-path",
    )


def _why(error: Exception) -> str:
    """Say in one line what went wrong, without anything that stands in an address."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    if isinstance(error, PermissionError):
        return "permission denied"
    text = " ".join(str(error).split())
    text = re.sub(r"\S+://\S+|\S*(?:[Ss]ignature|[Tt]oken|[Kk]ey)=\S+", "…", text)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__

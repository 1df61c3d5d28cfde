"""Fetch traces from where fsspec can read: `s3://`, `gs://`, `memory://`, `http(s)://` and others.

Files are copied into the workspace and read there: a trace is read more than once, and SQLite needs
a real file. Passwords and signatures in an address never leave this module.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens import remote_listing
from tracelens.addresses import harmless, scheme, shown, whole
from tracelens.errors import InputError
from tracelens.workspace import place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.remote_listing import Listing, Wanted
    from tracelens.workspace import Workspace

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs"} | {
    "abfs": "adlfs", "abfss": "adlfs", "http": "aiohttp", "https": "aiohttp",
}  # fmt: skip
_EXTRA = "'tracelens-distributed[remote]'"
_SILENCE_S = 60
_FORGOTTEN: list[Any] = []
_ERRNO = re.compile(r"^\[Errno \d+\] ")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A remote file: where its copy is, or why there is none.

    Attributes:
        shown: Its name under the address it was found at.
        address: All of its address that may be shown.
        path: The copy.
        reason: Why there is no copy.
    """

    shown: str
    address: str
    path: Path | None
    reason: str | None = None


def fetch(given: str, wanted: Wanted, workspace: Workspace, seen: set[str]) -> Iterator[Fetched]:
    """Copy the traces under an address: a file, a folder or a glob.

    Args:
        given: The address.
        wanted: Tells what of a folder may be a trace; a file named whole is one.
        workspace: Where to copy to.
        seen: What was fetched before and is not fetched again; grows.

    Raises:
        InputError: If it cannot be reached, or is more than the disk holds.
    """
    system, path = _system(given)
    try:
        system.invalidate_cache()  # fsspec keeps listings for as long as the process lives
        listing = remote_listing.of(system, path, given, wanted)
        beside = remote_listing.companions(system, listing)
    except Exception as error:  # every file system raises its own kinds
        _forget(system)
        raise _failed(given, error) from error
    if not listing.sizes and not listing.failed:
        raise InputError(
            f"{shown(given)}: no trace file there",
            hint="give a folder with traces, trace files, or a glob in quotes",
            slug="no-such-path",
        )
    new = [name for name in sorted(listing.sizes) if f"{scheme(given)}:{name}" not in seen]
    seen.update(f"{scheme(given)}:{name}" for name in new)
    folder = workspace.folder(listing.origin)
    _check_room(given, folder, sum(listing.sizes[name] or 0 for name in new))
    yield from _copies(system, listing, new, beside, folder)
    for name, failure in listing.failed.items():
        yield _missing(listing, name, f"cannot be listed: {_why(failure)}")


def _copies(
    system: Any, listing: Listing, names: list[str], beside: dict[str, list[str]], folder: Path
) -> Iterator[Fetched]:
    from tracelens.downloads import copy

    targets = {name: place(folder, listing.inside(name)) for name in names}
    files = {
        name + suffix: target.with_name(target.name + suffix)
        for name, target in targets.items()
        for suffix in ("", *beside[name])
    }
    errors = dict(zip(files, copy(system, list(files.items())), strict=True))
    for name, target in targets.items():
        failed = [(s, error) for s in ("", *beside[name]) if (error := errors[name + s])]
        if failed:  # without what lies beside it, a trace may say something else
            suffix, error = failed[0]
            what = f"its {suffix} " if suffix else ""
            yield _missing(listing, name, f"{what}cannot be fetched: {_why(error)}")
        else:
            yield Fetched(listing.inside(name), listing.address(name), target)


def _missing(listing: Listing, name: str, reason: str) -> Fetched:
    return Fetched(listing.inside(name), listing.address(name), None, reason)


# reaching the other side -------------------------------------------------------------------------


def _system(given: str) -> tuple[Any, str]:
    kind = scheme(given)
    package = _PACKAGES.get(kind, "")
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(
            f"{shown(given)}: remote paths need fsspec",
            hint=f"run `pip install {_EXTRA}{f' {package}' if package else ''}`",
            slug="no-remote",
        ) from error
    try:
        system, path = url_to_fs(whole(given), **{kind: _settings(kind)})
    except ImportError as error:
        what = f"needs {package}" if package else f"needs one more package ({harmless(str(error))})"
        raise InputError(
            f"{shown(given)}: an address of this kind {what}",
            hint=f"run `pip install {package}`" if package else "install what fsspec asks for",
            slug="no-remote",
        ) from error
    except Exception as error:
        raise _failed(given, error) from error
    return system, str(path)


def _forget(system: Any) -> None:
    """Let the next try in a notebook look for credentials again."""
    system.clear_instance_cache()
    # Once nothing holds it, s3fs would close its connection in the notebook's own event loop.
    _FORGOTTEN.append(system)


def _settings(kind: str) -> dict[str, Any]:
    """Return how to read from a kind of address, where the user's configuration does not say."""
    from fsspec.config import conf

    settings: dict[str, Any] = {}
    if kind in (names := ("s3", "s3a")):
        # s3fs asks twice for a long object, and holds ten parts of it in memory.
        settings["max_concurrency"] = 1
    elif kind in (names := ("http", "https")):
        with contextlib.suppress(ImportError):
            from aiohttp import ClientTimeout

            # aiohttp gives up after five minutes, however well a long file comes in.
            limit = ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
            settings["client_kwargs"] = {"timeout": limit}
    else:
        return {}
    for name in names:
        settings.update(conf.get(name, {}))
    return settings


# what went wrong ---------------------------------------------------------------------------------


def _check_room(given: str, folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{shown(given)}: {size / 1e9:,.1f} GB to fetch, and {free / 1e9:,.1f} GB free in "
            f"{tempfile.gettempdir()}",
            hint="name another folder with TMPDIR, or give fewer files",
            slug="no-room",
        )


def _failed(given: str, error: Exception) -> InputError:
    return InputError(
        f"{shown(given)}: cannot be reached: {_why(error)}",
        hint="check the address, and the credentials in the environment",
        slug="no-such-path",
    )


def _why(error: BaseException) -> str:
    """Say in one line what went wrong, without anything that stands in an address."""
    cause = error.__cause__
    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError):
        # fsspec calls every failure of a web server so.
        hidden = cause is not None and not hasattr(cause, "response")
        return _why(cause) if hidden and cause is not None else "it is not there"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, PermissionError) or status in (401, 403):
        return "permission denied"
    if isinstance(status, int):
        return (
            f"the server answers {status} {harmless(str(getattr(error, 'message', '')))}".rstrip()
        )
    if type(error).__name__ == "ClientPayloadError":
        return "the connection broke off within the file"
    text = harmless(_ERRNO.sub("", str(error)))
    if type(error) is OSError and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""Export a report (`.nsys-rep`, once `.qdrep`) with `nsys`, which alone can read it.

The export lies in the user's cache, named after the report's path, size and time, and is made again
only if one of them changes. It holds payloads, which an export beside the report often lacks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tracelens.errors import UnreadableTrace
from tracelens_nsight.sqlite import SqliteTables

SUFFIXES = (".nsys-rep", ".qdrep")
COMMAND = "nsys export -t sqlite --include-blobs=true --include-json=true -f true"
_PAYLOADS = ("--include-blobs=true", "--include-json=true")  # since 2023 and 2024
_INSTALLED = ("opt/nvidia/nsight-systems*/*/bin/nsys", "opt/nvidia/nsight-systems*/bin/nsys")
_LONGEST_S = 3600
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)*)")


def exported(report: Path) -> Path:
    """Return the SQLite export of a report; made if it is not in the cache.

    Raises:
        UnreadableTrace: If there is no nsys, or if it cannot read the report.
    """
    target = cached(report)
    if target.exists():
        return target
    nsys = find_nsys()
    if nsys is None:
        names = shlex.join(["-o", f"{report.stem}.sqlite", report.name])
        raise UnreadableTrace(
            f"{report}: a report only nsys can read, and there is none on PATH or in NSYS_HOME: "
            f"install Nsight Systems, or run `{COMMAND} {names}` "
            "where it is installed and give the .sqlite",
            slug="unreadable-file",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _export(nsys, report, target)
    except OSError as error:
        raise UnreadableTrace(
            f"{report}: its export cannot be kept in {target.parent} ({error.strerror or error}): "
            "name another folder in XDG_CACHE_HOME",
            slug="unreadable-file",
        ) from error
    return target


def cached(report: Path) -> Path:
    """Return where the export of a report lies, whether or not it is there.

    Raises:
        UnreadableTrace: If there is no place to keep it.
    """
    facts = report.stat()
    key = f"{report.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode()
    name = f"{report.stem}-{hashlib.sha256(key).hexdigest()[:16]}.sqlite"
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if root.startswith("~"):
        raise UnreadableTrace(
            f"{report}: there is no home to keep its export in: name a folder in XDG_CACHE_HOME",
            slug="unreadable-file",
        )
    return Path(root, "tracelens", "nsight", name)


def find_nsys() -> Path | None:
    """Return the nsys of NSYS_HOME, of PATH, or of the usual place, the newest of several."""
    home = os.environ.get("NSYS_HOME")
    for folder in ("bin", "target-linux-x64", "") if home else ():
        candidate = Path(home or "", folder, "nsys")
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    on_path = shutil.which("nsys")
    if on_path:
        return Path(on_path)
    found = sorted(path for pattern in _INSTALLED for path in Path("/").glob(pattern))
    return found[-1] if found else None


def _export(nsys: Path, report: Path, target: Path) -> None:
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        failed = _run(nsys, report, partial, _PAYLOADS)
        if failed and "include" in failed:  # an nsys that does not know these options yet
            failed = _run(nsys, report, partial, ())
        failed = failed or _fault(partial)
        if failed:
            version = _version(nsys)
            raise UnreadableTrace(
                f"{report}: nsys {version} could not export it ({failed}); a report needs an nsys "
                "at least as new as the one that recorded it",
                slug="unreadable-file",
            )
        partial.replace(target)
    finally:
        if partial.is_file():
            partial.unlink()


def _fault(export: Path) -> str | None:
    """Return what is wrong with a fresh export, None if it can be kept."""
    if not export.is_file():
        return "it wrote no file"
    try:
        tables = SqliteTables(export)
    except UnreadableTrace as error:
        return error.message.removeprefix(f"{export}: ")
    tables.close()
    return None if tables.columns else "it wrote an empty file"


def _run(nsys: Path, report: Path, target: Path, options: tuple[str, ...]) -> str | None:
    """Run nsys; return None, or the line in which it says what is wrong."""
    command: list[str | Path] = [
        nsys,
        "export",
        "-t",
        "sqlite",
        *options,
        "-f",
        "true",
        "-o",
        target,
        report,
    ]
    try:
        done = subprocess.run(  # noqa: S603 - nsys of the user, a list of arguments
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_LONGEST_S // 60} minutes"
    except OSError as error:
        return str(error.strerror or error)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
    return next((line[:200] for line in lines if line), f"exit code {done.returncode}")


def _version(nsys: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            [nsys, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "of unknown version"
    match = _VERSION.search(done.stdout)
    return match[1] if match else "of unknown version"

"""Export a report (`.nsys-rep`, once `.qdrep`) with `nsys`, which alone can read it.

The export lies in the user's cache, named after the report's path, size and time, and is made again
only if one of them changes. It holds payloads, which an export beside the report often lacks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from tracelens.errors import UnreadableTrace

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
        raise UnreadableTrace(
            f"{report}: a report only nsys can read, and there is none on PATH or in NSYS_HOME: "
            f"install Nsight Systems, or run `{COMMAND} -o {report.stem}.sqlite {report.name}` "
            "where it is installed and give the .sqlite",
            slug="unreadable-file",
        )
    _export(nsys, report, target)
    return target


def cached(report: Path) -> Path:
    """Return where the export of a report lies, whether or not it is there."""
    facts = report.stat()
    key = f"{report.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode()
    name = f"{report.stem}-{hashlib.sha256(key).hexdigest()[:16]}.sqlite"
    return _cache() / name


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tracelens" / "nsight"


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
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        failed = _run(nsys, report, partial, _PAYLOADS)
        if failed and "include" in failed:  # an nsys that does not know these options yet
            failed = _run(nsys, report, partial, ())
        if failed is None and not partial.exists():
            failed = "it wrote no file"
        if failed:
            version = _version(nsys)
            raise UnreadableTrace(
                f"{report}: nsys {version} could not export it ({failed}); a report needs an nsys "
                "at least as new as the one that recorded it",
                slug="unreadable-file",
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


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
            [nsys, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "of unknown version"
    match = _VERSION.search(done.stdout)
    return match[1] if match else "of unknown version"

"""A folder for what has to be unpacked or fetched before it can be read; gone when it is done."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.names import safe_name

if TYPE_CHECKING:
    from types import TracebackType

_DEEPEST = 8


class Workspace:
    """Temporary files of one run; used as a context manager."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._origins = 0

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def folder(self, name: str) -> Path:
        """Make a folder for what comes from one archive or address; its name may say the rank."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tracelens-")
        self._origins += 1
        path = Path(self._folder.name, str(self._origins), safe_name(name.rpartition("/")[2]))
        path.mkdir(parents=True)
        return path


def place(folder: Path, name: str) -> Path:
    """Return a new path in a folder for a file of some name with slashes, made harmless.

    What lies beside one another stays so; the folder of the file is made.
    """
    parts = [safe_name(part) for part in name.split("/") if part not in ("", ".", "..")]
    path = Path(folder, *parts[-_DEEPEST:]) if parts else folder / "file"
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while path.exists():  # two names became one
        number += 1
        path = path.with_name(f"{number}_{parts[-1] if parts else 'file'}")
    return path

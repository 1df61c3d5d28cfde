"""A folder for what has to be unpacked or fetched before it can be read; gone when it is done."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.names import safe_name

if TYPE_CHECKING:
    from types import TracebackType

_DEEPEST = 4  # folder names can say the rank; those far above do not


class Workspace:
    """Temporary files of one run; used as a context manager."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0

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

    def place(self, *parts: str) -> Path:
        """Return a new path that ends in the given parts, made harmless; its folder exists."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tracelens-")
        self._files += 1
        folders = [safe_name(part) for part in parts[:-1] if part not in ("", ".", "..")]
        path = Path(self._folder.name, str(self._files), *folders[-_DEEPEST:], safe_name(parts[-1]))
        path.parent.mkdir(parents=True)
        return path

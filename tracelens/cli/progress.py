"""A progress bar for reading, shown on a terminal only."""

from __future__ import annotations

import sys
from typing import Any

from tracelens.engine import Progress


class Bar(Progress):
    """One bar over all bytes of all files."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def start(self, files: int, size: int) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(f"reading {files} files", total=size)
        self._bar.start()

    def advance(self, size: int) -> None:
        """Move it."""
        self._bar.advance(self._task, size)

    def finish(self) -> None:
        """Remove it."""
        self._bar.stop()


def progress_for(*, quiet: bool) -> Progress:
    """Return a bar on a terminal, else something that says nothing."""
    return Bar() if sys.stderr.isatty() and not quiet else Progress()

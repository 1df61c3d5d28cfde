"""Let Ctrl-C end worker processes without a word: a terminal sends it to all of them at once.

A worker that is still importing would print a traceback. So interrupts are held back while workers
are started, which they inherit, and each lets them end it once it is ready.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back, in processes started meanwhile too; here they come at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_this_process() -> None:
    """Let an interrupt, one that was held back too, end this process at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

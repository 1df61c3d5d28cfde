"""Copy files of another machine, several at once: distance costs time, not the processor."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from fsspec.callbacks import Callback

from tracelens.limits import LARGEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_AT_ONCE = 8
_STOPPED_WITHIN_S = 5


def copy(system: Any, files: Sequence[tuple[str, Path]]) -> list[Exception | None]:
    """Copy files, each read once and in pieces, and say what became of each.

    Args:
        system: fsspec's file system.
        files: Names there, and where to write them.
    """
    if not getattr(system, "async_impl", False) or system.loop is None:
        return [_copy_one(system, name, target) for name, target in files]
    ended = threading.Event()
    task = asyncio.run_coroutine_threadsafe(_copy_all(system, files, ended), system.loop)
    try:
        return task.result()
    except BaseException:  # Ctrl-C: nothing may be written once the folder is being removed
        task.cancel()
        ended.wait(_STOPPED_WITHIN_S)
        raise


def _copy_one(system: Any, name: str, target: Path) -> Exception | None:
    try:
        system.get_file(name, str(target), callback=_bound())
    except Exception as error:  # every file system raises its own kinds
        return error
    return None


async def _copy_all(
    system: Any, files: Sequence[tuple[str, Path]], ended: threading.Event
) -> list[Exception | None]:
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str, target: Path) -> Exception | None:
        async with free:
            try:
                await system._get_file(name, str(target), callback=_bound())
            except Exception as error:
                return error
        return None

    try:
        return list(await asyncio.gather(*(one(name, target) for name, target in files)))
    finally:
        ended.set()


def _bound() -> Callback:
    """Stop a copy that grows without end: not every server says how long a file is."""

    def check(_size: int | None, copied: int, **_: Any) -> None:
        if copied > LARGEST:
            raise OSError(f"it is longer than {LARGEST / 1e9:.0f} GB")

    return Callback(hooks={"bound": check})

"""Read a file as blocks of plain bytes: gzip or not is decided by content, never by suffix.

gzip files come with several members, trailing garbage or a missing end (a rank was killed); all of
it is read as far as it goes and what was odd is remembered in `Source`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    from isal import isal_zlib

    _decompressobj: Callable[[int], Any] = isal_zlib.decompressobj
    _zlib_errors: tuple[type[Exception], ...] = (isal_zlib.error, zlib.error)
except ImportError:  # no wheel for this platform: the standard library does the same, slower
    _decompressobj = zlib.decompressobj
    _zlib_errors = (zlib.error,)

GZIP_MAGIC = b"\x1f\x8b"
BLOCK = 1 << 21  # 2 MiB of JSON: large enough to amortise calls, small enough for the CPU cache
_READ = 1 << 18
_GZIP_WINDOW = 31  # zlib: 15 window bits + 16 for the gzip header


@dataclass
class Source:
    """A file being read, and what was odd about it."""

    path: Path
    on_bytes: Callable[[int], None] | None = None
    cut: str | None = None
    trailing: int = 0
    size: int = 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the plain bytes in blocks of about `BLOCK`."""
        with self.path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            raw = self._raw(file)
            plain = self._inflate(raw) if head == GZIP_MAGIC else raw
            yield from _regroup(plain)

    def _raw(self, file: Any) -> Iterator[bytes]:
        while data := file.read(_READ):
            if self.on_bytes is not None:
                self.on_bytes(len(data))
            yield data

    def _inflate(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        member = _decompressobj(_GZIP_WINDOW)
        for data in raw:
            rest = data
            while rest:
                if member.eof:
                    if not _starts_member(rest):
                        self.trailing += len(rest) + sum(len(more) for more in raw)
                        return
                    member = _decompressobj(_GZIP_WINDOW)
                try:
                    yield member.decompress(rest)
                except _zlib_errors as error:
                    self.cut = f"the compressed data is damaged: {error}"
                    return
                rest = member.unused_data
        if not member.eof:
            self.cut = "the compressed data stops in the middle"


def _starts_member(data: bytes) -> bool:
    # One byte can be all that is left of a read; a lone 0x1f is as good as the magic.
    return data.startswith(GZIP_MAGIC) or data == GZIP_MAGIC[:1]


def _regroup(parts: Iterator[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= BLOCK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)



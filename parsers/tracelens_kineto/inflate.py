"""Read a file as blocks of plain bytes: gzip or not is decided by content, never by suffix.

gzip files come with several members, trailing garbage or a missing end (a rank was killed); all of
it is read as far as it goes and what was odd is remembered in `Source`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

try:
    from isal import isal_zlib

    _decompressobj: Callable[[int], Any] = isal_zlib.decompressobj
    _zlib_errors: tuple[Any, ...] = (isal_zlib.error, zlib.error)
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
    _reads: int = 0
    _inflated: int = 0
    _damaged: bool = False

    def blocks(self) -> Iterator[bytes]:
        """Yield the plain bytes in blocks of about `BLOCK`."""
        with self.path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            raw = self._raw(file)
            plain = self._inflate_all(raw) if head == GZIP_MAGIC else raw
            yield from _regroup(plain)

    def _raw(self, file: Any) -> Iterator[bytes]:
        while data := file.read(_READ):
            if self.on_bytes is not None:
                self.on_bytes(len(data))
            self._reads += 1
            yield data

    def _inflate_all(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        for plain in self._inflate(raw):
            self._inflated += len(plain)
            yield plain
        if self._damaged:
            yield from self._salvage()

    def _salvage(self) -> Iterator[bytes]:
        """Yield what the read with the damage holds before it: the call that failed gave nothing.

        The file is inflated once more, that read byte by byte; what was yielded before is skipped.
        """
        skip = self._inflated
        with self.path.open("rb") as file:
            sizes = chain(repeat(_READ, self._reads - 1), repeat(1, _READ))
            for plain in self._inflate(map(file.read, sizes), zlib.decompressobj):
                yield plain[skip:]
                skip = max(skip - len(plain), 0)

    def _inflate(
        self, raw: Iterator[bytes], new_member: Callable[[int], Any] = _decompressobj
    ) -> Iterator[bytes]:
        member = new_member(_GZIP_WINDOW)
        for data in raw:
            rest = data
            while rest:
                if member.eof:
                    if not _starts_member(rest):
                        self.trailing += len(rest) + sum(len(more) for more in raw)
                        return
                    member = new_member(_GZIP_WINDOW)
                try:
                    yield member.decompress(rest)
                except _zlib_errors as error:
                    self.cut = f"the compressed data is damaged: {error}"
                    self._damaged = True
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

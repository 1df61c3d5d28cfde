"""Read a file as blocks of plain bytes: its content says how it is packed, never its suffix.

gzip and zstd files come with several members, trailing garbage or a missing end (a rank was
killed); all of it is read as far as it goes and what was odd is remembered in `Source`. Text that
a shell wrote as UTF-16 becomes UTF-8.
"""

from __future__ import annotations

import codecs
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from tracelens import limits
from tracelens.compression import (
    GZIP_MAGIC,
    GZIP_WINDOW,
    NO_ZSTD,
    PADDING,
    UTF16_MARKS,
    is_zstd,
    new_zstd_frame,
    zstd_module,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

try:
    from isal import isal_zlib

    _decompressobj: Callable[[int], Any] = isal_zlib.decompressobj
    _zlib_errors: tuple[Any, ...] = (isal_zlib.error, zlib.error)
except ImportError:  # no wheel for this platform: the standard library does the same, slower
    _decompressobj = zlib.decompressobj
    _zlib_errors = (zlib.error,)

BLOCK = 1 << 21  # 2 MiB of JSON: large enough to amortise calls, small enough for the CPU cache
_READ = 1 << 18
_MOST = 1 << 23  # one call of gzip inflates no more; a read can hold a thousand times its size
# zstd offers no such bound and can grow 32,768 times: so little is read at once.
_READ_ZSTD = 1 << 11


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
            head = file.read(4)
            file.seek(0)
            yield from _regroup(_as_utf8(self._plain(file, head)))

    def _plain(self, file: Any, head: bytes) -> Iterator[bytes]:
        if head.startswith(GZIP_MAGIC):
            return self._bounded(self._gzip(file))
        if is_zstd(head):
            return self._bounded(self._zstd(file))
        return self._raw(file, _READ)

    def _raw(self, file: Any, size: int) -> Iterator[bytes]:
        while data := file.read(size):
            if self.on_bytes is not None:
                self.on_bytes(len(data))
            self._reads += 1
            yield data

    def _bounded(self, plain: Iterator[bytes]) -> Iterator[bytes]:
        """Stop where the data inflate to more than the limits in force allow."""
        allowed = limits.current().bytes_for(self.path.stat().st_size)
        for part in plain:
            left = allowed - self._inflated
            self._inflated += len(part)
            yield part[:left]
            if len(part) > left:
                self.cut = limits.exceeded(allowed)
                return

    # gzip --------------------------------------------------------------------------------------

    def _gzip(self, file: Any) -> Iterator[bytes]:
        """Inflate gzip; after damage, what the read that failed holds before it."""
        yield from self._inflate(self._raw(file, _READ))
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
        def step(member: Any, data: bytes) -> tuple[bytes, bytes]:
            plain = member.decompress(data, _MOST)
            return plain, member.unused_data if member.eof else member.unconsumed_tail

        new = partial(new_member, GZIP_WINDOW)
        return self._members(raw, new, step, _zlib_errors, _starts_member)

    # zstd --------------------------------------------------------------------------------------

    def _zstd(self, file: Any) -> Iterator[bytes]:
        module = zstd_module()
        if module is None:
            self.cut = NO_ZSTD
            return iter(())
        raw = self._raw(file, _READ_ZSTD)

        def step(frame: Any, data: bytes) -> tuple[bytes, bytes]:
            return frame.decompress(data), frame.unused_data if frame.eof else b""

        new = partial(new_zstd_frame, module)
        return self._members(raw, new, step, (module.ZstdError,), _starts_frame)

    # either ------------------------------------------------------------------------------------

    def _members(
        self,
        raw: Iterator[bytes],
        new: Callable[[], Any],
        step: Callable[[Any, bytes], tuple[bytes, bytes]],
        errors: tuple[type[Exception], ...],
        starts: Callable[[bytes], bool],
    ) -> Iterator[bytes]:
        """Inflate the members (gzip) or frames (zstd) that stand one after the other.

        `step` inflates a piece of a member and returns what it gave and what it left.
        """
        member, padding = new(), 0
        for data in raw:
            rest = data
            while rest:
                if member.eof:
                    rest, before = rest.lstrip(PADDING), len(rest)
                    padding += before - len(rest)
                    if not rest:
                        break
                    if not starts(rest):
                        self.trailing += padding + len(rest) + sum(len(more) for more in raw)
                        return
                    member, padding = new(), 0
                try:
                    plain, rest = step(member, rest)
                except errors as error:
                    self.cut = f"the compressed data is damaged: {error}"
                    self._damaged = True
                    return
                yield plain
        self.trailing += padding
        if not member.eof:
            self.cut = "the compressed data stops in the middle"


def _starts_member(data: bytes) -> bool:
    # One byte can be all that is left of a read; a lone 0x1f is as good as the magic.
    return data.startswith(GZIP_MAGIC) or data == GZIP_MAGIC[:1]


def _starts_frame(data: bytes) -> bool:
    whole = data + b"\x28\xb5\x2f\xfd"[len(data) :] if len(data) < 4 else data
    return is_zstd(data) or (len(data) < 4 and is_zstd(whole))


def _as_utf8(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Turn UTF-16 text (what `>` of an old PowerShell writes) into UTF-8, and leave the rest."""
    parts = iter(parts)
    first = next(parts, b"")
    while len(first) < 2 and (more := next(parts, None)) is not None:
        first += more
    if not first.startswith(UTF16_MARKS):
        yield first
        yield from parts
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for part in chain([first], parts):
        yield decoder.decode(part).encode("utf-8", "replace")


def _regroup(parts: Iterable[bytes]) -> Iterator[bytes]:
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

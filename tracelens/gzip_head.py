"""Read the beginning of a file, inflated if it is packed, to decide what it is."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

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
    from pathlib import Path

HEAD = 1 << 16


def head_of(path: Path) -> bytes:
    """Return at most 64 KiB of plain bytes; what cannot be inflated gives nothing."""
    with path.open("rb") as file:
        raw = file.read(HEAD)
    if raw.startswith(GZIP_MAGIC):
        raw = _gzip(raw)
    elif is_zstd(raw):
        raw = _zstd(raw)
    if raw.startswith(UTF16_MARKS):
        raw = raw.decode("utf-16", "replace").encode("utf-8", "replace")[:HEAD]
    return raw


def packed(raw: bytes) -> bool:
    """Tell whether a file's first bytes are those of gzip or zstd."""
    return raw.startswith(GZIP_MAGIC) or is_zstd(raw)


def holds_nothing(path: Path) -> bool:
    """Tell whether a file is whole gzip data with nothing in them."""
    with path.open("rb") as file:
        raw = file.read(HEAD)
    member = zlib.decompressobj(GZIP_WINDOW)
    try:
        return member.decompress(raw, 1) == b"" and member.eof
    except zlib.error:
        return False


def missing_decoder(path: Path) -> str | None:
    """Say what is needed to read a file whose compression nothing installed can undo."""
    with path.open("rb") as file:
        raw = file.read(4)
    return NO_ZSTD if is_zstd(raw) and zstd_module() is None else None


def _gzip(raw: bytes) -> bytes:
    plain = b""
    while raw.startswith(GZIP_MAGIC) and len(plain) < HEAD:
        member = zlib.decompressobj(GZIP_WINDOW)
        try:
            plain += member.decompress(raw, HEAD - len(plain))
        except zlib.error:
            break
        raw = member.unused_data.lstrip(PADDING)
    return plain


def _zstd(raw: bytes) -> bytes:
    """Inflate byte by byte until there is enough: one byte can complete a block, no more."""
    module = zstd_module()
    if module is None:
        return b""
    frame, plain = new_zstd_frame(module), b""
    try:
        for at in range(len(raw)):
            if frame.eof:
                frame = new_zstd_frame(module)
            plain += frame.decompress(raw[at : at + 1])
            if len(plain) >= HEAD:
                break
    except module.ZstdError:
        pass
    return plain[:HEAD]

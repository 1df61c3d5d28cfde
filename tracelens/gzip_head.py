"""Read the beginning of a file, inflated if it is gzip, to decide what it is."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: 15 window bits + 16 for the gzip header


def head_of(path: Path) -> bytes:
    """Return at most 64 KiB of plain bytes; what cannot be inflated gives nothing."""
    with path.open("rb") as file:
        raw = file.read(HEAD)
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    try:
        return zlib.decompressobj(_GZIP_WINDOW).decompress(raw, HEAD)
    except zlib.error:
        return b""

"""Tell compressed data by their first bytes, and undo zstd where something can."""

from __future__ import annotations

import importlib
from typing import Any

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_WINDOW = 31  # zlib: 15 window bits + 16 for the gzip header
PADDING = b"\0"  # may stand between members; Python's gzip module passes over it too
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
NO_ZSTD = "compressed with zstd: run `pip install 'tracelens-distributed[zstd]'` to read it"


def is_zstd(head: bytes) -> bool:
    """Tell whether data begin with a zstd frame, or with one that decoders skip (RFC 8878, 3.1)."""
    return head.startswith(ZSTD_MAGIC) or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F)


def zstd_module() -> Any | None:
    """Return the standard library's module (Python 3.14) or the package `zstandard`, if any."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def new_zstd_frame(module: Any) -> Any:
    """Return an object that inflates one frame: `decompress`, `eof` and `unused_data`."""
    if module.__name__ == "zstandard":
        return module.ZstdDecompressor().decompressobj()
    return module.ZstdDecompressor()

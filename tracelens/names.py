"""Make names for files out of names that come from elsewhere."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 100


def printable(text: str) -> str:
    """Return a name in which bytes that are no UTF-8 are written as escapes.

    Python keeps such bytes of a file's name as lone surrogates, which no report can be written
    with.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def safe_name(text: str, otherwise: str = "file") -> str:
    """Return a file name of letters, digits, dots, underscores and dashes only.

    Args:
        text: Any text, such as a kernel's name or a path inside an archive.
        otherwise: What to return if nothing usable is left.
    """
    name = _UNSAFE.sub("_", text).lstrip(".-_")
    if len(name) > _LONGEST:  # the end says what kind of file it is
        name = name[: _LONGEST // 2] + name[-_LONGEST // 2 :]
    return name or otherwise

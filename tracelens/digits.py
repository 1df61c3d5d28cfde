"""Numbers in names and texts of a trace: any length can stand there."""

from __future__ import annotations

_LONGEST = 18  # of digits that always fit 64 bits


def as_integer(digits: str | None) -> int | None:
    """Return the number that digits write; None without any, or if it fits no 64 bits."""
    return int(digits) if digits and digits.isdecimal() and len(digits) <= _LONGEST else None

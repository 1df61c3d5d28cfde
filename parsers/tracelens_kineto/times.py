"""Microsecond texts and doubles to integer nanoseconds, exactly.

Kineto prints microseconds with three decimals. A double holds them exactly enough (error under
half a nanosecond) below 2^43 us; Kineto's own base time keeps relative times under 7.9e12 us, which
is below. Absolute epoch times (1.7e15 us) step by 250 ns as doubles, so they are read as text.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

DOUBLE_LIMIT = float(1 << 43)
_LARGEST_US = 1 << 52  # 2^52 us are 142 years: a larger time is no time


def from_doubles(values: list[float]) -> NDArray[np.int64]:
    """Convert microseconds to nanoseconds; what is no time (NaN, absurd) becomes `NONE`."""
    us = np.asarray(values, np.float64)
    usable = np.abs(us) < _LARGEST_US  # False for NaN
    safe = np.where(usable, us, 0.0)
    whole = np.floor(safe)
    ns = whole.astype(np.int64) * 1000 + np.rint((safe - whole) * 1000).astype(np.int64)
    return np.where(usable, ns, NONE)


def from_text(raw: bytes | memoryview) -> int:
    """Convert a JSON number (or a quoted one) in microseconds to nanoseconds, exactly."""
    text = bytes(raw).strip(b'" \t\r\n')
    try:
        us = Decimal(text.decode("ascii", "replace"))
    except InvalidOperation:
        return NONE
    if not us.is_finite() or abs(us) >= _LARGEST_US:
        return NONE
    return int((us * 1000).to_integral_value())


def from_texts(values: list[bytes]) -> NDArray[np.int64]:
    """Convert many texts; see `from_text`."""
    return np.fromiter((from_text(value) for value in values), np.int64, len(values))

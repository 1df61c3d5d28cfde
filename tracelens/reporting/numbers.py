"""Write numbers the way every report writes them.

Three significant digits (never fewer than the whole part has), times as milliseconds per step,
decimal sizes, and the word "unknown" where nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.model.result import Metric

UNKNOWN = "unknown"
_MOST_DECIMALS = 6


def number(value: float | None, *, digits: int = 3, decimals: int = _MOST_DECIMALS) -> str:
    """Write a number with `digits` significant digits and at most `decimals` decimals."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    # The exponent is taken after rounding: 9.996 is 10.0, not 10.00.
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    places = min(max(digits - 1 - exponent, 0), decimals)
    text = f"{abs(value):,.{places}f}"
    sign = "−" if value < 0 else ""
    if not text.strip("0.,"):
        return f"{sign}<{10**-decimals:.{decimals}f}"
    return sign + text


def ms(nanoseconds: float | None) -> str:
    """Write nanoseconds as milliseconds; under a microsecond only says so."""
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return UNKNOWN
    if 0 < nanoseconds < 1000:
        return "<0.001"
    return number(nanoseconds / 1e6)


def percent(value: float | None) -> str:
    """Write a percentage with its sign."""
    text = number(value, decimals=2)
    return text if text == UNKNOWN else f"{text} %"


def share(part: float | None, whole: float | None) -> str:
    """Write `part` as a percentage of `whole`."""
    return percent(100 * part / whole) if part is not None and whole else UNKNOWN


def count(value: float | None) -> str:
    """Write a count: whole numbers in full, means of counts with three digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == int(value):
        return f"{int(value):,}".replace("-", "−")
    return number(value)


def multiple(value: float | None, of: str) -> str:
    """Write a multiple such as 2.92 Ψ."""
    text = number(value)
    return text if text == UNKNOWN else f"{text} {of}"


@dataclass(frozen=True, slots=True)
class SizeUnit:
    """A decimal unit of size."""

    name: str
    bytes: int

    def of(self, size: float | None) -> str:
        """Write a size in this unit, without the unit."""
        if size is not None and self.bytes == 1:
            return count(size)
        return number(None if size is None else size / self.bytes, decimals=3)


_UNITS = (
    SizeUnit("B", 1),
    SizeUnit("kB", 10**3),
    SizeUnit("MB", 10**6),
    SizeUnit("GB", 10**9),
    SizeUnit("TB", 10**12),
)


def size_unit(sizes: Iterable[float | None]) -> SizeUnit:
    """Choose the unit in which the largest of some sizes reads best."""
    largest = max((abs(size) for size in sizes if size is not None), default=0)
    # 999,999 bytes read as 1.00 MB, so the unit is chosen after rounding.
    rounded = float(f"{largest:.2e}")
    return max((unit for unit in _UNITS if unit.bytes <= rounded), default=_UNITS[0], key=_size_of)


def _size_of(unit: SizeUnit) -> int:
    return unit.bytes


def size(value: float | None) -> str:
    """Write a size in its best unit, with the unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    unit = size_unit([value])
    return f"{unit.of(value)} {unit.name}"


def ranges(numbers: Iterable[int], *, most: int = 12) -> str:
    """Write integers as ranges, such as 0–3, 7; long lists end with how many more there are."""
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    shown = [str(low) if low == high else f"{low}–{high}" for low, high in runs[:most]]
    left = sum(high - low + 1 for low, high in runs[most:])
    return ", ".join([*shown, f"and {left:,} more"] if left else shown) or "none"


def metric_value(metric: Metric) -> str:
    """Write a headline number in its unit."""
    return quantity(metric.value, metric.unit)


def quantity(value: float | None, unit: str) -> str:
    """Write a value in a unit; nanoseconds become milliseconds, bytes their best unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    writers = {"%": percent, "bytes": size, "B": size, "": number, "ratio": number, "count": count}
    if unit in writers:
        return writers[unit](value)
    if unit == "ns":
        return f"{ms(value)} ms"
    return f"{number(value)} {unit}"

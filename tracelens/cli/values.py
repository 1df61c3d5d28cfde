"""Values users type: counts with units, ranges, lists, layouts, kernel rules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.theory.transformer import Described

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_COUNT = re.compile(r"^([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmbgt]?)$", re.IGNORECASE)
_SIZE = re.compile(r"^([0-9]{1,15}(?:\.[0-9]+)?)\s*(?:([kmgt])(i)?)?b?$", re.IGNORECASE)
_RANGE = re.compile(r"^(\d*):(\d*)$|^(\d+)$")
_BANDWIDTH = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*(?:([MGTmgt](?:B|b|bit))(?:/s|ps))?$")
_DIMENSIONS = ("dp", "tp", "pp", "ep", "cp")
_LARGEST = 10**7


def count(text: str) -> int:
    """Read a number of parameters: "6.7B", "863360", "1_000_000"."""
    match = _COUNT.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no number of parameters; write 863360, 125M or 6.7B")
    number, unit = match[1].replace("_", "").replace(",", ""), _UNITS[match[2].lower()]
    whole, _, fraction = number.partition(".")
    # Exact: 6.7B is 6,700,000,000, not the nearest double times 1e9.
    value: int = int(whole + fraction) * unit
    scale: int = 10 ** len(fraction)
    if value % scale or value == 0:
        raise ValueError(f"{text!r} is no whole number of parameters above 0")
    return value // scale


def step_range(text: str) -> tuple[int | None, int | None]:
    """Read a range of step numbers, both ends included: "10:30", "10:", ":30", "12"."""
    match = _RANGE.match(text.strip())
    if match is None or text.strip() == ":":
        raise ValueError(f"{text!r} is no range of steps; write 10:30, 10: or :30")
    if match[3] is not None:
        return int(match[3]), int(match[3])
    low, high = (int(part) if part else None for part in (match[1], match[2]))
    if low is not None and high is not None and low > high:
        raise ValueError(f"{text!r} ends before it begins")
    return low, high


def rank_list(text: str) -> frozenset[int]:
    """Read a list of ranks: "0-7,16"."""
    ranks: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"{text!r} is no list of ranks; write 0-7,16")
        last = int(high) if dash else int(low)
        if last < int(low) or last > _LARGEST:
            raise ValueError(f"{part.strip()!r} is no range of ranks")
        ranks.update(range(int(low), last + 1))
    return frozenset(ranks)


def layout(text: str) -> tuple[dict[str, int], int | None]:
    """Read a parallel layout: "dp=8,tp=2,pp=4,zero=3"; the ZeRO stage is returned apart."""
    dims: dict[str, int] = {}
    stage: int | None = None
    for part in text.split(","):
        name, _, value = part.strip().lower().partition("=")
        if name not in (*_DIMENSIONS, "zero") or not value.isdecimal():
            known = ", ".join(_DIMENSIONS)
            raise ValueError(f"{part.strip()!r} is no part of a layout; write {known} or zero = n")
        if name == "zero":
            stage = int(value)
            if stage > 3:
                raise ValueError(f"there is no ZeRO stage {stage}")
        elif int(value) < 1:
            raise ValueError(f"{name} must be at least 1")
        else:
            dims[name] = int(value)
    return dims, stage


def rank_factor(text: str) -> tuple[int, float]:
    """Read a rank and a factor: "3:1.3"."""
    rank, _, factor = text.partition(":")
    try:
        found = int(rank), float(factor)
    except ValueError:
        found = -1, 0.0
    if found[0] < 0 or not 0 < found[1] <= _LARGEST:
        raise ValueError(f"{text!r} is no rank and factor; write 3:1.3")
    return found


def described_model(text: str) -> Described:
    """Read a model: "llama-2-7b,sequence=4096,batch=2", or sizes alone."""
    from tracelens.errors import OptionError
    from tracelens.theory.transformer import describe

    try:
        return describe(text)
    except OptionError as error:
        raise ValueError(f"{error}; {error.hint}") from error


def dtype(text: str) -> str:
    """Read a dtype such as bf16 or float32."""
    from tracelens.dtypes import item_size, standard_name

    if item_size(text) is None:
        raise ValueError(f"{text!r} is no dtype; write bf16, fp16, fp32, float8_e4m3fn …")
    return standard_name(text) or text


def bandwidth(text: str) -> float:
    """Read a bandwidth in GB/s: "450", "450GB/s", "400Gb/s", "1.8TB/s"; a small b is a bit."""
    match = _BANDWIDTH.match(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is no bandwidth; write 450GB/s or 400Gb/s (bits)")
    unit = match[2] or "GB"
    scale = {"M": 1e-3, "G": 1.0, "T": 1e3}[unit[0].upper()]
    return float(match[1]) * scale / (1 if unit[1] == "B" else 8)


def size(text: str) -> int:
    """Read a number of bytes: "500MB", "64GiB", "1000000"."""
    match = _SIZE.match(text.strip())
    number = float(match[1]) if match else 0.0
    if match is None or not number:
        raise ValueError(f"{text!r} is no size; write 500MB or 64GiB")
    power = " kmgt".index((match[2] or " ").lower())
    return int(number * (1024 if match[3] else 1000) ** power)


def kernel_rule(text: str) -> Any:
    """Read a rule "REGEX=OP": kernels whose name matches are this operation."""
    from tracelens.operations import OPERATIONS, Rule

    pattern, separator, operation = text.rpartition("=")
    operation = operation.strip().lower().replace("-", "_")
    if not separator or not pattern or operation not in OPERATIONS:
        raise ValueError(f"{text!r} is no rule; write REGEX=OP, OP one of {', '.join(OPERATIONS)}")
    try:
        return Rule(re.compile(pattern), operation)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


def pattern(text: str) -> str:
    """Check a regular expression; the text itself is what reports show."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return text


class Typed(click.ParamType[Any]):
    """A click type around one of the functions above."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text, or fail with its message (exit code 2)."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

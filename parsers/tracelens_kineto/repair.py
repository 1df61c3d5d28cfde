"""Rebuild single damaged events from their text."""

from __future__ import annotations

import codecs
import json
import math
import re
from decimal import Decimal

from tracelens_kineto.categories import BUCKETS, STEP
from tracelens_kineto.events import is_phase

_NO_NUMBER = re.compile(
    r":\s*(?:-?(?:inf(?:inity)?|nan)(?:\([a-z]*\))?|n/?a)\s*(?=[,}\]\n])", re.IGNORECASE
)
_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)

_TEXT_FIELD = r'"{}"\s*:\s*"((?:[^"\\]|\\.)*)"(?=\s*[,}}])'
# Quoted on both sides or on none, and with something behind it: else it may be cut.
_NUMBER_FIELD = (
    r'"{}"\s*:\s*("?)(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\1\s*(?:\}}|,\s*\S|\n\s*\S)'
)
_NAME = re.compile(r'"name"\s*:\s*"')
_NAME_END = re.compile(r'"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:')
_ONCE = re.compile(r'[{,]\s*"(ph|cat|pid|tid|ts|dur|args)"\s*:')  # twice: pieces of two events
_OF_DEVICE = re.compile(r'"(?:device|stream)"\s*:\s*"?-?\d')
_NO_LENGTH = re.compile(r'"dur"\s*:(?!\s*"?[-0-9])')  # one that is none, not one that is cut
_ARG_NUMBERS = ("External id", "correlation", "stream", "device", "bytes")
_DEVICE_BUCKETS = ("kernel", "copy", "memset")


def _escape_bytes(error: UnicodeError) -> tuple[str, int]:
    # `\\xff` and not U+FFFD: two kernels that differ in one bad byte must not merge.
    assert isinstance(error, UnicodeDecodeError)
    bad = error.object[error.start : error.end]
    return "".join(f"\\\\x{byte:02x}" for byte in bad), error.end


codecs.register_error("tracelens-escape", _escape_bytes)


def may_be(span: str, *buckets: str) -> bool:
    """Tell whether a lost event may have been of these buckets: unless its text says otherwise."""
    phases = re.findall(_TEXT_FIELD.format("ph"), span)  # several: pieces of several events
    categories = re.findall(_TEXT_FIELD.format("cat"), span)
    if phases and all(is_phase(phase) and phase != "X" for phase in phases):
        return False
    return not categories or any(BUCKETS.get(category) in buckets for category in categories)


def says_category(span: str) -> bool:
    """Tell whether the text of a lost event says what it was."""
    return re.search(_TEXT_FIELD.format("cat"), span) is not None


def may_be_device_event(span: str) -> bool:
    """Tell whether a lost event may have been device work, or a step: its mark bounds the work."""
    return (
        may_be(span, *_DEVICE_BUCKETS)
        or (may_be(span, "mark", "operator") and f'"{STEP}' in span)
        or _is_of_several(span)
    )


def _is_of_several(span: str) -> bool:
    """Tell whether a text has the beginning of one event and the end of another.

    What stood between them is gone, and may have been anything.
    """
    start, end = _name_bounds(span)
    rest = span[:start] + span[end:]
    if rest.count("}") > rest.count("{") or _repeats_a_key(rest):
        return True
    return not may_be(span, *_DEVICE_BUCKETS) and _OF_DEVICE.search(span) is not None


def _repeats_a_key(span: str) -> bool:
    keys = _ONCE.findall(span)
    return len(keys) != len(set(keys))


def may_be_host_work(span: str) -> bool:
    """Tell whether a lost event may have been what stands for device work where there is none."""
    return may_be(span, "mark", "operator", "call")


def repair(span: str) -> dict[str, object] | None:
    """Rebuild one damaged event, or return None if it cannot be told what and when it was."""
    mended = _escape_lone_backslashes(_NO_NUMBER.sub(": null", span))
    try:
        value = _DECODER.decode(mended)
    except (ValueError, RecursionError):
        return _from_fields(span)
    return _normalise(value) if isinstance(value, dict) and is_phase(value.get("ph")) else None


def _escape_lone_backslashes(text: str) -> str:
    return _BACKSLASH.sub(lambda match: match[0] if match[1] else r"\\", text)


def _unescape(text: str) -> str:
    """Read a JSON string's inside in which quotes and backslashes may stand unescaped."""
    quoted = _escape_lone_backslashes(text)
    quoted = re.sub(r'(\\.)|"', lambda match: match[1] or r"\"", quoted, flags=re.S)
    try:
        return str(json.loads(f'"{quoted}"', strict=False))
    except ValueError:
        return text


def _normalise(event: dict[str, object]) -> dict[str, object]:
    """Give every known field a type the typed decoder takes; unusable numbers are dropped."""
    fixed = dict(event)
    for key in ("ph", "cat", "name"):
        if key in fixed and not isinstance(fixed[key], str):
            fixed[key] = json.dumps(fixed[key])
    for key in ("ts", "dur"):
        if key in fixed and (number := _number(fixed.pop(key))) is not None:
            fixed[key] = number
    for key in ("pid", "tid", "id"):
        value = fixed.get(key)
        if not isinstance(value, str) and not _fits(value):
            fixed.pop(key, None)
    return fixed


def _number(value: object) -> str | None:
    """Return a number, or a text that says one, as the typed decoder reads it."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value)
    try:
        number = Decimal(text.strip())
        return None if "_" in text or math.isinf(float(number)) else str(number)
    except (ArithmeticError, ValueError):
        return None


def _fits(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and -(1 << 63) <= value < 1 << 64  # type: ignore[operator]


def _from_fields(span: str) -> dict[str, object] | None:
    """Pick the known fields out of an event whose text cannot be parsed."""
    if _is_of_several(span):
        return None
    event: dict[str, object] = {}
    for key in ("ph", "cat"):
        if match := re.search(_TEXT_FIELD.format(key), span):
            event[key] = match[1]
    for key in ("ts", "dur", "pid", "tid"):
        if match := re.search(_NUMBER_FIELD.format(key), span):
            number = match[2]
            is_id = key in ("pid", "tid") and number.lstrip("-").isdecimal()
            event[key] = int(number) if is_id else number  # the decoders are lax
    if not {"ph", "ts"} <= event.keys() or not is_phase(event["ph"]):
        return None
    if event["ph"] == "X" and (
        "cat" not in event or not (_NO_LENGTH.search(span) or "dur" in event)
    ):
        return None
    event["name"] = _name(span)
    numbers = {key: re.search(_NUMBER_FIELD.format(key), span) for key in _ARG_NUMBERS}
    event["args"] = {key: match[2] for key, match in numbers.items() if match}
    return event


def _name(span: str) -> str:
    start, end = _name_bounds(span)
    return _unescape(span[start:end])


def _name_bounds(span: str) -> tuple[int, int]:
    """Return where an event's name begins and ends, as far as the next key shows it."""
    start = _NAME.search(span)
    end = _NAME_END.search(span, start.end()) if start else None
    return (start.end(), end.start()) if start and end else (0, 0)


def encode(event: dict[str, object]) -> bytes:
    """Write an event as the typed decoder can read it."""
    text = json.dumps(event, ensure_ascii=False)
    return _LONE_SURROGATE.sub("\ufffd", text).encode()

"""Walk a damaged batch event by event: repair what can be repaired, skip the rest, count both.

Seen in real files: unescaped quotes, raw newlines and lone backslashes in names and arguments,
`inf`, `nan` and `N/A` where a number belongs, invalid UTF-8, control bytes, and a cut end.

The batch is walked as Latin-1 text, so that an index is a byte offset; single events are then
decoded as UTF-8.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass, field

import msgspec

from tracelens_kineto.events import Event

_EVENT_START = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_ARRAY_END = re.compile(r"\}\s*(?=\]\s*(?:[,}]|\Z))")
_NO_NUMBER = re.compile(
    r":\s*(?:-?(?:inf(?:inity)?|nan)(?:\([a-z]*\))?|n/?a)\s*(?=[,}\]\n])", re.IGNORECASE
)
_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DEVICE_CATEGORY = re.compile(r'"cat"\s*:\s*"(?:kernel|gpu_mem(?:cpy|set))"', re.IGNORECASE)

# Floats stay text: a double would lose nanoseconds of absolute times. The decoders are lax.
_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)
_CHECK = msgspec.json.Decoder(Event, strict=False)  # a number as a string is no damage

_TEXT_FIELD = r'"{}"\s*:\s*"((?:[^"\\]|\\.)*)"'
_NUMBER_FIELD = r'"{}"\s*:\s*"?(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"?\s*[,}}\n]'
_NAME_FIELD = re.compile(r'"name"\s*:\s*"(.*?)"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:', re.S)
_ARG_NUMBERS = ("External id", "correlation", "stream", "device", "bytes")


@dataclass
class Damage:
    """What was damaged in a file."""

    repaired: int = 0
    skipped: int = 0
    device_skipped: int = 0
    first_byte: int | None = None
    cut: bool = False

    def note(self, at: int) -> None:
        """Remember where the first damage stands (byte of the plain text)."""
        if self.first_byte is None:
            self.first_byte = at

    @property
    def count(self) -> int:
        """All damaged events."""
        return self.repaired + self.skipped


@dataclass
class Walk:
    """The events of a batch as JSON texts.

    Attributes:
        end: Where the array closed, if it did.
        unread: Bytes at the end that are no whole event, though more may come.
    """

    events: list[bytes] = field(default_factory=list)
    end: int | None = None
    unread: int = 0


def _escape_bytes(error: UnicodeError) -> tuple[str, int]:
    # `\\xff` and not U+FFFD: two kernels that differ in one bad byte must not merge.
    assert isinstance(error, UnicodeDecodeError)
    bad = error.object[error.start : error.end]
    return "".join(f"\\\\x{byte:02x}" for byte in bad), error.end


codecs.register_error("tracelens-escape", _escape_bytes)


def walk(data: bytes, offset: int, damage: Damage, *, last: bool = True) -> Walk:
    """Split a batch into events.

    Args:
        data: The inside of the traceEvents array from the start of an event.
        offset: Where `data` stands in the plain text, for messages.
        damage: Counts are added here.
        last: Nothing follows, so what is unfinished stays so.
    """
    text = data.decode("latin-1")
    result = Walk()
    position = 0
    while True:
        position = _skip_blanks(text, position)
        if position >= len(text):
            return result
        if text[position] == "]":
            result.end = position + 1
            return result
        following = _one_event(text, position, offset, damage, result, last=last)
        if following is None:
            result.unread = len(text) - position
            return result
        position = following


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _one_event(
    text: str, position: int, offset: int, damage: Damage, result: Walk, *, last: bool
) -> int | None:
    """Read the event at a position and return where it ends; None if that is yet to come."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        following = _EVENT_START.search(text, position)
        if following is None and not last:
            return None
        damage.note(offset + position)
        stop = _end_of_damage(text, position, following)
        if stop is None:
            damage.cut = True  # the file stops inside this event
            return len(text)
        _repair_into(text[position:stop], damage, result)
        return stop
    if isinstance(value, dict):
        _keep(text[position:end], position + offset, damage, result)
    return end


def _keep(span: str, at: int, damage: Damage, result: Walk) -> None:
    """Keep a well-formed event; rewrite it if the typed decoder would refuse its values."""
    raw = span.encode("latin-1")
    try:
        _CHECK.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        damage.note(at)
        _repair_into(span, damage, result)
    else:
        result.events.append(raw)


def _end_of_damage(text: str, position: int, following: re.Match[str] | None) -> int | None:
    # Both patterns match at the event's own closing brace.
    if following is not None:
        return following.start() + 1
    for closing in _ARRAY_END.finditer(text, position):
        end = closing.start() + 1
        if text.count("{", position, end) == text.count("}", position, end):
            return end  # else a list of objects inside the event
    return None


def _repair_into(span: str, damage: Damage, result: Walk) -> None:
    on_device = bool(_DEVICE_CATEGORY.search(span))
    event = repair(span.encode("latin-1").decode("utf-8", "tracelens-escape"))
    if event is None:
        damage.skipped += 1
        damage.device_skipped += on_device
    else:
        result.events.append(_encode(event))
        damage.repaired += 1


def repair(span: str) -> dict[str, object] | None:
    """Rebuild one damaged event, or return None if not even its time can be read."""
    mended = _escape_lone_backslashes(_NO_NUMBER.sub(": null", span))
    try:
        value = _DECODER.decode(mended)
    except (ValueError, RecursionError):
        return _from_fields(span)
    return _normalise(value) if isinstance(value, dict) else None


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
        if key in fixed and not _is_number(fixed[key]):
            del fixed[key]
    for key in ("pid", "tid"):
        if key in fixed and not isinstance(fixed[key], (int, str)):
            fixed[key] = json.dumps(fixed[key])
    return fixed


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return False
    try:
        return abs(float(value)) < float("inf")
    except (ValueError, OverflowError):
        return False


def _from_fields(span: str) -> dict[str, object] | None:
    """Pick the known fields out of an event whose text cannot be parsed."""
    event: dict[str, object] = {}
    for key in ("ph", "cat"):
        if match := re.search(_TEXT_FIELD.format(key), span):
            event[key] = match[1]
    for key in ("ts", "dur", "pid", "tid"):
        if match := re.search(_NUMBER_FIELD.format(key), span):
            event[key] = match[1] if key in ("ts", "dur") else int(float(match[1]))
    if not {"ph", "ts"} <= event.keys():
        return None
    name = _NAME_FIELD.search(span)
    event["name"] = _unescape(name[1]) if name else ""
    numbers = {key: re.search(_NUMBER_FIELD.format(key), span) for key in _ARG_NUMBERS}
    event["args"] = {key: match[1] for key, match in numbers.items() if match}
    return event


def _encode(event: dict[str, object]) -> bytes:
    text = json.dumps(event, ensure_ascii=False)
    return _LONE_SURROGATE.sub("\ufffd", text).encode()

"""Walk a damaged batch event by event: repair what can be repaired, skip the rest, count both.

Seen in real files: unescaped quotes, raw newlines and lone backslashes in names and arguments,
`inf`, `nan` and `N/A` where a number belongs, invalid UTF-8, control bytes, a cut end, holes (zero
bytes where blocks of the file never reached the disk, or other bytes that are no text), and two
processes that wrote into one file.

The batch is walked as Latin-1 text, so that an index is a byte offset; single events are then
decoded as UTF-8.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from tracelens_kineto.events import WHOLE_EVENT, is_phase
from tracelens_kineto.repair import (
    encode,
    may_be_device_event,
    may_be_host_work,
    repair,
    says_category,
)

_EVENT_START = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_INNER_START = re.compile(r',\s*(\{\s*"ph"\s*:\s*")')  # writers put the phase first
_STUMP = re.compile(r',\s*\{(?:"\w*)?\s*(?=,)')  # what is left of an event that broke off at once
_ARRAY_END = re.compile(r"\}\s*(?=\]\s*(?:[,}]|\Z))")
_FOREIGN_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[')
_BLANKS = re.compile(r"[ \t\r\n,]*")
_LONGEST_EVENT = 1 << 18  # a longer one is no event but what is left of many
_MOST_IN_A_ROW = 250_000  # a second or two of looking at each
_TRIES = 64  # so many beginnings of events inside damage are looked at
_BRACES = re.compile(r"[{}]")
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\xff]")  # but for tabs and colours
_RUN, _MANY = re.compile(_NO_TEXT.pattern + "{8}"), 32  # more than a name with odd bytes has

# Floats stay text: a double would lose nanoseconds of absolute times. The decoders are lax.
_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)


@dataclass
class Damage:
    """What was damaged in a file.

    Attributes:
        repaired: Events rebuilt, whole but for the damaged part.
        skipped: Events that could not be.
        device_skipped: Those of them that were, or may have been, device events, or steps.
        unnamed: Skipped ones whose text does not say what they were.
        host_skipped: Others that stand for device work on a CPU run: operators, ranges, calls.
        holes: Those in which other bytes than text stand: more events may be lost, uncounted.
        first_byte: Where the first one stands in the plain text.
        cut: The file ends inside an event.
        in_a_row: How many were skipped since the last event.
        look_ahead: How far damaged objects may still be followed beyond the next event's start.
    """

    repaired: int = 0
    skipped: int = 0
    device_skipped: int = 0
    host_skipped: int = 0
    unnamed: int = 0
    holes: int = 0
    first_byte: int | None = None
    cut: bool = False
    in_a_row: int = 0
    look_ahead: int = 1 << 26

    def note(self, at: int) -> None:
        """Remember where the first damage stands (byte of the plain text)."""
        if self.first_byte is None:
            self.first_byte = at

    @property
    def hopeless(self) -> bool:
        """Whether so much in a row is no event that the rest is not looked at."""
        return self.in_a_row > _MOST_IN_A_ROW

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
        foreign: Beginnings of other traces among the events.
    """

    events: list[bytes] = field(default_factory=list)
    end: int | None = None
    unread: int = 0
    foreign: int = 0


def walk(data: bytes, offset: int, damage: Damage, *, last: bool = True) -> Walk:
    """Split a batch into events.

    Args:
        data: The inside of the traceEvents array from the start of an event.
        offset: Where `data` stands in the plain text, for messages.
        damage: Counts are added here.
        last: Nothing follows, so what is unfinished stays so.
    """
    walker = _Walker(data.decode("latin-1"), offset, damage, last=last)
    walker.run()
    return walker.result


class _Walker:
    def __init__(self, text: str, offset: int, damage: Damage, *, last: bool) -> None:
        self.text, self.offset, self.damage, self.last = text, offset, damage, last
        self.result = Walk()
        self._searched = -1  # the next event's start is known for places up to here
        self._start: int | None = None

    def run(self) -> None:
        text, position = self.text, 0
        while True:
            position = _skip_blanks(text, position)
            if position >= len(text) or self.damage.hopeless:
                return
            if text[position] == "]":
                self.result.end = position + 1
                return
            following = self._one(position)
            if following is None:
                self.result.unread = len(text) - position
                return
            position = following

    def _one(self, position: int) -> int | None:
        """Read the event at a position and return where it ends; None if that is yet to come."""
        text, stop = self.text, self._next_start(position)
        found = self._decoded(position, stop)
        if found is not None:
            value, end = found
            inside = None
            if isinstance(value, dict) and "traceEvents" in value:
                inside = self._foreign(position, end)
            if inside is None:
                self._keep(value, position, end)
            return inside or end
        if stop is None and not self.last:
            return None
        begun = self._begun_inside(position, stop)
        if stop is None:
            stop = begun or _end_of_damage(text, position)
        inside = self._foreign(position, len(text) if stop is None else stop)
        if inside is not None:
            return inside
        self.damage.note(self.offset + position)
        if stop is None:
            self.damage.cut = True  # the file stops inside this event
            return len(text)
        stop = begun or stop
        self._repair(text[position:stop])
        for _ in _STUMP.finditer(text, position, stop):
            self._skip("")
        return stop

    def _next_start(self, position: int) -> int | None:
        """Return where the event at a position ends, as the start of the next one tells.

        What was found stays true until it is passed: searching anew for each event would cost the
        square of a text in which events of this form are far apart.
        """
        if position > self._searched:
            match = _EVENT_START.search(self.text, position)
            # Both patterns match at the event's own closing brace.
            self._searched = match.start() if match else len(self.text)
            self._start = match.start() + 1 if match else None
        return self._start

    def _begun_inside(self, start: int, stop: int | None) -> int | None:
        """Return where the next event begins if damage has lost its end, and another follows it.

        A whole event must reach to where the damage seems to stop: in a name or an argument that
        looks like one more would follow.
        """
        if stop is None:
            if self.damage.look_ahead <= 0:
                return None
            self.damage.look_ahead -= len(self.text) - start
        begun = None
        found = _INNER_START.finditer(self.text, start + 1, stop or len(self.text))
        for match in islice(found, _TRIES):
            inner = match.start(1)
            begun = begun or inner
            value, length = _decode(self.text[inner:stop], 0)
            if length is None or not isinstance(value, dict) or not is_phase(value.get("ph")):
                continue
            end = inner + length
            if end == stop or (stop is None and _ARRAY_END.match(self.text, end - 1)):
                return begun
        return None

    def _decoded(self, position: int, stop: int | None) -> tuple[object, int] | None:
        """Decode the value at a position: up to the next event's start, else beyond it.

        `},{` can stand inside a string, so the next start may be none. Looking beyond costs the
        length of what follows and is done for so much text only.
        """
        if stop is not None:
            value, end = _decode(self.text[position:stop], 0)
            if end is not None:
                return value, position + end
        if stop is not None and self.damage.look_ahead <= 0:
            return None
        value, end = _decode(self.text, position)
        if end is None:
            self.damage.look_ahead -= len(self.text) - position
            return None
        return value, end

    def _foreign(self, start: int, end: int) -> int | None:
        """Return where the events of another trace begin that starts inside this one."""
        match = _FOREIGN_ARRAY.search(self.text, start, end)
        if match is None:
            return None
        self.result.foreign += 1
        return match.end()

    def _keep(self, value: object, start: int, end: int) -> None:
        """Keep a well-formed event; rewrite it if the typed decoder would refuse its values."""
        if not value:
            return  # some tools close the array with {} or null
        if not isinstance(value, dict) or not is_phase(value.get("ph")):
            self.damage.note(self.offset + start)
            self._skip(self.text[start:end])
            return
        raw = self.text[start:end].encode("latin-1")
        if _is_sound(raw):
            self._add(raw)
        else:
            self.damage.note(self.offset + start)
            self._repair(self.text[start:end])

    def _repair(self, span: str) -> None:
        if _is_hole(span):  # what stands before it and behind it is not of one event
            self.damage.holes += 1
            self._skip("")
            return
        event = None
        if len(span) <= _LONGEST_EVENT:
            event = repair(span.encode("latin-1").decode("utf-8", "tracelens-escape"))
        raw = b"" if event is None else encode(event)
        if _is_sound(raw):
            self._add(raw)
            self.damage.repaired += 1
        else:
            self._skip(span)

    def _add(self, event: bytes) -> None:
        self.result.events.append(event)
        self.damage.in_a_row = 0

    def _skip(self, span: str) -> None:
        self.damage.skipped += 1
        self.damage.in_a_row += 1
        device = may_be_device_event(span)
        self.damage.device_skipped += device
        self.damage.unnamed += not says_category(span)
        self.damage.host_skipped += not device and may_be_host_work(span)


def _is_hole(span: str) -> bool:
    """Tell whether other bytes stand in the place of text: of how many events, nobody knows."""
    return _RUN.search(span) is not None or len(_NO_TEXT.findall(span)) >= _MANY


def _is_sound(raw: bytes) -> bool:
    """Tell whether the typed decoders take an event; a number as a string is no damage."""
    try:
        WHOLE_EVENT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    assert match is not None  # it matches nothing, too
    return match.end()


def _decode(text: str, position: int) -> tuple[object, int | None]:
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None, None


def _end_of_damage(text: str, position: int) -> int | None:
    """Return where the array closes behind a damaged event, None if it never does."""
    depth, counted = 0, position
    for closing in _ARRAY_END.finditer(text, position):
        end = closing.start() + 1
        braces = _BRACES.findall(text, counted, end)
        depth += 2 * braces.count("{") - len(braces)
        counted = end
        if depth == 0:
            return end  # else a list of objects inside the event
    return None

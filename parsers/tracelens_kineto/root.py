"""The root around the events: where its array begins, where it ends, what follows it.

A root is an object with `traceEvents` among its keys, or the legacy profiler's bare array. Several
can stand in one file: two processes that wrote to one name, or a file that was appended to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import msgspec

_KEY = b'"traceEvents"'
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\[")
_EVENT = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:')
_NEXT = re.compile(rb'"traceEvents"\s*:\s*\[|\{\s*"ph"\s*:\s*"')
_OBJECT_END = re.compile(rb"\}\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TRIES = 8  # at a key that may stand in a value: each looks at all text before it
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)


def array_start(text: bytes, searched: int = 0) -> int | None:
    """Return where the first event may stand, or None if no array of events has begun yet."""
    if match := _BARE.match(text):
        return match.end()  # the legacy profiler: one bare array
    match = _ARRAY.search(text, searched)
    return match.end() if match else None


def last_key(text: bytes, searched: int) -> int:
    """Return from where on a search has to begin when more text has come."""
    at = text.rfind(_KEY, searched)
    return at if at >= 0 else max(len(text) - len(_KEY), 0)


def before_array(opened: bytes) -> bytes:
    """Return the keys before the array: `opened` without `"traceEvents": [`."""
    match = _ARRAY.search(opened)
    return opened[: match.start()] if match else b""


@dataclass(frozen=True)
class Following:
    """What stands behind the array of events.

    Attributes:
        end: Where the root ends, None if it does not (yet).
        trace: Where another trace begins behind it.
        events: Where events stand that are in no array: another writer's.
        key: Where the root has `traceEvents` a second time.
        array: Where the events of that one begin.
    """

    end: int | None = None
    trace: int | None = None
    events: int | None = None
    key: int | None = None
    array: int | None = None

    @classmethod
    def of(cls, opened: bytes, text: bytes) -> Following:
        """Look at the text behind the array's closing bracket.

        Args:
            opened: The root's text up to the array's opening bracket.
            text: What has been read behind the closing one.
        """
        bare = _BARE.match(opened)
        if not bare and (again := _array_again(text)):
            return cls(key=again.start(), array=again.end())
        end = 0 if bare else _end_of_object(text)
        if end == "more":
            return cls()
        found = _NEXT.search(text, 0 if end == "broken" else end)
        if found is None:
            return cls(None if end == "broken" else end)
        if end == "broken":
            return cls._behind_damage(text, found)
        if found[0].startswith(_KEY) or _BARE.match(text, end):
            return cls(end, trace=end)
        return cls(end, events=_EVENT.search(text, end).start())  # type: ignore[union-attr]

    @classmethod
    def _behind_damage(cls, text: bytes, found: re.Match[bytes]) -> Following:
        """Tell another trace from stray events where the root's own end cannot be found."""
        if not found[0].startswith(_KEY):
            return cls(None, events=found.start())
        boundary = _OBJECT_END.search(text, 0, found.start())
        start = boundary.end() if boundary else found.start()
        return cls(start, trace=start)


def _array_again(text: bytes) -> re.Match[bytes] | None:
    """Find `traceEvents` as a further key of the root whose array closed before `text`."""
    for match in islice(_ARRAY.finditer(text), _TRIES):
        try:
            _ANYTHING.decode(b'{"":[]' + text[: match.start()] + b'"":0}')
        except (msgspec.DecodeError, RecursionError):
            continue  # inside a value, or of another root
        return match
    return None


def _end_of_object(text: bytes) -> int | Literal["more", "broken"]:
    """Return where the root ends whose array closed before `text`."""
    prefix = b'{"":[]'
    try:
        _ANYTHING.decode(prefix + text)
    except msgspec.DecodeError as error:
        if match := _TRAILING.search(str(error)):
            return int(match[1]) - 1 - len(prefix)
        return "more" if "truncated" in str(error) else "broken"
    except RecursionError:
        return "broken"
    return len(text)

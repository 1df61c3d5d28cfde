"""Cut a stream of blocks into batches of events; isolate what is damaged.

Fast path: cut at an event boundary near the end of the buffer and let msgspec decode the batch. The
cut is verified by the decoding itself: a boundary inside a string makes it fail. Then the tolerant
path walks the batch event by event, so that damage costs one event and not the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tracelens_kineto import root, tolerant
from tracelens_kineto.events import (
    EVENTS,
    EXACT_EVENTS,
    LAX_EVENTS,
    LAX_EXACT_EVENTS,
    LAX_LINK_EVENTS,
    LINK_EVENTS,
    PHASES,
    Event,
    ExactEvent,
    LinkEvent,
)
from tracelens_kineto.times import DOUBLE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    Batches = Generator[Any, None, bytes]  # yields batches, returns the bytes that are left

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_DECIMALS = re.compile(rb'"(?:ts|dur)"\s*:\s*"?-?\d+\.\d')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_HEADER_LIMIT = 1 << 25  # metadata before or after the events: 32 MiB is beyond anything seen
_EVENT_LIMIT = 1 << 25  # ... and so is one event of that length
_CUT_TRIES = 200
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_T = TypeVar("_T")
Batch = list[Event] | list[ExactEvent]


@dataclass
class Scan:
    """One pass over one trace: yields batches, collects the root's other keys and the damage.

    Attributes:
        blocks: The plain bytes from the beginning of the trace.
        links: Decode `LinkEvent`s instead of events.
        header: The text before the events, `footer` the text after them.
        found: There is an array of events; `closed`: and its end; `whole`: and the root's.
        decimals: Times have decimals, so the file can say nanoseconds.
        too_long: Reading stopped: for longer than any event or metadata is, none of it ended.
        foreign: Places where another writer's text begins inside this trace.
        rest: What follows the trace's end, if that is another trace.
        trailing: Bytes behind the trace that are none.
    """

    blocks: Iterator[bytes]
    offset: int = 0
    links: bool = False
    header: bytes = b""
    footer: bytes = b""
    found: bool = False
    closed: bool = False
    whole: bool = False
    exact: bool = False
    decimals: bool = False
    too_long: bool = False
    foreign: int = 0
    rest: bytes | None = None
    trailing: int = 0
    unread: int = 0  # bytes at the end of the last batch that are no whole event yet
    damage: tolerant.Damage = field(default_factory=tolerant.Damage)
    _opened: bytes = b""  # what stands before the first event, up to the array's bracket
    _patience: int = 0  # no event ended in half as much: looking at each block costs the square

    def batches(self) -> Iterator[Any]:
        """Yield the events in batches, in file order."""
        buffer = self._find_array()
        if not self.found:
            return
        for block in chain([b""], self.blocks):
            buffer = yield from self._take(buffer + block)
            if self.rest is not None or (self.too_long and self.closed):
                return
            if self.too_long:
                break
        if not self.closed:
            yield from self._decode(buffer)
            buffer = self.footer
        if self.closed:
            yield from self._after(buffer, last=True)

    def _find_array(self) -> bytes:
        buffer, searched = b"", 0
        for block in self.blocks:
            buffer += block
            start = root.array_start(buffer, searched)
            if start is None:
                searched = root.last_key(buffer, searched)
                if len(buffer) > _HEADER_LIMIT:
                    self.too_long = True
                    return b""
                continue
            self.found = True
            self._opened = buffer[:start]
            self.header = root.before_array(self._opened)
            self.offset += start
            return buffer[start:]
        self.header = buffer
        return b""

    def _take(self, buffer: bytes) -> Batches:
        """Decode the whole events of a buffer; return what has to wait for more."""
        if self.closed:
            return (yield from self._after(buffer))
        if buffer.isspace():
            self.offset += len(buffer)
            return b""
        if len(buffer) < min(self._patience, _EVENT_LIMIT):
            return buffer
        start, cut = 0, _last_boundary(buffer)
        if cut is not None:
            yield from self._decode(buffer, cut[0])
            if self.closed:
                footer, self.footer = self.footer, b""
                return (yield from self._after(footer + buffer[cut[0] :]))
            start = cut[0] - self.unread if self.unread else cut[1]
        self.offset += start
        self._patience = 0 if start else 2 * len(buffer)
        self.too_long = self.damage.hopeless or len(buffer) - start > _EVENT_LIMIT
        return buffer[start:]

    def _after(self, text: bytes, *, last: bool = False) -> Batches:
        """Look at what follows the array: the root's other keys, its end, maybe another trace."""
        following = root.Following.of(self._opened, text)
        if following.events is not None:  # another process wrote on: its events are in no array
            self.foreign += 1
            return (yield from self._resume(text, following.events, last=last))
        if following.array is not None:
            self.header += text[: following.key].lstrip().removeprefix(b",")
            return (yield from self._resume(text, following.array, last=last))
        self.footer = text if following.end is None else text[: following.end]
        self.whole = following.end is not None
        if following.trace is not None:
            self.rest = text[following.trace :]
            self.offset += following.trace
        elif following.end is not None and last:
            self.trailing = len(text[following.end :].strip())
        elif len(text) > _HEADER_LIMIT:
            self.too_long = True
        return text

    def _resume(self, text: bytes, start: int, *, last: bool) -> Batches:
        """Read on where more events stand behind the array."""
        self.closed = False
        self.offset += start
        rest = text[start:]
        if not last:
            return (yield from self._take(rest))
        yield from self._decode(rest)
        if self.closed:
            return (yield from self._after(self.footer, last=True))
        return b""

    def _decode(self, buffer: bytes, stop: int | None = None) -> Iterator[Any]:
        """Decode the events up to a place; without one nothing follows the buffer."""
        self.unread = 0
        last = stop is None
        if last and not buffer.strip():
            return
        data = memoryview(buffer)[:stop]
        text = b"".join((b"[", data) if last else (b"[", data, b"]"))
        if not self.decimals:
            self.decimals = _DECIMALS.search(text) is not None
        try:
            yield self._fast(text)
        except _UNDECODABLE as error:
            yield self._retry(text, bytes(data), error, last=last)
        else:
            self.closed = self.closed or last

    def _retry(self, text: bytes, data: bytes, error: Exception, *, last: bool) -> Any:
        """Decode a batch in which the array ends, or one that is damaged."""
        match = _TRAILING.search(str(error))
        if match is not None:
            end = int(match[1]) - 1  # msgspec counts bytes from 1
            try:
                batch = self._fast(text[:end])
            except _UNDECODABLE:
                pass
            else:
                self._close(data, end - 1)  # the text has a bracket before the data
                return batch
        return self._tolerant(data, last=last)

    def _close(self, data: bytes, end: int) -> None:
        self.closed = True
        self.offset += end
        self.footer = data[end:]

    def _fast(self, text: bytes) -> list[Event] | list[ExactEvent] | list[LinkEvent]:
        if self.links:
            return _decoded(text, LINK_EVENTS, LAX_LINK_EVENTS)
        if self.exact:
            return self._exactly(text)
        batch = _decoded(text, EVENTS, LAX_EVENTS)
        odd = [e for e in batch if e.ts >= DOUBLE_LIMIT or (e.ph != "X" and e.ph not in PHASES)]
        if any(event.ts >= DOUBLE_LIMIT for event in odd):
            self.exact = True
            return self._exactly(text)
        if odd:
            raise msgspec.ValidationError("an element that is no event")
        return batch

    def _exactly(self, text: bytes) -> list[ExactEvent]:
        batch = _decoded(text, EXACT_EVENTS, LAX_EXACT_EVENTS)
        if any(event.ph != "X" and event.ph not in PHASES for event in batch):
            raise msgspec.ValidationError("an element that is no event")
        return batch

    def _tolerant(self, data: bytes, *, last: bool) -> Any:
        result = tolerant.walk(data, self.offset, self.damage, last=last)
        self.unread = result.unread
        self.foreign += result.foreign
        if result.end is not None:
            self._close(data, result.end)
        return self._fast(b"[" + b",".join(result.events) + b"]")


def traces(blocks: Iterable[bytes], *, links: bool = False) -> Iterator[Scan]:
    """Yield a `Scan` for each trace of a file; it must be read to its end before the next."""
    stream, offset = iter(blocks), 0
    while True:
        scan = Scan(stream, offset, links)
        yield scan
        if scan.rest is None:
            return
        stream, offset = chain([scan.rest], stream), scan.offset


def _decoded(
    text: bytes, strict: msgspec.json.Decoder[list[_T]], lax: msgspec.json.Decoder[list[_T]]
) -> list[_T]:
    try:
        return strict.decode(text)
    except msgspec.ValidationError:
        return lax.decode(text)  # numbers as strings


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """Find the last `},{` between two objects: the end of one and the start of the next."""
    position = len(buffer)
    for _ in range(_CUT_TRIES):
        position = buffer.rfind(b"}", 0, position)
        if position < 0:
            return None
        if match := _BOUNDARY.match(buffer, position):
            return position + 1, match.end()
    return None

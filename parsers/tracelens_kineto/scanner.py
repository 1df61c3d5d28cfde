"""Cut a stream of blocks into batches of events; isolate what is damaged.

Fast path: cut at an event boundary near the end of the buffer and let msgspec decode the batch. The
cut is verified by the decoding itself: a boundary inside a string makes it fail. Then the tolerant
path walks the batch event by event, so that damage costs one event and not the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tracelens_kineto import tolerant
from tracelens_kineto.events import EVENTS, EXACT_EVENTS, LAX_EVENTS, Event, ExactEvent
from tracelens_kineto.times import DOUBLE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_HEADER_LIMIT = 1 << 26  # metadata before the events: 64 MiB is beyond anything seen
_CUT_TRIES = 200
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Batch = list[Event] | list[ExactEvent]


@dataclass
class Scan:
    """One pass over a file: yields batches, collects the root's other keys and the damage."""

    header: bytes = b""
    footer: bytes = b""
    found: bool = False
    closed: bool = False
    exact: bool = False
    offset: int = 0
    unread: int = 0  # bytes at the end of the last batch that are no whole event yet
    damage: tolerant.Damage = field(default_factory=tolerant.Damage)

    def batches(self, blocks: Iterator[bytes]) -> Iterator[Batch]:
        """Yield the events in batches, in file order."""
        buffer = self._find_array(blocks)
        if not self.found:
            return
        for block in blocks:
            buffer += block
            if self.closed:
                self.footer += buffer
                buffer = b""
                continue
            cut = _last_boundary(buffer)
            if cut is None:
                continue
            yield from self._decode(buffer[: cut[0]])
            if not self.closed:
                start = cut[0] - self.unread if self.unread else cut[1]
                self.offset += start
                buffer = buffer[start:]
            else:
                self.footer += buffer[cut[0] :]
                buffer = b""
        if self.closed:
            self.footer += buffer
        else:
            yield from self._decode(buffer, last=True)

    def _find_array(self, blocks: Iterator[bytes]) -> bytes:
        buffer = b""
        for block in blocks:
            buffer += block
            if buffer.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                start = buffer.index(b"[") + 1  # the legacy profiler: one bare array
            elif match := _ARRAY.search(buffer):
                start = match.end()
                self.header = buffer[: match.start()]
            elif len(buffer) > _HEADER_LIMIT:
                return b""
            else:
                continue
            self.found = True
            self.offset = start
            return buffer[start:]
        self.header = buffer
        return b""

    def _decode(self, data: bytes, *, last: bool = False) -> Iterator[Batch]:
        self.unread = 0
        if not data.strip():
            return
        text = b"[" + data if last else b"".join((b"[", data, b"]"))
        try:
            yield self._fast(text)
        except _UNDECODABLE as error:
            yield self._retry(text, data, error, last=last)
        else:
            self.closed = self.closed or last

    def _retry(self, text: bytes, data: bytes, error: Exception, *, last: bool) -> Batch:
        """Decode a batch in which the array ends, or one that is damaged."""
        match = _TRAILING.search(str(error))
        if match is not None:
            end = int(match[1]) - 1  # msgspec counts bytes from 1
            try:
                batch = self._fast(text[:end])
            except _UNDECODABLE:
                pass
            else:
                self.closed = True
                self.footer = data[end - 1 :]  # the text has a bracket before the data
                return batch
        return self._tolerant(data, last=last)

    def _fast(self, text: bytes) -> Batch:
        if self.exact:
            return EXACT_EVENTS.decode(text)
        try:
            batch = EVENTS.decode(text)
        except msgspec.ValidationError:
            batch = LAX_EVENTS.decode(text)  # numbers as strings
        if any(event.ts >= DOUBLE_LIMIT for event in batch):
            self.exact = True
            return EXACT_EVENTS.decode(text)
        return batch

    def _tolerant(self, data: bytes, *, last: bool) -> Batch:
        result = tolerant.walk(data, self.offset, self.damage, last=last)
        self.unread = result.unread
        if result.end is not None:
            self.closed = True
            self.footer = data[result.end :]
        return self._fast(b"[" + b",".join(result.events) + b"]")


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

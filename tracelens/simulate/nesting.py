"""Find the innermost host range around an instant."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Span(NamedTuple):
    """A range of a host thread; `key` is whatever the caller tells ranges apart by."""

    thread: int
    start: int
    end: int
    key: int


def innermost(
    spans: Iterable[Span], instants: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """Return the key of the innermost span around each (thread, time); those outside are left out.

    Spans of a thread nest. One sweep over the sorted instants keeps the open spans on a stack.
    """
    found: dict[tuple[int, int], int] = {}
    waiting = sorted(spans, key=lambda span: (span.thread, span.start, -span.end))
    place, open_spans = 0, list[Span]()
    for thread, at in sorted(set(instants)):
        while place < len(waiting) and waiting[place][:2] <= (thread, at):
            open_spans.append(waiting[place])
            place += 1
        while open_spans and (open_spans[-1].thread != thread or open_spans[-1].end < at):
            open_spans.pop()
        if open_spans:
            found[thread, at] = open_spans[-1].key
    return found

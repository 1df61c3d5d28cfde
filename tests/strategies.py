"""Hypothesis strategies for intervals, device timelines and JSON text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tracelens.communication import COMMUNICATION, COMPUTE, COPY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelens.intervals import Ints

SPAN = 60  # nanoseconds: small enough for a brute-force twin, dense enough for every overlap


class Spans(NamedTuple):
    """Starts and ends of any intervals: overlapping, touching, empty, in any order."""

    start: Ints
    end: Ints


def _spans(pairs: list[tuple[int, int]]) -> Spans:
    start = np.array([low for low, _ in pairs], np.int64)
    return Spans(start, start + np.array([length for _, length in pairs], np.int64))


def spans(max_size: int = 12) -> st.SearchStrategy[Spans]:
    pair = st.tuples(st.integers(0, SPAN - 15), st.integers(0, 15))
    return st.lists(pair, max_size=max_size).map(_spans)


def windows() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(-5, SPAN + 5), st.integers(-5, SPAN + 5)).map(
        lambda pair: (min(pair), max(pair))
    )


class DeviceEvent(NamedTuple):
    """One event of a random device timeline."""

    start: int
    duration: int
    event_class: int
    op: int  # of a communication: an index into a handful of operations
    launch: int | None


def device_events(min_size: int = 0, max_size: int = 14) -> st.SearchStrategy[list[DeviceEvent]]:
    """Return random timelines: any overlap, any class, launches early, late or unknown."""
    event = st.builds(
        DeviceEvent,
        start=st.integers(0, SPAN - 15),
        duration=st.integers(1, 15),
        event_class=st.sampled_from([COMPUTE, COMMUNICATION, COPY]),
        op=st.integers(0, 3),
        launch=st.none() | st.integers(0, SPAN),
    )
    return st.lists(event, min_size=min_size, max_size=max_size).map(sorted_by_start)


def sorted_by_start(events: list[DeviceEvent]) -> list[DeviceEvent]:
    return sorted(events, key=lambda event: event.start)


def mask(spans: Spans, low: int = 0, high: int = SPAN) -> NDArray[np.bool_]:
    """Return which nanoseconds of [low, high) any of the spans covers: the brute-force union."""
    covered = np.zeros(max(high - low, 0), bool)
    for start, end in zip(spans.start, spans.end, strict=True):
        covered[max(start - low, 0) : max(end - low, 0)] = True
    return covered


# Strings that look like the end of an event, of the array, or of the file.
_NASTY = st.sampled_from(
    ["},{", "}, {", "}]", "]", "{", "}", '"', "\\", "\\\\", "\n", '}, {"ph": "X"']
)
nasty_text = st.lists(_NASTY | st.text(max_size=4), max_size=5).map("".join)


def _event_text(name: str, key: str, start_ns: int, duration_ns: int) -> str:
    fields = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7}
    head = json.dumps(fields)[:-1]
    args = json.dumps({key: name, "device": 0, "stream": 7})
    return f'{head}, "ts": {start_ns / 1000:.3f}, "dur": {duration_ns / 1000:.3f}, "args": {args}}}'


kernel_texts = st.builds(
    _event_text, nasty_text, nasty_text, st.integers(1, 10**9), st.integers(1, 10**6)
)

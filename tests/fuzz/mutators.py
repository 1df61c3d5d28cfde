"""Hypothesis strategies that damage traces: at the level of bytes, and event by event.

Damage of bytes may do anything, so only what holds of every input can be asked of it. Damage of
events is known: which of them are hit, and whether it shows.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from fuzz import material
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuzz.material import Run, Text

    Draw = Callable[[st.SearchStrategy[Any]], Any]

DEVICE_CATEGORIES = frozenset(
    {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
)  # fmt: skip


class Row(NamedTuple):
    """A device event as it must be found again: times in nanoseconds of the file's own clock."""

    device: int
    start: int
    end: int


@dataclass(frozen=True)
class Known:
    """What is known of the damage in a file.

    Attributes:
        kept: The device events that were not damaged.
        visible: Those whose damage shows, as they were: found so again, or their loss is told.
        lost: Damaged events, of any kind, that are none any more.
        file: The file without the damaged events.
    """

    kept: Counter[Row]
    visible: Counter[Row]
    lost: int
    file: bytes


@dataclass(frozen=True)
class Case:
    """An input: files by name, what was done to them, and what is known of it."""

    files: dict[str, bytes] = field(repr=False)
    story: str
    known: dict[str, Known] = field(default_factory=dict, repr=False)


# bytes -------------------------------------------------------------------------------------------

_JUNK = (
    b'"', b"\\", b"\n", b"\r\n", b"\x00", b"\x1b[31m", b"\xff", b"\xc3", b"\xed\xa0\x80", b"{",
    b"}", b"[", b"]", b",", b":", b"},{", b"]}", b"]}{", b"[[[[", b"null", b"NaN", b"-Infinity",
    b"1e999", b'"ph": "X"', b'"traceEvents": [', b'}, {"ph": "X", "cat": "kernel"', b"\xef\xbb\xbf",
    b"\\ud800", b"\x1f\x8b\x08", b"PK\x03\x04",
)  # fmt: skip
_NUMBERS = (
    b"0", b"-1", b"-0.0", b"1e3", b"1E+300", b"-1e300", b"1e999", b"0.0001", b"2147483648",
    b"4294967296", b"9007199254740993", b"4503599627370495", b"-4503599627370495.5",
    b"9223372036854775807", b"-9223372036854775808", b"18446744073709551616", b"9" * 400,
    b"4503599627370495000000", b"null", b"true", b'"7"', b'"seven"', b"[]", b"{}", b"[[1]]",
    b"1.7e15", b"0x7",
)  # fmt: skip
_NUMBER = re.compile(rb"(?<![\w.#])-?\d+(?:\.\d+)?(?![\w.])")


def _flip(draw: Draw, data: bytes, _: bytes) -> bytes:
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]


def _cut(draw: Draw, data: bytes, _: bytes) -> bytes:
    return data[: draw(st.integers(0, len(data)))]


def _drop(draw: Draw, data: bytes, _: bytes) -> bytes:
    start, end = _slice(draw, data)
    return data[:start] + data[end:]


def _duplicate(draw: Draw, data: bytes, _: bytes) -> bytes:
    start, end = _slice(draw, data)
    return data[:end] + data[start:end] + data[end:]


def _splice(draw: Draw, data: bytes, other: bytes) -> bytes:
    """Put a slice of this file or of another somewhere, or over what is there."""
    source: bytes = draw(st.sampled_from([data, other]))
    start, end = _slice(draw, source)
    at = draw(st.integers(0, len(data)))
    over = draw(st.sampled_from([0, end - start]))
    return data[:at] + source[start:end] + data[at + over :]


def _insert(draw: Draw, data: bytes, _: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    junk: bytes = draw(st.sampled_from(_JUNK))
    return data[:at] + junk + data[at:]


def _number(draw: Draw, data: bytes, _: bytes) -> bytes:
    """Put another number in the place of one."""
    match = _NUMBER.search(data, draw(st.integers(0, len(data))))
    if match is None:
        return data
    number: bytes = draw(st.sampled_from(_NUMBERS))
    return data[: match.start()] + number + data[match.end() :]


def _slice(draw: Draw, data: bytes) -> tuple[int, int]:
    start = draw(st.integers(0, len(data)))
    return start, min(start + draw(st.sampled_from([1, 7, 60, 300, 2_000, 1 << 20])), len(data))


_ON_BYTES = (_flip, _cut, _drop, _duplicate, _splice, _insert, _number, _number)


@st.composite
def _bytes(draw: Draw, data: bytes, other: bytes) -> tuple[bytes, str]:
    """Damage bytes once or a few times; return what was done too."""
    done = []
    for mutate in draw(st.lists(st.sampled_from(_ON_BYTES), min_size=1, max_size=4)):
        if data:
            data = mutate(draw, data, other)
            done.append(mutate.__name__.strip("_"))
    return data, ", ".join(done)


_one_in_four = st.sampled_from([False, False, False, True])


@st.composite
def _runs(draw: Draw) -> Run:
    return material.run(draw(st.sampled_from(material.names())))


@st.composite
def byte_cases(draw: Draw) -> Case:
    """A trace with damaged bytes, alone or beside a sound rank; sometimes damaged once packed."""
    run, other = draw(_runs()), draw(_runs())
    first, second = (text.file() for text in run.files)
    piece, name = other.files[1].file(), run.files[0].name
    packed = draw(st.sampled_from(["plain", "plain", "plain", "gzip", "members"]))
    if packed == "plain":
        damaged, done = draw(_bytes(first, piece))
    else:
        half = len(first) // 2
        parts = [first] if packed == "gzip" else [first[:half], first[half:]]
        gz = b"".join(gzip.compress(part, 1, mtime=0) for part in parts)
        damaged, done = draw(_bytes(gz, gzip.compress(piece, 1, mtime=0)))
        name += ".gz"
    files = {name: damaged}
    if draw(_one_in_four):
        files[run.files[1].name] = second
    return Case(files, f"{run.name}, {packed}: {done}")


@st.composite
def export_cases(draw: Draw) -> Case:
    """An SQLite export of Nsight Systems with damaged bytes."""
    data = draw(st.sampled_from(material.exports()))
    damaged, done = draw(_bytes(data, draw(st.sampled_from(material.exports()))))
    return Case({"report.sqlite": damaged}, f"Nsight Systems: {done}")


# events ------------------------------------------------------------------------------------------


class Number(Decimal):
    """A number of a trace, with the text it has there."""

    text: str

    @classmethod
    def of(cls, text: str) -> Number:
        number = cls(text)
        number.text = text
        return number


class Harm(NamedTuple):
    """What became of an event: texts in its place, and what is known of them.

    Attributes:
        shows: No sound event is left, or its times are none: it was visibly damaged.
        harmless: It says the same as before.
        none: No reader can take it for an event.
    """

    texts: tuple[bytes, ...]
    shows: bool = True
    harmless: bool = False
    none: bool = False


def read(event: str) -> dict[str, Any]:
    """Decode an event; numbers keep their texts."""
    value: dict[str, Any] = json.loads(event, parse_float=Number.of, parse_int=Number.of)
    return value


def write(value: object) -> str:
    """Encode what `read` returned, and anything put into it."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)}: {write(item)}" for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(write, value))}]"
    return json.dumps(value)


def row_of(event: dict[str, Any]) -> Row | None:
    """Return an event's place on its device; None if it is no device event."""
    if event.get("ph") != "X" or event.get("cat") not in DEVICE_CATEGORIES:
        return None
    start, duration = (int(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
    return Row(int(event["args"]["device"]), start, start + duration)


_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
_ODD: tuple[object, ...] = (None, True, [], {}, [1, [2]], {"a": {}}, "text", "", "NaN")
_IMPOSSIBLE = ("1e300", "-1e300", "9e15", "1e999", "9" * 400)
_NO_NUMBERS = ("inf", "-inf", "nan", "NaN", "Infinity", "-Infinity", "N/A", "-nan(ind)")
_IN_TEXTS = ('"', '"', "\\", "\n", "\r\n", "\t", "\x00", "\x1b", "\x7f", "\\u12", "},{", '"},{"')
_BAD_BYTES = (b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\x80")
_NO_EVENTS = ("17", '"text"', "true", "[1, 2]", "[[[[]]]]", '{"a": 1}', '{"ph": 5}')


def _delete_key(draw: Draw, event: dict[str, Any]) -> Harm:
    key = draw(st.sampled_from([key for key in _KEYS if key in event]))
    left = {k: v for k, v in event.items() if k != key}
    return Harm((write(left).encode(),), none=key == "ph")


def _odd_value(draw: Draw, event: dict[str, Any]) -> Harm:
    key = draw(st.sampled_from(_KEYS))
    odd = draw(st.sampled_from(_ODD))
    return Harm((write({**event, key: odd}).encode(),), none=key == "ph")


def _odd_argument(draw: Draw, event: dict[str, Any]) -> Harm:
    args = event.get("args") or {}
    key = draw(st.sampled_from(["device", "stream", "correlation", "External id", *args]))
    odd = draw(st.sampled_from(_ODD))
    return Harm((write({**event, "args": {**args, key: odd}}).encode(),))


def _other_phase(draw: Draw, event: dict[str, Any]) -> Harm:
    other = {**event, "ph": draw(st.sampled_from("BEisfMbne"))}
    return Harm((write(other).encode(),), shows=False)


def _impossible_time(draw: Draw, event: dict[str, Any]) -> Harm:
    key = draw(st.sampled_from(["ts", "dur"]))
    text = draw(st.sampled_from(_IMPOSSIBLE))
    return Harm((write({**event, key: Number.of(text)}).encode(),))


def _other_number(draw: Draw, event: dict[str, Any]) -> Harm:
    """Put a number that could be one in its place: nothing shows."""
    key = draw(st.sampled_from(["ts", "dur", "pid", "tid"]))
    texts = ["0", "-1", "1", "0.001", "1.5e3", "4503599627370495", "-4503599627370495.5"]
    other = {**event, key: Number.of(draw(st.sampled_from(texts)))}
    return Harm((write(other).encode(),), shows=False)


def _same_time(draw: Draw, event: dict[str, Any]) -> Harm:
    """Write a time as a string, or with an exponent."""
    key = draw(st.sampled_from([key for key in ("ts", "dur") if key in event] or ["ts"]))
    if not isinstance(event.get(key), Number):
        return Harm((write(event).encode(),), harmless=True)
    text = event[key].text
    moved = f"{Decimal(text).scaleb(-2):f}e2"
    same: object = draw(st.sampled_from([text, Number.of(moved), moved]))
    return Harm((write({**event, key: same}).encode(),), harmless=True)


def _remove(_: Draw, event: dict[str, Any]) -> Harm:
    return Harm((), shows=False)


def _repeat(_: Draw, event: dict[str, Any]) -> Harm:
    return Harm((write(event).encode(),) * 2, harmless=True)


def _break_text(draw: Draw, event: dict[str, Any]) -> Harm:
    """Put what must be escaped into the name or an argument, as it is."""
    place, mark = draw(st.sampled_from(["name", "note"])), "\uf8ff"
    odd = draw(st.sampled_from(_IN_TEXTS))
    if place == "name":
        name = str(event.get("name", ""))
        at = draw(st.integers(0, len(name)))
        marked = {**event, "name": name[:at] + mark + name[at:]}
    else:
        marked = {**event, "args": {"note": f"say {mark} so", **(event.get("args") or {})}}
    text = write(marked).replace(json.dumps(mark)[1:-1], odd)
    return Harm((text.encode("utf-8", "surrogatepass"),))


def _break_bytes(draw: Draw, event: dict[str, Any]) -> Harm:
    name = str(event.get("name", ""))
    text = write({**event, "name": "\uf8ff" + name}).encode()
    return Harm((text.replace(rb"\uf8ff", draw(st.sampled_from(_BAD_BYTES))),))


def _no_number(draw: Draw, event: dict[str, Any]) -> Harm:
    key = draw(st.sampled_from(["ts", "dur", "note"]))
    number = draw(st.sampled_from(_NO_NUMBERS))
    if key == "note":
        changed = {**event, "args": {**(event.get("args") or {}), "note": "\uf8ff"}}
    else:
        changed = {**event, key: "\uf8ff"}
    return Harm((write(changed).replace(r'"\uf8ff"', number).encode(),))


def _lose_a_mark(draw: Draw, event: dict[str, Any]) -> Harm:
    """Drop one character of JSON's own."""
    text = write(event)
    places = [match.start() for match in re.finditer(r'[{}\[\]:,"]', text)]
    at = draw(st.sampled_from(places))
    return Harm(((text[:at] + text[at + 1 :]).encode(),))


def _end_early(draw: Draw, event: dict[str, Any]) -> Harm:
    text = write(event)
    return Harm((text[: draw(st.integers(1, len(text) - 1))].encode(),))


def _no_event(draw: Draw, _: dict[str, Any]) -> Harm:
    return Harm((draw(st.sampled_from(_NO_EVENTS)).encode(),), none=True)


def _nest(draw: Draw, event: dict[str, Any]) -> Harm:
    depth = draw(st.sampled_from([50, 1_100, 20_000]))
    changed = {**event, "args": {**(event.get("args") or {}), "note": "\uf8ff"}}
    return Harm((write(changed).replace(r'"\uf8ff"', "[" * depth + "]" * depth).encode(),))


HARMS: tuple[Callable[[Draw, dict[str, Any]], Harm], ...] = (
    _delete_key, _odd_value, _odd_argument, _other_phase, _impossible_time, _other_number,
    _same_time, _remove, _repeat, _break_text, _break_bytes, _no_number, _lose_a_mark, _end_early,
    _no_event, _nest,
)  # fmt: skip


@st.composite
def event_cases(draw: Draw) -> Case:
    """A trace of which some events are damaged, alone or beside a rank that is whole."""
    run = draw(_runs())
    text, whole = run.files
    events = [read(event) for event in text.events]
    places = draw(st.lists(st.sampled_from(_order(events)), min_size=1, max_size=5, unique=True))
    harms, done = {}, []
    for place in sorted(places):
        harm = draw(st.sampled_from(HARMS))
        harms[place] = harm(draw, events[place])
        done.append(f"event {place} {harm.__name__.strip('_')}")
    known = {text.name: _known(text, events, harms)}
    files = {text.name: text.file(_pieces(text, harms))}
    if draw(_one_in_four):
        known[whole.name], files[whole.name] = untouched(whole), whole.file()
    return Case(files, f"{run.name}: {', '.join(done)}", known)


def _order(events: list[dict[str, Any]]) -> list[int]:
    """Return the places of all events: device events twice, so that they are damaged more often."""
    device = [i for i, event in enumerate(events) if event.get("cat") in DEVICE_CATEGORIES]
    return [*range(len(events)), *device, *device]


def _pieces(text: Text, harms: dict[int, Harm]) -> list[bytes]:
    pieces: list[bytes] = []
    for place, event in enumerate(text.events):
        pieces += harms[place].texts if place in harms else [event.encode()]
    return pieces


def _known(text: Text, events: list[dict[str, Any]], harms: dict[int, Harm]) -> Known:
    kept, visible, missed = Counter[Row](), Counter[Row](), Counter[Row]()
    for place, event in enumerate(events):
        row, harm = row_of(event), harms.get(place)
        if row is None:
            continue
        if harm is None or harm.harmless:
            kept[row] += 1
        elif harm.shows:
            visible[row] += 1
        elif _is_missed(event, events, harms, harm):
            missed[row] += 1
    if kept:  # without any device event a file is a CPU run's, whatever it launched
        visible += missed
    gone = {place for place, harm in harms.items() if not harm.harmless}
    left = [event.encode() for place, event in enumerate(text.events) if place not in gone]
    lost = sum(harm.none for harm in harms.values())
    return Known(kept, visible, lost if lost == len(harms) else -1, text.file(left))


def _is_missed(
    event: dict[str, Any], events: list[dict[str, Any]], harms: dict[int, Harm], harm: Harm
) -> bool:
    """Tell whether a sound call is left that launched this event and nothing else."""
    if harm.texts or event["cat"] in ("gpu_memset", "Memset"):
        return False
    same = [
        place
        for place, other in enumerate(events)
        if (other.get("args") or {}).get("correlation") == event["args"].get("correlation")
    ]
    calls = [i for i in same if "aunch" in events[i]["name"] or "emcpyAsync" in events[i]["name"]]
    return len(same) == 2 and len(calls) == 1 and calls[0] not in harms


@functools.cache
def untouched(text: Text) -> Known:
    """Return what is known of a file that is whole."""
    return _known(text, [read(event) for event in text.events], {})

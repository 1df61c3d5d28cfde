"""Damaged text in names, arguments and keys, from a file to the result: no number changes.

Rank 0 is damaged, rank 1 is whole. The kernel that is damaged is the first of its step: if it were
lost, or had lost its launch, the step's times would show it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from standard_run import codes, holds, is_standard, rank, rank_of, said

import tracelens

if TYPE_CHECKING:
    from pathlib import Path

    from builders import Trace

NAMES = {
    b'"a<"x", "y">(int)"': 'a<"x", "y">(int)',
    b'""b""': '"b"',
    b'"""': '"',
    b'"c "," "d": 1"': 'c "," "d": 1',
    b'"e }], "x": [ "': 'e }], "x": [ ',
    b'"f\nx"': "f\nx",
    b'"g\r\nx"': "g\r\nx",
    b'"h\tx"': "h\tx",
    rb'"C:\work\all"': r"C:\work\all",
    b'"i\\"': "i\\",
    b'"j\\\nx"': "j\\\nx",
    rb'"k\x41"': r"k\x41",
    rb'"l\u12"': r"l\u12",
    rb'"\uZZZZ"': r"\uZZZZ",
    rb'"m\0"': r"m\0",
    rb'"\\n \"o\" "p" \w"': r'\n "o" "p" \w',
    b'"q\x00"': "q\x00",
    b'"r\x01\x1b[31m\x1f"': "r\x01\x1b[31m\x1f",
    b'"s\xff"': r"s\xff",
    b'"t\xe6\xbc"': r"t\xe6\xbc",
    b'"u\xc0\xaf"': r"u\xc0\xaf",
    b'"v\xed\xa0\x80"': r"v\xed\xa0\x80",
    b'"gr\xf6\xdfe"': r"gr\xf6\xdfe",
    rb'"w\ud800"': "w\ufffd",
    b'"x "\xff" \\w \n"': 'x "\\xff" \\w \n',
}  # fmt: skip
NUMBERS = (
    "inf", "-inf", "+inf", "INF", "nan", "NaN", "-nan", "-nan(ind)", "nan(snan)", "1.#INF",
    "-1.#IND", "1.#QNAN", "Infinity", "-Infinity", "N/A", "n/a", "None", "True", "undefined",
    "0x1F", "+5", ".5", "5.", "007", "--5", "1,5", "12.3.4", "<unknown>", "",
)  # fmt: skip
ARGUMENTS = (
    *(f'"GB/s": {number}'.encode() for number in NUMBERS),
    b'"occupancy": [1, -nan(ind), inf]',
    b'"note": "say "hi", you"',
    b'"note": "{"a": [1, 2]}"',
    rb'"note": "C:\new\all"',
    b'"note": "C:\\"',
    b'"note": "a\nb"',
    b'"note": "a\x00\x1bb"',
    b'"note": "abc',
    b'"no"te": 1',
    rb'"no\te\x": 1',
    b'"no\nte": 1',
    b"note: 1",
    b"'note': 1",
)


def kernels(trace: Trace, name: str = '"gemm"') -> list[int]:
    """Return where the kernels of a name stand among the events."""
    return [i for i, e in enumerate(trace.events) if '"cat": "kernel"' in e and name in e]


def written(folder: Path, trace: Trace, damaged: dict[int, bytes]) -> Path:
    """Write rank 0 with some of its events in other bytes, and a whole rank 1."""
    steps = sum("ProfilerStep" in event for event in trace.events)
    for place in damaged:
        trace.events[place] = f"@{place}@"
    data = re.sub(rb"@(\d+)@", lambda found: damaged[int(found[1])], trace.bytes())
    (folder / "rank0.json").write_bytes(data)
    rank(1, steps=steps).write(folder / "rank1.json")
    return folder


def named(event: str, name: bytes) -> bytes:
    return re.sub(rb'"name": "[^"]*"', lambda _: b'"name": ' + name, event.encode(), count=1)


def with_argument(event: str, argument: bytes, where: str) -> bytes:
    before, _, after = event.encode().partition(b'"args": {')
    if where == "first":
        return before + b'"args": {' + argument + b", " + after
    return before + b'"args": {' + after[: after.rindex(b"}}")] + b", " + argument + b"}}"


def test_names_with_every_damage(tmp_path: Path) -> None:
    """One step for each: its kernel counts, and is called what the file says."""
    trace = rank(0, steps=len(NAMES))
    places = dict(zip(kernels(trace), NAMES, strict=True))
    written(tmp_path, trace, {at: named(trace.events[at], raw) for at, raw in places.items()})
    result = tracelens.analyze(tmp_path)
    is_standard(result, steps=len(NAMES))
    assert f"{len(NAMES)} damaged events" in said(result, "damaged-events")
    assert f"{len(NAMES)} repaired, 0 skipped; no device event skipped" in said(
        result, "damaged-events"
    )
    events = tracelens.load(tmp_path)[0].device_events
    found = events["name"].astype(object)
    first = events[~found.isin(["gelu", "norm"]) & ~found.str.startswith("nccl")]
    assert first["name"].astype(object).tolist() == list(NAMES.values())
    assert (first["launch"] > 0).all()


@pytest.mark.parametrize("where", ["first", "last"])
def test_arguments_and_keys_with_every_damage(where: str, tmp_path: Path) -> None:
    trace = rank(0, steps=len(ARGUMENTS))
    places = dict(zip(kernels(trace), ARGUMENTS, strict=True))
    damaged = {at: with_argument(trace.events[at], a, where) for at, a in places.items()}
    result = tracelens.analyze(written(tmp_path, trace, damaged))
    is_standard(result, steps=len(ARGUMENTS))
    assert f"{len(ARGUMENTS)} repaired, 0 skipped; no device event skipped" in said(
        result, "damaged-events"
    )


HARMLESS = (b'"GB/s": 1e999', b'"note": "\xff\xfe"', b'"no\xffte": 1')


@pytest.mark.parametrize("argument", HARMLESS)
def test_arguments_nobody_reads_are_no_damage(argument: bytes, tmp_path: Path) -> None:
    trace = rank(0)
    damaged = {at: with_argument(trace.events[at], argument, "last") for at in kernels(trace)}
    result = tracelens.analyze(written(tmp_path, trace, damaged))
    is_standard(result)
    assert "damaged-events" not in codes(result)


KINDS = {
    "a name": lambda event: named(event, b'"a "b" \\c\nd"'),
    "a name of bad bytes": lambda event: named(event, b'"a\xff\x01"'),
    "an argument": lambda event: with_argument(event, b'"note": "say "hi""', "first"),
    "a number": lambda event: with_argument(event, b'"GB/s": -nan(ind)', "last"),
    "a key": lambda event: with_argument(event, b'"no"te": 1', "last"),
}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_event_stands(kind: str, place: str, tmp_path: Path) -> None:
    trace = rank(0)
    event = trace.events.pop(kernels(trace)[0])
    at = {"first": 0, "middle": len(trace.events) // 2, "last": len(trace.events)}[place]
    trace.events.insert(at, event)
    result = tracelens.analyze(written(tmp_path, trace, {at: KINDS[kind](event)}))
    is_standard(result)
    assert "1 repaired, 0 skipped; no device event skipped" in said(result, "damaged-events")
    assert "rank0.json" in said(result, "damaged-events")


@pytest.mark.parametrize("kind", KINDS)
def test_host_events_collectives_and_marks(kind: str, tmp_path: Path) -> None:
    """A mark's own name is damage of another kind: it says the step, so only its arguments are."""
    trace = rank(0).operator("aten::mm", 150, 20)
    chosen = {len(trace.events) - 1, *kernels(trace, "ncclDevKernel")[:1]}
    chosen |= {i for i, e in enumerate(trace.events) if "cudaLaunchKernel" in e and kind[0] == "a"}
    if "name" in kind:  # what NCCL's arguments say wins over the kernel's name
        chosen = {i for i in chosen if "cudaLaunch" not in trace.events[i]}
    else:
        chosen |= {i for i, e in enumerate(trace.events) if "ProfilerStep" in e}
    damaged = {at: KINDS[kind](trace.events[at]) for at in chosen}
    result = tracelens.analyze(written(tmp_path, trace, damaged))
    is_standard(result)
    assert f"{len(chosen)} repaired, 0 skipped" in said(result, "damaged-events")


IMITATED = {
    "the next event": b'"a }, { "ph": "X" "',
    "the end of the events": b'"a" }], "x": ["',
    "nothing but an opening quote": b'"a',
}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("kind", IMITATED)
def test_text_that_looks_like_something_else(kind: str, place: str, tmp_path: Path) -> None:
    """Nothing can tell it: the loss is named, the rank is partial, no time is invented."""
    trace = rank(0)
    event = trace.events.pop(kernels(trace)[0])
    at = {"first": 0, "middle": len(trace.events) // 2, "last": len(trace.events)}[place]
    trace.events.insert(at, event)
    result = tracelens.analyze(written(tmp_path, trace, {at: named(event, IMITATED[kind])}))
    whole = rank_of(result, 1)
    for step in whole.devices[0].steps:
        holds(step.partition)
    if result.run.ranks_partial == []:
        is_standard(result)
        return
    named_losses = {"damaged-events", "truncated-file", "lost-device-records", "several-writers"}
    assert codes(result) & named_losses
    assert result.run.ranks_partial == [0]
    assert not rank_of(result, 0).in_means
    for step in rank_of(result, 0).devices[0].steps:
        assert step.partition.compute_ns <= 700_000
        assert step.partition.comm_ns <= 300_000

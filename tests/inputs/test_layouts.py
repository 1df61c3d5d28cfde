"""Every layout of the JSON: where keys stand, how it is broken into lines, who wrote it.

Damaged text is in test_text_damage.py.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from builders import Schema, Trace
from standard_run import add_step, codes, holds, is_standard, rank, rank_of, said

import tracelens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SCHEMAS = {
    "as torch writes it": Schema(),
    "minified": Schema(minified=True),
    "info after the events": Schema(info="after"),
    "minified, info after": Schema(minified=True, info="after"),
    "categories of 2020": Schema(capitals=True, lower_external=True),
    "absolute times": Schema(times="epoch"),
    "a bare array": Schema(root="array", times="epoch"),
    "the legacy profiler": Schema(
        torch="2.1", root="array", times="epoch", capitals=True, lower_external=True
    ),
    "times and ids as text": Schema(times="text", text_ids=True),
    "ROCm": Schema(rocm=True),
}


def both(folder: Path, first: bytes, second: bytes | None = None) -> tracelens.Analysis:
    (folder / "rank0.json").write_bytes(first)
    (folder / "rank1.json").write_bytes(rank(1).bytes() if second is None else second)
    return tracelens.analyze(folder)


@pytest.mark.parametrize("minified", [True, False])
@pytest.mark.parametrize("cut", [0, 400])
def test_trace_events_twice_in_one_root(minified: bool, cut: int, tmp_path: Path) -> None:
    """Each array is read; what stands between them is too, and a cut is still seen."""
    made = rank(1, schema=Schema(minified=minified, info="after"))
    half = len(made.events) // 2
    events = made.events
    made.events = events[:half]
    first = made.text().rstrip()[:-1]
    text = f'{first}, "note": {{"traceEvents": [1]}}, "traceEvents": [{", ".join(events[half:])}]}}'
    result = both(tmp_path, rank(0).bytes(), text[: len(text) - cut].encode())
    if cut:
        assert result.run.ranks_partial == [1]
        assert "ends early" in said(result, "truncated-file")
    else:
        is_standard(result)
        assert not {"damaged-events", "several-writers", "truncated-file"} & set(codes(result))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    schema = SCHEMAS[name]
    result = both(tmp_path, *(rank(number, schema=schema).bytes() for number in (0, 1)))
    for number in (0, 1):
        (device,) = rank_of(result, number).devices
        assert [step.complete for step in device.steps] == [True, True]
        for step in device.steps:
            holds(step.partition)
        assert (device.total.kernels, rank_of(result, number).partial) == (8, False)
    assert result.run.device_kind == ("rocm" if schema.rocm else "cuda")
    assert "damaged-events" not in codes(result)
    if schema.root == "object":
        is_standard(result)
        assert result.run.world_size == 2


def rewritten(change: Callable[[dict[str, Any]], object] = bool, **options: Any) -> Any:
    """Return what reads a trace, changes it and writes it in another way."""

    def rewrite(data: bytes) -> bytes:
        root = json.loads(data)
        change(root)
        return json.dumps(root, **options).encode()

    return rewrite


def shuffled(root: dict[str, Any]) -> None:
    random.Random(1).shuffle(root["traceEvents"])


def with_reversed_keys(root: dict[str, Any]) -> None:
    root["traceEvents"] = [dict(reversed(event.items())) for event in root["traceEvents"]]


TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "a line for every key": rewritten(indent=2),
    "lines that end in CR LF": lambda d: rewritten(indent=2)(d).replace(b"\n", b"\r\n"),
    "blanks everywhere": rewritten(separators=(" ,\t", " :\n ")),
    "no blanks": rewritten(separators=(",", ":")),
    "keys in order of the alphabet": rewritten(sort_keys=True),
    "keys the other way round": rewritten(with_reversed_keys),
    "events in any order": rewritten(shuffled),
    "more keys before and after": rewritten(
        lambda root: root.update({"traceName": "x/rank0.json", "displayTimeUnit": "ms", "a": [{}]})
    ),
    "the key in another key's text": rewritten(
        lambda root: root.update({"cmd": 'grep "traceEvents": [ x', **root})
    ),
    "letters as escapes": lambda d: d.replace(b'"name"', b'"\\u006eame"'),
    "a comma behind the last event": lambda d: d.replace(b"}}]", b"}},]"),
    "null behind the last event": lambda d: d.replace(b"}}]", b"}},null]"),
    "nothing behind the last event": lambda d: d.replace(b"}}]", b"}},{}]"),
    "a comma too many": lambda d: d.replace(b"}},", b"}},,", 1),
    "commas too few": lambda d: d.replace(b"}},", b"}}", 3),
}


@pytest.mark.parametrize("info", ["before", "after"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_text_gives_the_same_numbers(name: str, info: Any, tmp_path: Path) -> None:
    text = TEXTS[name](rank(0, schema=Schema(info=info)).bytes())
    result = both(tmp_path, text)
    is_standard(result)
    assert result.run.world_size == 2
    assert codes(result) <= {"clocks-aligned"}
    assert [file.rank for file in result.source.files] == [0, 1]


def test_a_long_head_and_a_long_tail(tmp_path: Path) -> None:
    """The rank stands behind megabytes of other keys, before or after the events."""
    for name, info in (("before", "before"), ("after", "after")):
        schema = Schema(info=info)  # type: ignore[arg-type]
        trace = rank(0, schema=schema, keys={"note": "x" * (3 << 20)})
        folder = tmp_path / name
        folder.mkdir()
        result = both(folder, trace.bytes().replace(b"rank0", b"rank7"))
        is_standard(result)


class TestSeveralWriters:
    def test_one_after_the_other(self, tmp_path: Path) -> None:
        """Every rank appended to one file."""
        (tmp_path / "trace.json").write_bytes(rank(0).bytes() + b"\n" + rank(1).bytes())
        result = tracelens.analyze(tmp_path)
        is_standard(result)
        assert "holds 2 traces" in said(result, "several-traces")

    def test_cycles_of_one_rank_in_one_file(self, tmp_path: Path) -> None:
        cycles = rank(0, 1).bytes() + rank(0, 1, at=100_000).bytes()
        (tmp_path / "rank0.json").write_bytes(cycles)
        result = tracelens.analyze(tmp_path)
        (device,) = rank_of(result, 0).devices
        assert len(device.steps) == 4
        for step in device.steps:
            holds(step.partition)
        assert device.total.window_ns < 5_000_000, "the time between the cycles is no idle time"

    def test_in_turn_whole_events(self, tmp_path: Path) -> None:
        """Each flushed whole events: all of them count, for the process that launched them."""
        writers = [Trace(pid=4000 + number, _last_id=1000 * number) for number in (0, 1)]
        for number, trace in enumerate(writers):
            add_step(trace, 10, 0, device=number)
            add_step(trace, 11, 1000, device=number)
        pairs = zip(*(trace.events for trace in writers), strict=True)
        mixed = Trace(rank=None, events=[event for pair in pairs for event in pair])
        mixed.write(tmp_path / "trace.json")
        result = tracelens.analyze(tmp_path)
        assert "several-processes" in codes(result)
        assert len(result.ranks) == 2
        for one in result.ranks:
            (device,) = one.devices
            assert device.total.kernels == 8
            for step in device.steps:
                holds(step.partition)

    @pytest.mark.parametrize("size", [300, 1000, 4096])
    def test_in_turn_torn_apart(self, size: int, tmp_path: Path) -> None:
        """Each flushed a buffer: what is torn is lost, which is said; no rank is whole."""
        texts = [rank(number, steps=6).bytes() for number in (0, 1)]
        longest = max(map(len, texts))
        pieces = [text[at : at + size] for at in range(0, longest, size) for text in texts]
        (tmp_path / "trace.json").write_bytes(b"".join(pieces))
        result = tracelens.analyze(tmp_path)
        assert codes(result) & {"several-writers", "damaged-events", "truncated-file"}
        assert result.run.ranks_partial == [one.rank for one in result.ranks]
        kernels = sum(d.total.kernels for one in result.ranks for d in one.devices)
        assert 0 < kernels <= 48
        for one in result.ranks:
            for device in one.devices:
                assert device.total.compute_ns <= 6 * 700_000
                assert not any(step.complete for step in device.steps)

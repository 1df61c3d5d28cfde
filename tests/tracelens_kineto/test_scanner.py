"""Cutting a file into batches: wherever the blocks end, the events are the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from builders import Schema, Trace, parse_bytes
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import kernel_texts, nasty_text

from tracelens_kineto.events import Event, ExactEvent
from tracelens_kineto.scanner import Scan

if TYPE_CHECKING:
    import pandas as pd

AnyEvent = Event | ExactEvent


def blocks_of(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def scan(data: bytes, size: int) -> tuple[list[tuple[Any, ...]], Scan]:
    """Read in blocks of a size; return the events' fields, times as texts or numbers."""
    one = Scan(iter(blocks_of(data, size)))
    events: list[AnyEvent] = [event for batch in one.batches() for event in batch]
    return [fields(event) for event in events], one


def fields(event: AnyEvent) -> tuple[Any, ...]:
    times = [t if isinstance(t, float) else float(bytes(t)) for t in (event.ts, event.dur)]
    return (event.ph, event.cat, event.name, *times, json.loads(bytes(event.args)))


def file_of(events: list[str], before: dict[str, Any], after: dict[str, Any]) -> bytes:
    head = json.dumps(before)[1:-1]
    foot = json.dumps(after)[1:-1]
    text = ", ".join(part for part in (head, f'"traceEvents": [{", ".join(events)}]', foot) if part)
    return f"{{{text}}}".encode()


root_keys = st.dictionaries(
    nasty_text.map(lambda text: "k" + text),
    nasty_text | st.lists(st.dictionaries(nasty_text, st.integers(), max_size=2), max_size=3),
    max_size=3,
)


@given(st.lists(kernel_texts, max_size=8), root_keys, root_keys, st.integers(1, 400))
def test_block_boundaries_anywhere(
    events: list[str], before: dict[str, Any], after: dict[str, Any], size: int
) -> None:
    """Braces and `},{` in strings, in the keys before and after, and blocks of any length."""
    data = file_of(events, before, after)
    whole = json.loads(data)["traceEvents"]
    expected = [(e["ph"], e["cat"], e["name"], e["ts"], e["dur"], e["args"]) for e in whole]
    got, one = scan(data, size)
    assert got == expected
    assert one.found
    assert one.closed
    assert one.damage.count == 0
    for key in before:
        assert json.dumps(key)[1:-1].encode() in one.header
    for key in after:
        assert json.dumps(key)[1:-1].encode() in one.footer


@given(st.lists(kernel_texts, min_size=1, max_size=6), st.integers(1, 400))
def test_a_bare_array(events: list[str], size: int) -> None:
    data = f" [{', '.join(events)}]\n".encode()
    got, one = scan(data, size)
    assert len(got) == len(events)
    assert one.closed
    assert one.damage.count == 0


@given(st.lists(kernel_texts, min_size=1, max_size=6), st.integers(1, 400), st.data())
def test_a_cut_anywhere_keeps_the_events_before_it(
    events: list[str], size: int, data: st.DataObject
) -> None:
    text = file_of(events, {"schemaVersion": 1}, {})
    start = text.index(b"[") + 1
    end = data.draw(st.integers(start + 1, len(text) - 3), label="bytes that are left")
    assume(b"}]" not in text[:end])  # in a cut event that can be the end of the array
    got, one = scan(text[:end], size)
    whole = [json.loads(e) for e in events]
    ends = [text.index(e.encode(), start) + len(e.encode()) for e in events]
    complete = sum(at <= end for at in ends) if len(set(events)) == len(events) else None
    assert [event[2] for event in got] == [e["name"] for e in whole[: len(got)]]
    if complete is not None:
        assert len(got) == complete
    assert not one.closed


def test_a_cut_event_that_speaks_of_brackets() -> None:
    whole = Trace().kernel("gemm", 1, 2, launch=None).events
    for start in (
        '{"ph": "X", "name": "}] x',
        '{"ph": "X", "ts": 1, "args": {"a": [{"b": 1}], "c": "x',
    ):
        got, one = scan(file_of(whole, {}, {})[:-2] + b", " + start.encode(), 1000)
        assert [event[2] for event in got] == ["gemm"]
        assert not one.closed
        assert one.damage.cut


def test_the_last_batch_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the array and the keys behind it are no damage: only damage may cost walking."""

    def walk(*_: object) -> None:
        raise AssertionError("walked an undamaged file")

    monkeypatch.setattr("tracelens_kineto.tolerant.walk", walk)
    for schema in (
        Schema(),
        Schema(info="after"),
        Schema(times="text"),
        Schema(times="epoch text"),
    ):
        data = Trace(schema=schema).step(1, 0, 10).kernel("gemm", 1, 2).bytes()
        for size in (10_000, 150):
            one = Scan(iter(blocks_of(data, size)))
            batches = list(one.batches())
            assert sum(len(batch) for batch in batches) == 3
            assert one.closed


def test_a_footer_that_looks_like_events() -> None:
    footer = {"other": [{"ph": "X", "name": "no event"}, {"ph": "X"}], "traceName": "a},{b"}
    trace = Trace().kernel("gemm", 1, 2)
    data = file_of(trace.events, {}, footer)
    for size in range(1, len(data)):
        got, one = scan(data, size)
        assert [event[2] for event in got] == ["cudaLaunchKernel", "gemm"]
        assert json.loads(b"{" + one.footer.lstrip(b", ")) == footer


@pytest.mark.parametrize(
    "text", ["", "   ", "{}", "[]", '{"traceEvents": []}', '{"a": 1}', "no json"]
)
def test_files_without_events(text: str) -> None:
    for size in (1, 3, 100):
        got, one = scan(text.encode(), size)
        assert got == []
        assert one.found == ("traceEvents" in text or text == "[]")


@pytest.mark.parametrize("blank", [" ", "\n\n", "\t", "\r\n"])
def test_layout_does_not_matter(blank: str) -> None:
    one = '{"ph":"X","cat":"kernel","name":"gemm","ts":1,"dur":2,"args":{}}'
    spaced = one.replace(",", f"{blank},{blank}").replace(":", f"{blank}:{blank}")
    text = f'{blank}{{"traceEvents"{blank}:{blank}[{blank}{spaced}{blank},{blank}{spaced}{blank}]}}'
    for size in (1, 7, 50, 1000):
        got, state = scan(text.encode(), size)
        assert len(got) == 2
        assert state.damage.count == 0


def test_epoch_times_switch_to_texts_in_the_middle_of_a_file() -> None:
    early = Trace().kernel("early", 5, "1.001", launch=None).events
    late = Trace(schema=Schema(times="epoch")).kernel("late", "0.123", "1.001", launch=None).events
    again = Trace().kernel("again", 6, "1.001", launch=None).events
    data = file_of(early + late + again, {}, {})
    for size in (50, 400, 10_000):
        one = Scan(iter(blocks_of(data, size)))
        list(one.batches())
        assert one.exact
    table = parse_bytes(data).device_events
    assert table["start"].tolist() == [5000, 6000, 1_767_225_600_000_000_123]
    assert (table["end"] - table["start"]).tolist() == [1001] * 3


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Sort a table's rows: where batches end decides their order, and nothing else."""
    plain = table.astype(object)
    return plain.sort_values(["start", *plain.columns], kind="stable").reset_index(drop=True)


@pytest.mark.parametrize("size", [64, 333, 4096])
def test_small_blocks_give_the_same_trace(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(schema=Schema(info="after")).step(1, 0, 3000)
    for at in range(100, 2900, 200):
        trace.kernel("gemm },{ tn", at, 50).all_reduce(at + 60, 50).copy(at + 120, 5)
    whole = trace.parse()
    monkeypatch.setattr("tracelens_kineto.inflate.BLOCK", size)
    monkeypatch.setattr("tracelens_kineto.inflate._READ", size)
    small = trace.parse()
    assert small.info.rank == whole.info.rank == 0
    for name in ("device_events", "communications", "marks", "host_calls"):
        left, right = in_order(getattr(small, name)), in_order(getattr(whole, name))
        assert left.equals(right), name

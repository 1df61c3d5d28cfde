"""Files that end too early, at every byte: what is whole counts, and the end is said."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Literal

import pytest
from builders import Schema, Trace
from standard_run import codes, holds, rank, rank_of, said

import tracelens
from tracelens.errors import InputError, UnreadableTrace
from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace

LAYOUTS = {
    "info after": (Schema(info="after", minified=True), 1),
    "info before": (Schema(), 13),
    "a bare array": (Schema(root="array", times="epoch"), 11),
}


@pytest.fixture(autouse=True)
def no_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the memory that only pays for large files."""
    monkeypatch.setattr("tracelens_kineto.reading._HEAP", 0)


def parsed(path: Path, data: bytes) -> RankTrace | None:
    path.write_bytes(data)
    try:
        (trace,) = KinetoParser().parse(path)
    except UnreadableTrace:
        return None
    return trace


def ends_of(text: bytes, events: list[str]) -> list[int]:
    """Return where each event ends."""
    ends, at = [], 0
    for event in events:
        at = text.index(event.encode(), at) + len(event)
        ends.append(at)
    return ends


def assert_what_is_whole(trace: RankTrace | None, whole: list[str]) -> None:
    """Check that exactly these events were read, and that the end is said."""
    if trace is None:
        assert whole == []
        return
    assert trace.info.events == len(whole)
    assert len(trace.device_events) == sum('"kernel"' in event for event in whole)
    assert (trace.device_events["end"] - trace.device_events["start"] >= 200_000).all()
    (notice,) = trace.info.notices
    assert notice.code == "truncated-file"
    assert f"after {len(whole)} of them" in notice.message or "compressed data" in notice.message
    assert trace.info.truncated
    assert trace.info.damaged_device_events == 0


def small(schema: Schema) -> Trace:
    """Build a short file: parsing it a thousand times is what these tests cost."""
    trace = Trace(schema=schema, groups=()).kernel("gemm", 100, 300)
    return trace.kernel("gelu", 400, 200, launch=None).all_reduce(500, 300, link="none")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_json_at_every_byte(layout: str, tmp_path: Path) -> None:
    """Every byte of one layout; of the others some, at all kinds of places."""
    schema, stride = LAYOUTS[layout]
    built = small(schema)
    text = built.bytes().rstrip()
    ends = ends_of(text, built.events)
    closed = text.index(b"]", ends[-1]) + 1
    for cut in range(1, closed, stride):
        whole = [event for event, end in zip(built.events, ends, strict=True) if end <= cut]
        assert_what_is_whole(parsed(tmp_path / "rank0.json", text[:cut]), whole)
    for cut in range(closed, len(text), stride):
        trace = parsed(tmp_path / "rank0.json", text[:cut])
        assert trace is not None
        assert (trace.info.events, trace.info.truncated) == (len(built.events), False)
        assert [notice.code for notice in trace.info.notices] == ["metadata-cut"]


def test_gzip_at_every_byte(tmp_path: Path) -> None:
    built = small(Schema(minified=True))
    text = built.bytes()
    packed = gzip.compress(text, 6, mtime=0)
    ends = ends_of(text, built.events)
    for cut in range(1, len(packed)):
        inflated = zlib.decompressobj(31).decompress(packed[:cut])
        whole = [e for e, end in zip(built.events, ends, strict=True) if end <= len(inflated)]
        assert_what_is_whole(parsed(tmp_path / "rank0.json.gz", packed[:cut]), whole)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("pack", ["plain", "gzip", "members"])
def test_the_whole_rank_carries_the_means(
    pack: Literal["plain", "gzip", "members"], share: float, tmp_path: Path
) -> None:
    data = rank(0, steps=40).bytes()
    if pack != "plain":
        parts = [data] if pack == "gzip" else [data[:5000], data[5000:]]
        data = b"".join(map(gzip.compress, parts))
    (tmp_path / "rank0.json").write_bytes(data[: int(len(data) * share)])
    rank(1, steps=40).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    cut, whole = rank_of(result, 0), rank_of(result, 1)
    assert result.run.ranks_partial == [0]
    assert (cut.in_means, whole.in_means) == (False, True)
    (device,) = cut.devices
    complete = [step for step in device.steps if step.complete]
    assert 1 < len(complete) < 40
    assert not device.steps[-1].complete
    for step in complete:
        holds(step.partition)
    holds(whole.devices[0].mean_step)
    assert result.stragglers == []
    assert "ends early" in said(result, "truncated-file")
    assert "sums of rank 0 are lower bounds" in said(result, "truncated-file")


def test_a_cut_behind_the_events_makes_no_rank_partial(tmp_path: Path) -> None:
    text = rank(0, schema=Schema(info="after")).bytes()
    (tmp_path / "rank0.json").write_bytes(text[: text.index(b'"deviceProperties"') + 5])
    rank(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_partial == []
    assert "metadata-cut" in codes(result)
    for one in result.ranks:
        for step in one.devices[0].steps:
            holds(step.partition)


@pytest.mark.parametrize("size", [1, 40, 200])
def test_nothing_but_a_beginning_is_one_line(size: int, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(rank(0).bytes()[:size])
    with pytest.raises(InputError, match=r"nothing can be analysed: rank0\.json: ") as caught:
        tracelens.analyze(tmp_path)
    assert "\n" not in caught.value.message
    rank(1).write(tmp_path / "rank1.json")
    assert rank_of(tracelens.analyze(tmp_path), 1).in_means

"""Plain bytes out of any file: content decides, and what can be read is read."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import pytest
from builders import Trace
from hypothesis import given
from hypothesis import strategies as st

from tracelens_kineto import inflate
from tracelens_kineto.inflate import Source
from tracelens_kineto.parser import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = b"".join(f"{number * number}, ".encode() for number in range(20_000))


def read(path: Path, data: bytes) -> tuple[bytes, Source]:
    path.write_bytes(data)
    source = Source(path)
    return b"".join(source.blocks()), source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json.gz"


def test_plain_bytes_in_a_file_called_gz(path: Path) -> None:
    plain, source = read(path, PLAIN)
    assert (plain, source.cut, source.trailing) == (PLAIN, None, 0)


def test_gzip_in_a_file_called_json(tmp_path: Path) -> None:
    plain, source = read(tmp_path / "trace.json", gzip.compress(PLAIN))
    assert (plain, source.cut, source.trailing) == (PLAIN, None, 0)


@pytest.mark.parametrize("members", [1, 2, 5])
def test_members_are_one_file(path: Path, members: int) -> None:
    step = len(PLAIN) // members + 1
    data = b"".join(gzip.compress(PLAIN[i : i + step]) for i in range(0, len(PLAIN), step))
    plain, source = read(path, data)
    assert (plain, source.cut, source.trailing) == (PLAIN, None, 0)


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"text", b"\0" * 100 + b"x" * 600_000])
def test_trailing_bytes_are_counted_and_ignored(path: Path, garbage: bytes) -> None:
    plain, source = read(path, gzip.compress(PLAIN) + garbage)
    assert (plain, source.cut, source.trailing) == (PLAIN, None, len(garbage))


@pytest.mark.parametrize("lost", [1, 8, 9, 500, 20_000])
def test_a_cut_file_is_read_as_far_as_it_goes(path: Path, lost: int) -> None:
    data = gzip.compress(PLAIN)[:-lost]
    plain, source = read(path, data)
    expected = zlib.decompressobj(31).decompress(data)
    assert plain == expected
    assert PLAIN.startswith(plain)
    assert source.cut is not None
    assert "stops in the middle" in source.cut


def test_a_file_cut_in_its_second_member(path: Path) -> None:
    plain, source = read(path, gzip.compress(PLAIN[:5000]) + gzip.compress(PLAIN[5000:])[:-3000])
    assert len(plain) > 5000
    assert PLAIN.startswith(plain)
    assert source.cut is not None


def test_a_wrong_checksum_costs_no_data(path: Path) -> None:
    plain, source = read(path, gzip.compress(PLAIN)[:-8] + b"\0" * 8)
    assert plain == PLAIN
    assert source.cut is not None
    assert "damaged" in source.cut


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_damage_in_the_middle_keeps_what_was_before(path: Path, share: float) -> None:
    data = bytearray(gzip.compress(PLAIN))
    at = int(len(data) * share)
    data[at : at + 200] = b"\xff" * 200
    plain, source = read(path, bytes(data))
    assert source.cut is not None
    same = next(
        (i for i, (a, b) in enumerate(zip(plain, PLAIN, strict=False)) if a != b), len(plain)
    )
    assert same > len(PLAIN) * (share - 0.1)


def test_a_head_that_is_no_gzip_after_all(path: Path) -> None:
    plain, source = read(path, b"\x1f\x8bnot gzip")
    assert plain == b""
    assert source.cut is not None


def test_an_empty_file(path: Path) -> None:
    plain, source = read(path, b"")
    assert (plain, source.cut) == (b"", None)


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 64), st.binary(max_size=3))
def test_any_split_into_reads(parts: list[bytes], read_size: int, garbage: bytes) -> None:
    """Members and garbage come out the same however the reads fall."""
    data = b"".join(gzip.compress(part) for part in parts) + garbage
    whole = Source(None)  # type: ignore[arg-type]
    split = Source(None)  # type: ignore[arg-type]
    reads = [data[i : i + read_size] for i in range(0, len(data), read_size)]
    assert b"".join(split._inflate(iter(reads))) == b"".join(whole._inflate(iter([data])))
    if garbage[:1] != b"\x1f" and parts:
        assert split.trailing == whole.trailing == len(garbage)


def test_blocks_have_about_the_block_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "BLOCK", 1000)
    path.write_bytes(PLAIN)
    sizes = [len(block) for block in Source(path).blocks()]
    assert sum(sizes) == len(PLAIN)


def test_progress_counts_the_files_own_bytes(path: Path) -> None:
    data = gzip.compress(PLAIN)
    path.write_bytes(data)
    seen: list[int] = []
    list(Source(path, on_bytes=seen.append).blocks())
    assert sum(seen) == len(data)


def test_gzip_and_plain_give_the_same_trace(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 1000).kernel("gemm", 100, 50).all_reduce(200, 50)
    plain = KinetoParser().parse(trace.write(tmp_path / "a.json"))[0]
    packed = KinetoParser().parse(trace.write(tmp_path / "b.json", gz=True))[0]
    assert plain.device_events.equals(packed.device_events)
    assert not packed.info.truncated

"""Every way a trace is packed: the content decides, and the numbers are the same.

Archives of ranks are in test_archives.py, cut files in test_truncation.py.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from typing import TYPE_CHECKING

import pytest
import zstandard
from standard_run import codes, is_standard, rank, rank_of, said

import tracelens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

zstd = zstandard.ZstdCompressor().compress


def members(number: int) -> Callable[[bytes], bytes]:
    """Pack into so many gzip members."""

    def pack(data: bytes) -> bytes:
        size = len(data) // number + 1
        parts = (data[at : at + size] for at in range(0, len(data), size))
        return b"".join(map(gzip.compress, parts))

    return pack


def with_header_fields(data: bytes) -> bytes:
    """Pack with the optional fields of a gzip header: extra, name, comment and its checksum."""
    body = gzip.compress(data, mtime=0)
    fields = b"\x04\x00abcd" + b"rank0.json\0" + b"a comment\0"
    header = body[:3] + b"\x1e" + body[4:10] + fields
    return header + (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") + body[10:]


SAME: dict[str, Callable[[bytes], bytes]] = {
    "nothing": bytes,
    "gzip": gzip.compress,
    "stored gzip": lambda data: gzip.compress(data, 0),
    "gzip with header fields": with_header_fields,
    "two members": members(2),
    "fifty members": members(50),
    "an empty member first": lambda data: gzip.compress(b"") + gzip.compress(data),
    "an empty member last": lambda data: gzip.compress(data) + gzip.compress(b""),
    "padding between members": lambda data: (
        gzip.compress(data[:700]) + bytes(1000) + gzip.compress(data[700:])
    ),
    "zstd": zstd,
    "two zstd frames": lambda data: zstd(data[:700]) + zstd(data[700:]),
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "a byte order mark in gzip": lambda data: gzip.compress(b"\xef\xbb\xbf" + data),
    "UTF-16, little end first": lambda data: b"\xff\xfe" + data.decode().encode("utf-16-le"),
    "UTF-16, big end first": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    "UTF-16 in gzip": lambda data: gzip.compress(data.decode().encode("utf-16")),
    "blanks around": lambda data: b"\n\n \t" + data + b"\n\n\n",
}
NAMES = ("rank0.json", "rank0.json.gz", "rank0.json.zst", "rank0.trace")


def analysed(folder: Path, data: bytes, name: str = "rank0.json") -> tracelens.Analysis:
    (folder / name).write_bytes(data)
    rank(1).write(folder / "rank1.json")
    return tracelens.analyze(folder)


@pytest.mark.parametrize("kind", SAME)
def test_every_packing_gives_the_same_numbers(kind: str, tmp_path: Path) -> None:
    result = analysed(tmp_path, SAME[kind](rank(0).bytes()))
    is_standard(result)
    assert codes(result) <= {"clocks-aligned"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["nothing", "gzip", "zstd", "UTF-16, little end first"])
def test_no_suffix_is_believed(kind: str, name: str, tmp_path: Path) -> None:
    result = analysed(tmp_path, SAME[kind](rank(0).bytes()), name)
    is_standard(result)
    assert codes(result) <= {"clocks-aligned"}


@pytest.mark.parametrize("name", ["rank0", "rank0.txt", "rank0.bin", "rank0.json.1"])
def test_a_file_named_by_hand_needs_no_suffix(name: str, tmp_path: Path) -> None:
    files = [tmp_path / name, rank(1).write(tmp_path / "rank1.json")]
    files[0].write_bytes(gzip.compress(rank(0).bytes()))
    is_standard(tracelens.analyze(files))


@pytest.mark.parametrize("at", range(1, 13))
def test_members_split_anywhere(at: int, tmp_path: Path) -> None:
    """In the middle of a key, a number, a name: the text goes on in the next member."""
    data = rank(0, 1).bytes()
    cut = at * len(data) // 13
    (tmp_path / "rank0.json").write_bytes(gzip.compress(data[:cut]) + gzip.compress(data[cut:]))
    is_standard(tracelens.analyze(tmp_path), world=1)


@pytest.mark.parametrize(
    ("trailing", "count"),
    [(b"garbage", 7), (bytes(512), 512), (bytes(100) + b"x" * 272, 372), (b"\n", 1)],
)
@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_what_follows_is_ignored_and_counted(
    pack: Callable[[bytes], bytes], trailing: bytes, count: int, tmp_path: Path
) -> None:
    result = analysed(tmp_path, pack(rank(0).bytes()) + trailing)
    is_standard(result)
    text = said(result, "trailing-bytes")
    assert f"rank0.json: {count:,} byte" in text
    assert "after the end of the compressed data ignored; no number changes" in text


def test_what_follows_a_plain_trace(tmp_path: Path) -> None:
    result = analysed(tmp_path, rank(0).bytes() + bytes(4096))
    is_standard(result)
    assert "4,096 bytes after the end of the trace ignored" in said(result, "trailing-bytes")


OTHER: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "bzip2": (bz2.compress, "compressed with bzip2 or xz, and no tar archive: unpack it first"),
    "xz": (lzma.compress, "compressed with bzip2 or xz, and no tar archive: unpack it first"),
    "zlib": (zlib.compress, "no format an installed parser knows"),
    "nothing at all": (lambda _: b"", "an empty file"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_what_cannot_be_read_is_named_and_the_other_rank_counts(kind: str, tmp_path: Path) -> None:
    pack, reason = OTHER[kind]
    result = analysed(tmp_path, pack(rank(0).bytes()))
    assert result.run.ranks_present == [1]
    assert result.run.ranks_missing == [0]
    (file,) = (one for one in result.source.files if one.path == "rank0.json")
    assert (file.status, file.rank) == ("skipped", None)
    assert file.reason is not None
    assert reason in file.reason
    assert sum("rank0.json" in f"{n.file} {n.message}" for n in result.notices) == 1
    assert rank_of(result, 1).in_means


def test_damage_inside_gzip_makes_the_rank_partial(tmp_path: Path) -> None:
    """A flipped bit mostly inflates to other text for a while: no step of it is sure."""
    data = bytearray(gzip.compress(rank(0, steps=40).bytes()))
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "rank0.json").write_bytes(data)
    rank(1, steps=40).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_partial == [0]
    assert "the compressed data is damaged" in said(result, "truncated-file")
    cut = rank_of(result, 0)
    assert not cut.in_means
    assert cut.devices[0].total.kernels > 40
    for step in cut.devices[0].steps:
        assert not step.complete or step.partition.compute_ns == 700_000

"""Archives of ranks, and packed files: the same numbers, and every loss named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from command import run
from standard_run import codes, is_standard, rank, rank_of, said, write_ranks

import tracelens
from tracelens import compression
from tracelens.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


def zipped(folder: Path, target: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return target


def tarred(folder: Path, target: Path, pack: Callable[[bytes], bytes] = bytes) -> Path:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.add(folder, "run")
    target.write_bytes(pack(plain.getvalue()))
    return target


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    write_ranks(tmp_path / "made" / "sub")
    return tmp_path / "made"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let temporary folders be made where a test can look for them."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
    ".tar.zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_tar(suffix: str, ranks: Path, tmp_path: Path, temporary: Path) -> None:
    archive = tarred(ranks, tmp_path / f"run{suffix}", PACKERS[suffix])
    result = tracelens.analyze(archive)
    is_standard(result)
    assert [f.path for f in result.source.files] == [
        f"run{suffix}/run/sub/rank{number}.json" for number in (0, 1)
    ]
    assert list(temporary.iterdir()) == [], "nothing stays behind"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
def test_zip(method: int, ranks: Path, tmp_path: Path, temporary: Path) -> None:
    archive = zipped(ranks, tmp_path / "run.zip", method)
    is_standard(tracelens.analyze(archive))
    assert len(tracelens.load(archive)) == 2
    assert list(temporary.iterdir()) == []


def test_an_archive_among_files(ranks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    rank(2, 3).write(folder / "rank2.json")
    for number in (0, 1):
        rank(number, 3).write(ranks / "sub" / f"rank{number}.json")
    zipped(ranks, folder / "others.zip")
    is_standard(tracelens.analyze(folder), world=3)


def test_content_decides_not_the_suffix(ranks: Path, tmp_path: Path) -> None:
    is_standard(tracelens.analyze(zipped(ranks, tmp_path / "run.json")))
    is_standard(tracelens.analyze(tarred(ranks, tmp_path / "run.gz")))


def test_packed_members(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    rank(0).write(folder / "rank0.json.gz", gz=True)
    packed = zstandard.ZstdCompressor().compress(rank(1).bytes())
    (folder / "rank1.json.zst").write_bytes(packed)
    is_standard(tracelens.analyze(zipped(folder, tmp_path / "run.zip")))


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_the_archives_name_can_say_the_rank(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    rank(None).write(folder / "trace.json")
    name = tmp_path / f"rank5{suffix}"
    archive = zipped(folder, name) if suffix == ".zip" else tarred(folder, name)
    if suffix == ".zip":
        assert tracelens.load(archive)[0].info.rank == 5
    is_zip = tracelens.analyze(archive)
    assert [one.rank for one in is_zip.ranks] == ([5] if suffix == ".zip" else [0])


def test_other_files_in_it_are_named(ranks: Path, tmp_path: Path) -> None:
    (ranks / "config.json").write_text('{"lr": 1}')
    (ranks / "notes.txt").write_text("hello")
    result = tracelens.analyze(zipped(ranks, tmp_path / "run.zip"))
    is_standard(result)
    assert "JSON, but no profiler trace (run.zip/config.json)" in said(result, "skipped-file")


def test_an_archive_without_traces(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match="a zip archive with no trace in it"):
        tracelens.analyze(tmp_path)


def test_an_archive_in_an_archive_is_named(ranks: Path, tmp_path: Path) -> None:
    zipped(ranks, ranks / "inner.zip")
    result = tracelens.analyze(zipped(ranks, tmp_path / "run.zip"))
    assert "run.zip/inner.zip: could not be read" in said(result, "unreadable-file")


def test_names_that_climb_land_inside(tmp_path: Path, temporary: Path) -> None:
    evil = tmp_path / "run.zip"
    names = ["../../../../escaped.json", "/absolute.json", "a/../../b\x1b[31m.json", "CON\\x.json"]
    with zipfile.ZipFile(evil, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(name, rank(number, 4).text())
    tar = tmp_path / "run.tar"
    with tarfile.open(tar, "w") as tarred_archive:
        for number, name in enumerate(names):
            data = rank(number, 4).bytes()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tarred_archive.addfile(info, io.BytesIO(data))
    before = sorted(p.name for p in tmp_path.iterdir())
    for archive_path in (evil, tar):
        is_standard(tracelens.analyze(archive_path), world=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert not Path("/absolute.json").exists()
    assert list(temporary.iterdir()) == []


def test_links_in_a_tar_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"rank{int(kind)}.json")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        data = rank(0, 1).bytes()
        info = tarfile.TarInfo("rank0.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    is_standard(tracelens.analyze(path), world=1)


def test_two_members_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    with tarfile.open(path, "w") as archive:
        for number in (0, 1):
            data = rank(number).bytes()
            info = tarfile.TarInfo("trace.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    is_standard(tracelens.analyze(path))


class TestDamage:
    @pytest.mark.parametrize("share", [0.3, 0.55, 0.75, 0.95])
    @pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst"])
    def test_a_cut_tar_keeps_what_is_whole(
        self, suffix: str, share: float, ranks: Path, tmp_path: Path
    ) -> None:
        data = tarred(ranks, tmp_path / "whole", PACKERS[suffix]).read_bytes()
        if suffix == ".tar":
            data = data[: data.rindex(b"]}")]
        path = tmp_path / f"run{suffix}"
        path.write_bytes(data[: int(len(data) * share)])
        try:
            result = tracelens.analyze(path)
        except InputError as error:
            found = error.message
        else:
            found = ""
        if found:
            assert "damaged" in found or "cut" in found
            return
        assert "unreadable-file" in codes(result), "the loss is named"
        for one in result.ranks:
            for step in one.devices[0].steps if one.devices else []:
                if step.complete:
                    assert step.partition.compute_ns == 700_000

    def test_a_cut_zip_is_one_line(self, ranks: Path, tmp_path: Path) -> None:
        path = zipped(ranks, tmp_path / "run.zip")
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(InputError, match="a damaged zip archive"):
            tracelens.analyze(path)

    def test_a_member_that_does_not_match_its_checksum(self, tmp_path: Path) -> None:
        folder = tmp_path / "made"
        write_ranks(folder)
        path = zipped(folder, tmp_path / "run.zip", zipfile.ZIP_STORED)
        path.write_bytes(path.read_bytes().replace(b'"gelu"', b'"g3lu"', 1))
        result = tracelens.analyze(path)
        assert "it is cut or does not match its checksum" in said(result, "damaged-member")
        assert not codes(result) & {"unreadable-file", "skipped-file", "truncated-file"}
        assert result.run.ranks_partial == [0]
        assert not any(step.complete for step in rank_of(result, 0).devices[0].steps)
        assert "INCOMPLETE: it is cut or" in run("inspect", "run.zip", cwd=tmp_path).out

    def test_a_member_of_which_nothing_is_left_is_named_once(self, tmp_path: Path) -> None:
        folder = tmp_path / "made"
        write_ranks(folder)
        path = zipped(folder, tmp_path / "run.zip")
        data = bytearray(path.read_bytes())
        at = data.index(b"rank0.json") + len("rank0.json")
        data[at : at + 40] = bytes(40)
        path.write_bytes(data)
        result = tracelens.analyze(path)
        (one,) = [notice for notice in result.notices if "rank0" in (notice.file or "")]
        assert one.code == "unreadable-file"
        assert "it is cut or does not match its checksum" in one.message

    def test_a_tar_cut_inside_its_first_member_is_named_once(
        self, ranks: Path, tmp_path: Path
    ) -> None:
        whole = tarred(ranks, tmp_path / "whole.tar").read_bytes()
        path = tmp_path / "run.tar"
        path.write_bytes(whole[: whole.index(b"rank0.json") + 512])
        done = run("analyze", "run.tar", cwd=tmp_path)
        assert done.code == 1
        assert done.err.count("rank0.json") == 1
        assert "empty" not in done.err

    def test_a_tar_cut_inside_a_trace(self, ranks: Path, tmp_path: Path) -> None:
        """The trace says that it is cut, the archive that more may be missing."""
        rank(1, steps=60).write(ranks / "sub" / "rank1.json")
        whole = tarred(ranks, tmp_path / "whole.tar").read_bytes()
        path = tmp_path / "run.tar"
        path.write_bytes(whole[: whole.rindex(b"norm")])
        result = tracelens.analyze(path)
        assert {"truncated-file", "unreadable-file"} <= codes(result)
        assert "rank1.json: the rest is missing" in said(result, "unreadable-file")
        files = {f.path.rpartition("/")[2]: f.status for f in result.source.files}
        assert sorted(files.items()) == [
            ("rank0.json", "complete"), ("rank1.json", "partial"), ("run.tar", "skipped"),
        ]  # fmt: skip

    def test_an_encrypted_member(self, ranks: Path, tmp_path: Path) -> None:
        path = zipped(ranks, tmp_path / "run.zip")
        data = bytearray(path.read_bytes())
        # The directory's entry of the first rank: 46 bytes, then its name; flags are at 8.
        at = data.rindex(b"rank0.json")
        at = data.rindex(b"PK\x01\x02", 0, at) + 8
        data[at] |= 1
        path.write_bytes(data)
        result = tracelens.analyze(path)
        assert "encrypted: unpack it with its password first" in said(result, "unreadable-file")
        assert [one.rank for one in result.ranks] == [1]


AGAIN: dict[str, Callable[[bytes], bytes]] = {
    "rank1.json.gz.gz": lambda data: gzip.compress(gzip.compress(data)),
    "rank1.json.gz": lambda data: gzip.compress(gzip.compress(data)),
    "rank1.json.zst": lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data)),
    "rank1.zip.gz": lambda data: gzip.compress(b"PK\x03\x04" + data),
    "rank1.sqlite.gz": lambda data: gzip.compress(b"SQLite format 3\x00" + data),
    "rank1.json.bz2": bz2.compress,
    "rank1.json.xz": lzma.compress,
}


@pytest.mark.parametrize("name", AGAIN)
def test_what_must_be_unpacked_first_may_be_a_rank(name: str, tmp_path: Path) -> None:
    rank(0, 1).write(tmp_path / "rank0.json")
    (tmp_path / name).write_bytes(AGAIN[name](rank(1).bytes()))
    result = tracelens.analyze(tmp_path)
    assert "unpack it first" in said(result, "unreadable-file")
    done = run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path)
    assert done.code == 4
    assert "cannot be read" in run("inspect", ".", cwd=tmp_path).out


class TestZstd:
    def test_frames_and_what_follows(self, tmp_path: Path) -> None:
        data = rank(0, 1).bytes()
        pack = zstandard.ZstdCompressor().compress
        skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
        for packed in (
            pack(data),
            pack(data[:700]) + pack(data[700:]),
            skippable + pack(data[:700]) + skippable + pack(data[700:]),
        ):
            path = tmp_path / "rank0.json.zst"
            path.write_bytes(packed)
            is_standard(tracelens.analyze(path), world=1)
            path.write_bytes(packed + b"garbage")
            result = tracelens.analyze(path)
            is_standard(result, world=1)
            assert "7 bytes after the end of the compressed data" in said(result, "trailing-bytes")

    def test_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.zst"
        packed = zstandard.ZstdCompressor().compress(rank(0, 1, steps=400).bytes())
        path.write_bytes(packed[: len(packed) // 2])
        result = tracelens.analyze(path)
        assert rank_of(result, 0).partial
        assert "stops in the middle" in said(result, "truncated-file")

    def test_without_a_decoder_one_line_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pack = zstandard.ZstdCompressor().compress
        (tmp_path / "rank0.json.zst").write_bytes(pack(rank(0).bytes()))
        monkeypatch.setattr(compression, "zstd_module", lambda: None)
        for module in ("gzip_head", "archives"):
            monkeypatch.setattr(f"tracelens.{module}.zstd_module", lambda: None)
        with pytest.raises(InputError, match=r"pip install 'tracelens-distributed\[zstd\]'"):
            tracelens.analyze(tmp_path)
        rank(1).write(tmp_path / "rank1.json")
        assert "zstd" in said(tracelens.analyze(tmp_path), "unreadable-file")

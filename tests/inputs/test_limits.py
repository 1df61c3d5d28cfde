"""Bombs: a small file that would fill memory, disk or a day ends in one clear line, and soon."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import zstandard
from nsight_exports import Export
from standard_run import codes, is_standard, rank, said, write_ranks

import tracelens
from tracelens import archives, limits
from tracelens.engine import Options
from tracelens.errors import InputError
from tracelens.limits import Limits
from tracelens.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis

MIB = 1 << 20
CPU_SECONDS = 10
MEMORY = 500 * 10**6
MILLION = 1_000_000
TEN_GB = 10 * 10**9
EVENT = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"device":0}}'
BEGUN = b'{"distributedInfo":{"rank":0},"traceEvents":['


def deflated(block: bytes, times: int, start: bytes = b"", end: bytes = b"") -> bytes:
    """Return one gzip member in which a block stands many times; it is deflated once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers back, so the same bytes may follow again and again.
    one = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    tail = packer.compress(end) + packer.flush(zlib.Z_FINISH)
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + head + one * times + tail + struct.pack("<II", 0, 0)


def spaces(size: int = TEN_GB, start: bytes = b"", end: bytes = b"") -> bytes:
    block = b" " * (16 * MIB)
    return deflated(block, -(-size // len(block)), start, end)


def nested(opening: bytes, closing: bytes) -> bytes:
    return opening * MILLION + closing * MILLION


@dataclass(frozen=True)
class Ran:
    """What a command did and took."""

    code: int
    error: str
    cpu: float
    memory: int

    def was_cheap(self) -> None:
        assert self.cpu < CPU_SECONDS, f"{self.cpu:.1f} s of CPU time"
        assert self.memory < MEMORY, f"{self.memory / 1e6:.0f} MB"


# Linux counts what a process was before it became the command: a copy of its parent. So the parent
# is a small one and not the tests' own.
_MEASURED = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
code = os.waitstatus_to_exitcode(status)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def run(path: Path, *options: str, command: str = "analyze") -> Ran:
    """Run the real command on a file and measure the process itself."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRACELENS_")}
    tracelens_command = [sys.executable, "-m", "tracelens", command, str(path), *options]
    done = subprocess.run(
        [sys.executable, "-S", "-c", _MEASURED, *tracelens_command],
        check=False,
        cwd=path.parent,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
    )
    code, cpu, memory = json.loads(done.stdout)
    return Ran(code, done.stderr, cpu, memory)


def one_error(ran: Ran) -> str:
    """Check that one line says what is wrong, with nothing but where to read more behind it."""
    ran.was_cheap()
    assert ran.code == 1
    first, *more = ran.error.splitlines()
    assert first.startswith("Error: ")
    assert all(line.startswith(("Hint: ", "(see docs/messages.md#")) for line in more), more
    assert len(more) <= 1
    return first


class TestTheRealCommand:
    """The bounds are those of the whole process, start and imports included."""

    @pytest.mark.parametrize(
        ("start", "what"),
        [
            (b"", "nothing but white space at its beginning"),
            (b'{"schemaVersion":1,', "32 MiB of it hold neither an event nor the beginning"),
        ],
        ids=["first", "header"],
    )
    def test_ten_gigabytes_of_spaces(self, start: bytes, what: str, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(spaces(start=start, end=b'"traceEvents":[]}'))
        assert path.stat().st_size < 10 * 10**6
        assert what in one_error(run(path))

    def test_ten_gigabytes_of_spaces_in_a_thousand_members(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.gz"
        member = gzip.compress(b" " * (10 * 10**6), mtime=0)
        path.write_bytes(gzip.compress(BEGUN) + member * 1000)
        assert path.stat().st_size < 10 * 10**6
        assert "it inflates to more than 1.9" in one_error(run(path))

    def test_a_million_nested_brackets(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(gzip.compress(b'{"traceEvents":' + nested(b"[", b"]") + b"}"))
        assert path.stat().st_size < 10_000
        assert "it ends before its first event" in one_error(run(path))

    def test_millions_of_elements_that_are_no_events(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(deflated(b'{"a":1},' * 500_000, 20, BEGUN + EVENT + b",", EVENT + b"]}"))
        ran = run(path)
        ran.was_cheap()
        assert ran.code == 0
        assert "after event 1 there is nothing but damage" in ran.error

    def test_a_gigabyte_of_spaces_is_inspected_too(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(spaces(10**9, BEGUN + EVENT))
        ran = run(path, command="inspect")
        ran.was_cheap()
        assert (ran.code, ran.error) == (0, "")


def analyze(path: Path, inflated: int | None = None) -> Analysis:
    return tracelens.analyze(path, Options(limits=Limits(inflated)))


def refusal(path: Path, inflated: int | None = None) -> str:
    with pytest.raises(InputError) as caught:
        analyze(path, inflated)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600
    return caught.value.message


class TestNesting:
    """A million levels: what is around them is read, and it is said what they cost."""

    @pytest.mark.parametrize(
        "args",
        [nested(b"[", b"]"), nested(b'{"a":', b"}").replace(b"}", b"1}", 1)],
        ids=["brackets", "braces"],
    )
    def test_in_the_arguments_of_one_event(self, args: bytes, tmp_path: Path) -> None:
        deep = EVENT.replace(b'{"device":0}', b'{"device":0,"x":' + args + b"}")
        whole = rank(0, 1).bytes()
        at = whole.index(b'"traceEvents": [') + len(b'"traceEvents": [')
        (tmp_path / "rank0.json").write_bytes(whole[:at] + deep + b"," + whole[at:])
        result = analyze(tmp_path)
        assert "1 damaged event," in said(result, "damaged-events")
        assert result.ranks[0].devices[0].total.compute_ns == 2 * 700_000
        assert result.run.ranks_partial == [0], "it may have been a device event"

    @pytest.mark.parametrize("where", ["before", "behind"])
    def test_in_the_metadata(self, where: str, tmp_path: Path) -> None:
        whole = rank(None, 1).bytes()
        deep = b'"distributedInfo": ' + nested(b"[", b"]")
        if where == "before":
            text = whole.replace(b"{", b"{" + deep + b",", 1)
        else:
            text = whole[: whole.rindex(b"}")] + b"," + deep + b"}"
        (tmp_path / "rank0.json").write_bytes(text)
        is_standard(analyze(tmp_path), world=1)

    @pytest.mark.parametrize(
        "text",
        [
            b"[" * MILLION,
            nested(b"[", b"]"),
            b'{"a":' * MILLION,
            b'{"traceEvents":' + b"[" * MILLION,
            b'{"traceEvents":[' + b'{"ph":' * MILLION,
        ],
        ids=["open", "closed", "braces", "events", "phases"],
    )
    def test_nothing_else(self, text: bytes, tmp_path: Path) -> None:
        (tmp_path / "rank0.json").write_bytes(text)
        assert "rank0.json" in refusal(tmp_path)

    def test_in_a_sidecar(self, tmp_path: Path) -> None:
        write_ranks(tmp_path)
        for text in (nested(b"[", b"]"), b'{"rank": ' + b"[" * MILLION, b" " * (2 * MIB)):
            (tmp_path / "rank0.json.tracelens.json").write_bytes(text)
            is_standard(analyze(tmp_path))

    def test_in_a_payload_of_nccl(self, tmp_path: Path) -> None:
        made = Export().call("ncclAllReduce", 10, comm=7, size=64).kernel("gemm", 1_000)
        for row in made.rows["NVTX_EVENTS"]:
            row["jsonText"] = nested(b"[", b"]").decode()
        made.write(tmp_path / "run.sqlite")
        assert analyze(tmp_path).ranks[0].devices[0].total.kernels == 1


class TestOneLongThing:
    def test_a_name_that_never_ends(self, tmp_path: Path) -> None:
        events = BEGUN + EVENT + b',{"ph":"X","cat":"kernel","name":"'
        (tmp_path / "rank0.json.gz").write_bytes(spaces(10**8, events))
        result = analyze(tmp_path)
        assert result.ranks[0].devices[0].total.kernels == 1
        assert "no event ends in the 32 MiB after event 1" in said(result, "truncated-file")
        assert result.run.ranks_partial == [0]

    def test_white_space_between_events_costs_what_follows(self, tmp_path: Path) -> None:
        text = spaces(5 * 10**7, BEGUN + EVENT, b"," + EVENT + b"]}")
        (tmp_path / "rank0.json.gz").write_bytes(text)
        result = analyze(tmp_path)
        assert result.ranks[0].devices[0].total.kernels == 1
        assert result.run.ranks_partial == [0]

    def test_the_limit_is_the_users_to_set(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(gzip.compress(rank(0, 1, steps=200).bytes()))
        plain = len(gzip.decompress(path.read_bytes()))
        is_standard(analyze(path, plain), world=1, steps=200)
        result = analyze(path, plain // 2)
        assert "it inflates to more than" in said(result, "truncated-file")
        assert "--max-inflated allows more" in said(result, "truncated-file")
        assert len(result.ranks[0].devices[0].steps) > 90, "what is below the limit is read"

    def test_the_rest_of_the_run_is_analysed(self, tmp_path: Path) -> None:
        write_ranks(tmp_path)
        (tmp_path / "rank7.json.gz").write_bytes(spaces(10**8, b'{"schemaVersion":1,'))
        result = analyze(tmp_path)
        is_standard(result)
        assert "rank7.json.gz" in said(result, "unreadable-file")


def tar_of(members: dict[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return plain.getvalue()


def written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class TestArchives:
    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        return folder

    def test_a_zip_says_how_large_its_members_are(self, tmp_path: Path, temporary: Path) -> None:
        path = tmp_path / "run.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("rank0.json", rank(0).text())
            archive.writestr("bomb.json", b" " * (20 * MIB))
            archive.writestr("rank1.json", rank(1).text())
        result = analyze(path, 10 * MIB)
        is_standard(result)
        assert "run.zip/bomb.json: could not be read: it inflates to more than 0.0105 GB" in said(
            result, "unreadable-file"
        )
        assert list(temporary.iterdir()) == []

    def test_a_zip_that_lies(self, tmp_path: Path) -> None:
        """The size in the directory is small, the data are not."""
        path = tmp_path / "run.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("rank0.json", b" " * (20 * MIB))
        data = path.read_bytes().replace(struct.pack("<I", 20 * MIB), struct.pack("<I", 99))
        path.write_bytes(data)
        assert "run.zip" in refusal(path, 10 * MIB)

    def test_members_that_share_their_data_are_counted_each(self, tmp_path: Path) -> None:
        """Entries of the directory may all name one place: 100 times 1 MiB, packed once."""
        path = tmp_path / "run.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("rank0.json", rank(0, 1).text() + " " * MIB)
            archive.filelist = archive.filelist * 100
        assert "it inflates to more than" in refusal_or_notice(path, 10 * MIB)

    @pytest.mark.parametrize("packed", ["gz", "zst"])
    def test_a_tar_of_spaces(self, packed: str, tmp_path: Path, temporary: Path) -> None:
        plain = tar_of({"rank0.json": rank(0, 1).bytes(), "rank1.json": b" " * (40 * MIB)})
        pack = gzip.compress if packed == "gz" else zstandard.ZstdCompressor().compress
        path = tmp_path / f"run.tar.{packed}"
        path.write_bytes(pack(plain))
        result = analyze(path, 10 * MIB)
        is_standard(result, world=1)
        assert "it inflates to more than" in said(result, "unreadable-file")
        assert list(temporary.iterdir()) == []

    def test_a_sparse_member_counts_in_full(self, tmp_path: Path) -> None:
        """GNU tar writes a hole as two numbers: 100 members of 5 MiB are 51 kB of it."""
        path = tmp_path / "run.tar"
        members = [sparse(f"rank{number}.json", 5 * MIB) for number in range(100)]
        path.write_bytes(b"".join(members) + bytes(1024))
        with Workspace() as workspace, limits.use(Limits(12 * MIB)):
            found = list(archives.unpack(path, "run.tar", "tar", lambda _: True, workspace))
            assert 0 < written(tmp_path / "temporary") <= 12 * MIB
        assert "it inflates to more than" in (found[-1].reason or "")

    def test_a_zstd_file_of_spaces(self, tmp_path: Path) -> None:
        packer = zstandard.ZstdCompressor(level=19)
        block = packer.compress(b" " * (64 * MIB))
        path = tmp_path / "rank0.json.zst"
        path.write_bytes(packer.compress(b'{"schemaVersion":1,') + block * 4)
        assert path.stat().st_size < 50_000
        assert "32 MiB of it hold neither" in refusal(path)
        assert "it inflates to more than 0.01" in refusal(path, 10 * MIB)

    def test_thousands_of_tiny_members(self, tmp_path: Path) -> None:
        path = tmp_path / "run.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(2_000):
                archive.writestr(f"other{number}.json", "{}")
            for number in (0, 1):
                archive.writestr(f"rank{number}.json", rank(number).text())
        result = analyze(path)
        is_standard(result)
        (left_out,) = [n for n in result.notices if n.code == "skipped-file"]
        assert left_out.count == 2_000
        assert len(left_out.message) < 400

    def test_more_members_than_are_looked_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tracelens.archives._MOST_MEMBERS", 2)
        members = {f"rank{n}.json": rank(n).bytes() for n in (0, 1)} | {"rank2.json": b"{}"}
        (tmp_path / "run.tar").write_bytes(tar_of(members))
        with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        for path in (tmp_path / "run.tar", tmp_path / "run.zip"):
            result = analyze(path)
            is_standard(result)
            assert "members: the rest is not looked at" in said(result, "unreadable-file")


def sparse(name: str, size: int) -> bytes:
    """Return a member in GNU's old sparse format that is one hole."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:398] = b"%011o\0" % size  # an empty piece at the end, and the real size
    header[398:410] = b"%011o\0" % 0
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def refusal_or_notice(path: Path, inflated: int) -> str:
    """Return what is said of a file, be it an error or a notice."""
    try:
        result = analyze(path, inflated)
    except InputError as error:
        return error.message
    assert "unreadable-file" in codes(result)
    return " ".join(n.message for n in result.notices if n.code == "unreadable-file")

"""Files that are no whole export: one clear line each, and nothing written beside them."""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from command import run
from nsight_exports import EVENTS, KERNEL, Export

from tracelens.errors import UnreadableTrace
from tracelens_nsight import NsightParser

if TYPE_CHECKING:
    from pathlib import Path


def export(path: Path) -> Path:
    made = Export().kernel("gemm", 1_000)
    for place in range(300):
        made.kernel("gemm", 2_000 + 200 * place)
    return made.write(path / "x.sqlite")


def root_of(path: Path, table: str) -> tuple[int, int]:
    """Return the number of a table's first page, and the size of pages."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        ((root,),) = database.execute(query, (table,)).fetchall()
        ((size,),) = database.execute("PRAGMA page_size").fetchall()
    return root, size


def one_leaf_for_all(path: Path, table: str) -> Path:
    """Let all entries of a table's root lead to its first leaf (SQLite's file format, 1.6)."""
    root, size = root_of(path, table)
    data = bytearray(path.read_bytes())
    page = memoryview(data)[(root - 1) * size : root * size]
    assert page[0] == 5, "an interior page"
    (first,) = struct.unpack_from(">H", page, 12)
    cell = bytes(page[first : first + 4]) + b"\x7f"
    count = (size - 12) // (2 + len(cell))
    places = range(size - count * len(cell), size, len(cell))
    page[3:7] = struct.pack(">HH", count, places[0])
    page[12 : 12 + 2 * count] = struct.pack(f">{count}H", *places)
    page[places[0] :] = cell * count
    path.write_bytes(bytes(data))
    return path


def refused(path: Path) -> str:
    with pytest.raises(UnreadableTrace) as caught:
        list(NsightParser().parse(path))
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(f"{path}: ")


def said(path: Path) -> str:
    """Return what the command says: what is wrong in one line, and where to read more."""
    done = run("analyze", path.name, "-o", "r.json", cwd=path.parent)
    assert done.code == 1
    assert len(done.err.splitlines()) <= 2
    return done.err.splitlines()[0]


class TestDamage:
    @pytest.mark.parametrize("at", [60, 3_000, 9_000])
    def test_a_cut_database(self, at: int, tmp_path: Path) -> None:
        path = export(tmp_path)
        path.write_bytes(path.read_bytes()[:at])
        assert "damaged SQLite database" in refused(path)

    def test_bytes_overwritten(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        data = bytearray(path.read_bytes())
        data[4096:12288] = b"\xff" * 8192
        path.write_bytes(bytes(data))
        assert "damaged SQLite database" in refused(path)

    def test_the_last_rows_overwritten(self, tmp_path: Path) -> None:
        """What was read before is not taken for all."""
        made = Export().kernel("gemm", 1_000)
        for place in range(3_000):
            made.range("load", 2_000 + 200 * place, 2_100 + 200 * place)
        path = made.write(tmp_path / "x.sqlite")
        root, size = root_of(path, EVENTS)
        data = bytearray(path.read_bytes())
        (last,) = struct.unpack_from(">I", data, (root - 1) * size + 8)
        data[last * size - 400 : last * size] = b"\xff" * 400
        path.write_bytes(bytes(data))
        assert "damaged SQLite database" in refused(path)

    def test_it_is_recognised_all_the_same(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        path.write_bytes(path.read_bytes()[:60])
        assert "damaged SQLite database" in said(path)

    @pytest.mark.parametrize("arrow", [True, False])
    def test_pages_that_are_read_again_and_again(
        self, arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On several levels they would be read for years."""
        if not arrow:
            monkeypatch.setattr("tracelens_nsight.sqlite._arrow_driver", lambda uri: None)
        path = one_leaf_for_all(export(tmp_path), KERNEL)
        assert f'more rows in "{KERNEL}" than fit into the file' in refused(path)
        assert "more rows" in said(path)

    def test_a_text_where_a_number_belongs(self, tmp_path: Path) -> None:
        made = Export().kernel("gemm", 1_000)
        made.rows[KERNEL][0]["deviceId"] = "zero"
        assert "damaged SQLite database" in refused(made.write(tmp_path / "x.sqlite"))


class TestJournals:
    @pytest.mark.parametrize(("suffix", "name"), [("-wal", "log"), ("-journal", "journal")])
    def test_changes_that_are_not_in_the_file_yet(
        self, suffix: str, name: str, tmp_path: Path
    ) -> None:
        path = export(tmp_path)
        path.with_name(path.name + suffix).write_bytes(b"changes")
        assert f"{name} {path.name}{suffix} holds changes" in refused(path)
        assert "holds changes" in said(path)

    def test_nor_behind_a_link(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        path.with_name("x.sqlite-wal").write_bytes(b"changes")
        (tmp_path / "runs").mkdir()
        link = tmp_path / "runs" / "y.sqlite"
        link.symlink_to(path)
        assert "log x.sqlite-wal holds changes" in refused(link)

    @pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
    def test_empty_ones_hold_none(self, suffix: str, tmp_path: Path) -> None:
        path = export(tmp_path)
        path.with_name(path.name + suffix).write_bytes(b"")
        assert len(list(NsightParser().parse(path))) == 1

    def test_a_database_in_wal_mode_is_left_alone(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
        before = sorted(tmp_path.iterdir()), path.stat().st_mtime_ns, path.read_bytes()
        assert len(list(NsightParser().parse(path))) == 1
        assert before == (sorted(tmp_path.iterdir()), path.stat().st_mtime_ns, path.read_bytes())

    def test_a_locked_database_is_read(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert len(list(NsightParser().parse(path))) == 1
            other.rollback()

    def test_a_name_of_any_bytes(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        odd = tmp_path / os.fsdecode(b"a ?#%41 \xff rank3.sqlite")
        path.rename(odd)
        (trace,) = NsightParser().parse(odd)
        assert (len(trace.device_events), trace.info.rank) == (301, 3)

    def test_one_that_is_being_written_is_not(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA cache_size = 1")
            other.execute("BEGIN EXCLUSIVE")
            other.execute("CREATE TABLE more (x)")
            other.executemany("INSERT INTO more VALUES (?)", [("x" * 500,)] * 200)
            assert "journal" in refused(path)
            other.rollback()

    def test_a_folder_nobody_may_write_to(self, tmp_path: Path) -> None:
        folder = tmp_path / "read-only"
        folder.mkdir()
        path = export(folder)
        path.chmod(0o444)
        folder.chmod(0o555)
        try:
            assert len(list(NsightParser().parse(path))) == 1
        finally:
            folder.chmod(0o755)


class TestOtherFiles:
    def test_another_database(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.sqlite"
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE notes (text)")
            database.commit()
        assert NsightParser().recognise(path, path.read_bytes()[:100]) is None
        assert "an SQLite database, but no export of Nsight Systems" in said(path)

    def test_a_text_with_the_suffix(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.sqlite"
        path.write_text("no database at all")
        assert "no format an installed parser knows" in said(path)

    def test_an_export_of_empty_tables(self, tmp_path: Path) -> None:
        path = export(tmp_path)
        with closing(sqlite3.connect(path)) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master").fetchall():
                database.execute(f'DELETE FROM "{table}"')
            database.commit()
        assert "no work of a GPU in it: record with `nsys profile -t cuda,nvtx`" in said(path)

    def test_a_recording_of_the_cpu_only(self, tmp_path: Path) -> None:
        made = Export().step(0, 100, 200).runtime("cudaGetDeviceCount", 10, 20)
        path = made.add("OSRT_API", start=1, end=2).write(tmp_path / "x.sqlite")
        assert "no work of a GPU in it" in said(path)

    def test_it_does_not_stop_the_others(self, tmp_path: Path) -> None:
        export(tmp_path)
        Export().step(0, 100, 200).write(tmp_path / "cpu.sqlite")
        done = run("analyze", ".", "-o", "r.json", cwd=tmp_path)
        assert done.code == 0
        assert "cpu.sqlite: could not be read: no work of a GPU" in done.err

    def test_inspect_says_what_is_wrong(self, tmp_path: Path) -> None:
        path = Export().step(0, 100, 200).write(tmp_path / "cpu.sqlite")
        facts = NsightParser().inspect(path)
        assert (facts.complete, facts.note) == (
            False,
            "no work of a GPU in it: record with `nsys profile -t cuda,nvtx`",
        )

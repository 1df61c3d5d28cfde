"""Exports of one Parquet or Arrow file a table: the same tables, the same traces."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight_exports import EVENTS, KERNEL, MEMCPY, Export

import tracelens
from tracelens import limits
from tracelens.discovery import discover
from tracelens.errors import UnreadableTrace
from tracelens.registry import parsers
from tracelens_nsight import NsightParser
from tracelens_nsight.arrow import ArrowTables
from tracelens_nsight.sqlite import SqliteTables
from tracelens_nsight.tables import Between, Like, OneOf, Unlike

if TYPE_CHECKING:
    from tracelens_nsight.tables import Condition, Rows

FORMS = ("parquet", "arrow", "stream")
TEXTS = {"text", "value", "name", "jsonText"}
# As nsys 2023.4 writes them into Parquet; Arrow has unsigned 32 bits where Parquet has none.
RECORDED = {
    "id": pa.int32(),
    "start": pa.int64(),
    "end": pa.int64(),
    "deviceId": pa.int64(),
    "streamId": pa.uint64(),
    "correlationId": pa.int64(),
    "globalPid": pa.uint64(),
    "globalTid": pa.uint64(),
    "demangledName": pa.uint64(),
    "shortName": pa.uint64(),
    "nameId": pa.uint64(),
    "textId": pa.int64(),
    "eventType": pa.int64(),
    "domainId": pa.uint64(),
    "utcEpochNs": pa.uint64(),
}
NARROW = {"deviceId", "correlationId", "textId", "eventType"}


def run_of_two() -> Export:
    export = Export(json=True)
    for pid in (4000, 4001):
        export.mark(pid, rank=pid - 4000, world=2)
        export.call("ncclCommInitRank", 10, pid=pid, comm=1 << 63 | 7, nranks=2, rank=pid - 4000)
        for step in range(3):
            begin = 10_000 * (step + 1)
            export.step(step, begin, begin + 9_000, pid).kernel("gemm", begin + 1_000, pid=pid)
            export.collective("ncclAllReduce", begin + 5_000, pid=pid, comm=1 << 63 | 7, size=64)
    return export


def columns_of(rows: list[dict[str, Any]], form: str) -> dict[str, pa.Array]:
    """Return a table's columns in native types: ids are unsigned, blobs are binary."""
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if name == "binaryData":
            kind = pa.binary()
        elif name in TEXTS:
            kind = pa.string()
        elif name in NARROW and form != "parquet":
            kind = pa.uint32()
        elif name in RECORDED:
            kind = RECORDED[name]
        else:
            large = any((v or 0) >= 1 << 48 for v in values)
            kind = (
                pa.uint64() if large else pa.int64() if min(v or 0 for v in values) else pa.uint32()
            )
        found[name] = pa.array(values, kind)
    return found


def as_folder(export: Export, folder: Path, form: str) -> Path:
    """Write the tables of an export as `nsys export -t parquetdir` or `arrowdir` does."""
    folder.mkdir()
    strings = [{"id": number, "value": text} for text, number in export._strings.items()]
    for table, rows in {**export.rows, "StringIds": strings}.items():
        data = pa.table(columns_of(rows, form))
        if form == "parquet":
            pq.write_table(data, folder / f"{table}.parquet")
            continue
        with (folder / f"{table}.arrow").open("wb") as file:
            make = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
            with make(file, data.schema) as writer:
                writer.write_table(data)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_gives_the_traces_of_the_database(form: str, tmp_path: Path) -> None:
    export = run_of_two()
    folder = as_folder(export, tmp_path / "run_pqtdir", form)
    of_folder = list(NsightParser().parse(folder))
    for one, other in zip(export.traces(tmp_path / "x.sqlite"), of_folder, strict=True):
        other.validate()
        for table in ("device_events", "communications", "marks", "host_calls"):
            mine, theirs = getattr(one, table), getattr(other, table)
            assert mine.astype(object).equals(theirs.astype(object)), table
        assert one.info.process_groups == other.info.process_groups


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_is_one_input(form: str, tmp_path: Path) -> None:
    as_folder(run_of_two(), tmp_path / "run_pqtdir", form)
    (candidate,) = discover([tmp_path], parsers())
    kind = "nsight-parquet" if form == "parquet" else "nsight-arrow"
    assert (candidate.shown, candidate.parser, candidate.format) == ("run_pqtdir", "nsight", kind)
    assert candidate.size == sum(f.stat().st_size for f in (tmp_path / "run_pqtdir").iterdir())
    assert tracelens.analyze(tmp_path).run.ranks_present == [0, 1]
    assert tracelens.analyze(tmp_path / "run_pqtdir").run.ranks_present == [0, 1]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_folder_on_another_machine_is_one_input(form: str, tmp_path: Path) -> None:
    system = pytest.importorskip("fsspec").filesystem("memory")
    folder = as_folder(run_of_two(), tmp_path / "run_pqtdir", form)
    system.put(str(folder), "/tables/run_pqtdir", recursive=True)
    system.pipe("/tables/data/part-0.parquet", b"something else")
    try:
        for address in ("tables", "tables/run_pqtdir", "tables/run*"):
            result = tracelens.analyze(f"memory://{address}")
            assert result.run.ranks_present == [0, 1]
            assert [file.path for file in result.source.files] == ["run_pqtdir"]
    finally:
        system.rm("/tables", recursive=True)


def test_a_database_beside_says_the_same(tmp_path: Path) -> None:
    as_folder(run_of_two(), tmp_path / "run_pqtdir", "parquet")
    run_of_two().write(tmp_path / "run.sqlite")
    found = {c.shown: (c.parser, c.reason) for c in discover([tmp_path], parsers())}
    assert found == {
        "run.sqlite": ("nsight", None),
        "run_pqtdir": (None, "the same recording as run.sqlite"),
    }
    (alone,) = discover([tmp_path / "run_pqtdir"], parsers())
    assert alone.parser == "nsight", "asked for by name"


def test_a_folder_beside_a_report_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(b"a report")
    folder = as_folder(run_of_two(), tmp_path / "run_pqtdir", "parquet")
    as_folder(run_of_two(), tmp_path / "run_arwdir", "stream")
    found = {c.shown: (c.parser, c.reason) for c in discover([tmp_path], parsers())}
    assert found == {
        "run.nsys-rep": (None, "the same recording as run_pqtdir"),
        "run_arwdir": (None, "the same recording as run_pqtdir"),
        "run_pqtdir": ("nsight", None),
    }
    assert tracelens.analyze(tmp_path).run.ranks_present == [0, 1]
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").unlink()  # as a recipe leaves it
    (tmp_path / "run_arwdir" / "CUPTI_ACTIVITY_KIND_KERNEL.arrow").unlink()
    reasons = {c.shown: c.reason for c in discover([tmp_path], parsers())}
    assert reasons["run.nsys-rep"] is None


def test_other_folders_are_looked_into(tmp_path: Path) -> None:
    inner = tmp_path / "parquet"
    inner.mkdir()
    pq.write_table(pa.table({"x": [1]}), inner / "data.parquet")
    run_of_two().write(inner / "run.sqlite")
    assert [c.shown for c in discover([tmp_path], parsers())] == ["parquet/run.sqlite"]


def test_a_damaged_file_in_it(tmp_path: Path) -> None:
    folder = as_folder(run_of_two(), tmp_path / "run_pqtdir", "parquet")
    (folder / f"{EVENTS}.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(UnreadableTrace, match="run_pqtdir: "):
        list(NsightParser().parse(folder))


@pytest.mark.parametrize("values", [["soon", "late"], [0.5, float("nan")], [[1], [2]]])
def test_a_column_of_another_type(values: list[Any], tmp_path: Path) -> None:
    folder = as_folder(Export().kernel("a", 1_000).kernel("b", 2_000), tmp_path / "x", "parquet")
    file = folder / f"{KERNEL}.parquet"
    table = pq.read_table(file)
    place = table.schema.get_field_index("start")
    pq.write_table(table.set_column(place, "start", pa.array(values)), file)
    with pytest.raises(UnreadableTrace, match="x: a damaged table"):
        list(NsightParser().parse(folder))


def test_a_table_that_grows_beyond_its_limit(tmp_path: Path) -> None:
    folder = as_folder(Export().kernel("gemm", 1_000), tmp_path / "x", "parquet")
    with limits.use(limits.Limits(60)), pytest.raises(UnreadableTrace, match="--max-inflated"):
        list(NsightParser().parse(folder))


def test_texts_that_lie_outside_of_their_file(tmp_path: Path) -> None:
    """Arrow reads a file's places of texts as they are; beyond its end the process would die."""
    export = Export().runtime("gemm", 10, 20).runtime("call", 30, 40).device(MEMCPY, 1_000, at=None)
    folder = as_folder(export, tmp_path / "x", "arrow")
    file = folder / "StringIds.arrow"
    data = file.read_bytes()
    places = np.array([0, 4, 8], np.int32).tobytes()  # of "gemm" and "call"
    assert data.count(places) == 1
    file.write_bytes(data.replace(places, np.array([0, 4, 1 << 30], np.int32).tobytes()))
    with pytest.raises(UnreadableTrace, match="x: a damaged table"):
        list(NsightParser().parse(folder))


def test_texts_of_any_bytes_and_kinds(tmp_path: Path) -> None:
    folder = as_folder(Export().kernel("gemm", 1_000), tmp_path / "x", "parquet")
    file = folder / "StringIds.parquet"
    table = pq.read_table(file)
    raw = pa.array([text.encode() + b"\xff" for text in table["value"].to_pylist()])
    kinds = (raw, raw.cast(pa.large_binary()), raw.dictionary_encode())
    for column in kinds:
        pq.write_table(
            table.set_column(table.schema.get_field_index("value"), "value", column), file
        )
        (trace,) = NsightParser().parse(folder)
        assert trace.device_events["name"].tolist() == ["gemm\ufffd"]


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_folder(run_of_two(), tmp_path / "run_pqtdir", "parquet")
    monkeypatch.setitem(__import__("sys").modules, "tracelens_nsight.arrow", None)
    with pytest.raises(UnreadableTrace, match=r"need pyarrow: `pip install 'tracelens-dist"):
        list(NsightParser().parse(folder))


# three readers, one answer -----------------------------------------------------------------------

texts = st.sampled_from(["aten::mm", "aten*", "nccl:all", "a?[b]", "", "x, seq = 3", "é\n"])
records = st.lists(
    st.tuples(st.integers(-9, 9) | st.none(), texts | st.none(), st.binary(max_size=3) | st.none()),
    max_size=12,
)
conditions: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Between, st.just("number"), st.integers(-9, 0), st.integers(0, 9)),
    st.builds(OneOf, st.just("number"), st.lists(st.integers(-9, 9)).map(tuple)),
    st.builds(Like, st.just("text"), st.sampled_from([("aten",), ("a?", "nccl:"), ("*",)])),
    st.builds(
        Unlike, st.just("text"), st.sampled_from([("aten::",), ("a?", "x")]), st.just((", seq",))
    ),
    st.just(Between("missing", 0, 1)),
)


def by_hand(rows: list[tuple[Any, ...]], tests: list[Condition]) -> list[tuple[Any, ...]]:
    return [row for row in rows if all(holds(row, test) for test in tests)]


def holds(row: tuple[Any, ...], test: Condition) -> bool:
    number, text, _ = row
    match test:
        case Between("number", low, high):
            return number is not None and low <= number <= high
        case OneOf(_, values):
            return number is not None and number in values
        case Like(_, beginnings):
            return text is not None and text.startswith(beginnings)
        case Unlike(_, beginnings, parts):
            return text is None or not (
                text.startswith(beginnings) or any(part in text for part in parts)
            )
    return True  # the column is not there


def shown(rows: Rows) -> list[tuple[Any, ...]]:
    columns = rows.integers["number"].tolist(), rows.texts["text"].texts(), rows.blobs["blob"]
    return list(zip(*columns, strict=True))


@given(records, st.lists(conditions, max_size=2))
def test_all_readers_find_the_same_rows(
    rows: list[tuple[Any, ...]], tests: list[Condition]
) -> None:
    import tempfile

    none = -(1 << 63)
    expected = [
        (none if number is None else number, text or "", blob or b"")
        for number, text, blob in by_hand(rows, tests)
    ]
    question: dict[str, Any] = {
        "integers": ["number"], "texts": ["text"], "blobs": ["blob"], "where": tests,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(sqlite3.connect(folder / "x.sqlite")) as database:
            database.execute("CREATE TABLE t (number INTEGER, text TEXT, blob TEXT)")
            database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
            database.commit()
        numbers, words, blobs = zip(*rows, strict=True) if rows else ((), (), ())
        table = pa.table(
            {
                "number": pa.array(numbers, pa.int64()),
                "text": pa.array(words, pa.string()),
                "blob": pa.array(blobs, pa.binary()),
            }
        )
        pq.write_table(table, folder / "t.parquet")
        with_arrow, plain = SqliteTables(folder / "x.sqlite"), SqliteTables(folder / "x.sqlite")
        assert with_arrow._arrow is not None
        plain._arrow = None
        for tables in (with_arrow, plain, ArrowTables(folder)):
            assert shown(tables.read("t", **question)) == expected
            assert tables.count("t") == len(rows)
            assert tables.distinct("t", "number").tolist() == sorted(
                {number for number, _, _ in rows if number is not None}
            )
            assert len(tables.read("nothing", **question)) == 0
        with_arrow.close()
        plain.close()

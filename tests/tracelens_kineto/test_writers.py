"""More than one trace, or more than one process, in one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import Schema, Trace

from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import RankTrace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def parsed(path: Path, data: str | bytes) -> list[RankTrace]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    found = KinetoParser().parse(path)
    for trace in found:
        trace.validate()
    return found


def codes(trace: RankTrace) -> list[str]:
    return [notice.code for notice in trace.info.notices]


def names(trace: RankTrace) -> list[str]:
    return trace.device_events["name"].astype(object).tolist()


def rank(number: int, **options: object) -> Trace:
    trace = Trace(rank=number, pid=4000 + number, **options)  # type: ignore[arg-type]
    for at in (100, 300, 500):
        trace.kernel(f"k{number}", at + 10 * number, 50 + number, device=number)
    return trace


class TestOneAfterTheOther:
    @pytest.mark.parametrize("between", ["", "\n", "\n\n  "])
    @pytest.mark.parametrize("size", [1 << 20, 100])
    def test_each_is_a_trace_of_its_own(
        self, file: Path, between: str, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tracelens_kineto.inflate.BLOCK", size)
        monkeypatch.setattr("tracelens_kineto.inflate._READ", size)
        first, second = parsed(file, rank(0).text() + between + rank(1).text())
        assert (first.info.rank, second.info.rank) == (0, 1)
        assert (names(first), names(second)) == (["k0"] * 3, ["k1"] * 3)
        assert first.device_events["launch"].tolist() == [80_000, 280_000, 480_000]
        assert codes(first) == ["several-traces"]
        assert codes(second) == []

    def test_info_after_the_events(self, file: Path) -> None:
        after = Schema(info="after")
        text = rank(0, schema=after).text() + rank(1, schema=after).text()
        assert [trace.info.rank for trace in parsed(file, text)] == [0, 1]

    def test_bare_arrays(self, file: Path) -> None:
        schema = Schema(root="array", times="epoch")
        text = rank(0, schema=schema).text() + rank(1, schema=schema).text()
        assert [names(trace) for trace in parsed(file, text)] == [["k0"] * 3, ["k1"] * 3]

    def test_the_second_is_cut(self, file: Path) -> None:
        first, second = parsed(file, rank(0).text() + rank(1).text()[:-150])
        assert (first.info.truncated, second.info.truncated) == (False, True)
        assert (len(first.device_events), len(second.device_events)) == (3, 2)

    def test_cycles_of_one_rank(self, file: Path) -> None:
        text = Trace().kernel("a", 100, 5).text() + Trace().kernel("b", 900_000, 5).text()
        found = parsed(file, text)
        assert [(trace.info.rank, names(trace)) for trace in found] == [(0, ["a"]), (0, ["b"])]


class TestInterleaved:
    def test_a_whole_trace_inside_another_ones_array(self, file: Path) -> None:
        """Appending writers: the second begins and ends while the first still writes."""
        one, other = rank(0), rank(1)
        events = [*one.events[:2], other.text().strip(), *one.events[2:]]
        outer = Trace(rank=0, pid=4000, events=events)
        first, second = sorted(parsed(file, outer.text()), key=lambda t: t.info.process)
        assert (names(first), names(second)) == (["k0"] * 3, ["k1"] * 3)
        assert (first.info.process, second.info.process) == (4000, 4001)
        assert first.info.rank is None, "two ranks are in it: which is whose is not known"
        assert {"several-writers", "several-processes"} <= set(codes(first))
        assert first.info.damaged_device_events > 0, "partial"

    def test_pieces_that_alternate(self, file: Path) -> None:
        """Buffers flushed in turn cut events: those are lost, the others are not."""
        texts = [rank(0).bytes(), rank(1).bytes()]
        size = 700
        pieces = [
            text[at : at + size] for at in range(0, len(texts[0]) + size, size) for text in texts
        ]
        found = parsed(file, b"".join(pieces))
        kept = [name for trace in found for name in names(trace)]
        assert kept
        assert set(kept) <= {"k0", "k1"}
        for trace in found:
            lengths = (trace.device_events["end"] - trace.device_events["start"]).tolist()
            assert set(lengths) <= {50_000, 51_000}, "no event is made of two"
            assert trace.info.damaged_device_events > 0 or trace.info.truncated

    def test_events_behind_the_end(self, file: Path) -> None:
        text = rank(0).text() + ", " + ",\n".join(rank(1).events) + "]}"
        first, second = parsed(file, text)
        assert (names(first), names(second)) == (["k0"] * 3, ["k1"] * 3)
        assert "several-writers" in codes(first)


class TestMerged:
    """Tools that put the events of several ranks into one array."""

    def merged(self, *traces: Trace) -> str:
        events = [event for trace in traces for event in trace.events]
        return Trace(rank=0, events=events).text()

    def test_devices_that_differ(self, file: Path) -> None:
        first, second = parsed(file, self.merged(rank(0), rank(1)))
        assert (names(first), names(second)) == (["k0"] * 3, ["k1"] * 3)
        assert second.device_events["launch"].tolist() == [90_000, 290_000, 490_000]
        assert set(second.device_events["process"]) == {4001}
        assert second.info.damaged_device_events == 0, "nothing is lost"
        (notice,) = second.info.notices
        assert notice.code == "several-processes"
        assert "guess" not in notice.message

    def test_one_device_number_and_ids_that_differ(self, file: Path) -> None:
        one = Trace(pid=1).kernel("a", 100, 5, correlation=11)
        other = Trace(pid=2).kernel("b", 100, 5, correlation=22)
        first, second = parsed(file, self.merged(one, other))
        assert (names(first), names(second)) == (["a"], ["b"])

    def test_one_device_number_and_the_same_ids_are_said_to_be_a_guess(self, file: Path) -> None:
        """Sorted by time, nothing is left that tells whose a kernel is."""
        both = [Trace(pid=1), Trace(pid=2)]
        for at in range(100, 700, 100):
            both[0].kernel("a", at, 5)
            both[1].kernel("b", at + 50, 5)
        mixed = [
            event for pair in zip(*(trace.events for trace in both), strict=True) for event in pair
        ]
        found = parsed(file, Trace(events=mixed).text())
        assert "12 device events could be of more than one" in found[0].info.notices[-1].message
        assert all(trace.info.damaged_device_events for trace in found), "no rank is whole"

    def test_names_for_processes(self, file: Path) -> None:
        """Merging tools prefix every pid with the rank."""
        texts = []
        for number in (0, 1):
            trace = Trace(pid=77).kernel(f"k{number}", 100, 5, device=number)
            events = map(json.loads, trace.events)
            texts += [json.dumps(e | {"pid": f"[TP{number:02}] {e['pid']}"}) for e in events]
        first, second = parsed(file, Trace(events=texts).text())
        assert (names(first), names(second)) == (["k0"], ["k1"])
        assert (first.info.process, second.info.process) == (77, 77)

    def test_collectives_go_with_their_kernels(self, file: Path) -> None:
        one = Trace(pid=1).all_reduce(500, 60, 9, device=0)
        other = Trace(pid=2).all_reduce(500, 60, 7, device=1)
        from tracelens.reduction import reduce_rank

        rows = [reduce_rank(trace).operations for trace in parsed(file, self.merged(one, other))]
        assert [table["message_bytes"].tolist() for table in rows] == [[36], [28]]

    def test_one_process_with_two_devices_stays_one(self, file: Path) -> None:
        (trace,) = parsed(
            file, Trace().kernel("a", 100, 5, device=0).kernel("b", 100, 5, device=1).text()
        )
        assert set(trace.device_events["device"]) == {0, 1}


class TestEnd:
    def test_a_cut_behind_the_events_loses_no_event(self, file: Path) -> None:
        trace = Trace(rank=1, schema=Schema(info="after")).kernel("a", 100, 5)
        text = trace.text()
        for end in range(text.index("}}]") + 3, len(text.rstrip()), 5):
            (got,) = parsed(file, text[:end])
            assert names(got) == ["a"]
            assert not got.info.truncated
            assert "metadata-cut" in codes(got), text[:end][-20:]
        assert codes(parsed(file, text)[0]) == []

    def test_garbage_behind_the_trace(self, file: Path) -> None:
        (got,) = parsed(file, rank(0).text() + "\0\0\0 garbage")
        (notice,) = got.info.notices
        assert (notice.code, notice.count) == ("trailing-bytes", 11)
        assert "end of the trace" in notice.message

    def test_inspect_sees_every_cut(self, file: Path) -> None:
        for info in ("before", "after"):
            trace = Trace(rank=1, schema=Schema(info=info)).kernel("a", 100, 5)
            trace.all_reduce(300, 5, 9)
            data = trace.bytes().rstrip()
            for end in range(30, len(data), 3):
                file.write_bytes(data[:end])
                assert not KinetoParser().inspect(file).complete, data[:end][-20:]
            file.write_bytes(data)
            assert KinetoParser().inspect(file).complete

    def test_inspect_of_a_long_file(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracelens_kineto.parser._TAIL", 1500)
        for schema in (Schema(info="after"), Schema(root="array", times="epoch")):
            trace = rank(0, schema=schema)
            data = trace.bytes().rstrip()
            file.write_bytes(data)
            assert KinetoParser().inspect(file).complete
            for less in (1, 2, 30, 100, 500):
                file.write_bytes(data[:-less])
                assert not KinetoParser().inspect(file).complete, less

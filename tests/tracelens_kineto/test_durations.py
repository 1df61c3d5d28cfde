"""Times that cannot be: clipped or left out, and said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import Schema, Trace

if TYPE_CHECKING:
    from tracelens.model.trace import RankTrace


def said(trace: RankTrace) -> dict[str, str]:
    return {notice.code: notice.message for notice in trace.info.notices}


def spans(trace: RankTrace) -> list[tuple[int, int]]:
    return [tuple(row) for row in (trace.device_events[["start", "end"]] // 1000).to_numpy()]


def test_a_kernel_through_a_later_one_ends_where_that_one_starts() -> None:
    trace = Trace().kernel("a", 100, 900_000).kernel("b", 300, 50).kernel("c", 400, 50).parse()
    assert spans(trace) == [(100, 300), (300, 350), (400, 450)]
    assert "1 device event that would last" in said(trace)["clipped-durations"]


@pytest.mark.parametrize(
    ("length", "stream"), [(250, 7), (900_000, 8)], ids=["early start", "another stream"]
)
def test_what_may_overlap_is_left_alone(length: int, stream: int) -> None:
    trace = Trace().kernel("a", 100, length).kernel("b", 300, 60, stream=stream).parse()
    assert spans(trace) == [(100, 100 + length), (300, 360)]
    assert said(trace) == {}


def test_kernels_of_a_graph_share_a_stream() -> None:
    trace = Trace().graph(50, [("a", 100, 900_000), ("b", 300, 50)]).parse()
    assert spans(trace) == [(100, 900_100), (300, 350)]


def test_a_stream_that_does_not_run_in_order_is_left_alone() -> None:
    trace = Trace()
    for index in range(40):
        trace.kernel("a", 100 + 10 * index, 5000 - 100 * index)
    assert said(trace.parse()) == {}


def test_a_last_event_without_end_is_no_time() -> None:
    trace = Trace().kernel("a", 100, 50).kernel("b", 200, 9_000_000_000_000).parse()
    assert spans(trace) == [(100, 150)]
    assert trace.info.untimed == {(4012, 0): 1}
    assert "1 with an impossible duration" in said(trace)["untimed-events"]


def test_one_that_never_ends_is_not_cut_as_well() -> None:
    trace = Trace().kernel("a", 100, 9_000_000_000_000).kernel("b", 300, 50).parse()
    assert spans(trace) == [(300, 350)]
    assert list(said(trace)) == ["untimed-events"]


def test_a_long_run_is_no_impossible_duration() -> None:
    trace = Trace().step(1, 0, 4_000_000_000_000).kernel("a", 100, 3_900_000_000_000).parse()
    assert len(trace.device_events) == 1
    assert said(trace) == {}


class TestWholeMicroseconds:
    def build(self, times: str) -> Trace:
        return Trace(schema=Schema(times=times)).kernel("a", 100, 50).kernel("short", 120, 0, 8)  # type: ignore[arg-type]

    @pytest.mark.parametrize("times", ["whole", "epoch whole"])
    def test_a_kernel_of_no_length_is_a_short_one(self, times: str) -> None:
        trace = self.build(times).parse()
        assert trace.device_events["name"].astype(object).tolist() == ["a", "short"]
        assert trace.info.untimed == {}
        assert "1 kernel shorter than a microsecond" in said(trace)["short-kernels"]
        (device,) = self.build(times).reduce().devices
        assert (device.total.kernels, device.total.compute_ns) == (2, 50_000)

    def test_with_nanoseconds_it_is_one_without_times(self) -> None:
        trace = self.build("relative").parse()
        assert len(trace.device_events) == 1
        assert trace.info.untimed == {(4012, 0): 1}

    def test_a_single_fraction_says_nanoseconds(self) -> None:
        trace = self.build("whole").raw(
            '{"ph": "X", "cat": "kernel", "name": "x", "pid": 0, "tid": 7, "ts": 400.5, "dur": 2}'
        )
        assert trace.parse().info.untimed == {(4012, 0): 1}

    def test_a_start_of_zero_is_no_time_in_either(self) -> None:
        trace = self.build("whole").kernel("lost", 0, 0, launch=None).parse()
        assert trace.info.untimed == {(4012, 0): 1}

    def test_collective_arguments_stay_with_a_short_kernel(self) -> None:
        trace = Trace(schema=Schema(times="whole")).all_reduce(500, 0, 9).kernel("a", 100, 50)
        rows = trace.reduce().operations
        assert rows["message_bytes"].tolist() == [36]


HOURS = 3 * 3600 * 10**6


@pytest.mark.parametrize("launch", [250, None])
@pytest.mark.parametrize("start", [200 - HOURS, 200 + HOURS])
def test_a_start_far_from_its_launch_and_all_others_is_no_time(
    start: int, launch: int | None
) -> None:
    """As a flipped digit leaves it: else the window is three hours long, and idle."""
    made = Trace().kernel("a", 100, 50).kernel("b", start, 50, launch=launch)
    trace = made.kernel("c", 300, 50).parse()
    assert spans(trace) == [(100, 150), (300, 350)]
    assert trace.info.untimed == {(4012, 0): 1}
    assert "1 with an impossible start" in said(trace)["untimed-events"]
    assert "lost-device-records" not in said(trace)


def test_a_pause_of_hours_is_no_damage() -> None:
    trace = Trace().kernel("a", 100, 50).kernel("b", HOURS, 50).kernel("c", HOURS + 100, 50)
    assert len(spans(trace.parse())) == 3

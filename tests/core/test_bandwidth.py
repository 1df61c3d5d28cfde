"""Bandwidths over transfer time, and which calls latency binds."""

from __future__ import annotations

import pandas as pd
import pytest

from tracelens.bandwidth import Bandwidth, measure
from tracelens.latency import Fit
from tracelens.model.trace import NONE

MB = 1_000_000


def calls(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """Return all-reduces of two ranks: wire bytes (of as large a buffer), time, waiting."""
    return pd.DataFrame(
        [
            {
                "wire_bytes": size,
                "message_bytes": NONE if size == NONE else 2 * size,
                "buffer_bytes": size,
                "dtype": "float32",
                "time_ns": time,
                "wait_ns": wait,
            }
            for size, time, wait in rows
        ]
    )


def test_waiting_is_no_part_of_a_bandwidth() -> None:
    got = measure(calls((MB, 30_000, 20_000), (MB, 10_000, 0)), None)
    assert (got.busbw_gbps, got.algbw_gbps) == (100, 100)


def test_calls_of_unknown_size_are_left_out() -> None:
    assert measure(calls((NONE, 10_000, 0), (MB, 10_000, 0)), None).busbw_gbps == 100
    assert measure(calls((NONE, 10_000, 0)), None) == Bandwidth()


def test_calls_below_the_half_bandwidth_size_are_bound_by_latency() -> None:
    """20 us and 300 GB/s: 6 MB take as long for their bytes as for their latency."""
    fit = Fit(20, 300)
    sizes = [MB, 5 * MB, 6 * MB, 60 * MB]
    got = measure(calls(*((size, 20_000 + size // 300, 0) for size in sizes)), fit)
    assert got.half_bandwidth_bytes == 6 * MB
    assert got.latency_bound_calls_pct == 50
    small, whole = (sum(20_000 + size // 300 for size in part) for part in (sizes[:2], sizes))
    assert got.latency_bound_time_pct == pytest.approx(100 * small / whole)


def test_large_calls_show_the_link() -> None:
    fit = Fit(20, 300)
    rows = [(MB, 40_000, 0), (48 * MB, 192_000, 0), (96 * MB, 384_000, 0)]
    assert measure(calls(*rows), fit).large_busbw_gbps == 250
    assert measure(calls(rows[0]), fit).large_busbw_gbps is None


def test_without_a_fit_only_very_large_calls_count() -> None:
    assert measure(calls((63 * MB, 630_000, 0)), None).large_busbw_gbps is None
    got = measure(calls((64 * MB, 320_000, 0), (MB, 900_000, 0)), None)
    assert got.large_busbw_gbps == 200
    assert (got.half_bandwidth_bytes, got.latency_bound_calls_pct) == (None, None)


def test_calls_that_take_no_time() -> None:
    got = measure(calls((MB, 5, 5)), Fit(20, 300))
    assert (got.busbw_gbps, got.latency_bound_time_pct) == (None, None)
    assert got.latency_bound_calls_pct == 100

"""Numbers as all reports write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.model.result import Metric
from tracelens.reporting import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
        (0, "0"),
        (-0.0, "0"),
        (1, "1.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (999.6, "1,000"),
        (861.2, "861"),
        (1234.6, "1,235"),
        (0.12345, "0.123"),
        (0.0012345, "0.00123"),
        (1e-7, "<0.000001"),
        (-1e-7, "−<0.000001"),
        (-13.74, "−13.7"),
        (1e15, "1,000,000,000,000,000"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert numbers.number(value) == text


@given(st.floats(min_value=1e-4, max_value=1e12))
def test_number_is_right_to_three_digits(value: float) -> None:
    read = float(numbers.number(value).replace(",", ""))

    assert read == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0"),
        (1, "<0.001"),
        (999, "<0.001"),
        (1000, "0.001"),
        (1234, "0.00123"),
        (861_234_567, "861"),
        (12_345_678_901, "12,346"),
    ],
)
def test_ms(value: int | None, text: str) -> None:
    assert numbers.ms(value).rstrip("0") == text.rstrip("0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_999, "1.00 MB"),
        (13_476_831_232, "13.5 GB"),
        (2.5e15, "2,500 TB"),
    ],
)
def test_size(value: float | None, text: str) -> None:
    assert numbers.size(value) == text


def test_one_unit_for_a_column() -> None:
    unit = numbers.size_unit([None, 4096, 26_000_000_000])

    assert unit.name == "GB"
    assert [unit.of(v) for v in (None, 4096, 26e9)] == ["unknown", "<0.001", "26.0"]
    assert numbers.size_unit([]).name == "B"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 %"),
        (13.71, "13.7 %"),
        (100, "100 %"),
        (0.034, "0.03 %"),
        (0.001, "<0.01 %"),
    ],
)
def test_percent(value: float | None, text: str) -> None:
    assert numbers.percent(value) == text


def test_share_of_nothing_is_unknown() -> None:
    assert numbers.share(1, 0) == "unknown"
    assert numbers.share(1, None) == "unknown"
    assert numbers.share(None, 3) == "unknown"
    assert numbers.share(1, 3) == "33.3 %"


def test_count() -> None:
    assert numbers.count(6_738_415_616) == "6,738,415,616"
    assert numbers.count(62.5) == "62.5"
    assert numbers.count(None) == "unknown"
    assert numbers.count(-2) == "−2"


def test_ranges() -> None:
    assert numbers.ranges([]) == "none"
    assert numbers.ranges([3, 0, 1, 2, 7, 7]) == "0–3, 7"
    assert numbers.ranges(range(1024)) == "0–1023"
    assert numbers.ranges(range(0, 100, 2), most=2) == "0, 2, and 48 more"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (13.71, "%", "13.7 %"),
        (861.2, "ms", "861 ms"),
        (861_200_000, "ns", "861 ms"),
        (1.5, "ratio", "1.50"),
        (1.5, "", "1.50"),
        (7e9, "bytes", "7.00 GB"),
        (3, "count", "3"),
        (2.924, "Ψ", "2.92 Ψ"),
        (None, "%", "unknown"),
    ],
)
def test_metric_value(value: float | None, unit: str, text: str) -> None:
    assert numbers.metric_value(Metric("name", "Label", value, unit)) == text

"""Microseconds to nanoseconds, exactly."""

from __future__ import annotations

from decimal import Decimal

import pytest
from builders import EPOCH_US
from hypothesis import given
from hypothesis import strategies as st

from tracelens.model.trace import NONE
from tracelens_kineto.times import DOUBLE_LIMIT, from_doubles, from_text, from_texts

BELOW_LIMIT_NS = int(DOUBLE_LIMIT) * 1000 - 1
LONGEST_NS = (1 << 52) * 1000 - 1


def us_text(ns: int) -> str:
    """Print nanoseconds as Kineto does: microseconds with three decimals."""
    return f"{Decimal(ns) / 1000:.3f}"


@given(st.integers(-BELOW_LIMIT_NS, BELOW_LIMIT_NS))
def test_doubles_are_exact_below_the_limit(ns: int) -> None:
    assert from_doubles([float(us_text(ns))]).tolist() == [ns]


def test_doubles_are_exact_at_the_limits_very_edge() -> None:
    for ns in range(BELOW_LIMIT_NS - 2000, BELOW_LIMIT_NS + 1):
        assert from_doubles([float(us_text(ns))]).tolist() == [ns]


def test_a_double_cannot_hold_an_epoch_time() -> None:
    """The reason for reading text: this test would pass with doubles if they could."""
    times = {float(us_text(EPOCH_US * 1000 + ns)) for ns in range(250)}
    assert len(times) < 5


@given(st.integers(-LONGEST_NS, LONGEST_NS))
def test_texts_are_exact_everywhere(ns: int) -> None:
    text = us_text(ns)
    assert from_text(text.encode()) == ns
    assert from_text(f'"{text}"'.encode()) == ns
    assert from_text(f"{Decimal(text):.25e}".encode()) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1767225600000000.123", 1_767_225_600_000_000_123),
        (b"1767225600000000", 1_767_225_600_000_000_000),
        (b"0", 0),
        (b"0.0005", 0),
        (b"12.0006", 12_001),
        (b"-3.5", -3500),
        (b"1.5e3", 1_500_000),
        (b"1.767225600000000123E15", 1_767_225_600_000_000_123),
        (b' "7" \n', 7000),
    ],
)
def test_texts(text: bytes, ns: int) -> None:
    assert from_text(text) == ns


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"nan", b"Infinity", b"-inf", b'"N/A"', b"1e400", b"true", b"\xff", b"{}",
     b"1767225600111222333", b"99999999999999999999999"],
)  # fmt: skip
def test_what_is_no_time(text: bytes) -> None:
    assert from_text(text) == NONE


def test_absurd_doubles_are_no_times() -> None:
    values = [float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1.0]
    assert from_doubles(values).tolist() == [NONE] * 5 + [1000]


def test_many_texts() -> None:
    assert from_texts([b"1", b"", b"2.001"]).tolist() == [1000, NONE, 2001]
    assert from_texts([]).tolist() == from_doubles([]).tolist() == []

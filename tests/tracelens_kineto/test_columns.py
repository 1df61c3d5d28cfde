"""Recorded numbers to int64, whatever a file writes them as."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.model.trace import MARKS, NONE
from tracelens_kineto.columns import Columns, integer, integers, sizes


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7), ("7", 7), ("0x1f", 31), (7.0, 7), ("1e3", 1000), (-1, -1),
        (None, NONE), (True, NONE), ("", NONE), ("N/A", NONE), (float("nan"), NONE),
        (float("inf"), NONE), ("inf", NONE), ([], NONE), (2**53 + 1, 2**53 + 1),
        (2**63 - 1, 2**63 - 1), (2**64 - 1, -1), ("18446744073709551615", -1),
    ],
)  # fmt: skip
def test_one_number(value: Any, expected: int) -> None:
    assert integer(value) == expected


def test_mixed_numbers() -> None:
    assert integers([1, "2", None, 2**64 - 2, "x"]).tolist() == [1, 2, NONE, -2, NONE]
    assert integers([1, 2]).tolist() == [1, 2]
    assert integers([]).tolist() == []


def test_sizes_that_cannot_be_are_none() -> None:
    found = sizes([3, "4", -1, None, 2**64, 2**63, "1e30", 1e300, "many", 10**400])
    assert found.tolist() == [3, 4, *[NONE] * 8]
    assert sizes([]).dtype == "int64"


def test_ids_beyond_2_to_53_stay_apart() -> None:
    assert len(set(integers([2**60 + k for k in range(5)]).tolist())) == 5
    assert len(set(integers([2**63 + k for k in range(5)]).tolist())) == 5


def test_columns_no_block_gave_are_filled() -> None:
    columns = Columns(MARKS)
    columns.append(name=["a", "b"], start=[1, 2], end=[3, 4])
    columns.append(name=["a"], start=[5], end=[6], thread=[9])
    table = columns.table()
    assert table["thread"].tolist() == [NONE, NONE, 9]
    assert table["name"].astype(object).tolist() == ["a", "b", "a"]
    assert list(Columns(MARKS).table().columns) == list(MARKS)

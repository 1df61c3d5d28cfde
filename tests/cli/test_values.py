"""Values users type."""

from __future__ import annotations

import pytest

from tracelens.cli import values


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("863360", 863_360),
        ("1_000", 1_000),
        ("1,000", 1_000),
        ("6.7B", 6_700_000_000),
        ("6.738415616B", 6_738_415_616),
        ("125m", 125_000_000),
        ("70 G", 70_000_000_000),
        ("1.5k", 1_500),
        ("1T", 10**12),
    ],
)
def test_counts_are_exact(text: str, count: int) -> None:
    assert values.count(text) == count


@pytest.mark.parametrize("text", ["", "B", "-3", "1.5", "1e9", "0B", "nan", "1.23456k", "7 apples"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="parameters"):
        values.count(text)


@pytest.mark.parametrize(
    ("text", "steps"),
    [("10:30", (10, 30)), ("10:", (10, None)), (":30", (None, 30)), ("12", (12, 12))],
)
def test_step_ranges_include_both_ends(text: str, steps: tuple[int | None, int | None]) -> None:
    assert values.step_range(text) == steps


def test_rank_lists() -> None:
    assert values.rank_list("0-2,5, 7-7") == {0, 1, 2, 5, 7}
    with pytest.raises(ValueError, match="no range of ranks"):
        values.rank_list("5-2")
    with pytest.raises(ValueError, match="no range of ranks"):
        values.rank_list("0-99999999999")


def test_layouts() -> None:
    assert values.layout("dp=8, TP=2,zero=3") == ({"dp": 8, "tp": 2}, 3)
    assert values.layout("pp=4") == ({"pp": 4}, None)


def test_kernel_rules_may_hold_an_equals_sign() -> None:
    rule = values.kernel_rule("a=b.*=reduce-scatter")
    assert rule.operation == "reduce_scatter"
    assert rule.pattern.search("a=bcd")


@pytest.mark.parametrize(
    ("text", "gbps"),
    [("450", 450), ("450GB/s", 450), ("400Gb/s", 50), ("400 Gbps", 50), ("1.8TB/s", 1800),
     ("25GBps", 25), ("200Gbit/s", 25), ("12000MB/s", 12)],
)  # fmt: skip
def test_a_small_b_is_a_bit(text: str, gbps: float) -> None:
    assert values.bandwidth(text) == pytest.approx(gbps)


@pytest.mark.parametrize("text", ["", "0", "-5", "fast", "400G", "10 GB", "nan", "1e3"])
def test_what_is_no_bandwidth(text: str) -> None:
    with pytest.raises(ValueError, match="no bandwidth"):
        values.bandwidth(text)

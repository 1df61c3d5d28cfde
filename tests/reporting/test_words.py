"""Words and symbols as all reports write them."""

from __future__ import annotations

import pytest

from tracelens.model.result import GroupResult
from tracelens.reporting import words


def test_collectives_are_named_by_operation_role_and_size() -> None:
    group = GroupResult("g0", ["7"], "mesh_dp", "dp", "high", 8, None, None)

    assert words.collective("all_gather", group) == "all-gather · dp (8 ranks)"
    assert words.collective("send", None) == "send · unknown group"


@pytest.mark.parametrize(
    ("description", "names", "expected"),
    [("mesh_x", ["7"], "mesh_x"), (None, ["7"], "7"), (None, [], "group g3")],
)
def test_unknown_roles_show_the_best_name(
    description: str | None, names: list[str], expected: str
) -> None:
    group = GroupResult("g3", names, description, "unknown", "unknown", None, None, None)

    assert words.group(group) == expected


def test_layouts_leave_out_ones() -> None:
    assert words.dims({"dp": 8, "tp": 1, "pp": 4}) == "dp 8 × pp 4"
    assert words.dims({}) == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void gemm<float, 4>(int)", "void gemm<float, 4>(int)"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udc80", "\\udc80"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("no-break\u00a0space Ψ ÷ ×", "no-break\u00a0space Ψ ÷ ×"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_invisible_characters_become_visible(name: str, shown: str) -> None:
    assert words.visible(name) == shown


def test_every_status_has_symbol_word_and_headline() -> None:
    assert set(words.SYMBOLS) == set(words.WORDS) == set(words.HEADLINES)
    assert set(words.LEVELS) == {"info", "warning", "error"}


@pytest.mark.parametrize(
    ("read", "world", "said"),
    [
        (1, None, "1 rank read"),
        (1, 1, "1 of 1 rank read"),
        (1, 8, "1 of 8 ranks read"),
        (1024, 2048, "1,024 of 2,048 ranks read"),
        (6, 3, "6 ranks read"),
    ],
)
def test_ranks_read(read: int, world: int | None, said: str) -> None:
    assert words.ranks_read(read, world) == said

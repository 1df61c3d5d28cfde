"""The summary on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import analysis_builder
import pytest

from tracelens.reporting.terminal import MOST_LINES, summary

if TYPE_CHECKING:
    from tracelens.model.result import Analysis


@pytest.mark.parametrize("builder", ["fsdp2", "large", "one_rank", "nothing", "hostile"])
def test_it_is_short_and_drives_no_terminal(builder: str) -> None:
    analysis: Analysis = getattr(analysis_builder, builder)()
    text = summary(analysis)

    assert len(text.splitlines()) <= MOST_LINES
    assert all(line.isprintable() for line in text.split("\n"))
    text.encode()


def test_names_are_no_markup_of_rich() -> None:
    analysis = analysis_builder.hostile()
    coloured = summary(analysis, colour=True)

    assert "[link](https://evil.example)" in coloured
    assert "\x1b[31m\u202e" not in coloured
    assert "\\x1b[31m\\u202e" in coloured


def test_colour_only_when_asked() -> None:
    analysis = analysis_builder.fsdp2()

    assert "\x1b" not in summary(analysis)
    assert "\x1b[1;31m✗ Exposed communication" in summary(analysis, colour=True)

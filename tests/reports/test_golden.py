"""Whole reports against files under tests/gold/reports.

`TRACELENS_UPDATE_GOLD=1 pytest tests/reports/test_golden.py` writes them anew: read the diff.
Versions and plotly.js are scrubbed, as they change without us.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import analysis_builder
import pytest

from tracelens.reporting.terminal import summary
from tracelens_html import HtmlReport
from tracelens_markdown import MarkdownReport

if TYPE_CHECKING:
    from tracelens.model.result import Analysis

GOLD = Path(__file__).parents[1] / "gold" / "reports"
SCRUBS = (
    (re.compile(r'(<script type="text/plain" id="plotly">)[^<]+'), r"\1PLOTLY"),
    (re.compile(r"\btracelens \d+\.\d+\.\d+\S*"), "tracelens VERSION"),
)


def written(analysis: Analysis, form: str) -> str:
    if form == "html":
        text = HtmlReport().render(analysis).decode()
    elif form == "md":
        text = MarkdownReport().render(analysis).decode()
    else:
        text = summary(analysis)
    for pattern, replacement in SCRUBS:
        text = pattern.sub(replacement, text)
    return text


@pytest.mark.parametrize("form", ["html", "md", "txt"])
@pytest.mark.parametrize("builder", ["fsdp2", "one_rank", "nothing", "hostile"])
def test_report_is_as_it_was(builder: str, form: str) -> None:
    text = written(getattr(analysis_builder, builder)(), form)
    gold = GOLD / f"{builder}.{form}"
    if os.environ.get("TRACELENS_UPDATE_GOLD"):
        gold.write_text(text, encoding="utf-8", newline="")
    # Bytes, not text: a reader that turns \r\n into \n would hide a difference.
    assert text == gold.read_bytes().decode(), f"see {gold}; TRACELENS_UPDATE_GOLD=1 writes it"

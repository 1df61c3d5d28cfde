"""HTML, Markdown, terminal and JSON show the same verdict and the same numbers."""

from __future__ import annotations

import html
import re

import analysis_builder
import pytest

from tracelens.model.result import Analysis
from tracelens.reporting.document import document
from tracelens.reporting.terminal import summary
from tracelens_html import HtmlReport
from tracelens_markdown import MarkdownReport


def plain_html(analysis: Analysis) -> str:
    page = HtmlReport().render(analysis).decode()
    body = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.S)
    return _spaced(html.unescape(re.sub(r"<[^>]+>", " ", body)))


def plain_markdown(analysis: Analysis) -> str:
    text = MarkdownReport().render(analysis).decode()
    return _spaced(html.unescape(text.replace("\u200b", "").replace("\\", "")))


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\u00a0", " "))


@pytest.mark.parametrize("builder", ["fsdp2", "large", "one_rank", "nothing", "cpu"])
@pytest.mark.parametrize("form", ["html", "markdown", "terminal"])
def test_verdict_and_numbers_are_the_same_everywhere(builder: str, form: str) -> None:
    analysis: Analysis = getattr(analysis_builder, builder)()
    from_json = Analysis.from_json(analysis.to_json())
    content = document(from_json)
    writers = {"html": plain_html, "markdown": plain_markdown, "terminal": summary}
    text = writers[form](analysis)

    assert content.verdict in text
    assert content.headline[1:] in text
    assert content.symbol in text
    for tile in content.tiles:
        assert tile.label in text
        assert tile.value in text
    if form == "terminal":
        assert all(line in text for line in content.lines)
    for finding in content.findings[:3]:
        assert finding.title in text
        assert (finding.saving or "") in text


@pytest.mark.parametrize("builder", ["fsdp2", "large"])
def test_pages_and_comments_share_their_tables(builder: str) -> None:
    analysis: Analysis = getattr(analysis_builder, builder)()
    page, comment = plain_html(analysis), plain_markdown(analysis)

    for section in document(analysis).sections[:3]:
        assert _spaced(section.lead) in page
        assert _spaced(section.lead) in comment
        for row in section.blocks[-1].table.rows:
            assert all(cell.text in page and cell.text in comment for cell in row)


@pytest.mark.parametrize("builder", ["fsdp2", "large", "one_rank"])
def test_pages_and_comments_show_the_same_layout(builder: str) -> None:
    analysis: Analysis = getattr(analysis_builder, builder)()
    page, comment = plain_html(analysis), plain_markdown(analysis)
    [layout] = [section for section in document(analysis).sections if section.id == "layout"]
    axes, positions = layout.blocks

    assert _spaced(layout.lead) in page
    assert _spaced(layout.lead) in comment
    assert all(
        cell.text in page and cell.text in comment for row in axes.table.rows for cell in row
    )
    assert positions.grid is not None
    for band in positions.grid.bands:
        assert all(unit.label in page and unit.label in comment for unit in band.units)
        assert all(place.label in page for unit in band.units for place in unit.places)
    for row in positions.grid.compact.rows:
        assert all(cell.text in comment for cell in row)


@pytest.mark.parametrize("builder", ["fsdp2", "large", "one_rank", "nothing", "without_steps"])
def test_a_saved_result_renders_the_same_page(builder: str) -> None:
    analysis: Analysis = getattr(analysis_builder, builder)()
    again = Analysis.from_json(analysis.to_json())

    assert HtmlReport().render(again) == HtmlReport().render(analysis)
    assert MarkdownReport().render(again) == MarkdownReport().render(analysis)
    assert summary(again) == summary(analysis)

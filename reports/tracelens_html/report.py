"""Render an analysis as one HTML file."""

from __future__ import annotations

import functools
import html
import re
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from tracelens.reporting import layout, words
from tracelens.reporting.document import Document, document
from tracelens_html.charts import spec
from tracelens_html.embed import plotly_blob, safe_json
from tracelens_html.palette import declarations

if TYPE_CHECKING:
    from tracelens.model.result import Analysis
    from tracelens.reporting.content import Section


_MOST_ROWS = 5_000  # more make a page nobody can open


class HtmlReport:
    """Write the page of docs/report.md: verdict, findings, one section a question."""

    name = "html"
    suffixes: tuple[str, ...] = (".html", ".htm")

    def render(self, analysis: Analysis) -> bytes:
        """Return the whole page; equal analyses give equal bytes."""
        content = document(analysis)
        page = _environment().get_template("report.html.j2")
        return page.render(doc=content, **_embedded(content)).encode()


def _embedded(content: Document) -> dict[str, Any]:
    figures = figure_specs(content.sections)
    return {
        "light": Markup(declarations(0)),  # noqa: S704 - our own constants
        "dark": Markup(declarations(1)),  # noqa: S704
        "figures": Markup(safe_json(figures)),  # noqa: S704 - escaped for a script element
        "plotly": plotly_blob() if figures else "",
    }


def figure_specs(sections: list[Section]) -> dict[str, Any]:
    """Return what plotly draws for each figure, by its id."""
    return {
        block.figure.id: spec(block.figure.chart)
        for section in sections
        for block in section.blocks
        if block.figure is not None
    }


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracelens_html", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.globals["asset"] = _asset
    environment.globals["most_rows"] = _MOST_ROWS
    environment.globals["symbols"] = words.SYMBOLS
    environment.globals["glyphs"] = layout.GLYPHS
    environment.globals["judgements"] = {**words.HEADLINES, "ok": "fine"}
    environment.filters["prose"] = prose
    environment.filters["glue"] = glue
    environment.filters["capitalize_first"] = words.upper_first
    return environment


def _finalize(value: Any) -> Any:
    """Make control and bidirectional characters of every name visible."""
    return words.visible(value) if type(value) is str else value


def _asset(name: str) -> Markup:
    """Return a style sheet or script of ours, to stand in the page as it is."""
    source, _, _ = jinja2.PackageLoader("tracelens_html", "assets").get_source(
        jinja2.Environment(autoescape=True), name
    )
    return Markup(source)  # noqa: S704 - package data, not input


def glue(text: str) -> str:
    """Keep a number and its unit on one line."""
    return re.sub(r"(?<=\d) (?=(?:%|ms|µs|[kMGT]?B|Ψ|ranks?)\b|%)", "\u00a0", text)


def prose(text: str) -> Markup:
    """Escape a sentence and set what stands between backticks as code."""
    safe = html.escape(glue(words.visible(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))  # noqa: S704 - escaped above

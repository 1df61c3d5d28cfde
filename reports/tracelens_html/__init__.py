"""One self-contained HTML page: readable offline, with scripts off, in light and dark."""

from tracelens_html.report import HtmlReport

__all__ = ["HtmlReport"]

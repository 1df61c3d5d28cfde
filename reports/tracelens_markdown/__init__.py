"""A Markdown comment for pull requests and job summaries."""

from tracelens_markdown.report import MarkdownReport

__all__ = ["MarkdownReport"]

"""Markdown as GitHub reads it: what may stand in a report that holds names from files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

OUR_HTML = re.compile(
    r"<!-- tracelens:[A-Za-z0-9._-]+ -->|</?details>|</?summary>|</?sub>|[^<>]+", re.S
)
OUR_HEAT = re.compile(r"(rank \d+ +[▁-█·]+\n)+a column a step, .+; █ = .+ ms late.*\n")


def github() -> MarkdownIt:
    """Return a renderer of GitHub's dialect: its addresses link themselves, others do not."""
    renderer = MarkdownIt("gfm-like")
    assert renderer.linkify is not None
    renderer.linkify.set({"fuzzy_link": False})
    return renderer


def tokens(text: str) -> Iterator[Token]:
    """Yield every token of a text, inline ones too."""
    for token in github().parse(text):
        yield token
        yield from token.children or []


def assert_only_our_markup(text: str) -> None:
    """Check that nothing but the report's own tags, tables and charts is markup."""
    for token in tokens(text):
        assert token.type not in {"link_open", "image", "code_block", "hr", "em_open"}
        if token.type == "fence":
            assert (token.info, OUR_HEAT.fullmatch(token.content)) != ("text", None)
        assert token.type not in {"s_open", "blockquote_open", "bullet_list_open"}
        if token.type in {"html_block", "html_inline"}:
            assert OUR_HTML.sub("", token.content) == "", token.content
        if token.type == "text":
            assert_no_reference(token.content)


def assert_no_reference(words: str) -> None:
    """Check for what GitHub links in any text that is not code."""
    assert not re.search(r"@\w|#\d|\bGH-\d|https?://|\bwww\.\w|:\w+:|\$\w", words, re.I), words


def assert_rows_fit(text: str) -> None:
    """Check that every row of a table has as many cells as its head."""
    # markdown-it pads and cuts rows to the head's width, so the cells are counted in the source.
    lines = re.findall(r"^\|.*\|$", text, re.M)
    assert len(lines) == sum(token.type in {"tr_open", "table_open"} for token in tokens(text))
    head = 0
    for before, line in zip(["", *text.splitlines()], text.splitlines(), strict=False):
        if not line.startswith("|"):
            continue
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1
        head = head if before.startswith("|") else cells
        assert cells == head, line

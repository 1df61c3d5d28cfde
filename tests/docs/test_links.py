"""Links of the documentation lead somewhere, and it names nothing private."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "parsers/*.md", "reports/*.md", "sample_traces/*.md")
    for path in ROOT.glob(pattern)
)
PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")


def anchor(title: str) -> str:
    """Return the anchor GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def headings(path: Path) -> list[str]:
    tokens = PARSER.parse(path.read_text())
    return [text.content for mark, text in pairwise(tokens) if mark.type == "heading_open"]


def anchors(path: Path) -> set[str]:
    return {anchor(title) for title in headings(path)}


def links(path: Path) -> list[str]:
    children = [child for token in PARSER.parse(path.read_text()) for child in token.children or []]
    targets = [child.attrs.get("href") or child.attrs.get("src") for child in children]
    return [str(target) for target in targets if target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if fragment:
            assert fragment in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_headings_are_unique(page: Path) -> None:
    if page.name != "CHANGELOG.md":  # it repeats Added, Changed, Fixed
        assert len(headings(page)) == len(anchors(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_path_of_a_machine(page: Path) -> None:
    assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", page.read_text())


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        local = [link.partition("#")[0] for link in links(page) if "://" not in link]
        waiting += [(page.parent / name).resolve() for name in local if name]
    assert set((ROOT / "docs").glob("*.md")) <= reached

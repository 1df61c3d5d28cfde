"""The HTML page without a browser: bytes, markup, sizes and colours."""

from __future__ import annotations

import base64
import gzip
import html.parser
import json
import re
from typing import TYPE_CHECKING, Any

import analysis_builder
import pytest

from tracelens_html import HtmlReport, palette
from tracelens_html.embed import plotly_blob, safe_json

if TYPE_CHECKING:
    from tracelens.model.result import Analysis

BUILDERS = ["fsdp2", "large", "one_rank", "nothing", "without_steps", "cpu", "hostile"]
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Tree(html.parser.HTMLParser):
    """Every element with its attributes, and whether tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every element of a tag."""
        return [attributes for name, attributes in self.elements if name == tag]


def render(analysis: Analysis) -> str:
    return HtmlReport().render(analysis).decode()


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_page_is_well_formed_and_its_ids_are_unique(builder: str) -> None:
    tree = Tree(render(getattr(analysis_builder, builder)()))
    ids = [attributes["id"] for _, attributes in tree.elements if "id" in attributes]

    assert len(ids) == len(set(ids))
    links = [a["href"] or "" for a in tree.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links), links


@pytest.mark.parametrize("builder", BUILDERS)
def test_equal_input_gives_equal_bytes(builder: str) -> None:
    build = getattr(analysis_builder, builder)

    assert HtmlReport().render(build()) == HtmlReport().render(build())


@pytest.mark.parametrize("builder", BUILDERS)
def test_nothing_is_loaded_from_anywhere(builder: str) -> None:
    page = render(getattr(analysis_builder, builder)())
    tree = Tree(page)

    loads = [
        (tag, name, value or "")
        for tag, attributes in tree.elements
        for name, value in attributes.items()
        if name in {"src", "href", "srcset", "action", "data", "poster", "style"}
    ]
    outside = [one for one in loads if one[2] and not one[2].startswith(("#", "data:,"))]
    assert outside == []
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.S))
    assert "url(" not in style
    assert "@import" not in style


def test_plotly_is_the_installed_one_compressed_without_a_time() -> None:
    from plotly.offline import get_plotlyjs

    packed = base64.b64decode(plotly_blob())

    assert gzip.decompress(packed).decode() == get_plotlyjs()
    assert packed[4:8] == bytes(4)


def test_a_page_without_figures_carries_no_plotly() -> None:
    assert len(render(analysis_builder.nothing())) < 60_000


@pytest.mark.parametrize(("ranks", "most"), [(64, 2_500_000), (1024, 5_000_000)])
def test_size_budget(ranks: int, most: int) -> None:
    assert len(HtmlReport().render(analysis_builder.large(ranks))) < most


@pytest.mark.parametrize(
    ("builder", "word"), [("fsdp2", "FAIL"), ("hostile", "WARN"), ("nothing", "UNKNOWN")]
)
def test_the_title_starts_with_the_verdict(builder: str, word: str) -> None:
    page = render(getattr(analysis_builder, builder)())

    assert f"<title>{word} · " in page


@pytest.mark.parametrize("builder", BUILDERS)
def test_every_figure_has_words_and_a_table(builder: str) -> None:
    page = render(getattr(analysis_builder, builder)())
    tree = Tree(page)

    figures = tree.all("figure")
    assert {one["data-figure"] for one in figures} == set(figures_of(page))
    for one in figures:
        assert one["role"] == "img"
        assert len((one["aria-label"] or "").split()) > 4
        after = page[page.index(f'data-figure="{one["data-figure"]}"') :]
        assert after.index("<table") < after.index("</section>")


@pytest.mark.parametrize(
    "forbidden", ["<script>window.__pwned", "<img", "<svg onload", "<b>x", "<a href='java"]
)
def test_hostile_names_are_text(forbidden: str) -> None:
    page = render(analysis_builder.hostile())

    assert forbidden not in page
    assert "&lt;script&gt;window.__pwned" in page
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2028\u2029]", page)


def test_hostile_names_are_inert_for_plotly() -> None:
    page = render(analysis_builder.hostile())

    def words(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        inner = value.values() if isinstance(value, dict) else value
        return [w for one in inner for w in words(one)] if isinstance(value, dict | list) else []

    ours = re.compile(r"<br>|</?b>|<span style='font-size:11px'>|</span>|<extra></extra>")
    shown = words(figures_of(page))
    assert any("&lt;/script&gt;" in one for one in shown)
    assert [one for one in shown if "<" in ours.sub("", one)] == []


def test_json_cannot_end_its_element() -> None:
    written = safe_json({"</script>": "<!-- & \u2028\u2029"})

    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {"</script>": "<!-- & \u2028\u2029"}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def tokens(theme: int) -> dict[str, str]:
    """Read the colours back from the page itself."""
    style = re.search(r"<style>(.*?)</style>", render(analysis_builder.nothing()), re.S)
    assert style is not None
    blocks = re.findall(r"\{\n((?:\s*--[\w-]+: #\w{6};\n?)+)\}", style[1])
    assert len(blocks) == 3  # light, dark by the system, dark by the button
    assert blocks[1] == blocks[2]
    return dict(re.findall(r"--([\w-]+): (#\w{6});", blocks[theme]))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_of_every_colour(theme: int) -> None:
    colours = tokens(theme)

    assert colours == {name: both[theme] for name, both in palette.TOKENS.items()}
    for name in palette.GRAPHICS:
        assert contrast(colours[name], colours["page"]) >= 3, name
    for name in palette.WORDS:
        assert contrast(colours[name], colours["page"]) >= 4.5, name
        assert contrast(colours[name], colours["raised"]) >= 4.5, name
    for name in ("compute", "copies"):
        assert contrast(colours[f"on-{name}"], colours[name]) >= 4.4, name

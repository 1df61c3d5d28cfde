"""The HTML page in a real Chromium: drawn, quiet, inert, readable at any width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import analysis_builder
import case_folders
import pytest

from tracelens_html import HtmlReport

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name in ("fsdp2", "large", "hostile", "nothing", "one_rank"):
        path = folder / f"{name}.html"
        path.write_bytes(HtmlReport().render(getattr(analysis_builder, name)()))
        found[name] = path
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn_without_a_complaint(
    browser: Any, pages: dict[str, Path], width: int, dark: bool
) -> None:
    page = browser.open(pages["large"], width=width, dark=dark)

    states = page.ask(
        "[...document.querySelectorAll('[data-figure]')].map(f => [f.id, f.dataset.state, "
        "f.querySelectorAll('.main-svg').length > 0, f.getBoundingClientRect().width])"
    )
    assert len(states) == 6
    assert all(state == "drawn" and drawn for _, state, drawn, _ in states), states
    assert all(0 < figure_width <= width for *_, figure_width in states), states
    assert page.errors == []
    assert page.ask("document.documentElement.dataset.error") is None
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth")
    background = page.ask("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    text = page.ask("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert text == ("rgb(145, 152, 161)" if dark else "rgb(89, 99, 110)")
    page.close()


@pytest.mark.parametrize("name", ["fsdp2", "hostile", "nothing", "one_rank"])
def test_narrow_pages_never_scroll_sideways(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    page = browser.open(pages[name], width=390)

    wide = page.ask(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, nav, svg') && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"
    )
    assert wide == []
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.errors == []
    page.close()


def test_hostile_names_do_nothing(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.open(pages["hostile"])

    assert page.ask("typeof window.__pwned") == "undefined"
    foreign = "document.querySelectorAll('main img, main a[href^=java], main svg a, iframe').length"
    assert page.ask(foreign) == 0
    shown = page.ask("document.querySelector('#kernels tbody').textContent")
    assert analysis_builder.EVIL[0] in shown
    # Hovering draws the names as text of the figure.
    page.ask(
        "Plotly.Fx.hover(document.getElementById('figure-collectives'), "
        "[{curveNumber: 0, pointNumber: 0}])"
    )
    hovered = page.ask("document.querySelector('#figure-collectives .hoverlayer').textContent")
    assert "<script>" in hovered
    assert page.ask("typeof window.__pwned") == "undefined"
    assert page.errors == []
    page.close()


@pytest.mark.shared
@pytest.mark.usefixtures("cases_folder")
def test_a_trace_of_hostile_names_does_nothing(browser: Any, tmp_path: Path) -> None:
    (name,) = (name for name in case_folders.NAMES if name.startswith("15"))
    path = tmp_path / "page.html"
    path.write_text(case_folders.outcome(name).page, encoding="utf-8")
    page = browser.open(path)

    assert page.ask("typeof window.__pwned") == "undefined"
    assert page.ask("document.querySelectorAll('main img, main svg[onload], iframe').length") == 0
    assert "<script>window.__pwned" in page.ask("document.body.innerText")
    assert page.errors == []
    page.close()


def test_only_the_file_itself_is_requested(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.open(pages["large"])

    outside = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
    assert outside == [pages["large"].as_uri()]
    page.close()


def test_verdict_and_tables_are_readable_with_scripts_off(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = browser.open(pages["fsdp2"], scripts=False)
    text = page.ask("document.body.innerText")

    assert "2 of 4 budgets missed" in text
    assert "Scripts are off" in text
    assert "Exposed communication" in text
    visible = "[...document.querySelectorAll('figure, #theme')].filter(e => e.offsetHeight).length"
    assert page.ask(visible) == 0
    page.close()


def test_the_theme_button_redraws_and_is_remembered(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.open(pages["fsdp2"])
    bar = "getComputedStyle(document.querySelector('#figure-step .point path')).fill"

    assert page.ask("document.getElementById('theme').textContent") == "Dark"
    assert page.ask(bar) == "rgb(61, 116, 217)"
    page.press("#theme")
    page.ask("new Promise(done => setTimeout(done, 500))")
    assert page.ask(bar) == "rgb(91, 141, 239)"
    assert page.ask("localStorage.getItem('tracelens-theme')") == "dark"
    page.press("#theme")
    assert page.ask("document.documentElement.dataset.theme") == "light"
    page.close()


def test_kernels_sort_and_say_so(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.open(pages["fsdp2"])
    longest = "#kernels .scroll:first-of-type"
    rows = f"[...document.querySelectorAll('{longest} tbody tr')]"
    column = f"{rows}.map(r => +r.cells[2].dataset.value)"
    heading = f"{longest} thead th:nth-child(3)"

    page.press(f"{heading} button")
    down = page.ask(column)
    assert down == sorted(down, reverse=True)
    assert page.ask(f"document.querySelector('{heading}').ariaSort") == "descending"
    page.press(f"{heading} button")
    assert page.ask(column) == sorted(down)
    assert page.ask(f"document.querySelector('{heading}').ariaSort") == "ascending"
    page.close()


def test_printing_opens_what_is_folded(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.open(pages["fsdp2"])
    closed = "document.querySelectorAll('details:not([open])').length"

    before = page.ask(closed)
    assert before > 0
    page.ask("window.dispatchEvent(new Event('beforeprint'))")
    assert page.ask(closed) == 0
    page.ask("window.dispatchEvent(new Event('afterprint'))")
    assert page.ask(closed) == before
    page.close()

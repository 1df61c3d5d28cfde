"""Traces in which every name attacks, from the files to the page, the comment and the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from builders import Group, Schema, Trace
from command import run
from github_markdown import assert_only_our_markup

import tracelens
from tracelens.engine import Options
from tracelens.reduction import Selection
from tracelens.reporting.terminal import summary
from tracelens_html import HtmlReport
from tracelens_markdown import MarkdownReport

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis


def evil(place: str) -> str:
    """Return a name that would set a canary in a page, and says where it stood."""
    return (
        f"{place}</script><script>window.__pwned='{place}'</script>"
        f"<img src=x onerror=\"window.__pwned='{place}'\"><a href='javascript:alert(1)'>x</a>"
        "|`b`|[link](https://evil.test)![i](https://evil.test/i)@octocat #1"
        "\x1b[31m\u202e\x9b2J\u200b"
    )


def in_file_name(place: str) -> str:
    return f"{place}<img src=x onerror=window.__pwned=1>|`b` @octocat \x1b[31m rank"


def hostile_rank(number: int) -> Trace:
    group = Group((0, 1), evil("group"), evil("description"))
    trace = Trace(
        rank=number,
        schema=Schema(),
        groups=(group,),
        keys={
            "deviceProperties": [{"id": 0, "name": evil("device")}],
            "host_name": evil("host"),
            "pytorch_version": evil("release"),
        },
    )
    for step in range(3):
        at = 1000 * step
        trace.mark(f"{evil('step')} {step}", at, 1000)
        trace.kernel(evil("kernel"), at + 100, 300).kernel("gemm", at + 450, 50)
        trace.all_reduce(at + 500 + 30 * number, 300 - 30 * number, group=group)
        trace.collective(evil("collective"), at + 810, 50, 64, 64, dtype=evil("dtype"), group=group)
        trace.copy(at + 870, 20, evil("copy"))
    trace.event(evil("category"), "x", 1, 1)
    return trace


@dataclass(frozen=True)
class Made:
    folder: Path
    analysis: Analysis


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("hostile") / "run <b>@octocat"
    folder.mkdir()
    for number in (0, 1):
        hostile_rank(number).write(folder / f"{in_file_name('file')}{number}.json")
    (folder / f"{in_file_name('skipped')}7.json").write_text("{}")
    (folder / f"{in_file_name('cut')}8.json").write_bytes(hostile_rank(8).bytes()[:-900])
    options = Options(Selection(step_pattern="^step"))
    return Made(folder, tracelens.analyze(folder, options))


def shown(made: Made) -> set[str]:
    """Return the places whose names are part of the result."""
    return set(re.findall(r"(\w+)(?:</script>|<img src=x)", made.analysis.to_json()))


def test_the_names_get_as_far_as_the_result(made: Made) -> None:
    expected = {"kernel", "description", "host", "device", "dtype", "release"}
    assert shown(made) >= expected | {"file", "skipped", "cut", "group"}
    assert len(made.analysis.ranks) == 3
    assert made.analysis.run.steps


@pytest.mark.browser
def test_the_page_runs_none_and_shows_them_as_text(
    browser: Any, made: Made, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(HtmlReport().render(made.analysis))
    page = browser.open(path)
    canary = "typeof window.__pwned"
    assert page.ask(canary) == "undefined"
    page.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    for button in range(page.ask("document.querySelectorAll('th button').length")):
        page.ask(f"document.querySelectorAll('th button')[{button}].click()")
    hovered = page.ask(_HOVER_EVERYTHING)
    assert hovered > 20
    page.press("#theme")
    page.ask("new Promise(done => setTimeout(done, 500))")
    page.ask("window.dispatchEvent(new Event('beforeprint'))")
    assert page.ask(canary) == "undefined"
    made_by_names = "main img, iframe, main script, main a[href^=java], svg a, [onerror], [onload]"
    assert page.ask(f"document.querySelectorAll({made_by_names!r}).length") == 0
    text = page.ask("document.body.textContent")
    for place in ("kernel", "host", "device", "release", "file", "skipped", "cut"):
        assert re.search(rf"{place}(?:</script><script>|<img src=x onerror=)", text), place
    assert page.ask("document.title").count("<b>@octocat") == 1
    assert not re.search(r"[\x1b\x9b\u202e]", page.ask("document.documentElement.outerHTML"))
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [
        path.as_uri()
    ]
    page.close()


_HOVER_EVERYTHING = """
(() => {
  let count = 0;
  for (const figure of document.querySelectorAll("[data-figure]")) {
    figure.data.forEach((trace, curveNumber) => {
      const points = trace.type === "heatmap" ? 1 : trace.x.length;
      for (let pointNumber = 0; pointNumber < points; pointNumber++) {
        const point = trace.type === "heatmap" ? [0, 0] : pointNumber;
        Plotly.Fx.hover(figure, [{ curveNumber, pointNumber: point }]);
        count++;
      }
    });
  }
  return count;
})()
"""


def test_the_comment_is_inert(made: Made) -> None:
    text = MarkdownReport().render(made.analysis).decode()
    assert "kernel</script>" in text, "as code"
    assert_only_our_markup(text)


def test_the_summary_holds_no_control_characters(made: Made) -> None:
    for colour in (False, True):
        text = re.sub(r"\x1b\[[\d;]*m", "", summary(made.analysis, colour=colour))
        assert text.replace("\n", "").isprintable()


def test_no_command_prints_any(made: Made) -> None:
    for command in (["analyze", "--json", "/dev/null", "-v"], ["inspect"], ["doctor", "-v"]):
        done = run(command[0], made.folder, *command[1:], cwd=made.folder.parent)
        assert done.code == 0
        assert (done.out + done.err).replace("\n", "").isprintable()
        assert ("file<img" in done.out + done.err) == (command[0] != "doctor")

"""The Markdown comment, read as GitHub reads it."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import analysis_builder
import pytest
from github_markdown import (
    assert_no_reference,
    assert_only_our_markup,
    assert_rows_fit,
    github,
    tokens,
)
from hypothesis import example, given
from hypothesis import strategies as st

from tracelens.model.result import Finding, GroupResult, Notice
from tracelens.reporting.content import Heat
from tracelens_markdown import MarkdownReport, inert, tables
from tracelens_markdown.report import MOST_CHARACTERS, marker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.model.result import Analysis

BUILDERS = ["fsdp2", "large", "one_rank", "nothing", "without_steps", "cpu", "hostile"]


def render(analysis: Analysis) -> str:
    return MarkdownReport().render(analysis).decode()


@pytest.mark.parametrize("builder", BUILDERS)
def test_marker_then_verdict(builder: str) -> None:
    first, second, *_ = render(getattr(analysis_builder, builder)()).splitlines()

    assert re.fullmatch(r"<!-- tracelens:[A-Za-z0-9._-]+ -->", first)
    assert re.match(r"### [✓▲✗–] TraceLens: \w", second)


@pytest.mark.parametrize("builder", BUILDERS)
def test_names_never_become_markup(builder: str) -> None:
    assert_only_our_markup(render(getattr(analysis_builder, builder)()))


@pytest.mark.parametrize("builder", BUILDERS)
def test_every_row_keeps_the_columns_of_its_head(builder: str) -> None:
    assert_rows_fit(render(getattr(analysis_builder, builder)()))


def test_failures_come_first() -> None:
    lines = render(analysis_builder.fsdp2()).splitlines()
    symbols = [line[2] for line in lines if re.match(r"\| [✓▲✗–] \| ", line)][:5]

    assert symbols == ["✗", "✗", "▲", "✓", "✓"]


@pytest.mark.parametrize("ranks", [64, 1024])
def test_it_fits_a_comment(ranks: int) -> None:
    text = render(analysis_builder.large(ranks))

    assert len(text) <= MOST_CHARACTERS
    assert text.startswith("<!-- tracelens:")
    assert "2 of 4 budgets missed" in text


@pytest.mark.parametrize("most", [60_000, 9_000, 4_000, 1_500, 300])
def test_whole_sections_are_dropped_from_the_last_upward(most: int) -> None:
    base = analysis_builder.large(1024)
    notices = [Notice("code", "warning", f"something {n} happened " * 40) for n in range(40)]
    text = MarkdownReport(most).render(dataclasses.replace(base, notices=notices)).decode()

    assert len(text) <= most + 1
    assert text.startswith("<!-- tracelens:llama-7b-1024-zero3-1024 -->\n### ✗ TraceLens: 2 of 4")
    if most >= 4_000:
        assert text.count("<details>") == text.count("</details>")
        assert ("Left out: " in text) == (most < 60_000)
    if most == 9_000:
        assert "<summary>Where does a step go?</summary>" in text
        assert "<summary>How far can I trust this?</summary>" not in text


def test_the_marker_holds_nothing_that_ends_it() -> None:
    assert marker(analysis_builder.fsdp2()) == "<!-- tracelens:llama-7b-zero3-4 -->"
    assert "--" not in marker(analysis_builder.hostile())[4:-3]
    assert inert.slug("--><script>") == "script"
    assert inert.slug("…") == "run"


def test_equal_input_gives_equal_bytes() -> None:
    assert render(analysis_builder.large()) == render(analysis_builder.large())


NAMES = st.lists(
    st.sampled_from(
        ["https://evil.test/x", "ftp://evil.test", "mailto:a@evil.test", "www.evil.test", "a@b.co",
         "@octocat", "#12", "owner/repo#3", "GH-4", "![i](x)", "[a](b)", "[a]: b", "<b>", "<!--",
         "</details>", "&#64;x", "|", "`", "```", "~~", "**", "__", "\\", "\n", "# ", "- ", "> ",
         "$x$", ":tada:", "    ", "---", "\u202e", "\x1b[31m", "\u200b", "x"]
    ),
    max_size=8,
).map("".join)  # fmt: skip


@given(NAMES)
def test_any_name_is_inert_wherever_it_stands(name: str) -> None:
    """As a run, a host, a device, a group, a kernel, a step's option, a notice and a finding."""
    base = analysis_builder.one_rank()
    analysis = dataclasses.replace(
        base,
        source=dataclasses.replace(base.source, path=name, options={"--steps": name}),
        run=dataclasses.replace(
            base.run, devices=[name], hosts=[name], backend=name, started=name, nccl_version=name
        ),
        summary=dataclasses.replace(base.summary, verdict=f"Rank 3 ({name}) is late."),
        notices=[Notice("truncated-file", "warning", f"the file {name} ends early", name, 1, 1)],
        ranks=[
            dataclasses.replace(
                rank,
                host=name,
                files=[name],
                devices=[dataclasses.replace(one, name=name) for one in rank.devices],
                top_kernels=[dataclasses.replace(one, name=name) for one in rank.top_kernels],
            )
            for rank in base.ranks
        ],
        groups=[GroupResult("g0", [name], name, "unknown", "unknown", 4, None, None)],
        findings=[Finding("x", "high", f"{name} is slow", {name: name}, 1, f"shrink {name}", [])],
    )
    text = render(analysis)
    assert_only_our_markup(text)
    assert [token.tag for token in tokens(text) if token.type == "heading_open"] == ["h3"]


@given(st.text(st.characters(codec=None), max_size=60))
def test_any_name_as_code_is_one_code_span_in_one_cell(name: str) -> None:
    text = f"| a | b |\n| --- | --- |\n| {inert.code(name)} | end |"
    inline = [token for token in github().parse(text) if token.type == "inline"]

    assert [token.content for token in inline][:2] == ["a", "b"]
    assert len(inline) == 4
    assert inline[3].content == "end"
    assert [child.type for child in inline[2].children or []] == ["code_inline"]


@example(":heart_eyes:")
@given(st.text("ab1 |`\\*_<>[]()#@!~$&:;./-+=\n\"'", max_size=40))
def test_any_sentence_is_plain_text_in_one_cell(sentence: str) -> None:
    text = f"| a | b |\n| --- | --- |\n| {inert.text(sentence)} | end |"
    inline = [token for token in github().parse(text) if token.type == "inline"]

    assert len(inline) == 4
    assert inline[3].content == "end"
    children = inline[2].children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert_no_reference("".join(child.content for child in children))


@given(st.text("ab1 |`\\*_<>[]#@!~$&:./-+=", max_size=40))
def test_any_sentence_is_a_paragraph(sentence: str) -> None:
    assert_only_our_markup(inert.text(sentence))
    kinds = {token.type for token in github().parse(inert.text(sentence))}
    assert kinds <= {"paragraph_open", "inline", "paragraph_close"}


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0, ""), (0.5, f"`{'█' * 10}`"), (1, f"`{'█' * 20}`"), (0.006, "`▏`"), (7, f"`{'█' * 20}`")],
)
def test_bars(share: float, drawn: str) -> None:
    assert tables.bar(share) == drawn


def heat(values: Sequence[Sequence[float | None]]) -> list[str]:
    rows = [f"rank {i}" for i in range(len(values))]
    steps = [str(step) for step in range(len(values[0]))]
    drawn = tables.heat(Heat(rows, steps, [list(row) for row in values], "ms"))
    fence, *lines, end = drawn.splitlines()
    assert (fence, end) == ("```text", "```")
    return lines


class TestHeat:
    def test_a_character_a_step(self) -> None:
        lines = heat([[0, 1, 7.9, 8], [None, 4, 0, 2]])
        assert lines[:2] == ["rank 0 ▁▂██", "rank 1 ·▅▁▃"]
        assert lines[2] == "a column a step, 0 to 3; █ = 8.00 ms"

    def test_nothing_known(self) -> None:
        assert tables.heat(Heat(["rank 0"], ["1"], [[None]], "ms")) == ""

    def test_nobody_late(self) -> None:
        assert heat([[0, 0]])[0] == "rank 0 ▁▁"

    def test_64_ranks_fit_and_of_more_the_latest_are_drawn(self) -> None:
        assert len(heat([[1.0] for _ in range(64)])) == 65
        lines = heat([[float(rank)] for rank in range(100)])
        assert len(lines) == 65
        assert lines[0].startswith("rank 36")
        assert "36 rows with less left out" in lines[-1]

    def test_of_many_steps_the_last_are_drawn(self) -> None:
        first, last = heat([[0.0] * 100 + [5.0]])
        assert len(first) == len("rank 0 ") + 60
        assert "41 to 100" in last

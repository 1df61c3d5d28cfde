"""Render an analysis as one Markdown comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Cell, Column, Heat, Section, Table
from tracelens.reporting.devices import device_steps, shown
from tracelens.reporting.document import Document, document
from tracelens.reporting.step import device_table
from tracelens_markdown import inert, tables

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Status
    from tracelens.reporting.document import Tile
    from tracelens.reporting.findings import FindingView

# GitHub refuses descriptions over 65,536 characters: stay clear of that.
MOST_CHARACTERS = 60_000
_MOST_FINDINGS = 3
_MOST_WORDS = 600
_WORST_FIRST: dict[Status, int] = {"fail": 0, "warn": 1, "ok": 2, "unknown": 3}


class MarkdownReport:
    """Write verdict, metrics and causes, with everything else folded."""

    name = "markdown"
    suffixes: tuple[str, ...] = (".md",)

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most_characters

    def render(self, analysis: Analysis) -> bytes:
        """Return the comment; whole folded sections are left out where it would be too long."""
        content = document(analysis)
        top = [marker(analysis), *_head(content)]
        folded = _folded(analysis, content)
        end = f"<sub>{inert.text(_cut(' · '.join([content.provenance, *content.facts])))}</sub>"
        return (_fit(top, folded, end, self._most) + "\n").encode()


def marker(analysis: Analysis) -> str:
    """Return the hidden first line by which a later run finds this comment."""
    world = analysis.run.world_size or len(analysis.run.ranks_present)
    path = analysis.source.path.rstrip("/").rpartition("/")[2]
    parts = [path, analysis.parallelism.strategy or "", str(world)]
    return f"<!-- tracelens:{inert.slug('-'.join(part for part in parts if part))} -->"


def _cut(value: str) -> str:
    """Shorten what is written once at the top, so that a monstrous name cannot fill the page."""
    return value if len(value) <= _MOST_WORDS else f"{value[: _MOST_WORDS - 1]}…"


def _head(content: Document) -> list[str]:
    headline = words.upper_first(content.headline)
    parts = [f"### {content.symbol} TraceLens: {headline}\n{inert.prose(_cut(content.verdict))}"]
    if content.tiles:
        parts.append(metrics_table(content.tiles))
    if content.findings:
        parts.append(top_findings(content.findings))
    return parts


def metrics_table(tiles: list[Tile]) -> str:
    """Write the headline numbers, worst first."""
    columns = (
        Column(""),
        Column("Metric"),
        Column("This run", "number"),
        Column("Budget", "number"),
        Column("Detail"),
    )
    ordered = sorted(tiles, key=lambda tile: _WORST_FIRST[tile.status])
    rows = [
        (
            Cell(tile.symbol),
            Cell(_cut(tile.label)),
            Cell(tile.value),
            Cell(_cut(tile.budget or "")),
            Cell(_cut(tile.detail or "")),
        )
        for tile in ordered
    ]
    return tables.table(Table("Metrics", columns, rows))


def top_findings(findings: list[FindingView]) -> str:
    """Write the most costly findings as one line each."""
    lines = ["**Most costly first**", ""]
    for place, finding in enumerate(findings[:_MOST_FINDINGS], start=1):
        saving = f" – {inert.text(finding.saving)}." if finding.saving else "."
        advice = inert.prose(_cut(finding.advice))
        lines.append(f"{place}. **{inert.text(_cut(finding.title)).rstrip('.')}**{saving} {advice}")
    left = len(findings) - _MOST_FINDINGS
    if left > 0:
        lines += ["", f"{words.plural(left, 'finding')} more in the full report."]
    return "\n".join(lines)


def _folded(analysis: Analysis, content: Document) -> list[tuple[str, str]]:
    """Return the folded sections, most important first, each with its name."""
    found = [(section.title, _section(section)) for section in content.sections]
    ranks = _ranks(analysis)
    if ranks:
        found.insert(1, ("Does every rank do the same?", ranks))
    return [(title, f"{_fold(title, body)}") for title, body in found]


def _fold(title: str, body: str) -> str:
    return f"<details><summary>{inert.text(title)}</summary>\n\n{body}\n\n</details>"


def _section(section: Section) -> str:
    if section.empty:
        return inert.prose(section.empty)
    parts = [inert.prose(section.lead)]
    for block in section.blocks:
        if section.id == "step" and block.table.total is not None:
            parts.append(_with_bars(block.table))
        elif block.grid is not None:
            compact = block.grid.compact
            parts.append(f"**{inert.text(compact.caption)}**\n\n{tables.table(compact)}")
        elif not block.folded:
            parts.append(f"**{inert.text(block.table.caption)}**\n\n{tables.table(block.table)}")
        if block.figure is not None and isinstance(block.figure.chart, Heat):
            parts.append(
                f"{inert.prose(block.figure.finding)}\n\n{tables.heat(block.figure.chart)}"
            )
    parts += [f"{inert.prose(note)}" for note in section.notes]
    return "\n\n".join(parts)


def _with_bars(source: Table) -> str:
    """Draw each class's share beside its numbers."""
    assert source.total is not None
    whole = max((row[1].sort or 0 for row in [*source.rows, source.total]), default=0)
    lines = tables.table(source).splitlines()
    bars = [
        tables.bar((row[1].sort or 0) / whole) if whole and not row[0].part else ""
        for row in source.rows
    ]
    extra = ["", "---", *bars, ""]
    return "\n".join(f"{line} {more} |" for line, more in zip(lines, extra, strict=False))


def _ranks(analysis: Analysis) -> str | None:
    """Write the mean step of every device, or of the median and the outliers of very many."""
    steps = device_steps(analysis)
    if len(steps) < 2:
        return None
    drawn = shown(steps)
    which = "" if len(drawn) == len(steps) else (
        f"The median and the {len(drawn) - 1} devices furthest from it, of {len(steps):,}.\n\n"
    )  # fmt: skip
    return which + tables.table(device_table(drawn), most=len(drawn))


def _fit(top: list[str], folded: list[tuple[str, str]], end: str, most: int) -> str:
    """Leave folded sections out, from the last upward, until the rest is short enough."""
    for kept in range(len(folded), -1, -1):
        out = [title for title, _ in folded[kept:]]
        left_out = [f"Left out: {', '.join(out)} See the full report."] if out else []
        parts = [*top, *(body for _, body in folded[:kept]), *left_out, end]
        page = "\n\n".join(_after_marker(parts))
        if len(page) <= most:
            return page
    return page[: most - 1] + "…"


def _after_marker(parts: list[str]) -> list[str]:
    """Keep the marker and the heading in one block: the marker is the first line."""
    return [f"{parts[0]}\n{parts[1]}", *parts[2:]]

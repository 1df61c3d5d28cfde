"""The summary on a terminal: the same words and numbers as the reports, in at most 20 lines."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.document import Document, Tile, document

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Status
    from tracelens.reporting.findings import FindingView

MOST_LINES = 20
_MOST_TILES = 8
_MOST_FINDINGS = 3
_WIDTH = 100
_STYLES: dict[Status, str] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "unknown": "dim",
}


def summary(analysis: Analysis, *, colour: bool = False) -> str:
    """Return the verdict, the headline numbers and the top findings as plain lines."""
    styled = _lines(document(analysis))
    if not colour:
        return "\n".join(line for line, _ in styled) + "\n"
    return _coloured(styled)


def _lines(content: Document) -> list[tuple[str, Status | None]]:
    """Return each line with the status that colours it."""
    lines: list[tuple[str, Status | None]] = [
        (_one(" · ".join([content.name, *content.facts])), None),
        (_one(f"{content.symbol} {words.upper_first(content.headline)}."), content.status),
        (_one(f"  {content.verdict}", most=4 * _WIDTH), None),
    ]
    if content.tiles:
        lines += [("", None), *_metrics(content.tiles)]
    lines += [(_one(line), None) for line in content.lines]
    if content.findings:
        lines += [("", None), *_findings(content.findings)]
    return [*lines, ("", None), (_one(content.provenance), "unknown")]


def _metrics(tiles: list[Tile]) -> list[tuple[str, Status | None]]:
    shown = tiles[:_MOST_TILES]
    names = max(len(_one(tile.label, most=40)) for tile in shown)
    values = max(len(_one(tile.value, most=24)) for tile in shown)
    lines: list[tuple[str, Status | None]] = []
    for tile in shown:
        name, value = _one(tile.label, most=40), _one(tile.value, most=24)
        judged = [f"budget {tile.budget}"] if tile.budget else []
        rest = ", ".join([*judged, *([tile.detail] if tile.detail else [])])
        line = f"{tile.symbol} {name:<{names}}  {value:>{values}}   {_one(rest, most=60)}"
        lines.append((line.rstrip(), tile.status))
    return lines


def _findings(findings: list[FindingView]) -> list[tuple[str, Status | None]]:
    lines: list[tuple[str, Status | None]] = []
    for place, finding in enumerate(findings[:_MOST_FINDINGS], start=1):
        saving = f" – {finding.saving}" if finding.saving else ""
        lines.append((f"{place}. {_one(finding.title)}{saving}", finding.status))
    return lines


def _one(text: str, *, most: int = 2 * _WIDTH) -> str:
    """Keep a line one line: control characters become visible, long names are cut."""
    shown = words.visible(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _coloured(lines: list[tuple[str, Status | None]]) -> str:
    """Colour lines through rich; `Text` takes names as they are, without its markup."""
    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=10_000, color_system="standard")
    for line, status in lines:
        console.print(Text(line, style="" if status is None else _STYLES[status]))
    return stream.getvalue()

"""Write tables in GitHub's Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.numbers import number
from tracelens_markdown import inert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.reporting.content import Cell, Column, Heat, Row, Table

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_WIDTH = 20
MOST_ROWS = 40
_SHADES = "▁▂▃▄▅▆▇█"
_MOST_SHADED_ROWS = 64
_MOST_SHADED_COLUMNS = 60


def table(source: Table, *, most: int = MOST_ROWS) -> str:
    """Write a table; rows past `most` are counted below it."""
    shown = list(source.rows[:most])
    lines = [_line([inert.text(column.title) for column in source.columns])]
    lines.append(_line(["--:" if column.kind == "number" else "---" for column in source.columns]))
    lines += [row(cells, source.columns) for cells in shown]
    if source.total is not None:
        lines.append(_total(source.total, source.columns))
    left = len(source.rows) - len(shown)
    if left:
        lines += ["", f"… and {words.plural(left, 'row')} more in the full report."]
    return "\n".join(lines)


def row(cells: Row, columns: Sequence[Column]) -> str:
    """Write one row; every cell is inert."""
    pairs = zip(cells, columns, strict=True)
    return _line([cell(one, column) for one, column in pairs])


def cell(value: Cell, column: Column) -> str:
    """Write one cell with its symbol; parts of the row above are set in."""
    shown = _words(value, column)
    if value.status is not None:
        shown = f"{words.SYMBOLS[value.status]} {shown}"
    if value.part and column.kind != "number":
        return f"&nbsp;&nbsp;{shown}"
    return shown


def _words(value: Cell, column: Column) -> str:
    if column.kind == "code":
        return inert.code(value.text)
    return inert.prose(value.text) if column.kind == "prose" else inert.text(value.text)


def _total(cells: Row, columns: Sequence[Column]) -> str:
    pairs = zip(cells, columns, strict=True)
    return _line([f"**{shown}**" if (shown := cell(*pair)) else "" for pair in pairs])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bar(share: float) -> str:
    """Draw a share of one as a bar of eighths of a character."""
    eighths = round(min(max(share, 0), 1) * _BAR_WIDTH * 8)
    whole, part = divmod(eighths, 8)
    drawn = "█" * whole + (_EIGHTHS[part] if part else "")
    return f"`{drawn}`" if drawn else ""


def heat(source: Heat) -> str:
    """Draw a heat map as a line of blocks a row; rows of the smallest values go first if too many.

    The columns drawn are the last ones.
    """
    columns = slice(max(len(source.columns) - _MOST_SHADED_COLUMNS, 0), None)
    values = [row[columns] for row in source.values]
    known = [value for row in values for value in row if value is not None]
    if not known:
        return ""
    top = max(known)
    rows = sorted(range(len(values)), key=lambda i: -_highest(values[i]))[:_MOST_SHADED_ROWS]
    width = max(len(source.rows[i]) for i in rows)
    lines = [
        f"{source.rows[i]:<{width}} {''.join(_shade(value, top) for value in values[i])}"
        for i in sorted(rows)
    ]
    names = source.columns[columns]
    scale = f"a column a step, {names[0]} to {names[-1]}; █ = {number(top)} {source.unit}"
    left = len(values) - len(rows)
    more = f"; {words.plural(left, 'row')} with less left out" if left else ""
    return inert.block([*lines, f"{scale}{more}"])


def _highest(row: Sequence[float | None]) -> float:
    return max((value for value in row if value is not None), default=-1)


def _shade(value: float | None, top: float) -> str:
    if value is None:
        return "·"
    place = int(max(value, 0) / top * len(_SHADES)) if top > 0 else 0
    return _SHADES[min(place, len(_SHADES) - 1)]

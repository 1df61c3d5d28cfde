"""The shapes of a report's content: what a section holds, before anybody chose a file format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.model.result import Status

ColumnKind = Literal["text", "number", "code", "prose"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: numbers stand right, code may break anywhere, prose wraps."""

    title: str
    kind: ColumnKind = "text"


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as it is shown, with the number to sort by and the look it has."""

    text: str
    sort: float | None = None
    status: Status | None = None
    role: str | None = None
    part: bool = False  # a part of the row above it


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; `total` closes the sum."""

    caption: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    total: Row | None = None
    sortable: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one name and role; roles choose colours and patterns."""

    label: str
    role: str
    values: list[float | None]


@dataclass(frozen=True, slots=True)
class Bars:
    """One horizontal bar a label, its series stacked."""

    labels: list[str]
    series: list[Series]
    unit: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """Observed (narrow) over predicted (wide)."""

    labels: list[str]
    predicted: list[float]
    observed: list[float]
    unit: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Values over steps."""

    steps: list[str]
    series: list[Series]
    unit: str


@dataclass(frozen=True, slots=True)
class Heat:
    """A value for each row and column."""

    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]
    unit: str


@dataclass(frozen=True, slots=True)
class Box:
    """One piece of work on a timeline."""

    row: str
    role: str
    text: str
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Boxes on rows over time; the gaps are what it is about."""

    rows: list[str]
    boxes: list[Box]
    unit: str


Chart = Bars | Bullets | Lines | Heat | Timeline


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its finding in words, which is its text alternative."""

    id: str
    finding: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of a grid, or several of a large run: its number, where it sits, what is odd."""

    label: str
    detail: str
    title: str
    marks: tuple[str, ...] = ()
    apart: bool = False  # the first of a model-parallel unit


@dataclass(frozen=True, slots=True)
class Unit:
    """Places that belong together: those of a machine or of a replica."""

    label: str
    places: list[Place]


@dataclass(frozen=True, slots=True)
class Band:
    """The units of one pipeline stage."""

    label: str
    units: list[Unit]


@dataclass(frozen=True, slots=True)
class Grid:
    """All ranks where they sit; `compact` says the same in a few rows, `legend` what marks mean."""

    caption: str
    bands: list[Band]
    legend: list[tuple[str, str]]
    compact: Table


@dataclass(frozen=True, slots=True)
class Block:
    """A figure or grid with its table, or either alone; folded tables open on demand."""

    table: Table
    figure: Figure | None = None
    folded: bool = False
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """One question and its answer.

    `empty` says why there is no answer and what to record instead; it never stands with blocks.
    """

    id: str
    nav: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    empty: str | None = None

"""How large is the pipeline bubble?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.reporting import words
from tracelens.reporting.content import Block, Box, Cell, Column, Figure, Section, Table, Timeline
from tracelens.reporting.numbers import UNKNOWN, count, ms, percent

if TYPE_CHECKING:
    from tracelens.model.result import Analysis
    from tracelens.reporting.content import Row

_EMPTY = (
    "No pipeline parallelism was seen, so there is no bubble to measure. If the run has one, "
    "record every stage and name the layout: `--layout pp=4`."
)
_MOST_BOXES = 4000
_TIMES = (
    ("warmup_ns", "Warm-up"),
    ("steady_ns", "Steady phase"),
    ("cooldown_ns", "Cool-down"),
    ("imbalance_ns", "Stage imbalance"),
    ("p2p_ns", "Exposed transfers between stages"),
    ("filled_by_dp_ns", "Gap filled by data-parallel communication"),
)


def pipeline_section(analysis: Analysis) -> Section:
    """Compare the measured bubble with what the schedule predicts."""
    title, nav = "How large is the pipeline bubble?", "Pipeline"
    pipeline = analysis.pipeline
    if not pipeline:
        why = _why_not(analysis.parallelism.dims.get("pp", 1))
        return Section("pipeline", nav, title, why, empty=why)
    bubble: dict[str, Any] = pipeline.get("bubble") or {}
    lead = _lead(pipeline, bubble)
    blocks = [Block(_table(pipeline, bubble), _figure(pipeline, lead))]
    by_rank = _by_rank(pipeline, bubble)
    if by_rank.rows:
        blocks.append(Block(by_rank, folded=True))
    left_out = len(pipeline.get("timeline") or []) - _MOST_BOXES
    notes = [f"{left_out:,} later pieces of work are not drawn."] if left_out > 0 else []
    return Section("pipeline", nav, title, lead, blocks, notes)


def _why_not(stages: int) -> str:
    if stages <= 1:
        return _EMPTY
    return (
        f"The run has {stages} pipeline stages, but no schedule was read from its traces, so the "
        "bubble is not known: waiting for other stages shows as exposed send and receive. "
        "Record every rank, so that all stages are there."
    )


def _percent_of(value: float | None) -> str:
    return UNKNOWN if value is None else percent(100 * value)


def _lead(pipeline: dict[str, Any], bubble: dict[str, Any]) -> str:
    shape = (
        f"{pipeline.get('schedule') or 'an unknown schedule'}, "
        f"{count(pipeline.get('stages'))} stages, "
        f"{count(pipeline.get('microbatches'))} micro-batches"
    )
    measured, theory = _percent_of(bubble.get("measured")), _percent_of(bubble.get("theory"))
    return f"The bubble is {measured} of the pipeline phase; theory says {theory} ({shape})."


def _table(pipeline: dict[str, Any], bubble: dict[str, Any]) -> Table:
    columns = (Column("Quantity"), Column("Value", "number"))
    facts = [
        ("Bubble, measured", _percent_of(bubble.get("measured"))),
        ("Bubble, theory", _percent_of(bubble.get("theory"))),
        ("Virtual stages a rank", count(pipeline.get("virtual_stages"))),
        *((f"{label}, ms", ms(bubble.get(key))) for key, label in _TIMES if key in bubble),
    ]
    rows: list[Row] = [(Cell(label), Cell(value)) for label, value in facts]
    return Table("Measured and predicted bubble", columns, rows)


def _by_rank(pipeline: dict[str, Any], bubble: dict[str, Any]) -> Table:
    stages: dict[str, Any] = pipeline.get("stage_of_rank") or {}
    shares: dict[str, Any] = bubble.get("by_rank") or {}
    columns = (Column("Rank", "number"), Column("Stage", "number"), Column("Bubble", "number"))
    ranks = sorted({int(rank) for rank in [*stages, *shares]})
    rows: list[Row] = []
    for rank in ranks:
        stage, value = _of(stages, rank), _of(shares, rank)
        rows.append((Cell(str(rank), rank), Cell(count(stage)), Cell(_percent_of(value), value)))
    return Table("Measured bubble of each rank", columns, rows, sortable=True)


def _of(by_rank: dict[str, Any], rank: int) -> Any:
    """Look a rank up; keys are text in a saved document and numbers before that."""
    return {int(key): value for key, value in by_rank.items()}.get(rank)


def _figure(pipeline: dict[str, Any], finding: str) -> Figure | None:
    work: list[dict[str, Any]] = pipeline.get("timeline") or []
    if not work:
        return None
    first = min(one["start_ns"] for one in work)
    boxes = [_box(one, first) for one in work[:_MOST_BOXES]]
    rows = sorted({box.row for box in boxes}, key=lambda row: (len(row), row))
    return Figure("figure-pipeline", finding, Timeline(rows, boxes, "ms into the step"))


def _box(one: dict[str, Any], first: int) -> Box:
    kind = str(one.get("kind"))
    role = kind if kind in {"forward", "backward"} else "other"
    number = one.get("microbatch")
    label = words.upper_first(kind) if number is None else str(number)
    start, length = (one["start_ns"] - first) / 1e6, one["duration_ns"] / 1e6
    return Box(f"stage {one['stage']}", role, label, start, length)

"""How large is the pipeline bubble?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Block, Box, Cell, Column, Figure, Section, Table, Timeline
from tracelens.reporting.numbers import UNKNOWN, count, ms, percent

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Bubble, PassResult, Pipeline
    from tracelens.reporting.content import Row

_EMPTY = (
    "No pipeline parallelism was seen, so there is no bubble to measure. If the run has one, "
    "record every stage and name the layout: `--layout pp=4`."
)
_MOST_BOXES = 4000
_MOST_RANKS = 64
_TIMES = (
    ("warmup_ns", "Warm-up, up to the first backward pass"),
    ("steady_ns", "Steady phase"),
    ("cooldown_ns", "Cool-down, after the last forward pass"),
    ("imbalance_ns", "Stage imbalance"),
    ("p2p_ns", "Exposed transfers between stages"),
    ("filled_by_dp_ns", "Exposed data-parallel communication in the phase"),
)


def pipeline_section(analysis: Analysis) -> Section:
    """Compare the measured bubble with what the schedule predicts."""
    title, nav = "How large is the pipeline bubble?", "Pipeline"
    pipeline = analysis.pipeline
    if not pipeline:
        why = _why_not(analysis.parallelism.dims.get("pp", 1))
        return Section("pipeline", nav, title, why, empty=why)
    lead = _lead(pipeline)
    blocks = [Block(_table(pipeline), _figure(pipeline, lead))]
    if pipeline.timeline:
        blocks.append(Block(_one_step(pipeline.timeline)))
    blocks += [Block(table, folded=True) for table in _details(pipeline) if table.rows]
    return Section("pipeline", nav, title, lead, blocks, _notes(pipeline))


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


def _lead(pipeline: Pipeline) -> str:
    shape = [words.schedule(pipeline.schedule), f"{count(pipeline.stages)} stages"]
    if (pipeline.virtual_stages or 1) > 1:
        shape.append(f"{count(pipeline.virtual_stages)} virtual stages a rank")
    shape.append(f"{count(pipeline.microbatches)} micro-batches")
    of = ", ".join(shape)
    measured = _percent_of(pipeline.bubble.measured)
    if pipeline.bubble.over == "step":
        return (
            f"The stages that are there do not work {measured} of the step ({of}). How much of it "
            "is bubble takes the traces of all stages, on linked clocks."
        )
    theory = _percent_of(pipeline.bubble.theory)
    return f"The bubble is {measured} of the pipeline phase; theory says {theory} ({of})."


def _notes(pipeline: Pipeline) -> list[str]:
    notes = []
    if pipeline.pipelines > 1:
        notes.append(
            f"Means over {pipeline.pipelines:,} pipelines side by side; the figure shows one step "
            "of the first."
        )
    left_out = len(pipeline.timeline) - _MOST_BOXES
    if left_out > 0:
        notes.append(f"{left_out:,} later pieces of work are not drawn.")
    return notes


def _table(pipeline: Pipeline) -> Table:
    bubble = pipeline.bubble
    columns = (Column("Quantity"), Column("Value", "number"))
    facts = [
        ("Bubble, measured", _percent_of(bubble.measured)),
        ("Bubble, theory", _percent_of(bubble.theory)),
        ("The same passes, if messages took no time", _percent_of(bubble.theory_at_measured_times)),
        ("Virtual stages a rank", count(pipeline.virtual_stages)),
        *((f"{label}, ms", ms(getattr(bubble, name))) for name, label in _TIMES),
    ]
    rows: list[Row] = [(Cell(label), Cell(value)) for label, value in facts]
    return Table("Measured and predicted bubble", columns, rows)


def _details(pipeline: Pipeline) -> list[Table]:
    return [_stage_table(pipeline), _by_rank(pipeline.bubble, pipeline.stage_of_rank)]


def _stage_table(pipeline: Pipeline) -> Table:
    split = any(one.weight_ns is not None for one in pipeline.stage_times)
    weight = (Column("of it weights, ms", "number"),) if split else ()
    columns = (
        Column("Stage", "number"),
        Column("Forward, ms", "number"),
        Column("Backward, ms", "number"),
        *weight,
        Column("Work a step, ms", "number"),
    )
    rows: list[Row] = []
    for one in pipeline.stage_times:
        times = [one.forward_ns, one.backward_ns, *([one.weight_ns] if split else [])]
        cells = [Cell(ms(time), time) for time in [*times, one.work_ns]]
        rows.append((Cell(str(one.stage), one.stage), *cells))
    return Table("Mean work of each stage for a micro-batch", columns, rows, sortable=True)


def _by_rank(bubble: Bubble, stage_of: dict[int, int]) -> Table:
    columns = (Column("Rank", "number"), Column("Stage", "number"), Column("Bubble", "number"))
    rows: list[Row] = []
    for rank in sorted(bubble.by_rank):
        stage, value = stage_of.get(rank), bubble.by_rank[rank]
        rows.append((Cell(str(rank), rank), Cell(count(stage)), Cell(_percent_of(value), value)))
    return Table("Measured bubble of each rank", columns, rows, sortable=True)


# one step ----------------------------------------------------------------------------------------

_LETTERS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
_IDLE = "·"
_WIDTH = 66


def _one_step(work: list[PassResult]) -> Table:
    """Draw one step with letters: what each stage does most of in each slice of the phase."""
    columns = (Column("Stage", "number"), Column("One step, from left to right", "code"))
    end = max(one.start_ns + one.duration_ns for one in work) or 1
    rows: list[Row] = [
        (Cell(str(stage), stage), Cell(_line([w for w in work if w.stage == stage], end)))
        for stage in sorted({one.stage for one in work})[:_MOST_RANKS]
    ]
    known = {one.kind for one in work}
    letters = {kind: letter for kind, letter in _LETTERS.items() if kind in known}
    said = [f"{letter} {words.kind_of_pass(kind)}" for kind, letter in letters.items()]
    return Table(f"One step: {', '.join([*said, f'{_IDLE} bubble'])}", columns, rows)


def _line(work: list[PassResult], end: int) -> str:
    """Return a letter for each slice of time: the pass that fills most of it, if half is filled."""
    filled: list[dict[str, float]] = [{} for _ in range(_WIDTH)]
    for one in work:
        low, high = (_WIDTH * at / end for at in (one.start_ns, one.start_ns + one.duration_ns))
        for place in range(max(int(low), 0), min(int(high) + 1, _WIDTH)):
            share = min(high, place + 1) - max(low, place)
            letter = _LETTERS.get(one.kind, "?")
            filled[place][letter] = filled[place].get(letter, 0.0) + max(share, 0.0)
    return "".join(
        max(parts, key=lambda letter: parts[letter]) if sum(parts.values()) >= 0.5 else _IDLE
        for parts in filled
    )


def _figure(pipeline: Pipeline, finding: str) -> Figure | None:
    if not pipeline.timeline:
        return None
    several = (pipeline.virtual_stages or 1) > 1
    drawn = sorted(pipeline.timeline, key=lambda one: one.start_ns)[:_MOST_BOXES]
    boxes = [_box(one, several=several) for one in drawn]
    rows = [f"stage {stage}" for stage in sorted({one.stage for one in drawn})]
    return Figure("figure-pipeline", finding, Timeline(rows, boxes, "ms into the pipeline phase"))


def _box(one: PassResult, *, several: bool) -> Box:
    number = one.microbatch
    label = words.upper_first(words.kind_of_pass(one.kind)) if number is None else str(number)
    if several and number is not None and one.virtual_stage is not None:
        label = f"{number} in {one.virtual_stage}"
    return Box(
        f"stage {one.stage}",
        one.kind if one.kind in _LETTERS else "other",
        label,
        one.start_ns / 1e6,
        one.duration_ns / 1e6,
    )

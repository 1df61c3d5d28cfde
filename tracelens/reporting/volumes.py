"""Does it move the bytes it should?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Block, Bullets, Cell, Column, Figure, Section, Table
from tracelens.reporting.numbers import (
    UNKNOWN,
    SizeUnit,
    count,
    multiple,
    number,
    percent,
    ranges,
    size,
    size_unit,
)
from tracelens.theory.scheme import TOLERANCE

if TYPE_CHECKING:
    from tracelens.model.result import (
        Analysis,
        DimensionVolume,
        LinkUse,
        Parallelism,
        Parameters,
        PerStepVolume,
        Prediction,
        Status,
        Volumes,
        VolumeTerm,
        VolumeVerdict,
    )
    from tracelens.reporting.content import Row

VERDICTS: dict[VolumeVerdict, Status] = {
    "as expected": "ok",
    "explained": "ok",
    "unexplained": "warn",
    "unknown": "unknown",
}
_MOST_LINKS = 16  # rows that stand open
_EMPTY = (
    "No volume was seen and none was predicted. Record the sizes (torch 2.4 or newer writes them "
    "beside every collective) and name the run: `--layout dp=8,zero=3 --params 6.7B`, "
    "or the TraceLens profiler plugin, which notes both."
)


def volumes_section(analysis: Analysis) -> Section:
    """Hold the observed data-parallel traffic against theory."""
    volumes = analysis.volumes
    title = "Does it move the bytes it should?"
    nothing = volumes.per_step.message_bytes is None and volumes.per_step.calls == 0
    if nothing and not (volumes.predictions or volumes.terms or volumes.dimensions):
        return Section("volume", "Volume", title, _EMPTY, empty=_EMPTY)
    tables = dimension_tables(volumes) if volumes.dimensions else [prediction_table(volumes)]
    blocks = [Block(table) for table in tables]
    if volumes.terms:
        blocks.append(Block(term_table(analysis), _figure(analysis)))
    if volumes.network:
        blocks.append(Block(network_table(volumes)))
    if volumes.link_use:
        blocks.append(Block(link_table(volumes), folded=len(volumes.link_use) > _MOST_LINKS))
    blocks.append(Block(assumption_table(analysis)))
    return Section("volume", "Volume", title, lead(volumes), blocks, _notes(analysis))


def dimension_tables(volumes: Volumes) -> list[Table]:
    """Return what each dimension of a mixed run moved beside what it should, and why."""
    rows = volumes.dimensions
    sides = [side for row in rows for side in (row.observed, row.predicted)]
    unit = size_unit(value for side in sides for value in (side.message, side.wire))
    numbers = (
        Column("Dimension"),
        Column("Calls", "number"),
        Column(f"Message {unit.name}", "number"),
        Column("predicted", "number"),
        Column(f"Wire {unit.name}", "number"),
        Column("predicted", "number"),
        Column("Observed ÷ predicted", "number"),
    )
    reasons = (
        Column("Dimension"),
        Column("The prediction stands on, or needs", "prose"),
        Column("With the numbers filled in", "prose"),
    )
    return [
        Table(
            "By dimension, per step and mean rank", numbers, [_dimension_row(r, unit) for r in rows]
        ),
        Table("How each dimension is predicted", reasons, [_dimension_reason(r) for r in rows]),
    ]


def _dimension_row(row: DimensionVolume, unit: SizeUnit) -> Row:
    return (
        Cell(words.dimension(row.dimension)),
        Cell(number(row.calls), row.calls),
        Cell(unit.of(row.observed.message), row.observed.message),
        Cell(unit.of(row.predicted.message), row.predicted.message),
        Cell(unit.of(row.observed.wire), row.observed.wire),
        Cell(unit.of(row.predicted.wire), row.predicted.wire),
        Cell(number(row.observed_over_predicted), status=VERDICTS[row.verdict]),
    )


def _dimension_reason(row: DimensionVolume) -> Row:
    return (
        Cell(words.dimension(row.dimension)),
        Cell(row.explanation or "–"),
        Cell(row.formula or "–"),
    )


def lead(volumes: Volumes) -> str:
    """Say the verdict on the bytes in one sentence."""
    if volumes.dimensions:
        symbol, said = words.SYMBOLS[VERDICTS[volumes.verdict]], volumes.explanation or ""
        return words.sentence(f"{symbol} {words.upper_first(volumes.verdict)}: {said}")
    seen = volumes.per_step
    moved = f"{size(seen.message_bytes)} of messages per step and rank"
    if seen.multiple_of_parameters is not None:
        moved += f", {multiple(seen.multiple_of_parameters, 'Ψ')}"
    if seen.message_bytes is None:
        moved = "an unknown number of bytes"
    symbol = words.SYMBOLS[VERDICTS[volumes.verdict]]
    verdict = f"{symbol} {words.upper_first(volumes.verdict)}: data parallelism moves {moved}."
    return f"{verdict} {words.sentence(volumes.explanation)}" if volumes.explanation else verdict


def network_table(volumes: Volumes) -> Table:
    """Return what the network cards of each machine counted, beside what ranks asked for."""
    columns = (
        Column("Machine", "code"),
        Column("Ranks"),
        Column("Asked for", "number"),
        Column("Sent", "number"),
        Column("Received", "number"),
    )
    rows: list[Row] = [
        (
            Cell(one.host or UNKNOWN),
            Cell(ranges(one.ranks)),
            Cell(size(one.requested_bytes_per_step), one.requested_bytes_per_step),
            Cell(size(one.sent_bytes_per_step), one.sent_bytes_per_step),
            Cell(size(one.received_bytes_per_step), one.received_bytes_per_step),
        )
        for one in volumes.network
    ]
    return Table("Between machines, per step", columns, rows)


def link_table(volumes: Volumes) -> Table:
    """Return how busy the links of each device were, in all of a step and in communication."""
    columns = (
        Column("Rank", "number"),
        Column("Link"),
        Column("Direction"),
        Column("Mean", "number"),
        Column("Highest sample", "number"),
        Column("Data alone", "number"),
        Column("While communicating", "number"),
        Column("Highest then", "number"),
        Column("Data per step, estimated", "number"),
    )
    several = len({(one.rank, one.device) for one in volumes.link_use}) > len(
        {one.rank for one in volumes.link_use}
    )
    rows = [
        (
            Cell(f"{one.rank}, device {one.device}" if several else str(one.rank), one.rank),
            Cell(one.link),
            Cell(one.direction),
            *(
                Cell(percent(value), value)
                for value in (
                    one.mean_percent,
                    one.peak_percent,
                    one.payload_percent,
                    one.communicating_mean_percent,
                    one.communicating_peak_percent,
                )
            ),
            Cell(_estimated(one), one.estimated_payload_bytes_per_step),
        )
        for one in volumes.link_use
    ]
    caption = "How busy the links of each GPU were, in % of their peak, over the steps of the mean"
    return Table(caption, columns, rows, sortable=True)


def _estimated(one: LinkUse) -> str:
    known = one.estimated_payload_bytes_per_step
    return size(known) if known is None else f"≈ {size(known)}"


def _notes(analysis: Analysis) -> list[str]:
    volumes = analysis.volumes
    notes = [_coverage(volumes)]
    if volumes.terms:
        notes.append("The dotted frames mark 5 % around each prediction.")
    if volumes.unexplained_bytes:
        notes.append(f"{size(volumes.unexplained_bytes)} per step and rank are not explained.")
    if volumes.per_step.other_message_bytes:
        notes.append(
            f"{size(volumes.per_step.other_message_bytes)} of buffers, norms and flags are "
            "listed apart: they are no part of the multiple."
        )
    return notes


def _coverage(volumes: Volumes) -> str:
    seen = volumes.per_step
    if not seen.calls:
        return "No data-parallel call was counted."
    covered = None if seen.coverage is None else 100 * seen.coverage
    return (
        f"Bytes are known for {count(seen.calls_with_bytes)} of {count(seen.calls)} "
        f"data-parallel calls ({percent(covered)})."
    )


def prediction_table(volumes: Volumes) -> Table:
    """Return what was observed above what each scheme predicts."""
    seen = volumes.per_step
    everything: list[PerStepVolume | Prediction] = [seen, *volumes.predictions]
    unit = size_unit(v for one in everything for v in (one.message_bytes, one.wire_bytes))
    columns = (
        Column("Scheme"),
        Column("Source"),
        Column("Multiple of Ψ", "number"),
        Column(f"Message {unit.name}", "number"),
        Column(f"Wire {unit.name}", "number"),
        Column("Observed ÷ predicted", "number"),
        Column("With the numbers filled in", "prose"),
    )
    observed = (
        Cell("Observed", status=VERDICTS[volumes.verdict]),
        Cell("this run"),
        Cell(number(seen.multiple_of_parameters)),
        Cell(unit.of(seen.message_bytes)),
        Cell(unit.of(seen.wire_bytes)),
        Cell(""),
        Cell(volumes.verdict),
    )
    rows = [_prediction_row(prediction, unit) for prediction in volumes.predictions]
    return Table("Observed and predicted, per step and rank", columns, [observed, *rows])


def _prediction_row(prediction: Prediction, unit: SizeUnit) -> Row:
    known = prediction.observed_over_predicted is not None
    status: Status | None = "ok" if prediction.matches else None
    return (
        Cell(prediction.name),
        Cell(prediction.kind),
        Cell(number(prediction.message_multiple)),
        Cell(unit.of(prediction.message_bytes)),
        Cell(unit.of(prediction.wire_bytes)),
        Cell(number(prediction.observed_over_predicted), status=status if known else "unknown"),
        Cell(_formula(prediction)),
    )


def _formula(prediction: Prediction) -> str:
    parts = [prediction.formula, prediction.source and f"({prediction.source})"]
    return " ".join(part for part in parts if part) or "–"


def term_table(analysis: Analysis) -> Table:
    """Return each term of the framework's prediction beside what was observed."""
    terms = analysis.volumes.terms
    unit = size_unit(v for term in terms for v in (term.predicted_bytes, term.observed_bytes))
    columns = (
        Column("Term"),
        Column(f"Predicted {unit.name}", "number"),
        Column(f"Observed {unit.name}", "number"),
        Column("Ratio", "number"),
        Column("With the numbers filled in", "prose"),
        Column("Why", "prose"),
    )
    rows = [
        (
            Cell(_term_label(analysis, term)),
            Cell(unit.of(term.predicted_bytes), term.predicted_bytes),
            Cell(unit.of(term.observed_bytes), term.observed_bytes),
            _ratio(term),
            Cell(term.formula),
            Cell(term.explanation or "–"),
        )
        for term in terms
    ]
    return Table("Term by term, message bytes per step and rank", columns, rows)


def _ratio(term: VolumeTerm) -> Cell:
    if not term.predicted_bytes or term.observed_bytes is None:
        return Cell(UNKNOWN, status="unknown")
    ratio = term.observed_bytes / term.predicted_bytes
    return Cell(number(ratio), ratio, "ok" if abs(ratio - 1) <= TOLERANCE else "warn")


def _term_label(analysis: Analysis, term: VolumeTerm) -> str:
    if term.group is None:
        return words.op(term.op)
    found = next((group for group in analysis.groups if group.id == term.group), None)
    return words.collective(term.op, found)


def _figure(analysis: Analysis) -> Figure | None:
    both = [
        (_term_label(analysis, term), term.predicted_bytes, term.observed_bytes)
        for term in analysis.volumes.terms
        if term.predicted_bytes is not None and term.observed_bytes is not None
    ]
    if not both:
        return None
    unit = size_unit(value for _, *pair in both for value in pair)
    chart = Bullets(
        [label for label, _, _ in both],
        [predicted / unit.bytes for _, predicted, _ in both],
        [observed / unit.bytes for _, _, observed in both],
        f"{unit.name} per step and rank",
    )
    return Figure("figure-volume", lead(analysis.volumes), chart)


def assumption_table(analysis: Analysis) -> Table:
    """Return the strategy, Ψ and the evidence that the predictions stand on."""
    parallel, psi = analysis.parallelism, analysis.parallelism.parameters
    facts = [
        ("Strategy", words.strategy(parallel.strategy), f"{parallel.source}, {_sure(parallel)}"),
        ("Framework", words.framework(parallel.framework), ""),
        ("Layout", words.dims(parallel.dims) or "one rank in every dimension", ""),
        ("Micro-batches accumulated", count(parallel.gradient_accumulation), ""),
        ("Ψ, parameters", count(psi.count), _psi_source(psi)),
        ("Their bytes", size(analysis.volumes.parameters_bytes), ""),
        *(("Evidence", line, "") for line in parallel.evidence),
    ]
    columns = (Column("Assumption"), Column("Value", "prose"), Column("How it is known"))
    rows = [tuple(Cell(part) for part in fact) for fact in facts]
    return Table("What the predictions assume", columns, rows)


def _psi_source(psi: Parameters) -> str:
    return UNKNOWN if psi.source is None else f"{psi.source}, {psi.confidence} confidence"


def _sure(parallel: Parallelism) -> str:
    return f"{parallel.confidence} confidence"

"""How far can I trust this?"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.collectives import collective_rows
from tracelens.reporting.content import Block, Cell, Column, Section, Table
from tracelens.reporting.numbers import UNKNOWN, count, ms, number, ranges, size
from tracelens.reporting.stability import in_mean, step_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Analysis, Notice, RunFacts, SourceFile, Status
    from tracelens.reporting.content import Row

_ALIKE = 20
_CONFIDENCES = ("exact", "high", "medium", "low")
CPU_CAVEAT = (
    "CPU run: there is no device. Compute is the time of top-level operators on the main and "
    "autograd threads, communication the time of the backend's ranges; do not compare these "
    "numbers with a run on GPUs."
)


def trust_section(analysis: Analysis) -> Section:
    """Show what the numbers stand on: ranks, files, steps, notices, assumptions, versions."""
    tables = [
        (coverage_table(analysis), False),
        (notice_table(analysis.notices), False),
        (left_out_table(analysis), False),
        (clock_table(analysis), True),
        (match_table(analysis), True),
        (file_table(analysis.source.files), True),
        (version_table(analysis), True),
        (glossary_table(), True),
    ]
    blocks = [Block(table, folded=folded) for table, folded in tables if table.rows]
    notes = [CPU_CAVEAT] if analysis.run.device_kind == "cpu" else []
    if analysis.ranks and not analysis.notices:
        notes.append("There is no notice: nothing was dropped, guessed or repaired.")
    title = "How far can I trust this?"
    return Section("trust", "Trust", title, _lead(analysis), blocks, notes)


def _lead(analysis: Analysis) -> str:
    run = analysis.run
    parts = [words.ranks_read(len(run.ranks_present), run.world_size)]
    parts.append(f"{words.plural(run.steps_complete, 'complete step')}")
    serious = sum(notice.level != "info" for notice in analysis.notices)
    parts.append(words.plural(serious, "warning") if serious else "no warnings")
    return f"{', '.join(parts)}."


def coverage_table(analysis: Analysis) -> Table:
    """Return which ranks, steps and clocks were usable."""
    run = analysis.run
    facts = [
        ("Ranks in the run", count(run.world_size)),
        ("Ranks read", _listed(run.ranks_present)),
        ("Ranks missing", _listed(run.ranks_missing)),
        ("Ranks read in part", _listed(run.ranks_partial)),
        ("Ranks given twice", _listed(run.ranks_duplicated)),
        ("Steps", f"{ranges(run.steps)} ({run.steps_complete} complete)"),
        ("Step marks", _step_marks(run)),
        ("Clock offsets", _clocks(analysis)),
        ("Work before the first step", count(_device_sum(analysis, "before_first_step"))),
        ("Device events without times", count(_device_sum(analysis, "untimed_events"))),
        ("Launches without a device record", count(_without_launch(analysis))),
    ]
    columns = (Column("What"), Column("Value", "prose"))
    rows: list[Row] = [(Cell(name), Cell(value)) for name, value in facts]
    return Table("What was read", columns, rows)


def _step_marks(run: RunFacts) -> str:
    if run.step_source is not None:
        return run.step_source
    return "none: the whole recording is one step" if run.steps else "none"


def _listed(found: list[int]) -> str:
    return "none" if not found else f"{len(found):,}: {ranges(found)}"


def _clocks(analysis: Analysis) -> str:
    offsets = [r.clock_offset_ns for r in analysis.ranks if r.clock_offset_ns is not None]
    if not offsets:
        return UNKNOWN
    most = max(abs(offset) for offset in offsets)
    known = f"known for {words.plural(len(offsets), 'rank')}, at most {ms(most)} ms"
    drifts = [abs(r.clock_drift_ppm) for r in analysis.ranks if r.clock_drift_ppm is not None]
    left = [r.clock_residual_ns for r in analysis.ranks if r.clock_residual_ns is not None]
    drift = f", drift at most {number(max(drifts))} ppm" if drifts else ""
    within = f"{number(max(left) / 1000)} µs of the members' common end" if left else ""
    rest = f"; after that 95 % of each rank's ends are within {within}" if left else ""
    return f"{known}{drift}{rest}"


def clock_table(analysis: Analysis) -> Table:
    """Return how each rank's clock differs from the first one's, and what alignment leaves."""
    columns = (
        Column("Rank", "number"),
        Column("Offset ms", "number"),
        Column("Drift ppm", "number"),
        Column("Half of the ends within µs", "number"),
        Column("95 % within µs", "number"),
    )
    rows: list[Row] = [
        (
            Cell(str(rank.rank), rank.rank),
            Cell(ms(rank.clock_offset_ns), rank.clock_offset_ns),
            Cell(number(rank.clock_drift_ppm), rank.clock_drift_ppm),
            _microseconds(rank.clock_median_ns),
            _microseconds(rank.clock_residual_ns),
        )
        for rank in analysis.ranks
        if rank.clock_residual_ns is not None
    ]
    return Table("Clocks, aligned on the ends of collectives", columns, rows, sortable=True)


def _microseconds(nanoseconds: int | None) -> Cell:
    return Cell(number(None if nanoseconds is None else nanoseconds / 1000), nanoseconds)


def match_table(analysis: Analysis) -> Table:
    """Return how sure it is which calls of the ranks are one collective."""
    columns = (
        Column("Collective"),
        Column("Type"),
        Column("Carries"),
        Column("Calls", "number"),
        *(Column(words.upper_first(level), "number") for level in _CONFIDENCES),
    )
    rows: list[Row] = [
        (
            Cell(row.label),
            Cell(row.dtype or UNKNOWN),
            Cell(row.kind),
            Cell(count(row.calls), row.calls),
            *(_matched(row.matched_calls.get(level, 0)) for level in _CONFIDENCES),
        )
        for row in collective_rows(analysis)
        if row.matched_calls
    ]
    return Table("Calls matched across ranks, by confidence", columns, rows, sortable=True)


def _matched(calls: float) -> Cell:
    return Cell(count(calls) if calls else "–", calls)


def _device_sum(analysis: Analysis, field: str) -> int:
    devices = [device for rank in analysis.ranks for device in rank.devices]
    return sum(getattr(device, field) for device in devices)


def _without_launch(analysis: Analysis) -> int:
    devices = [device for rank in analysis.ranks for device in rank.devices]
    return sum(device.total.launches_without_record for device in devices)


def notice_table(notices: list[Notice]) -> Table:
    """Return every notice, the serious ones first."""
    severity = {"error": 0, "warning": 1, "info": 2}
    ordered = sorted(notices, key=lambda notice: severity[notice.level])
    columns = (
        Column("Level"),
        Column("What", "prose"),
        Column("Where", "prose"),
        Column("Count", "number"),
        Column("Code"),
    )
    rows = [
        (
            Cell(notice.level, status=words.LEVELS[notice.level]),
            Cell(notice.message),
            Cell(_where(notice)),
            Cell("–" if notice.count is None else count(notice.count), notice.count),
            Cell(notice.code),
        )
        for notice in _some_of_each(ordered)
    ]
    return Table("Notices", columns, rows)


def _some_of_each(notices: list[Notice]) -> Iterator[Notice]:
    """Yield a few notices of each kind, and how many more there are."""
    for _, alike in groupby(notices, key=lambda notice: (notice.code, notice.level)):
        kind = list(alike)
        shown = _ALIKE if len(kind) > _ALIKE + 1 else len(kind)
        yield from kind[:shown]
        if more := len(kind) - shown:
            text = f"{more:,} more of this kind: analysis.json has them"
            yield replace(kind[0], message=text, file=None, rank=None, count=None)


def _where(notice: Notice) -> str:
    rank = None if notice.rank is None else f"rank {notice.rank}"
    return ", ".join(part for part in (rank, notice.file) if part) or "–"


def left_out_table(analysis: Analysis) -> Table:
    """Return the steps that are not in the mean everywhere, and why."""
    columns = (Column("Step"), Column("In the mean", "prose"))
    rows: list[Row] = [
        (Cell(one.label, one.step), Cell(in_mean(one)))
        for one in step_times(analysis)
        if in_mean(one) != "yes"
    ]
    return Table("Steps left out of the mean", columns, rows)


def file_table(files: list[SourceFile]) -> Table:
    """Return every file and what became of it."""
    columns = (
        Column("File", "code"),
        Column("Format"),
        Column("Rank", "number"),
        Column("Status"),
        Column("Size", "number"),
        Column("Events", "number"),
        Column("On the device", "number"),
    )
    return Table("Files", columns, [_file_row(file) for file in files], sortable=True)


def _file_row(file: SourceFile) -> Row:
    looks: dict[str, Status] = {"complete": "ok", "partial": "warn", "skipped": "unknown"}
    reason = f"{file.status}: {file.reason}" if file.reason else file.status
    return (
        Cell(file.path),
        Cell(file.format or UNKNOWN),
        Cell(_ranks_of(file), file.rank),
        Cell(reason, status=looks[file.status]),
        Cell(size(file.bytes), file.bytes),
        Cell(count(file.events), file.events),
        Cell(count(file.device_events), file.device_events),
    )


def _ranks_of(file: SourceFile) -> str:
    if file.rank is not None:
        return str(file.rank)
    return ranges(file.ranks) if file.ranks else "–"


def version_table(analysis: Analysis) -> Table:
    """Return the programs and machines the numbers come from."""
    run = analysis.run
    facts = [
        ("TraceLens", analysis.tool.version),
        ("Result schema", analysis.schema),
        ("Framework", run.framework_version or UNKNOWN),
        ("Backend", run.backend or UNKNOWN),
        ("NCCL", run.nccl_version or UNKNOWN),
        ("Devices", tally(run.devices) or run.device_kind),
        ("Hosts", tally(run.hosts) or UNKNOWN),
        ("Started", run.started or UNKNOWN),
    ]
    columns = (Column("What"), Column("Value", "prose"))
    rows: list[Row] = [(Cell(name), Cell(value)) for name, value in facts]
    return Table("Versions and machines", columns, rows)


def tally(names: list[str], *, most: int = 8) -> str:
    """Write names with how often each occurs, such as 4 × NVIDIA H100."""
    counted = Counter(names).most_common()
    parts = [name if number == 1 else f"{number:,} × {name}" for name, number in counted[:most]]
    left = len(counted) - most
    return ", ".join([*parts, f"and {left:,} more"] if left > 0 else parts)


def glossary_table() -> Table:
    """Return what the words of this report mean."""
    rows: list[Row] = [(Cell(word), Cell(means)) for word, means in words.GLOSSARY]
    return Table("Glossary", (Column("Word"), Column("Meaning", "prose")), rows)


def command(analysis: Analysis) -> str:
    """Return the command line that makes this analysis again."""
    parts = ["tracelens", "analyze", shlex.quote(words.visible(analysis.source.path))]
    for name, value in sorted(analysis.source.options.items()):
        parts += _option(name, value)
    return " ".join(parts)


def _option(name: str, value: str) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value.lower() in {"true", "yes"}:
        return [shlex.quote(words.visible(flag))]
    return [shlex.quote(words.visible(part)) for part in (flag, value)]

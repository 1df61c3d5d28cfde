"""Is it always so?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import (
    Block,
    Cell,
    Column,
    Figure,
    Heat,
    Lines,
    Section,
    Series,
    Table,
)
from tracelens.reporting.devices import counted_ranks, device_label
from tracelens.reporting.numbers import UNKNOWN, ms, percent, ranges

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Lateness, StepResult, Straggler
    from tracelens.reporting.content import Row

_MOST_LINES = 8
_PATTERNS = {True: "persistent", False: "occasional", None: UNKNOWN}
_CAUSES = {"compute": "computes longer", "host": "waits for its host"}
_NO_STEPS = (
    "No step was found in these traces. Call `prof.step()` after each step, "
    "or name your own ranges with `--step-pattern`."
)
_ONE_STEP = (
    "One step says nothing about noise, warm-up or stragglers. "
    "Record at least five: `torch.profiler.schedule(wait=1, warmup=1, active=5)`."
)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of one step on every device that has it."""

    step: int
    occurrence: int
    label: str
    by_device: dict[str, StepResult]

    @property
    def whole(self) -> dict[str, int]:
        """Windows of the devices that have all of the step, or of all if none has, in ns.

        They are what the headline's step time is the median of.
        """
        steps = self.by_device.items()
        found = {label: step.partition.window_ns for label, step in steps if step.complete}
        return found or {label: step.partition.window_ns for label, step in steps}

    @property
    def complete(self) -> bool:
        """Whether some device has all of the step."""
        return any(step.complete for step in self.by_device.values())


def step_times(analysis: Analysis) -> list[StepTimes]:
    """Return each step with its time on every device, in order."""
    found: dict[tuple[int, int], dict[str, StepResult]] = {}
    for rank in counted_ranks(analysis):
        for device in rank.devices:
            for step in device.steps:
                key = (step.occurrence, step.step)
                found.setdefault(key, {})[device_label(rank, device)] = step
    repeated = any(occurrence for occurrence, _ in found)
    return [
        StepTimes(step, cycle, _step_label(step, cycle, repeated), found[cycle, step])
        for cycle, step in sorted(found)
    ]


def _step_label(step: int, occurrence: int, repeated: bool) -> str:
    return f"{step} (cycle {occurrence + 1})" if repeated else str(step)


def stability_section(analysis: Analysis) -> Section:
    """Say how steady step time is, and who enters collectives late."""
    title, nav = "Is it always so?", "Stability"
    times = step_times(analysis)
    if not times:
        return Section("stability", nav, title, _NO_STEPS, empty=_NO_STEPS)
    lead = _ONE_STEP if len(times) == 1 else _lead(times)
    figure = None if len(times) == 1 else _figure(times, lead)
    blocks = [Block(step_table(times), figure, folded=figure is not None)]
    blocks += _lateness_blocks(analysis)
    return Section("stability", nav, title, lead, blocks, _notes(analysis))


def _lead(times: list[StepTimes]) -> str:
    known = [one for one in times if one.complete]
    known = known if len(known) > 1 else times
    medians = [(statistics.median(one.whole.values()), one.label) for one in known]
    slowest, fastest = max(medians), min(medians)
    spread = 100 * (slowest[0] / fastest[0] - 1) if fastest[0] else None
    return (
        f"Over {len(known)} steps the median rank's step takes {ms(fastest[0])} ms (step "
        f"{fastest[1]}) to {ms(slowest[0])} ms (step {slowest[1]}), {percent(spread)} apart."
    )


def _notes(analysis: Analysis) -> list[str]:
    if analysis.lateness is None and len(analysis.ranks) < 2:
        return ["Who enters collectives late takes the traces of at least two ranks."]
    if analysis.lateness is None:
        return ["Collectives were not matched across ranks, so lateness is not known."]
    return []


def step_table(times: list[StepTimes]) -> Table:
    """Return the median, fastest and slowest device of each step."""
    columns = (
        Column("Step"),
        Column("Median ms", "number"),
        Column("Fastest ms", "number"),
        Column("Slowest ms", "number"),
        Column("Slowest device"),
        Column("In the mean"),
    )
    return Table("Time of each step", columns, [_step_row(one) for one in times], sortable=True)


def _step_row(one: StepTimes) -> Row:
    slowest = max(one.whole, key=lambda label: one.whole[label])
    windows = one.whole.values()
    median, low, high = statistics.median(windows), min(windows), max(windows)
    return (
        Cell(one.label, one.step),
        Cell(ms(median), median),
        Cell(ms(low), low),
        Cell(ms(high), high),
        Cell(slowest if len(one.by_device) > 1 else "–"),
        Cell(in_mean(one)),
    )


def in_mean(one: StepTimes) -> str:
    """Say on how many devices a step counts, and why it does not on others."""
    steps = list(one.by_device.values())
    counted = sum(step.in_mean for step in steps)
    if counted == len(steps):
        return "yes"
    cut = sum(not step.complete for step in steps)
    if cut == len(steps):
        return "no: cut off"
    if counted == 0 and cut == 0:
        return "no: slower than the rest"
    return f"on {words.plural(counted, 'device')} of {len(steps):,}"


def _figure(times: list[StepTimes], finding: str) -> Figure:
    labels = sorted({label for one in times for label in one.by_device}, key=_by_number)
    series = _each(times, labels) if len(labels) <= _MOST_LINES else _spread(times)
    return Figure("figure-steps", finding, Lines([one.label for one in times], series, "ms"))


def _by_number(label: str) -> tuple[int, str]:
    return (len(label), label)


def _each(times: list[StepTimes], labels: list[str]) -> list[Series]:
    return [
        Series(
            label,
            "line",
            [
                one.by_device[label].partition.window_ns / 1e6 if label in one.by_device else None
                for one in times
            ],
        )
        for label in labels
    ]


def _spread(times: list[StepTimes]) -> list[Series]:
    return [
        Series("slowest", "edge", [max(one.whole.values()) / 1e6 for one in times]),
        Series("median", "line", [statistics.median(one.whole.values()) / 1e6 for one in times]),
        Series("fastest", "edge", [min(one.whole.values()) / 1e6 for one in times]),
    ]


def _lateness_blocks(analysis: Analysis) -> list[Block]:
    lateness = analysis.lateness
    table = straggler_table(analysis)
    if lateness is None or not lateness.ranks or not lateness.steps:
        return [Block(table)] if table.rows else []
    if not table.rows:
        table = _late_table(lateness)
    finding = _late_finding(analysis, lateness)
    rows = [f"rank {rank}" for rank in lateness.ranks]
    values = [[None if v is None else v / 1e6 for v in row] for row in lateness.late_ns]
    heat = Heat(rows, [str(step) for step in lateness.steps], values, "ms late")
    return [Block(table, Figure("figure-lateness", finding, heat))]


def _late_finding(analysis: Analysis, lateness: Lateness) -> str:
    if analysis.stragglers:
        worst = max(analysis.stragglers, key=lambda one: one.wait_caused_ns)
        return (
            f"Rank {worst.rank} enters last in {percent(worst.late_in_pct)} of its collectives, "
            f"{ms(worst.mean_late_ns)} ms late on average{_how_often(worst)}."
        )
    return f"How late ranks {ranges(lateness.ranks)} enter their collectives; none stands out."


def _how_often(one: Straggler) -> str:
    if one.persistent is None:
        return ""
    kind = "step after step" if one.persistent else "now and then"
    return f": {kind}, in {one.late_steps} of {one.steps} steps"


def straggler_table(analysis: Analysis) -> Table:
    """Return the ranks the others wait for."""
    columns = (
        Column("Rank", "number"),
        Column("Late in", "number"),
        Column("Mean ms late", "number"),
        Column("Wait caused ms", "number"),
        Column("Of all waiting", "number"),
        Column("Late steps", "number"),
        Column("Pattern"),
        Column("Cause"),
        Column("Groups"),
    )
    groups = {group.id: group for group in analysis.groups}
    rows: list[Row] = [
        (
            Cell(str(one.rank), one.rank),
            Cell(percent(one.late_in_pct), one.late_in_pct),
            Cell(ms(one.mean_late_ns), one.mean_late_ns),
            Cell(ms(one.wait_caused_ns), one.wait_caused_ns),
            Cell(percent(one.share_of_wait_pct), one.share_of_wait_pct),
            Cell("–" if one.steps is None else f"{one.late_steps} of {one.steps}", one.late_steps),
            Cell(_PATTERNS[one.persistent]),
            Cell(_CAUSES.get(one.cause or "", UNKNOWN)),
            Cell(", ".join(words.group(groups.get(name)) for name in one.groups) or UNKNOWN),
        )
        for one in analysis.stragglers
    ]
    return Table("Ranks the others wait for, over the whole recording", columns, rows)


def _late_table(lateness: Lateness) -> Table:
    columns = (Column("Rank", "number"), Column("Mean ms late", "number"))
    rows: list[Row] = []
    for rank, row in zip(lateness.ranks, lateness.late_ns, strict=False):
        known = [value for value in row if value is not None]
        mean = statistics.fmean(known) if known else None
        rows.append((Cell(str(rank), rank), Cell(ms(mean), mean)))
    return Table("Mean lateness of each rank", columns, rows, sortable=True)

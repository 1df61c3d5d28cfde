"""Where does a step go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Bars, Block, Cell, Column, Figure, Section, Series, Table
from tracelens.reporting.devices import (
    DeviceStep,
    basic,
    counted_ranks,
    device_label,
    device_steps,
    known_classes,
    shown,
)
from tracelens.reporting.dimensions import dimension_blocks
from tracelens.reporting.mean import MeanStep, mean_step
from tracelens.reporting.numbers import UNKNOWN, ms, share

if TYPE_CHECKING:
    from tracelens.model.result import Analysis
    from tracelens.reporting.content import Row

_NO_STEP = (
    "No complete step was found, so there is no mean step. Record a few whole ones: "
    "`torch.profiler.schedule(wait=1, warmup=1, active=5)`, and `prof.step()` after each."
)
_NO_RANK = "No rank could be read. Point TraceLens at the folder that holds one trace a rank."


def step_section(analysis: Analysis) -> Section:
    """Say which classes of work the mean step of each device is made of."""
    steps = device_steps(analysis)
    mean = mean_step(steps)
    if mean is None:
        return _without_steps(analysis)
    figure, classes = _figure(steps, _lead(mean)), class_table(mean)
    if len(steps) > 1:
        blocks = [Block(device_table(steps), figure, folded=True), Block(classes)]
    else:
        blocks = [Block(classes, figure)]
    blocks += dimension_blocks(steps)
    return _section(_lead(mean), blocks, _notes(analysis, steps))


def _section(lead: str, blocks: list[Block], notes: list[str], empty: str | None = None) -> Section:
    return Section("step", "Step", "Where does a step go?", lead, blocks, notes, empty)


def _lead(mean: MeanStep) -> str:
    who = f"Averaged over {mean.devices:,} devices, a" if mean.devices > 1 else "A"
    parts = [
        f"{share(mean.parts[name], mean.window_ns)} {_IN_WORDS[name]}"
        for name in sorted(mean.parts, key=lambda name: -mean.parts[name])
        if mean.parts[name]
    ]
    what = ", ".join(parts) or "nothing that was recorded"
    return f"{who} step takes {ms(mean.window_ns)} ms: {what}."


_IN_WORDS = {
    "compute": "computing",
    "exposed": "in exposed communication",
    "copies": "copying memory",
    "bubble": "in the pipeline bubble",
    "idle": "idle",
}


def _notes(analysis: Analysis, steps: list[DeviceStep]) -> list[str]:
    notes = ["Every nanosecond belongs to exactly one class, so the classes add up to the step."]
    left_out = len(analysis.ranks) - len(counted_ranks(analysis))
    if left_out:
        what = words.plural(left_out, "set of files", "sets of files")
        notes.append(f"Left out: {what} of ranks that were read in part or given twice.")
    drawn = len(shown(steps))
    if drawn < len(steps):
        notes.append(
            f"The figure shows the median and the {drawn - 1} devices furthest from it, "
            f"out of {len(steps):,}; the table under it has them all."
        )
    return notes


def class_table(mean: MeanStep) -> Table:
    """Return the mean step by class, with what is known about their parts."""
    rows: list[Row] = []
    for name, time in mean.parts.items():
        rows.append(_class_row(words.CLASSES[name], time, mean.window_ns, role=name))
        inside = mean.inside.get(name, {})
        rows += [_class_row(part, inner, mean.window_ns) for part, inner in inside.items()]
    total = _class_row("Step", mean.window_ns, mean.window_ns)
    which = "Mean step" if mean.devices == 1 else f"Mean step over {mean.devices:,} devices"
    columns = (Column("Class"), Column("ms", "number"), Column("% of step", "number"))
    return Table(which, columns, rows, total)


def _class_row(label: str, time: float, window: float, role: str | None = None) -> Row:
    part = role is None and label != "Step"
    return (
        Cell(label, role=role, part=part),
        Cell(ms(time), time, part=part),
        Cell(share(time, window), part=part),
    )


def device_table(steps: list[DeviceStep]) -> Table:
    """Return the mean step of each device, a row each."""
    classes = known_classes(steps)
    columns = (
        Column("Device"),
        *(Column(f"{words.CLASSES[name]} ms", "number") for name in classes),
        Column("Step ms", "number"),
    )
    rows = [
        (Cell(step.label, step.rank.rank), *_times(step, classes), Cell(ms(step.window_ns)))
        for step in steps
    ]
    return Table("Mean step of each device", columns, rows, sortable=True)


def _times(step: DeviceStep, classes: list[str]) -> list[Cell]:
    return [
        Cell(ms(step.parts[name]), step.parts[name]) if name in step.parts else Cell(UNKNOWN)
        for name in classes
    ]


def _figure(steps: list[DeviceStep], finding: str) -> Figure:
    drawn = shown(steps)
    labels = [step.label for step in drawn]
    if len(drawn) < len(steps):
        labels[0] = f"{labels[0]} (median)"
    series = [
        Series(words.CLASSES[name], name, [_in_ms(step.parts.get(name)) for step in drawn])
        for name in known_classes(steps)
    ]
    return Figure("figure-step", finding, Bars(labels, series, "ms per step"))


def _in_ms(time: int | None) -> float | None:
    return None if time is None else time / 1e6


def _without_steps(analysis: Analysis) -> Section:
    rows = [
        (Cell(device_label(rank, device)), *_whole(basic(device.total), device.total.window_ns))
        for rank in analysis.ranks
        for device in rank.devices
    ]
    if not rows:
        return _section(_NO_RANK, [], [], empty=_NO_RANK)
    classes = [name for name in words.CLASSES if name != "bubble"]
    columns = (
        Column("Device"),
        *(Column(f"{words.CLASSES[name]} ms", "number") for name in classes),
        Column("Window ms", "number"),
    )
    table = Table("Whole recording of each device, which is no step", columns, rows, sortable=True)
    return _section(_NO_STEP, [Block(table)], [])


def _whole(parts: dict[str, int], window: int) -> list[Cell]:
    return [Cell(ms(time), time) for time in [*parts.values(), window]]

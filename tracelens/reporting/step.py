"""Where does a step go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Bars, Block, Cell, Column, Figure, Section, Series, Table
from tracelens.reporting.devices import (
    DeviceStep,
    basic,
    device_label,
    device_steps,
    exposed_by_op,
    known_classes,
    median_device,
    shown,
)
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
    median = median_device(steps)
    if median is None:
        return _without_steps(analysis)
    figure, classes = _figure(steps, median), class_table(median, len(steps))
    if len(steps) > 1:
        blocks = [Block(device_table(steps), figure, folded=True), Block(classes)]
    else:
        blocks = [Block(classes, figure)]
    return _section(_lead(median, len(steps)), blocks, _notes(steps))


def _section(lead: str, blocks: list[Block], notes: list[str], empty: str | None = None) -> Section:
    return Section("step", "Step", "Where does a step go?", lead, blocks, notes, empty)


def _lead(median: DeviceStep, devices: int) -> str:
    who = f"The median of {devices:,} devices ({median.label})" if devices > 1 else "The device"
    parts = [
        f"{share(median.parts[name], median.window_ns)} {_IN_WORDS[name]}"
        for name in sorted(median.parts, key=lambda name: -median.parts[name])
        if median.parts[name]
    ]
    what = ", ".join(parts) or "nothing that was recorded"
    return f"{who} needs {ms(median.window_ns)} ms per step: {what}."


_IN_WORDS = {
    "compute": "computing",
    "exposed": "in exposed communication",
    "copies": "copying memory",
    "bubble": "in the pipeline bubble",
    "idle": "idle",
}


def _notes(steps: list[DeviceStep]) -> list[str]:
    notes = ["Every nanosecond belongs to exactly one class, so the classes add up to the step."]
    drawn = len(shown(steps))
    if drawn < len(steps):
        notes.append(
            f"The figure shows the median and the {drawn - 1} devices furthest from it, "
            f"out of {len(steps):,}; the table under it has them all."
        )
    return notes


def class_table(step: DeviceStep, devices: int) -> Table:
    """Return one device's mean step by class, with what is known about their parts."""
    rows: list[Row] = []
    for name, time in step.parts.items():
        rows.append(_class_row(words.CLASSES[name], time, step.window_ns, role=name))
        rows += [
            _class_row(part, inner, step.window_ns) for part, inner in _inside(step, name) if inner
        ]
    total = _class_row("Step", step.window_ns, step.window_ns)
    which = f"Mean step of {step.label}" + (f", the median of {devices:,}" if devices > 1 else "")
    columns = (Column("Class"), Column("ms", "number"), Column("% of step", "number"))
    return Table(which, columns, rows, total)


def _class_row(label: str, time: int, window: int, role: str | None = None) -> Row:
    part = role is None and label != "Step"
    return (
        Cell(label, role=role, part=part),
        Cell(ms(time), time, part=part),
        Cell(share(time, window), part=part),
    )


def _inside(step: DeviceStep, name: str) -> list[tuple[str, int]]:
    breakdown = step.device.breakdown
    if breakdown is None:
        return []
    if name == "exposed":
        ops = sorted(exposed_by_op(breakdown).items(), key=lambda item: -item[1])
        inner = [(words.op(op), time) for op, time in ops]
        return [*inner, ("waiting for the last rank", breakdown.wait_ns or 0)]
    if name == "idle":
        return [
            ("the host had not launched yet", breakdown.idle_host_ns or 0),
            ("launched, waiting for other work", breakdown.idle_dependency_ns or 0),
            ("cause unknown", breakdown.idle_unknown_ns if _idle_is_split(step) else 0),
        ]
    return []


def _idle_is_split(step: DeviceStep) -> bool:
    breakdown = step.device.breakdown
    return breakdown is not None and bool(breakdown.idle_host_ns or breakdown.idle_dependency_ns)


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


def _figure(steps: list[DeviceStep], median: DeviceStep) -> Figure:
    drawn = shown(steps)
    labels = [step.label for step in drawn]
    if len(drawn) < len(steps):
        labels[0] = f"{median.label} (median)"
    series = [
        Series(words.CLASSES[name], name, [_in_ms(step.parts.get(name)) for step in drawn])
        for name in known_classes(steps)
    ]
    return Figure("figure-step", _lead(median, len(steps)), Bars(labels, series, "ms per step"))


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

"""Which parallel dimension the exposed communication of the mean step is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Block, Cell, Column, Table
from tracelens.reporting.devices import DeviceStep, device_steps
from tracelens.reporting.numbers import UNKNOWN, ms, share

if TYPE_CHECKING:
    from tracelens.model.result import Analysis
    from tracelens.reporting.content import Row

Times = dict[str, float]


def dimension_times(steps: list[DeviceStep]) -> tuple[Times | None, Times]:
    """Return exposed transfer and exposed time that could not be split, by dimension.

    Both are means over devices; transfer is None unless every device could split some.
    """
    breakdowns = [step.device.breakdown for step in steps]
    transfers = [b.transfer_by_dimension_ns for b in breakdowns if b is not None]
    unsplit = [b.exposed_unsplit_by_dimension_ns for b in breakdowns if b is not None]
    known = [one for one in transfers if one is not None]
    mean = _mean(known) if known and len(known) == len(steps) else None
    return mean, _mean([one or {} for one in unsplit])


def _mean(times: list[dict[str, int]]) -> Times:
    names = dict.fromkeys(name for one in times for name in one)
    return {name: sum(one.get(name, 0) for one in times) / len(times) for name in names}


def dimension_blocks(steps: list[DeviceStep]) -> list[Block]:
    """Return exposed communication by dimension; nothing where there is one, or none."""
    transfer, unsplit = dimension_times(steps)
    total = _total(transfer, unsplit)
    if len(total) < 2:
        return []
    window = sum(step.window_ns for step in steps) / len(steps)
    columns = (
        Column("Exposed communication for"),
        *([Column("Transfer ms", "number")] if transfer is not None else []),
        *([Column("Not split ms", "number")] if any(unsplit.values()) else []),
        Column("% of step", "number"),
    )
    rows: list[Row] = []
    for name in sorted(total, key=lambda name: -total[name]):
        cells = [Cell(words.dimension(name))]
        if transfer is not None:
            cells.append(Cell(ms(transfer.get(name, 0.0)), transfer.get(name, 0.0)))
        if any(unsplit.values()):
            cells.append(Cell(ms(unsplit.get(name, 0.0)), unsplit.get(name, 0.0)))
        rows.append((*cells, Cell(share(total[name], window), total[name])))
    caption = "Exposed communication by dimension, without known waiting"
    return [Block(Table(caption, columns, rows))]


def _total(transfer: Times | None, unsplit: Times) -> Times:
    names = dict.fromkeys([*(transfer or {}), *unsplit])
    sums = {name: (transfer or {}).get(name, 0.0) + unsplit.get(name, 0.0) for name in names}
    return {name: time for name, time in sums.items() if time}


def by_dimension(analysis: Analysis) -> str | None:
    """Say in one line what each dimension costs a step; None where there is one, or none."""
    transfer, unsplit = dimension_times(device_steps(analysis))
    total = _total(transfer, unsplit)
    if len(total) < 2:
        return None
    known = transfer is not None
    what = "transfer" if known and not any(unsplit.values()) else "communication"
    less = ", without known waiting" if known and what == "communication" else ""
    ordered = sorted(total.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {ms(time)} ms" for name, time in ordered)
    return f"Exposed {what} per step{less}: {parts or UNKNOWN}"

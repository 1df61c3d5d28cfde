"""Which kernels are longest?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import Block, Cell, Column, Section, Table
from tracelens.reporting.contention import contention_blocks
from tracelens.reporting.devices import device_label, device_steps, median_device
from tracelens.reporting.numbers import UNKNOWN, count, ms, number, share, size

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, KernelResult, RankResult
    from tracelens.reporting.content import Row

MOST_KERNELS = 30
_EMPTY = (
    "No kernel was recorded. Profile with "
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`; a run on CPUs has no kernels."
)
_CLASS_ROLES = {"compute": "compute", "communication": "exposed", "copy": "copies"}


def kernels_section(analysis: Analysis) -> Section:
    """List the longest kernels of the median rank: every number is one rank's own."""
    title, nav = "Which kernels are longest?", "Kernels"
    rank = _rank_to_show(analysis)
    if rank is None:
        return Section("kernels", nav, title, _EMPTY, empty=_EMPTY)
    table = kernel_table(rank, _window(analysis, rank))
    which = ", the median rank" if len(analysis.ranks) > 1 else ""
    per_step = _per_step(rank)
    longest = _longest(rank, per_step)[0]
    time = f"takes {ms(_time(longest, per_step))} ms"
    calls = words.plural(longest.count, "call")
    spent = (
        f"{time} per step; the whole recording has {calls} of it."
        if per_step
        else f"{time} of the whole recording in {calls}."
    )
    lead = f"Rank {rank.rank}{which}: its longest kernel {spent}"
    notes = ["Kernels of several streams run side by side, so these times can exceed the step."]
    notes += _copies(rank)
    blocks = [Block(table), *contention_blocks(analysis)]
    return Section("kernels", nav, title, lead, blocks, notes)


def _copies(rank: RankResult) -> list[str]:
    return [
        f"Over the whole recording {device_label(rank, device)} copies and fills memory "
        f"{words.plural(device.total.copies, 'time')}: {size(device.total.copied_bytes)} in "
        f"{ms(device.total.copy_ns)} ms."
        for device in rank.devices
        if device.total.copies
    ]


def _rank_to_show(analysis: Analysis) -> RankResult | None:
    median = median_device(device_steps(analysis))
    first = [median.rank] if median is not None else []
    return next((rank for rank in [*first, *analysis.ranks] if rank.top_kernels), None)


def _window(analysis: Analysis, rank: RankResult) -> int | None:
    steps = [step for step in device_steps(analysis) if step.rank is rank]
    return steps[0].window_ns if len(steps) == 1 else None


def _per_step(rank: RankResult) -> bool:
    return all(kernel.mean_step_ns is not None for kernel in rank.top_kernels)


def _longest(rank: RankResult, per_step: bool) -> list[KernelResult]:
    return sorted(rank.top_kernels, key=lambda kernel: -_time(kernel, per_step))


def _time(kernel: KernelResult, per_step: bool) -> int:
    return (kernel.mean_step_ns or 0) if per_step else kernel.total_ns


def kernel_table(rank: RankResult, window: int | None) -> Table:
    """Return the longest kernels with their class, per step where steps are known."""
    per_step = _per_step(rank)
    columns = (
        Column("Kernel", "code"),
        Column("Class"),
        Column("ms per step" if per_step else "ms in all", "number"),
        *([Column("% of step", "number")] if per_step and window else []),
        Column("Calls in all", "number"),
        Column("Mean µs", "number"),
    )
    rows = [
        _row(kernel, per_step, window if per_step else None)
        for kernel in _longest(rank, per_step)[:MOST_KERNELS]
    ]
    caption = f"The {len(rows)} longest kernels of rank {rank.rank}"
    return Table(caption, columns, rows, sortable=True)


def _row(kernel: KernelResult, per_step: bool, window: int | None) -> Row:
    time = _time(kernel, per_step)
    percent = [Cell(share(time, window), time)] if window else []
    return (
        Cell(kernel.name or UNKNOWN),
        Cell(_class(kernel), role=_CLASS_ROLES.get(kernel.kernel_class)),
        Cell(ms(time), time),
        *percent,
        Cell(count(kernel.count), kernel.count),
        Cell(number(kernel.mean_ns / 1e3), kernel.mean_ns),
    )


def _class(kernel: KernelResult) -> str:
    return words.op(kernel.op) if kernel.op is not None else kernel.kernel_class

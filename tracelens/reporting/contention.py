"""Which kernels run slower beside communication?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reporting.content import Block, Cell, Column, Table
from tracelens.reporting.numbers import count, number

if TYPE_CHECKING:
    from tracelens.model.result import Analysis


def contention_blocks(analysis: Analysis) -> list[Block]:
    """Return the kernels that could be compared; nothing if none could."""
    found = analysis.contention
    if found is None or not found.kernels:
        return []
    columns = (
        Column("Kernel", "code"),
        Column("Alone µs", "number"),
        Column("Beside communication µs", "number"),
        Column("Times as long", "number"),
        Column("Calls alone", "number"),
        Column("Calls beside", "number"),
    )
    rows = [
        (
            Cell(kernel.name),
            Cell(number(kernel.alone_ns / 1e3), kernel.alone_ns),
            Cell(number(kernel.beside_ns / 1e3), kernel.beside_ns),
            Cell(number(kernel.slowdown), kernel.slowdown),
            Cell(count(kernel.alone), kernel.alone),
            Cell(count(kernel.beside), kernel.beside),
        )
        for kernel in found.kernels
    ]
    slowdown = f"{number(found.slowdown)} times as long in all"
    caption = f"Equal work beside communication and alone, all ranks: {slowdown}"
    return [Block(Table(caption, columns, rows, sortable=True))]

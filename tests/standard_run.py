"""A small run whose numbers are known: what every odd input is made of.

Each step takes 1000 us: compute 100-400, 400-600 and 700-900, an all-reduce of 1,048,576 bf16
elements 500-800. So compute 700, communication 300, of it 200 hidden and 100 exposed, idle 200.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Schema, Trace

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tracelens.model.result import Analysis, Partition, RankResult

STEP = {
    "window_ns": 1_000_000,
    "compute_ns": 700_000,
    "comm_ns": 300_000,
    "exposed_comm_ns": 100_000,
    "idle_ns": 200_000,
}
BYTES = 2 << 20


def rank(
    number: int | None = 0, world: int = 2, steps: int = 2, at: int = 0, **options: Any
) -> Trace:
    """Build one rank's trace; `at` is where its first step begins."""
    pid = 4000 + (number or 0)
    trace = Trace(rank=number, world=world, **{"pid": pid, "schema": Schema(), **options})
    for step in range(steps):
        add_step(trace, 10 + step, at + 1000 * step)
    return trace


def add_step(trace: Trace, number: int, at: int, **options: Any) -> Trace:
    """Add one standard step."""
    trace.step(number, at, 1000)
    trace.kernel("gemm", at + 100, 300, **options).kernel("gelu", at + 400, 200, **options)
    trace.all_reduce(at + 500, 300, **options)
    return trace.kernel("norm", at + 700, 200, **options)


def write_ranks(folder: Path, world: int = 2, **options: Any) -> list[Path]:
    """Write a run of whole ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        rank(number, world, **options).write(folder / f"rank{number}.json")
        for number in range(world)
    ]


def holds(part: Partition | None, **changed: int) -> None:
    """Check a step's partition against the standard one."""
    assert part is not None
    expected = STEP | changed
    assert {name: getattr(part, name) for name in expected} == expected


def rank_of(result: Analysis, number: int) -> RankResult:
    (found,) = [one for one in result.ranks if one.rank == number]
    return found


def is_standard(
    result: Analysis, world: int = 2, steps: int = 2, lacking: Collection[tuple[int, int]] = ()
) -> None:
    """Check that a result is that of standard ranks, whole but for (rank, place of a step)."""
    assert [one.rank for one in result.ranks] == list(range(world))
    assert result.run.ranks_missing == []
    assert result.run.ranks_partial == []
    for one in result.ranks:
        (device,) = one.devices
        whole = [(one.rank, place) not in lacking for place in range(steps)]
        assert [step.complete for step in device.steps] == whole
        for step in device.steps:
            holds(step.partition)
    (row,) = [row for row in result.collectives if row.op == "all_reduce"]
    assert row.message_bytes is not None


def codes(result: Analysis) -> set[str]:
    return {notice.code for notice in result.notices}


def said(result: Analysis, code: str) -> str:
    """Return a notice that stands once, with the file it names."""
    (found,) = [notice for notice in result.notices if notice.code == code]
    return f"{found.file or ''}: {found.message}"

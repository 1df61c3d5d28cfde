"""Who is charged with waiting: the rank that was busy, not the one that was held up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tracelens import exposed_wait, load, operations_table, stragglers, waiting
from tracelens.reduction import reduce_rank
from tracelens.run import assemble
from tracelens.simulate import Machine, kineto
from tracelens.simulate.engine import Engine
from tracelens.simulate.instructions import Post
from tracelens.simulate.kernels import MATMUL
from tracelens.simulate.machine import Chance, Link
from tracelens.simulate.recording import Clock, Group, RecordedRank, Recording
from tracelens.simulate.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tracelens.operations_table import OperationsTable
    from tracelens.stragglers import Blame

Charges = dict[tuple[int, ...], dict[int, float]]

US = 1000
MACHINE = Machine(
    tflops=1.0, memory_gb_per_s=1e9, intra=Link(10 * US, 100.0), host_ns=500, end_spread_ns=0,
    jitter=0.0,
)  # fmt: skip
GROUPS = [
    Group("0", "default_pg", (0, 1, 2, 3)),
    Group("1", "TENSOR_MODEL_PARALLEL_GROUP", (0, 1)),
    Group("2", "TENSOR_MODEL_PARALLEL_GROUP", (2, 3)),
    Group("3", "DATA_PARALLEL_GROUP", (0, 2)),
    Group("4", "DATA_PARALLEL_GROUP", (1, 3)),
    Group("5", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1)),
    Group("6", "PIPELINE_MODEL_PARALLEL_GROUP", (2, 3)),
]


def compute(script: Script, microseconds: float) -> None:
    script.kernel(MATMUL, operations=microseconds * 1e6)


def meet(script: Script, group: int, elements: int = 4096) -> None:
    size = len(GROUPS[group].ranks)
    script.blocking_collective("all_reduce", group, size, elements, "Float")


def charged(
    write: Callable[[Script], None], folder: Path, steps: int = 3
) -> tuple[Charges, Charges, Charges]:
    """Run a script on four ranks and record it with wrong clocks.

    Returns:
        Per group and rank the waiting for its own doing, that for it in all, and what it is charged
        with in the end.
    """
    scripts = [Script(rank, MACHINE, Chance(MACHINE, 0, rank)) for rank in range(4)]
    for script in scripts:
        for step in range(steps):
            with script.range("step", f"ProfilerStep#{step}"):
                write(script)
                meet(script, 0)
                script.synchronize()
    ranks = [
        RecordedRank(
            rank, "node", 4000 + rank, rank, Clock(rank * 777_777), recorded.launches, events,
            recorded.communications, recorded.ranges,
        )
        for rank, (recorded, events) in enumerate(Engine(scripts, GROUPS, MACHINE, 0).run())
    ]  # fmt: skip
    kineto.write(Recording(ranks, GROUPS, 0), folder)
    run = assemble([reduce_rank(trace) for trace in load(folder)])
    table = operations_table.build(run)
    seen = waiting.observe(run, table)
    losses = exposed_wait.losses(run, exposed_wait.cuts_of(run, table, seen))
    found = stragglers.blame(table, seen, losses)
    numbers = (found.own_ns, found.waited_ns, found.charged_ns)
    own, caused, in_the_end = (by_group(table, found, one) for one in numbers)
    return own, caused, in_the_end


def by_group(table: OperationsTable, found: Blame, numbers: NDArray[Any]) -> Charges:
    sums: Charges = {}
    for group, rank, number in zip(found.group, found.latest, numbers, strict=True):
        if number:
            ranks = sums.setdefault(table.groups[group].ranks or (), {})
            ranks[int(rank)] = ranks.get(int(rank), 0) + float(number)
    return sums


def whole(charges: Charges) -> float:
    return sum(sum(ranks.values()) for ranks in charges.values())


def test_a_rank_that_a_peer_held_up_is_not_charged(tmp_path: Path) -> None:
    """3 is slow: 2 waits for it in their tensor-parallel group, and so is late for 0."""

    def write(script: Script) -> None:
        compute(script, 300 if script.rank == 3 else 100)
        meet(script, 1 if script.rank < 2 else 2)
        meet(script, 3 + script.rank % 2)

    found, caused, in_the_end = charged(write, tmp_path)
    assert found[2, 3] == {3: pytest.approx(3 * 200 * US, rel=0.01)}
    assert found[1, 3] == {3: pytest.approx(3 * 200 * US, rel=0.01)}
    # All the waiting for 2 is there, and none is its own doing.
    assert caused[0, 2] == {2: pytest.approx(3 * 200 * US, rel=0.01)}
    assert found.get((0, 2), {}).get(2, 0) < 3 * US
    assert in_the_end[2, 3] == {3: pytest.approx(3 * 400 * US, rel=0.01)}
    assert whole(in_the_end) == pytest.approx(whole(caused))


def test_a_rank_that_waited_and_dawdled_is_charged_with_its_own_part(tmp_path: Path) -> None:
    def write(script: Script) -> None:
        compute(script, 300 if script.rank == 3 else 100)
        meet(script, 1 if script.rank < 2 else 2)
        compute(script, 80 if script.rank == 2 else 30)
        meet(script, 3 + script.rank % 2)

    found, caused, in_the_end = charged(write, tmp_path)
    assert caused[0, 2] == {2: pytest.approx(3 * 250 * US, rel=0.02)}
    assert found[0, 2] == {2: pytest.approx(3 * 50 * US, rel=0.02)}
    assert in_the_end[2, 3] == {3: pytest.approx(3 * 400 * US, rel=0.02)}


def test_waiting_for_a_message_excuses_too(tmp_path: Path) -> None:
    """1 needs what 0 computes, 3 what 2 does: the receivers are late by what the senders took."""

    def write(script: Script) -> None:
        line, first = 5 + script.rank // 2, script.rank % 2 == 0
        if first:
            compute(script, 400 if script.rank == 2 else 150)
        post = Post("send" if first else "recv", script.rank + (1 if first else -1), 4096, ("x",))
        script.wait_for(script.exchange(line, "BFloat16", [post]))
        compute(script, 100)
        meet(script, 3 + script.rank % 2)

    found, caused, in_the_end = charged(write, tmp_path)
    assert found[0, 2] == {2: pytest.approx(3 * 250 * US, rel=0.01)}
    assert found.get((1, 3), {}).get(3, 0) < 3 * US
    assert caused[1, 3][3] > 3 * 200 * US
    assert whole(in_the_end) == pytest.approx(whole(found), rel=0.01)


def test_stages_that_end_later_are_not_charged(tmp_path: Path) -> None:
    """The second stage works first, the first one after its message: all work alike."""

    def write(script: Script) -> None:
        line, first = 5 + script.rank // 2, script.rank % 2 == 0
        if not first:
            compute(script, 200)
        post = Post("recv" if first else "send", script.rank + (1 if first else -1), 4096, ("x",))
        script.wait_for(script.exchange(line, "BFloat16", [post]))
        if first:
            compute(script, 200 + script.rank)  # no two at the same nanosecond

    found, caused, in_the_end = charged(write, tmp_path)
    assert whole(caused) > 3 * 200 * US
    assert whole(found) < 0.03 * whole(caused)
    assert whole(in_the_end) < 0.03 * whole(caused)


def test_without_other_groups_everything_is_its_own_doing(tmp_path: Path) -> None:
    def write(script: Script) -> None:
        compute(script, 300 if script.rank == 1 else 100)

    found, caused, in_the_end = charged(write, tmp_path)
    assert found == {(0, 1, 2, 3): {1: pytest.approx(3 * 3 * 200 * US, rel=0.01)}}
    assert found == caused == in_the_end

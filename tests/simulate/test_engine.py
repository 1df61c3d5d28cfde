"""The engine: who waits for whom, on scripts written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.simulate.device import SimulationError
from tracelens.simulate.engine import Engine
from tracelens.simulate.instructions import Post
from tracelens.simulate.kernels import MATMUL
from tracelens.simulate.machine import Chance, Link, Machine
from tracelens.simulate.recording import Communication, DeviceEvent, Group
from tracelens.simulate.script import Script

EXACT = Machine(
    tflops=1.0, memory_gb_per_s=1e9, intra=Link(10_000, 1.0), launch_latency_ns=1_000, host_ns=100,
    end_spread_ns=0, jitter=0.0,
)  # fmt: skip
WORLD = Group("0", "default_pg", (0, 1))


class Pair:
    """Two scripts, and what comes of them."""

    def __init__(self, machine: Machine = EXACT, torch: str = "2.12") -> None:
        self.machine = machine
        self.scripts = [Script(r, machine, Chance(machine, 0, r), torch) for r in range(2)]

    def run(self) -> list[list[DeviceEvent]]:
        self.engine = Engine(self.scripts, [WORLD], self.machine, 0)
        return [events for _, events in self.engine.run()]

    def communications(self, rank: int) -> list[Communication]:
        return self.engine.hosts[rank].recorded.communications


def compute(script: Script, microseconds: float) -> None:
    script.kernel(MATMUL, operations=microseconds * 1e6)


def test_a_collective_ends_together_after_the_last_arrival() -> None:
    pair = Pair()
    for script, length in zip(pair.scripts, (50, 200), strict=True):
        compute(script, length)
        script.collective("all_reduce", 0, 2, 10_000, "Float")
    early, late = (events[-1] for events in pair.run())
    assert early.start < late.start
    assert early.end == late.end
    # alpha + 2 (N-1)/N x 40,000 B over 1 GB/s
    assert late.end - late.start == 10_000 + 40_000


def test_a_stream_runs_in_order_and_launches_are_not_waited_for() -> None:
    pair = Pair()
    compute(pair.scripts[0], 100)
    compute(pair.scripts[0], 30)
    first, second = pair.run()[0]
    assert second.start == first.end
    assert second.end - second.start == 30_000
    recorded = pair.engine.hosts[0].recorded
    assert recorded.launches[1].end < first.end


def test_a_stream_waits_for_an_event_of_another() -> None:
    pair = Pair()
    script = pair.scripts[0]
    compute(script, 100)
    script.kernel(MATMUL, operations=40e6, stream=20)  # beside it
    script.wait(20, 7)
    script.kernel(MATMUL, operations=10e6, stream=20)  # behind both
    events = sorted(pair.run()[0], key=lambda event: event.end)
    assert [event.end - event.start for event in events] == [40_000, 100_000, 10_000]
    assert events[2].start == events[1].end


def test_an_event_of_a_stream_that_only_waits_holds_what_it_waits_for() -> None:
    pair = Pair()
    script = pair.scripts[0]
    compute(script, 100)
    script.wait(20, 7)
    script.wait(24, 20)
    script.kernel(MATMUL, operations=10e6, stream=24)
    first, last = pair.run()[0]
    assert last.start == first.end


def test_kernels_of_one_communicator_do_not_run_at_once() -> None:
    pair = Pair()
    for script in pair.scripts:
        for stream in (20, 24):
            script.collective("all_gather", 0, 2, 10_000, "Float", stream=stream, after=None)
    for first, second in pair.run():
        assert second.start == first.end


def test_the_host_waits_where_it_synchronises() -> None:
    pair = Pair()
    script = pair.scripts[0]
    compute(script, 100)
    script.synchronize()
    compute(script, 10)
    first, second = pair.run()[0]
    sync = pair.engine.hosts[0].recorded.launches[1]
    assert sync.name == "cudaStreamSynchronize"
    assert sync.start < first.end < sync.end < second.start


def test_a_batch_is_one_kernel_that_ends_with_its_last_message() -> None:
    pair = Pair()
    for rank, script in enumerate(pair.scripts):
        compute(script, 20 if rank else 60)
        posts = [
            Post("send", 1 - rank, 10_000, (rank,)),
            Post("recv", 1 - rank, 10_000, (1 - rank,)),
        ]
        script.exchange(0, "Float", posts)
    here, there = (events[-1] for events in pair.run())
    assert here.end == there.end
    assert here.end - here.start == 10_000 + 40_000
    own, other = (pair.communications(rank) for rank in range(2))
    assert [c.instance for c in own] == [c.instance for c in reversed(other)]
    assert [c.seq for c in own] == [0, 1]
    assert {c.batch for c in own} == {0}


def test_slow_ranks_and_contention_stretch_kernels() -> None:
    pair = Pair(replace(EXACT, slow={1: 1.5}, contention=2.0))
    for script in pair.scripts:
        compute(script, 100)
        script.collective("all_reduce", 0, 2, 1_000_000, "Float")
        compute(script, 1)
        compute(script, 10)
        script.wait(7, 20)
        compute(script, 10)
    lengths = [
        [event.end - event.start for event in events if not event.communications]
        for events in pair.run()
    ]
    before, beside, behind = ([own[place] for own in lengths] for place in (0, 2, 3))
    assert before == [100_000, 150_000]
    assert beside == [20_000, 30_000]
    assert behind == [10_000, 15_000]


def test_ranks_in_different_orders_hang_and_are_named() -> None:
    machine = EXACT
    scripts = [Script(r, machine, Chance(machine, 0, r)) for r in range(2)]
    groups = [WORLD, Group("1", "mesh_dp", (0, 1))]
    for script, order in zip(scripts, ((0, 1), (1, 0)), strict=True):
        for group in order:
            script.collective("all_reduce", group, 2, 64, "Float", stream=20)
    with pytest.raises(
        SimulationError, match=r"rank 0 in all_reduce of group 0 waits for ranks \[1\]"
    ):
        Engine(scripts, groups, machine, 0).run()


def test_members_that_disagree_are_an_error() -> None:
    pair = Pair()
    for script, elements in zip(pair.scripts, (64, 128), strict=True):
        script.collective("all_reduce", 0, 2, elements, "Float")
    with pytest.raises(SimulationError, match="disagree"):
        pair.run()


@pytest.mark.parametrize(("torch", "stream"), [("2.4", 20), ("2.12", 7)])
def test_blocking_collectives_run_where_the_release_runs_them(torch: str, stream: int) -> None:
    pair = Pair(torch=torch)
    for script in pair.scripts:
        compute(script, 10)
        script.blocking_collective("all_reduce", 0, 2, 64, "Float")
        compute(script, 10)
    for first, collective, last in pair.run():
        assert collective.stream == stream
        assert first.end <= collective.start
        assert last.start >= collective.end

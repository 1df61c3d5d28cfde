"""How much of the waiting is exposed, and what calls cost their rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from builders import Trace
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import SPAN, device_events

from tracelens.communication import COMMUNICATION, COPY
from tracelens.exposed_wait import Losses, exposed_transfer, exposed_wait, losses
from tracelens.model.trace import NONE
from tracelens.operations import CODE, OPERATIONS
from tracelens.run import RankRun, Run

if TYPE_CHECKING:
    from strategies import DeviceEvent

    from tracelens.intervals import Ints
    from tracelens.reduced import RankReduction

US = 1000


FIRST = 1000  # a file's times of 0 are no times


def ns(value: int) -> str:
    """Write nanoseconds as the builder's microseconds."""
    return f"{value / 1000:.3f}"


def moved(events: list[DeviceEvent]) -> list[DeviceEvent]:
    return [
        e._replace(start=e.start + FIRST, launch=None if e.launch is None else e.launch + FIRST)
        for e in events
    ]


shifted_events = device_events(min_size=1).map(moved)


NAMES = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "ncclDevKernel_AllGather_RING_LL",
    "nvshmem_alltoallmem_kernel",
)


def reduction_of(events: list[DeviceEvent], lengths: list[int]) -> RankReduction:
    trace, at = Trace(), FIRST
    for number, length in enumerate(lengths):
        trace.step(number, ns(at), ns(length))
        at += length
    for event in events:
        launch = None if event.launch is None else ns(event.launch)
        if event.event_class == COPY:
            trace.copy(ns(event.start), ns(event.duration), launch=launch)
        else:
            name = NAMES[event.op] if event.event_class == COMMUNICATION else "gemm"
            trace.kernel(name, ns(event.start), ns(event.duration), launch=launch)
    return trace.reduce()


def by_single_nanoseconds(
    events: list[DeviceEvent], rank: RankRun, cuts: Ints
) -> tuple[list[int], list[int]]:
    """Return waiting and matched exposed time by operation, marking one nanosecond at a time."""
    waited, exposed = [0] * len(OPERATIONS), [0] * len(OPERATIONS)
    [cycle] = rank.cycles
    frame = cycle.operations
    comms = sorted(zip(frame["start"], frame.index, frame["end"], frame["op"], strict=True))
    compute = [e for e in events if e.event_class not in (COMMUNICATION, COPY)]
    for index, step in enumerate(cycle.devices[0].steps):
        if not rank.in_mean[0, index] or not step.complete:
            continue
        for at in range(step.low, step.high):
            running = [c for c in comms if c[0] <= at < c[2]]
            hidden = any(e.start <= at < e.start + e.duration for e in compute)
            if hidden or not running or cuts[running[0][1]] == NONE:
                continue
            _, row, _, op = running[0]
            exposed[op] += 1
            waited[op] += bool(at < cuts[row])
    return waited, exposed


@given(
    shifted_events,
    st.lists(st.integers(1, 30), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.none() | st.integers(FIRST - 5, FIRST + SPAN + 5), min_size=14, max_size=14),
)
def test_exposed_waiting_marks_the_same_nanoseconds(
    events: list[DeviceEvent], lengths: list[int], in_mean: list[bool], arrivals: list[int | None]
) -> None:
    cycle = reduction_of(events, lengths)
    # The twin knows no order of events that start together.
    assume(cycle.operations["start"].is_unique)
    rank = RankRun(0, [cycle], in_mean={(0, i): in_mean[i] for i in range(len(lengths))})
    known = [NONE if at is None else at for at in arrivals]
    cuts = np.array(known[: len(cycle.operations)], np.int64)
    waited, exposed = by_single_nanoseconds(events, rank, cuts)
    [sums] = exposed_wait(rank, [cuts]).values()
    assert sums.tolist() == [*waited, *exposed]
    moved = exposed_transfer(Run([rank], None, [], [], []), {0: [cuts]})
    by_op = np.bincount(cycle.operations["op"], moved, len(OPERATIONS))
    assert by_op.tolist() == [b - a for a, b in zip(waited, exposed, strict=True)]


@given(shifted_events, st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_what_is_all_matched_is_all_exposed_communication(
    events: list[DeviceEvent], lengths: list[int]
) -> None:
    cycle = reduction_of(events, lengths)
    rank = RankRun(0, [cycle], in_mean={(0, i): True for i in range(len(lengths))})
    cuts = np.full(len(cycle.operations), FIRST + 10)
    [sums] = exposed_wait(rank, [cuts]).values()
    complete = [s.partition for s in cycle.devices[0].steps if s.complete]
    assert sums[len(OPERATIONS) :].sum() == sum(p.exposed_comm_ns for p in complete)


def first_cut(rank: RankRun, at: int) -> Ints:
    """Return cuts of which only the first operation has one."""
    cuts = np.full(len(rank.cycles[0].operations), NONE)
    cuts[0] = at
    return cuts


def all_reduce_sums(trace: Trace, cut: int) -> tuple[int, int]:
    """Return (exposed waiting, exposed time) of the first collective in microseconds."""
    rank = RankRun(0, [trace.reduce()])
    rank.in_mean = dict.fromkeys(rank.step_keys(), True)
    [sums] = exposed_wait(rank, [first_cut(rank, cut * US)]).values()
    code = CODE["all_reduce"]
    return int(sums[code]) // US, int(sums[code + len(OPERATIONS)]) // US


class TestExposedWaiting:
    def stepped(self) -> Trace:
        """Return a trace whose device windows are [100, 1100) and [1100, 2100)."""
        trace = Trace().step(1, 0, 1000).step(2, 1000, 1000)
        return trace.kernel("gemm", 100, 50).kernel("gemm", 1100, 50)

    def test_until_the_last_member_arrives(self) -> None:
        assert all_reduce_sums(self.stepped().all_reduce(300, 200), 420) == (120, 200)

    def test_hidden_waiting_does_not_count(self) -> None:
        trace = self.stepped().all_reduce(300, 200).kernel("gemm", 350, 100)
        assert all_reduce_sums(trace, 420) == (50, 100)
        assert all_reduce_sums(trace, 460) == (60, 100)

    def test_across_the_edge_of_a_step(self) -> None:
        """Both steps count, so nothing is lost or doubled; 50 us are hidden behind the gemm."""
        assert all_reduce_sums(self.stepped().all_reduce(1000, 400), 1200) == (150, 350)

    def test_outside_the_steps(self) -> None:
        trace = self.stepped().all_reduce(40, 50, launch=None).all_reduce(300, 200)
        assert all_reduce_sums(trace, 80) == (0, 0)

    def test_a_step_out_of_the_mean(self) -> None:
        trace = self.stepped().all_reduce(1000, 400)
        rank = RankRun(0, [trace.reduce()], in_mean={(0, 0): True, (0, 1): False})
        [sums] = exposed_wait(rank, [first_cut(rank, 1200 * US)]).values()
        assert sums.sum() == (100 + 100) * US

    def test_an_incomplete_step(self) -> None:
        """A kernel launched in step 2 has no record."""
        trace = self.stepped().all_reduce(1000, 400).call("cudaLaunchKernel", 1500, correlation=9)
        assert all_reduce_sums(trace, 1200) == (100, 100)

    def test_each_device_of_a_process_has_its_own(self) -> None:
        trace = self.stepped().kernel("gemm", 100, 50, device=1).all_reduce(300, 200, device=1)
        rank = RankRun(0, [trace.reduce()])
        rank.in_mean = dict.fromkeys(rank.step_keys(), True)
        sums = exposed_wait(rank, [first_cut(rank, 420 * US)])
        assert [int(sums[key].sum()) for key in sorted(sums)] == [0, (120 + 200) * US]

    def test_one_that_never_waits(self) -> None:
        assert all_reduce_sums(self.stepped().all_reduce(300, 200), 250) == (0, 200)


# what calls cost their rank ----------------------------------------------------------------------


def losses_of(cycle: RankReduction, cuts: Ints) -> Losses:
    return losses(Run([RankRun(0, [cycle])], None, [], [], []), {0: [cuts]})


def lost_by_single_nanoseconds(
    events: list[DeviceEvent], cycle: RankReduction, cuts: Ints
) -> list[int]:
    """Return what each call costs: at each instant, the last of those compute waits for."""
    frame = cycle.operations
    calls = list(zip(frame["start"], frame["end"], strict=True))
    compute = [e for e in events if e.event_class not in (COMMUNICATION, COPY)]
    free = [
        any(a <= at < b for a, b in calls)
        and not any(e.start <= at < e.start + e.duration for e in compute)
        for at in range(FIRST + SPAN + 20)
    ]
    lost = [0] * len(calls)
    for at in (at for at, is_free in enumerate(free) if is_free):
        resumed = next(t for t in range(at, len(free)) if not free[t])
        waited_for = [i for i, (a, b) in enumerate(calls) if a <= at < b <= resumed]
        if waited_for:
            last = max(waited_for, key=lambda i: (calls[i][1], -i))
            lost[last] += bool(cuts[last] == NONE or at < cuts[last])
    return lost


@given(
    shifted_events,
    st.lists(st.none() | st.integers(FIRST - 5, FIRST + SPAN + 5), min_size=14, max_size=14),
)
def test_losses_mark_the_same_nanoseconds(
    events: list[DeviceEvent], arrivals: list[int | None]
) -> None:
    cycle = reduction_of(events, [])
    known = [NONE if at is None else at for at in arrivals]
    cuts = np.array(known[: len(cycle.operations)], np.int64)
    found = losses_of(cycle, cuts)
    assert found.lost_ns.tolist() == lost_by_single_nanoseconds(events, cycle, cuts)
    assert (found.begun_ns == cycle.first_ns).all()


def calls_of(
    *calls: tuple[int, int, int | None], compute: tuple[tuple[int, int], ...] = ()
) -> Losses:
    """Return the losses of (start, end, cut) in microseconds, beside compute (start, end)."""
    trace = Trace()
    for start, end, _ in calls:
        trace.all_reduce(start, end - start)
    for start, end in compute:
        trace.kernel("gemm", start, end - start)
    cuts = [NONE if cut is None else cut * US for _, _, cut in calls]
    return losses_of(trace.reduce(), np.array(cuts, np.int64))


class TestLosses:
    def test_waiting_until_the_last_arrival(self) -> None:
        found = calls_of((100, 200, 150), compute=((50, 100), (200, 250)))
        assert (found.lost_ns.tolist(), found.held.tolist()) == ([50 * US], [True])

    def test_an_unmatched_call_may_have_waited_all_along(self) -> None:
        assert calls_of((100, 200, None)).lost_ns.tolist() == [100 * US]

    def test_a_call_that_ends_behind_compute_holds_nobody_up(self) -> None:
        found = calls_of((100, 200, 180), compute=((120, 210),))
        assert (found.lost_ns.tolist(), found.held.tolist()) == ([0], [False])

    def test_compute_that_goes_on_before_its_end_did_not_wait_for_it(self) -> None:
        """A gather waits while a tensor-parallel call transfers: the latter holds the rank up."""
        found = calls_of((90, 400, 390), (100, 150, 101), compute=((0, 95), (150, 450)))
        assert found.lost_ns.tolist() == [0, US]
        assert found.held.tolist() == [False, True]

    def test_a_transfer_beside_a_call_that_waits_is_no_excuse(self) -> None:
        found = calls_of((100, 160, 101), (110, 200, 180), compute=((50, 100), (200, 250)))
        assert found.lost_ns.tolist() == [US, 70 * US]
        assert found.held.tolist() == [False, True]

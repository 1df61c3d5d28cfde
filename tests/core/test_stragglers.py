"""Whom the others wait for, and whether it is that rank's own fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from calls import EPOCH_NS, Call, instance, table_of
from hypothesis import given
from hypothesis import strategies as st

from tracelens import stragglers, waiting
from tracelens.exposed_wait import Losses
from tracelens.operations import RECV
from tracelens.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.model.result import Straggler
    from tracelens.stragglers import Blame

US, MS = 1000, 10**6
NO_RUN = Run([], None, [], [], [])  # no host says that clocks are one


def blamed(calls: Sequence[Call], lost: Sequence[int] = (), held: Sequence[bool] = ()) -> Blame:
    """Return the blame for calls.

    Args:
        calls: All ranks' calls.
        lost: What each one's rank lost in it, else its waiting.
        held: Whether it had nothing else to do at the end, else always.
    """
    table = table_of(calls)
    seen = waiting.observe(NO_RUN, table)
    lost_ns = np.array(lost, np.int64) if len(lost) else np.maximum(seen.wait_ns, 0)
    ended = np.array(held, bool) if len(held) else np.ones(len(calls), bool)
    begun = np.full(len(calls), EPOCH_NS)
    return stragglers.blame(table, seen, Losses(lost_ns, ended, begun))


def late(calls: Sequence[Call], recorded_ns: int) -> list[Straggler]:
    return stragglers.stragglers(blamed(calls), recorded_ns)


class TestOneInstance:
    def test_the_last_one_is_charged_with_all_waiting(self) -> None:
        one = blamed(instance([0, 30, 100]))
        assert (one.latest.tolist(), one.late_ns.tolist()) == ([2], [100])
        assert (one.waited_ns.tolist(), one.own_ns.tolist()) == ([170], [170])
        assert one.charged_ns.tolist() == [170]
        assert one.taken_part == {0: 1, 1: 1, 2: 1}

    def test_ties_blame_nobody(self) -> None:
        one = blamed(instance([0, 100, 100]))
        assert one.tied.tolist() == [True]
        assert (one.waited_ns.tolist(), one.charged_ns.tolist()) == ([0], [0])
        assert one.taken_part == {0: 1, 1: 1, 2: 1}

    def test_nothing_matched(self) -> None:
        assert late([Call(0, 0, 10), Call(0, 20, 30)], 1000) == []


def run_of(arrivals: Sequence[Sequence[int]], group: tuple[int, ...] = ()) -> list[Call]:
    """Return one instance per list of arrivals, a millisecond apart, one to a step."""
    return [
        call
        for step, row in enumerate(arrivals)
        for call in instance(row, at=step * MS, group=group, step=step)
    ]


class TestStragglers:
    def test_one_slow_rank_of_eight(self) -> None:
        arrivals = [[0, 10, 5, 20, 0, 300 * US, 15, 3] for _ in range(10)]
        [slow] = late(run_of(arrivals), 10 * MS)
        assert slow.rank == 5
        assert slow.late_in_pct == 100
        assert slow.mean_late_ns == 300 * US
        assert slow.wait_caused_ns == 10 * (7 * 300 * US - 53)
        assert slow.share_of_wait_pct == 100
        assert (slow.groups, slow.late_steps, slow.steps) == (["g0"], 10, 10)
        assert slow.persistent

    @pytest.mark.parametrize(("of_ten", "persistent"), [(5, False), (6, True)])
    def test_persistent_is_in_most_steps(self, of_ten: int, persistent: bool) -> None:
        arrivals = [[0] * 3 + [400 * US if step < of_ten else 0] + [5] for step in range(10)]
        [slow] = late(run_of(arrivals), 10 * MS)
        assert (slow.rank, slow.late_steps, slow.steps) == (3, of_ten, 10)
        assert slow.persistent is persistent

    def test_one_step_tells_nothing_about_others(self) -> None:
        [slow] = late(run_of([[0, 0, 0, 0, 0, 0, 400 * US]]), MS)
        assert (slow.late_steps, slow.steps, slow.persistent) == (1, 1, None)

    def test_calls_outside_steps_count_for_no_step(self) -> None:
        calls = [replace(c, step=-1) for c in run_of([[0, 0, 0, 0, 0, 0, 400 * US]] * 3)]
        [slow] = late(calls, 3 * MS)
        assert (slow.late_steps, slow.steps, slow.persistent) == (None, None, None)

    def test_two_slow_ranks_the_most_costly_first(self) -> None:
        arrivals = []
        for step in range(10):
            row = [0] * 8
            row[7 if step < 6 else 2] = 300 * US
            arrivals.append(row)
        first, second = late(run_of(arrivals), 10 * MS)
        assert (first.rank, second.rank) == (7, 2)
        assert (first.wait_caused_ns, second.wait_caused_ns) == (12_600 * US, 8_400 * US)
        assert (first.share_of_wait_pct, second.share_of_wait_pct) == (60, 40)
        assert (first.late_in_pct, second.late_in_pct) == (60, 40)

    @given(st.integers(0, 2**32 - 1))
    def test_jitter_names_nobody(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        arrivals = random.integers(0, 20 * US, (40, 8)).tolist()
        calls = [c for at, row in enumerate(arrivals) for c in instance(row, at=at * MS)]
        assert late(calls, 40 * MS) == []

    def test_little_waiting_is_nobodys_fault_even_if_one_causes_it(self) -> None:
        """3 % of the recorded time for each other rank: 210 us in all of 1 ms, here."""
        calls = run_of([[0] * 7 + [30 * US]])
        assert late(calls, MS) == []
        assert [s.rank for s in late(calls, MS - US)] == [7]

    @pytest.mark.parametrize(("of_ten", "named"), [(8, []), (9, [1])])
    def test_one_of_two_must_cause_more_than_four_fifths(
        self, of_ten: int, named: list[int]
    ) -> None:
        arrivals = [[0, 300 * US]] * of_ten + [[300 * US, 0]] * (10 - of_ten)
        assert [s.rank for s in late(run_of(arrivals), 10 * MS)] == named

    @pytest.mark.parametrize(("of_ten", "named"), [(3, []), (4, [0])])
    def test_one_of_many_must_cause_more_than_three_tenths(
        self, of_ten: int, named: list[int]
    ) -> None:
        """The other calls each have a culprit of their own."""
        arrivals = []
        for step in range(10):
            row = [0] * 8
            row[0 if step < of_ten else 1 + step % 7] = 300 * US
            arrivals.append(row)
        assert [s.rank for s in late(run_of(arrivals), 10 * MS)] == named

    def test_shares_count_within_a_group(self) -> None:
        """Rank 3 holds up its pair, which is little beside the waiting of the large group."""
        large = run_of([[0, 0, 0, 0, 0, 0, 0, 300 * US]] * 10)
        pair = run_of([[0, 400 * US]] * 10, group=(8, 9))
        found = late([*large, *pair], 10 * MS)
        assert [s.rank for s in found] == [7, 9]
        assert [s.groups for s in found] == [["g0"], ["g1"]]
        assert sum(s.share_of_wait_pct or 0 for s in found) == pytest.approx(100)


# whose fault it is -------------------------------------------------------------------------------

Program = list["int | tuple[int, ...]"]
"""What a rank does: work for so many nanoseconds, or enter a collective of a group."""


def played(programs: dict[int, Program], step: int = 1) -> tuple[list[Call], list[int]]:
    """Run programs in which nothing overlaps; return the calls and what each one's rank waited."""
    now, at = dict.fromkeys(programs, 0), dict.fromkeys(programs, 0)
    calls: list[Call] = []
    waits: list[int] = []
    while True:
        for rank, program in programs.items():
            while at[rank] < len(program) and isinstance(work := program[at[rank]], int):
                now[rank] += work
                at[rank] += 1
        wanted = {r: p[at[r]] for r, p in programs.items() if at[r] < len(p)}
        ready = [g for g in wanted.values() if all(wanted.get(r) == g for r in g)]  # type: ignore[union-attr]
        if not ready:
            assert not wanted
            return calls, waits
        group = ready[0]
        assert isinstance(group, tuple)
        latest = max(now[rank] for rank in group)
        for rank in group:
            calls.append(Call(rank, now[rank], latest + 1000, group=group, step=step))
            waits.append(latest - now[rank])
            now[rank], at[rank] = latest + 1000, at[rank] + 1


def of_layout(
    tp: int, dp: int, layers: int, steps: int, slow: dict[int, int]
) -> dict[int, Program]:
    """Return the programs of tp x dp ranks: work and a tp call a layer, a dp call a step."""
    programs: dict[int, Program] = {}
    for rank in range(tp * dp):
        own_tp = tuple(range(rank // tp * tp, rank // tp * tp + tp))
        own_dp = tuple(range(rank % tp, tp * dp, tp))
        layer: Program = [100 * US + slow.get(rank, 0) + 10 * rank, own_tp]
        programs[rank] = [*(layer * layers), 50 * US, own_dp] * steps
    return programs


def by_rank(one: Blame) -> dict[int, float]:
    ranks = np.unique(one.latest)
    return {int(r): float(one.charged_ns[one.latest == r].sum()) for r in ranks}


class TestIndirectLateness:
    """Layout tp 2 x dp 2: ranks 0 and 1 work together, and so do 2 and 3; dp links 0-2 and 1-3."""

    @pytest.mark.parametrize("slow", range(4))
    def test_the_slow_rank_is_named_and_not_the_one_that_waited_for_it(self, slow: int) -> None:
        calls, waits = played(of_layout(2, 2, layers=8, steps=5, slow={slow: 40 * US}))
        one = blamed(calls, waits)
        shares = by_rank(one)
        assert shares[slow] > 0.98 * one.waited_ns.sum()
        # The partner is as late in its data-parallel group, and last in it in every step.
        partner = slow ^ 1
        last = one.latest == partner
        assert one.waited_ns[last].sum() >= 5 * 8 * 39 * US
        recorded = max(call.end for call in calls)
        [named] = stragglers.stragglers(one, recorded)
        assert (named.rank, named.persistent) == (slow, None)
        assert named.wait_caused_ns == pytest.approx(one.waited_ns.sum(), rel=0.02)

    def test_two_slow_ranks_of_different_groups(self) -> None:
        """Both replicas are late, so nobody waits between them but for the difference."""
        slow = {1: 40 * US, 2: 30 * US}
        calls, waits = played(of_layout(2, 2, layers=8, steps=5, slow=slow))
        one = blamed(calls, waits)
        recorded = max(call.end for call in calls)
        assert [s.rank for s in stragglers.stragglers(one, recorded)] == [1, 2]

    def test_through_three_dimensions(self) -> None:
        """Rank 5 delays its tp partner 4, that one its cp partner 6, and that its dp partner 2."""
        tp, cp, dp = ([(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 2), (1, 3), (4, 6), (5, 7)],
                      [(0, 4), (1, 5), (2, 6), (3, 7)])  # fmt: skip
        programs: dict[int, Program] = {}
        for rank in range(8):
            mine = [next(g for g in groups if rank in g) for groups in (tp, cp, dp)]
            work = 100 * US + (60 * US if rank == 5 else 10 * rank)
            programs[rank] = [work, mine[0], 20 * US, mine[1], 20 * US, mine[2]] * 6
        calls, waits = played(programs)
        one = blamed(calls, waits)
        assert by_rank(one)[5] > 0.95 * one.waited_ns.sum()
        [named] = stragglers.stragglers(one, max(call.end for call in calls))
        assert named.rank == 5

    def test_a_stage_that_waits_for_messages_is_nobodys_straggler(self) -> None:
        """Its last message came late: whose fault that is, messages do not tell."""
        calls = run_of([[0, 300 * US]] * 9)
        lost = [0] * len(calls)
        receives = [Call(1, c.start - 250 * US, c.start, RECV, group=(1, 9)) for c in calls[1::2]]
        one = blamed([*calls, *receives], [*lost, *(250 * US for _ in receives)])
        assert one.waited_ns.sum() == 9 * 300 * US
        assert one.own_ns.sum() == 9 * 50 * US
        assert by_rank(one)[1] == pytest.approx(9 * 50 * US)

    def test_both_waited_for_messages_alike(self) -> None:
        """What a pipeline costs every rank of a stage explains no difference between them."""
        calls = run_of([[0, 300 * US]] * 9)
        receives = [
            Call(c.rank, c.start - 250 * US, c.start, RECV, group=(c.rank, 9)) for c in calls
        ]
        one = blamed([*calls, *receives], [0] * len(calls) + [250 * US] * len(receives))
        assert one.own_ns.sum() == one.waited_ns.sum() == 9 * 300 * US


def overlapped(slow: dict[int, int], layers: int = 6, steps: int = 4) -> Blame:
    """Blame a run of tp 2 x dp 2 whose data-parallel calls run behind compute.

    The call of a layer waits in its stream for that of the layer before, and holds nobody up; all
    four ranks meet at the end of a step.
    """
    calls: list[Call] = []
    waits: list[int] = []
    held: list[bool] = []

    def meet(group: tuple[int, ...], arrivals: list[int], step: int, *, blocks: bool) -> int:
        for rank, arrival in zip(group, arrivals, strict=True):
            calls.append(Call(rank, arrival, max(arrivals) + 1000, group=group, step=step))
            waits.append(max(arrivals) - arrival if blocks else 0)
            held.append(blocks)
        return max(arrivals) + 1000

    at, free = [0] * 4, [0] * 4
    for step in range(steps):
        for _ in range(layers):
            for first in (0, 2):
                work = [100 * US + slow.get(rank, 0) for rank in (first, first + 1)]
                arrivals = [at[first] + work[0], at[first + 1] + work[1] + 7]
                at[first : first + 2] = [meet((first, first + 1), arrivals, step, blocks=True)] * 2
            for first in (0, 1):
                arrivals = [max(at[r], free[r]) + r for r in (first, first + 2)]
                free[first] = free[first + 2] = meet(
                    (first, first + 2), arrivals, step, blocks=False
                )
        arrivals = [max(at[rank], free[rank]) for rank in range(4)]
        at = [meet((0, 1, 2, 3), arrivals, step, blocks=True)] * 4
    return blamed(calls, waits, held)


@pytest.mark.parametrize("slow", range(4))
def test_calls_behind_compute_bring_nobody_in_step(slow: int) -> None:
    """Rank 0 lags behind 2 by what it waited for 1 since the step began, not since that call."""
    one = overlapped({slow: 40 * US})
    partner = slow ^ 1
    assert one.waited_ns[one.latest == partner].sum() > 0.2 * one.waited_ns.sum()
    assert one.own_ns[one.latest == partner].sum() < 0.01 * one.waited_ns.sum()
    assert [s.rank for s in stragglers.stragglers(one, 3 * MS)] == [slow]


def one_by_one(calls: Sequence[Call], waits: Sequence[int]) -> dict[int, float]:
    """Charge waiting the plain way: call by call, from the last to the first."""
    members: dict[tuple[tuple[int, ...], int], list[int]] = {}
    place: dict[tuple[tuple[int, ...], int], int] = {}
    instance_of = {}
    for row, call in enumerate(calls):
        group = call.group or ()
        nth = place.setdefault((group, call.rank), 0)
        place[group, call.rank] += 1
        members.setdefault((group, nth), []).append(row)
        instance_of[row] = (group, nth)

    def between(row: int) -> list[int]:
        """Return the rank's calls since its group last met, alone or with others."""
        mine = [i for i, c in enumerate(calls) if c.rank == calls[row].rank]
        before = mine[: mine.index(row)]
        own = set(calls[row].group or ())
        same = [i for i in before if own <= set(calls[i].group or ())]
        return before[before.index(same[-1]) + 1 :] if same else before

    charge: dict[tuple[tuple[int, ...], int], float] = {}
    result: dict[int, float] = {}
    order = sorted(members, key=lambda key: -max(calls[row].end for row in members[key]))
    for key in order:
        rows = members[key]
        arrivals = sorted(calls[row].start for row in rows)
        if arrivals[-1] == arrivals[-2]:
            continue
        waited = sum(waits[row] for row in rows)
        last = max(rows, key=lambda row: calls[row].start)
        lost = {row: sum(waits[i] for i in between(row)) for row in rows}
        own = sum(waits[r] - min(max(lost[last] - lost[r], 0), waits[r]) for r in rows)
        whole = waited + charge.get(key, 0)
        kept = whole * own / waited
        rank = calls[last].rank
        result[rank] = result.get(rank, 0) + kept
        for row in between(last):
            if own < waited:
                share = (whole - kept) * waits[row] / lost[last]
                charge[instance_of[row]] = charge.get(instance_of[row], 0) + share
    return result


@st.composite
def _programs(draw: st.DrawFn) -> dict[int, Program]:
    groups = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)]
    calls = draw(st.lists(st.sampled_from(groups), min_size=1, max_size=12))
    programs: dict[int, Program] = {rank: [] for rank in range(4)}
    for group in calls:
        for rank in group:
            programs[rank] += [draw(st.integers(1, 90)) * US, group]
    return programs


@given(_programs())
def test_blame_is_that_of_the_plain_way(programs: dict[int, Program]) -> None:
    calls, waits = played(programs)
    expected = one_by_one(calls, waits)
    found = by_rank(blamed(calls, waits))
    whole = sum(waits)
    for rank in range(4):
        assert found.get(rank, 0) == pytest.approx(expected.get(rank, 0), abs=0.002 * whole + 1)

"""Sends and receives that belong together, and how long each end waited for the other."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from calls import Call, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens import messages, waiting
from tracelens.clocks import Clocks
from tracelens.joining import Joined
from tracelens.matching import UNMATCHED, Matching
from tracelens.model.trace import NONE
from tracelens.operations import ALL_REDUCE, RECV, SEND
from tracelens.run import Run
from tracelens.steps import BEFORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.waiting import Waiting

US, MS = 1000, 10**6
NO_RUN = Run([], None, [], [], [])


def message(
    number: int, sender: int = 0, receiver: int = 1, *, ahead: int = 0, at: int | None = None
) -> tuple[Call, Call]:
    """Return both ends of a message; the clock of rank 1 is `ahead`."""
    start = MS * number if at is None else at
    send = Call(sender, start, start + 40 * US, SEND, peer=receiver, elements=64)
    receive = Call(receiver, start - 60 * US, start + 40 * US, RECV, peer=sender, elements=64)
    return shifted(send, ahead), shifted(receive, ahead)


def shifted(call: Call, ahead: int) -> Call:
    by = ahead if call.rank == 1 else 0
    return replace(call, start=call.start + by, end=call.end + by)


def pairs(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Return (send, receive) rows."""
    partner = messages.pair(table_of(calls)).tolist()
    found = [(i, p) for i, p in enumerate(partner) if p >= 0]
    assert all(partner[p] == i for i, p in found)
    return [(i, p) for i, p in found if calls[i].op == SEND]


class TestPairs:
    def test_by_order_between_two_ranks(self) -> None:
        sends = [Call(0, 10 * i, 10 * i + 5, SEND, peer=1) for i in range(3)]
        receives = [Call(1, 10 * i, 10 * i + 5, RECV, peer=0) for i in range(3)]
        assert pairs([*sends, *receives]) == [(0, 3), (1, 4), (2, 5)]

    def test_each_direction_and_peer_by_itself(self) -> None:
        calls = [
            Call(0, 0, 5, SEND, peer=1),
            Call(1, 0, 5, SEND, peer=0),
            Call(1, 1, 5, SEND, peer=2, group=(1, 2)),
            Call(2, 1, 5, RECV, peer=1, group=(1, 2)),
            Call(0, 2, 5, RECV, peer=1),
            Call(1, 2, 5, RECV, peer=0),
        ]
        assert sorted(pairs(calls)) == [(0, 5), (1, 4), (2, 3)]

    def test_groups_keep_their_own_order(self) -> None:
        """Two communicators between the same ranks may finish in another order each."""
        calls = [
            Call(0, 0, 5, SEND, peer=1, elements=1),
            Call(0, 1, 5, SEND, peer=1, elements=2, group=(0, 1, 2)),
            Call(1, 0, 5, RECV, peer=0, elements=2, group=(0, 1, 2)),
            Call(1, 1, 5, RECV, peer=0, elements=1),
        ]
        assert sorted(pairs(calls)) == [(0, 3), (1, 2)]

    def test_a_group_only_one_end_names(self) -> None:
        calls = [Call(0, 0, 5, SEND, peer=1), Call(1, 0, 5, RECV, peer=0, group=None)]
        assert pairs(calls) == [(0, 1)]

    def test_other_sizes_are_other_messages(self) -> None:
        calls = [Call(0, 0, 5, SEND, peer=1, elements=8), Call(1, 0, 5, RECV, peer=0, elements=9)]
        assert pairs(calls) == []

    def test_steps_do_not_mix(self) -> None:
        calls = [
            Call(0, 0, 5, SEND, peer=1, step=1),
            Call(0, 9, 15, SEND, peer=1, step=2),
            Call(1, 9, 15, RECV, peer=0, step=2),
        ]
        assert pairs(calls) == [(1, 2)]

    def test_nothing_without_a_peer_or_a_kernel(self) -> None:
        calls = [
            Call(0, 0, 5, SEND),
            Call(1, 0, 5, RECV, peer=0),
            Call(0, 9, 15, SEND, peer=1, kernel=NONE),
            Call(1, 9, 15, RECV, peer=0),
            Call(0, 0, 5, ALL_REDUCE),
        ]
        assert pairs(calls) == []

    def test_recordings_that_begin_apart(self) -> None:
        """Before the first step, with nothing to tell clocks: the last messages line up."""
        sends = [Call(0, 10 * i, 10 * i + 5, SEND, peer=1, step=BEFORE) for i in range(4)]
        receives = [Call(1, 10 * i, 10 * i + 5, RECV, peer=0, step=BEFORE) for i in range(3)]
        assert pairs([*sends, *receives]) == [(1, 4), (2, 5), (3, 6)]

    def test_a_step_that_is_cut(self) -> None:
        sends = [Call(0, 10 * i, 10 * i + 5, SEND, peer=1) for i in range(4)]
        receives = [Call(1, 10 * i, 10 * i + 5, RECV, peer=0) for i in range(3)]
        assert pairs([*sends, *receives]) == [(0, 4), (1, 5), (2, 6)]

    def test_whole_steps_tell_the_clocks_for_one_with_a_loss_inside(self) -> None:
        ahead = 7 * 60 * 10**9
        whole = [end for i in range(3) for end in message(i, ahead=ahead)]
        cut = [
            replace(end, step=2, complete=False)
            for i in range(3, 9)
            for end in message(i, ahead=ahead)
        ]
        lost = [end for i, end in enumerate(cut) if i not in (4, 9)]
        expected = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (11, 12), (14, 15)]
        assert pairs([*whole, *lost]) == expected


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[Call], set[tuple[int, int]]]:
    """Draw messages of a step both ways, of which each end may lack any, and what belongs together.

    A whole step before tells the clocks; within the step a message takes longer than clocks err.
    """
    ahead = draw(st.integers(-(10**12), 10**12))
    whole = [end for i in range(2) for end in message(i, i % 2, 1 - i % 2, ahead=ahead)]
    ends: list[tuple[int, Call]] = [(-1 - i, call) for i, call in enumerate(whole)]
    at = 10 * MS
    for number in range(draw(st.integers(1, 12))):
        at += draw(st.integers(1, 5)) * MS
        way = draw(st.sampled_from([(0, 1), (1, 0)]))
        size = draw(st.sampled_from([64, 64, 32]))
        for end in message(number, *way, ahead=ahead, at=at):
            if draw(st.integers(0, 3)):
                cut = replace(end, step=2, complete=False, elements=size)
                ends.append((number, cut))
    ends.sort(key=lambda one: (one[1].rank, one[1].start))
    calls = [call for _, call in ends]
    twins = {
        (i, j)
        for (i, a), (j, b) in itertools.permutations(enumerate(ends), 2)
        if a[0] == b[0] >= 0 and a[1].op == SEND and b[1].op == RECV
    }
    return calls, twins


@settings(max_examples=200)
@given(recordings())
def test_lost_ends_never_shift_the_others(case: tuple[list[Call], set[tuple[int, int]]]) -> None:
    calls, twins = case
    found = {pair for pair in pairs(calls) if calls[pair[0]].step == 2}
    assert found == twins


def split(calls: Sequence[Call], clocks: Clocks, *, host: bool = False) -> Waiting:
    none = np.full(len(calls), NONE)
    nothing = Matching(np.full(len(calls), UNMATCHED), np.zeros(len(calls), np.int8))
    joined = Joined(nothing, clocks, [], set(), none)
    result = waiting.Waiting(joined, none, none.copy(), none.copy())
    result.times_are_the_devices = not host
    table = table_of(calls)
    messages.add_waiting(table, messages.pair(table), result)
    return result


ONE_CLOCK = Clocks({0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0})


class TestWaiting:
    def test_until_the_later_end_starts(self) -> None:
        calls = [Call(0, 10, 60, SEND, peer=1), Call(1, 40, 60, RECV, peer=0)]
        assert split(calls, ONE_CLOCK).wait_ns.tolist() == [30, 0]

    def test_clocks_are_heeded(self) -> None:
        calls = [Call(0, 10, 60, SEND, peer=1), Call(1, 1040, 1060, RECV, peer=0)]
        apart = Clocks({0: 0, 1: 1000}, {0: 0, 1: 0})
        assert split(calls, apart).wait_ns.tolist() == [30, 0]
        unlinked = Clocks({0: 0, 1: 0}, {0: 0, 1: 1})
        assert split(calls, unlinked).wait_ns.tolist() == [NONE, NONE]

    def test_a_buffered_send_waits_for_nobody(self) -> None:
        calls = [Call(0, 10, 20, SEND, peer=1), Call(1, 40, 60, RECV, peer=0)]
        assert split(calls, ONE_CLOCK).wait_ns.tolist() == [0, 0]

    def test_a_batch_waits_for_its_last_message(self) -> None:
        calls = [
            Call(1, 10, 90, SEND, peer=0),
            Call(1, 10, 90, RECV, peer=2, kernel=0, group=(1, 2)),
            Call(0, 30, 90, RECV, peer=1),
            Call(2, 70, 90, SEND, peer=1, group=(1, 2)),
        ]
        seen = split(calls, ONE_CLOCK)
        assert seen.wait_ns.tolist() == [60, 0, 0, 0]

    def test_a_batch_of_which_one_message_is_unmatched_is_not_split(self) -> None:
        calls = [
            Call(1, 10, 90, SEND, peer=0),
            Call(1, 10, 90, RECV, peer=2, kernel=0, group=(1, 2)),
            Call(0, 30, 90, RECV, peer=1),
        ]
        assert split(calls, ONE_CLOCK).wait_ns.tolist() == [NONE, NONE, 0]

    def test_a_host_backend_ends_a_send_when_it_is_asked_for(self) -> None:
        """What follows the receive's end is no transfer."""
        calls = [Call(0, 50, 500, SEND, peer=1), Call(1, 10, 60, RECV, peer=0)]
        seen = split(calls, ONE_CLOCK, host=True)
        assert seen.wait_ns.tolist() == [440, 40]
        assert split(calls, ONE_CLOCK).wait_ns.tolist() == [0, 40]


class TestClocks:
    @pytest.mark.parametrize("ahead", [0, 5 * MS, -(10**12)])
    def test_messages_link_ranks_that_share_no_collective(self, ahead: int) -> None:
        calls = [end for i in range(6) for end in message(i, i % 2, 1 - i % 2, ahead=ahead)]
        clocks = waiting.observe(NO_RUN, table_of(calls)).clocks
        assert clocks.component[0] == clocks.component[1]
        assert clocks.offset_ns[1] - clocks.offset_ns[0] == ahead

    def test_collectives_come_first(self) -> None:
        """A message's ends may differ; where collectives link two ranks they are not asked."""
        calls = [Call(rank, 100 * i, 100 * i + 50) for rank in (0, 1) for i in range(3)]
        late = [Call(0, 900, 990, SEND, peer=1), Call(1, 900, 995, RECV, peer=0)]
        clocks = waiting.observe(NO_RUN, table_of([*calls, *late])).clocks
        assert clocks.offset_ns == {0: 0, 1: 0}

    def test_a_message_without_its_other_end_tells_nothing(self) -> None:
        calls = [Call(1, 10, 90, SEND, peer=0), *message(1, at=200)]
        table = table_of(calls)
        met, number = messages.meetings(table, messages.pair(table), Clocks())
        assert met["rank"].tolist() == [0, 1]
        assert number.tolist() == [0, 0]

    @pytest.mark.parametrize("first", [True, False])
    def test_a_batch_with_two_ranks_tells_nothing(self, first: bool) -> None:
        calls = [
            Call(1, 10, 90, SEND, peer=0),
            Call(1, 10, 90, RECV, peer=2, kernel=0, group=(1, 2)),
            Call(0, 30, 40, RECV, peer=1),
            Call(2, 70, 90, SEND, peer=1, group=(1, 2)),
        ]
        if not first:
            calls = [calls[2], calls[3], replace(calls[0]), replace(calls[1], kernel=2)]
        table = table_of(calls)
        met, _ = messages.meetings(table, messages.pair(table), Clocks())
        assert not len(met)

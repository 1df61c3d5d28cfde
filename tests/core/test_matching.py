"""Which calls of different ranks are one collective."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from builders import Group, Schema, Trace
from calls import Call, table_of, together
from hypothesis import given
from hypothesis import strategies as st

from tracelens import operations_table
from tracelens.matching import CONFIDENCES, match
from tracelens.model.trace import NONE
from tracelens.operations import ALL_GATHER, ALL_TO_ALL, RECV, SEND, SEND_RECV
from tracelens.run import assemble
from tracelens.steps import BEFORE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.reduced import RankReduction


def calls_of(rank: int, sizes: Sequence[int], **fields: object) -> list[Call]:
    """Return a rank's calls in order of time; ranks' clocks have nothing to do with each other."""
    first = 1000 * rank
    return [
        replace(Call(rank, first + 10 * i, first + 10 * i + 5, elements=size), **fields)  # type: ignore[arg-type]
        for i, size in enumerate(sizes)
    ]


def matched(calls: Sequence[Call]) -> set[frozenset[tuple[int, int]]]:
    """Return each instance as {(rank, place among the rank's calls)}."""
    place: dict[int, int] = {}
    names = []
    for call in calls:
        names.append((call.rank, place.get(call.rank, 0)))
        place[call.rank] = place.get(call.rank, 0) + 1
    rows = together(match(table_of(calls)).instance)
    return {frozenset(names[row] for row in members) for members in rows}


def pairs(*places: tuple[int, int]) -> set[frozenset[tuple[int, int]]]:
    """Return instances of ranks 0 and 1, given as (place on rank 0, place on rank 1)."""
    return {frozenset({(0, first), (1, second)}) for first, second in places}


class TestByOrder:
    def test_identical_orders(self) -> None:
        calls = [*calls_of(0, [8, 8, 4, 8]), *calls_of(1, [8, 8, 4, 8])]
        assert matched(calls) == pairs((0, 0), (1, 1), (2, 2), (3, 3))

    def test_order_is_time_and_not_row(self) -> None:
        calls = [*calls_of(0, [1, 2]), *reversed(calls_of(1, [1, 2]))]
        assert matched(calls) == pairs((0, 1), (1, 0))

    @pytest.mark.parametrize(
        ("gone", "expected"),
        [
            ({0}, [(1, 0), (2, 1), (3, 2), (4, 3)]),
            ({4}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
            ({2}, [(0, 0), (1, 1), (3, 2), (4, 3)]),
            ({0, 2, 4}, [(1, 0), (3, 1)]),
        ],
    )
    def test_a_rank_lacks_calls(self, gone: set[int], expected: list[tuple[int, int]]) -> None:
        whole = [1, 2, 3, 4, 5]
        left = [size for place, size in enumerate(whole) if place not in gone]
        assert matched([*calls_of(0, whole), *calls_of(1, left)]) == pairs(*expected)

    def test_the_rank_with_less_than_usual_is_not_the_reference(self) -> None:
        everyone = (0, 1, 2)
        calls = [
            *calls_of(0, [2], group=everyone),
            *calls_of(1, [1, 2, 3], group=everyone),
            *calls_of(2, [1, 2, 3], group=everyone),
        ]
        assert matched(calls) == {
            frozenset({(1, 0), (2, 0)}),
            frozenset({(0, 0), (1, 1), (2, 1)}),
            frozenset({(1, 2), (2, 2)}),
        }

    def test_each_step_starts_anew(self) -> None:
        """A call that one rank lacks shifts nothing in the steps that follow."""
        steps = [*calls_of(0, [8, 8, 8], step=1), *calls_of(0, [8, 8], step=2)]
        other = [*calls_of(1, [8, 8], step=1), *calls_of(1, [8, 8], step=2)]
        found = matched([*steps, *other])
        assert {frozenset({(0, 3), (1, 2)}), frozenset({(0, 4), (1, 3)})} <= found

    def test_steps_only_one_rank_has(self) -> None:
        assert matched([*calls_of(0, [8], step=1), *calls_of(1, [8], step=2)]) == set()

    @pytest.mark.parametrize(
        "other", [{"elements": 9}, {"dtype": "bfloat16"}, {"op": ALL_GATHER}], ids=str
    )
    def test_other_sizes_dtypes_and_operations_are_no_pair(self, other: dict[str, object]) -> None:
        calls = [*calls_of(0, [8, 7]), *calls_of(1, [8], **other), *calls_of(1, [7])]
        calls[3] = replace(calls[3], start=calls[3].start + 500)
        assert matched(calls) == pairs((1, 1))

    def test_sizes_of_an_all_to_all_differ_from_rank_to_rank(self) -> None:
        calls = [*calls_of(0, [8, 9], op=ALL_TO_ALL), *calls_of(1, [5, 11], op=ALL_TO_ALL)]
        assert matched(calls) == pairs((0, 0), (1, 1))

    def test_untimed_calls_take_no_place(self) -> None:
        calls = [*calls_of(0, [7, 8]), *calls_of(1, [7, 8])]
        calls[0] = replace(calls[0], start=NONE, end=NONE)
        assert matched(calls) == pairs((1, 1))


class TestBeforeTheFirstStep:
    """Recording starts somewhere among these calls: only their ends line up."""

    def test_ends_line_up(self) -> None:
        calls = [*calls_of(0, [8] * 5, step=BEFORE), *calls_of(1, [8] * 3, step=BEFORE)]
        assert matched(calls) == pairs((2, 0), (3, 1), (4, 2))

    def test_with_calls_of_other_sizes_among_them(self) -> None:
        calls = [*calls_of(0, [4, 8, 8, 4, 8], step=BEFORE), *calls_of(1, [8, 4, 8], step=BEFORE)]
        assert matched(calls) == pairs((2, 0), (3, 1), (4, 2))

    def test_one_rank_launched_one_more_before_the_step(self) -> None:
        """Sizes say that the last call of rank 0 is not the last one of rank 1."""
        calls = [*calls_of(0, [1, 2, 3, 4], step=BEFORE), *calls_of(1, [2, 3], step=BEFORE)]
        assert matched(calls) == pairs((1, 0), (2, 1))


class TestSequenceNumbers:
    def numbered(self, rank: int, seqs: Sequence[int]) -> list[Call]:
        calls = calls_of(rank, [8] * len(seqs))
        return [replace(call, seq=seq) for call, seq in zip(calls, seqs, strict=True)]

    def test_they_beat_order(self) -> None:
        calls = [*self.numbered(0, [3, 4, 5]), *self.numbered(1, [4, 5, 6])]
        assert matched(calls) == pairs((1, 0), (2, 1))

    def test_they_cross_steps(self) -> None:
        """The call launched on the edge of a step counts for step 1 here and step 2 there."""
        other = [replace(call, step=2) for call in self.numbered(1, [3])]
        assert matched([*self.numbered(0, [3]), *other]) == pairs((0, 0))

    def test_one_that_repeats_says_nothing(self) -> None:
        calls = [*self.numbered(0, [0, 0, 0]), *self.numbered(1, [0, 0, 0])]
        assert matched(calls) == pairs((0, 0), (1, 1), (2, 2))

    def test_one_missing_number_makes_order_count(self) -> None:
        calls = [*self.numbered(0, [3, 4, NONE]), *self.numbered(1, [9, 8, 7])]
        assert matched(calls) == pairs((0, 0), (1, 1), (2, 2))

    @pytest.mark.parametrize(
        "other", [{"elements": 9}, {"dtype": "bfloat16"}, {"op": ALL_GATHER}], ids=str
    )
    def test_equal_numbers_of_unlike_calls_are_no_pair(self, other: dict[str, object]) -> None:
        """Two groups of one rank list (world and data parallel) count apart."""
        [call] = self.numbered(1, [3])
        unlike = replace(call, **other)  # type: ignore[arg-type]
        assert matched([*self.numbered(0, [3]), unlike]) == set()


class TestGroups:
    def test_a_group_with_one_rank_present_is_ignored(self) -> None:
        calls = [*calls_of(0, [8, 8], group=(0, 7)), *calls_of(1, [8, 8], group=(1, 6))]
        assert matched(calls) == set()

    def test_a_rank_alone_in_a_step(self) -> None:
        assert matched([*calls_of(0, [8, 9]), *calls_of(1, [8])]) == pairs((0, 0))

    def test_one_name_of_two_rank_lists(self) -> None:
        calls = [
            call
            for group in ((0, 1), (2, 3))
            for rank in group
            for call in calls_of(rank, [8], group=group, name="tp")
        ]
        assert matched(calls) == {frozenset({(0, 0), (1, 0)}), frozenset({(2, 0), (3, 0)})}

    def test_a_name_without_a_rank_list_may_be_two_groups(self) -> None:
        calls = [call for rank in range(4) for call in calls_of(rank, [8], group=None, name="tp")]
        assert matched(calls) == set()

    def test_two_groups_of_a_rank_keep_their_own_order(self) -> None:
        tp, dp = (0, 1), (0, 1, 2)
        calls = [
            *calls_of(0, [8], group=tp),
            *calls_of(0, [8], group=dp),
            *calls_of(1, [8], group=dp),
            *calls_of(1, [8], group=tp),
            *calls_of(2, [8], group=dp),
        ]
        expected = {frozenset({(0, 0), (1, 1)}), frozenset({(0, 1), (1, 0), (2, 0)})}
        assert matched(calls) == expected

    @pytest.mark.parametrize("op", [SEND, RECV, SEND_RECV])
    def test_point_to_point_is_left_out(self, op: str) -> None:
        assert matched([*calls_of(0, [8], op=op), *calls_of(1, [8], op=op)]) == set()


class TestLongLists:
    """Their times say nothing: equal calls follow each other closer than ends fall together."""

    @pytest.mark.parametrize("step", [1, BEFORE])
    def test_one_more_in_front(self, step: int) -> None:
        sizes = [1 + i % 7 for i in range(600)]
        calls = [*calls_of(0, [3, *sizes], step=step), *calls_of(1, sizes, step=step)]
        assert matched(calls) == pairs(*((i + 1, i) for i in range(600)))

    @pytest.mark.parametrize("step", [1, BEFORE])
    def test_one_more_at_the_end(self, step: int) -> None:
        sizes = [1 + i % 7 for i in range(600)]
        calls = [*calls_of(0, sizes, step=step), *calls_of(1, [*sizes, 3], step=step)]
        assert matched(calls) == pairs(*((i, i) for i in range(600)))

    @pytest.mark.parametrize("count", [240, 600])
    def test_one_less_amid_layers_that_repeat(self, count: int) -> None:
        sizes = [1 + i % 7 for i in range(count)]
        calls = [*calls_of(0, sizes), *calls_of(1, [*sizes[:50], *sizes[51:]])]
        assert matched(calls) == pairs(*((i, i - (i > 50)) for i in range(count) if i != 50))

    def test_three_more_at_any_place_lose_nothing(self) -> None:
        sizes = list(range(1, 601))
        more = [*sizes[:50], 9001, *sizes[50:300], 9002, *sizes[300:560], 9003, *sizes[560:]]
        shift = [0] * 50 + [1] * 250 + [2] * 260 + [3] * 40
        expected = pairs(*((i, i + shift[i]) for i in range(600)))
        assert matched([*calls_of(0, sizes), *calls_of(1, more)]) == expected

    def test_ranks_of_the_usual_length_lose_nothing_to_a_longer_one(self) -> None:
        sizes = list(range(1, 601))
        odd = [9001, *sizes[:100], 9002, *sizes[100:], 9003]
        runs = enumerate((odd, sizes, sizes))
        found = matched([c for rank, own in runs for c in calls_of(rank, own, group=(0, 1, 2))])
        assert found == {frozenset({(1, i), (2, i), (0, i + 1 + (i >= 100))}) for i in range(600)}

    @pytest.mark.parametrize("cut", [1, 33, 500])
    def test_lists_far_apart(self, cut: int) -> None:
        sizes = list(range(1, 601))
        calls = [*calls_of(0, sizes), *calls_of(1, [9001, *sizes[cut:], 9002])]
        assert matched(calls) == pairs(*((i + cut, i + 1) for i in range(600 - cut)))


def test_both_ends_differ_and_each_size_repeats_often() -> None:
    sizes = [1 + i % 7 for i in range(300)]
    calls = [*calls_of(0, sizes), *calls_of(1, [9, *sizes, 9])]
    assert matched(calls) == pairs(*((i, i + 1) for i in range(300)))


@st.composite
def _runs(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Draw (step, the calls each rank kept of the true ones); a call's size tells which it is."""
    count = draw(st.integers(1, 30))
    edge = st.integers(0, min(4, count // 2))
    ranks = [list(range(draw(edge), count - draw(edge))) for _ in range(draw(st.integers(2, 5)))]
    # Means are over whole ranks: the usual one has all its calls.
    whole = [list(range(count))] * (len(ranks) + 1)
    step = draw(st.sampled_from([1, BEFORE]))
    return step, draw(st.permutations([*ranks, *whole]))


@given(_runs())
def test_instances_are_the_true_ones(run: tuple[int, list[list[int]]]) -> None:
    """Whatever the ranks lack at the edges: what is there is matched, and to nothing else."""
    step, ranks = run
    everyone = tuple(range(len(ranks)))
    calls = [
        call
        for rank, kept in enumerate(ranks)
        for call in calls_of(rank, [1 + true for true in kept], group=everyone, step=step)
    ]
    expected: dict[int, set[int]] = {}
    for row, call in enumerate(calls):
        expected.setdefault(call.elements, set()).add(row)
    assert together(match(table_of(calls)).instance) == {
        frozenset(rows) for rows in expected.values()
    }


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=20),
    st.lists(st.integers(0, 6), min_size=2, max_size=5),
)
def test_lists_cut_at_the_front_line_up_at_their_ends(sizes: list[int], cuts: list[int]) -> None:
    """Sizes repeat here: what tells calls apart is their place counted from the end."""
    everyone = tuple(range(len(cuts) + len(cuts) + 1))
    kept = [*(sizes[cut:] for cut in cuts), *([sizes] * (len(cuts) + 1))]
    calls: list[Call] = []
    place: list[int] = []
    for rank, own in enumerate(kept):
        calls += calls_of(rank, own, group=everyone, step=BEFORE)
        place += range(len(own), 0, -1)
    expected: dict[int, set[int]] = {}
    for row, from_end in enumerate(place):
        expected.setdefault(from_end, set()).add(row)
    assert together(match(table_of(calls)).instance) == {
        frozenset(rows) for rows in expected.values()
    }


# how sure a match is -----------------------------------------------------------------------------

US, MS = 1000, 10**6
EVERYONE = (0, 1, 2)


def confidences(calls: Sequence[Call]) -> list[str]:
    """Return the confidence of each call, "" for calls that match none."""
    found = match(table_of(calls))
    return [
        CONFIDENCES[code] if number >= 0 else ""
        for number, code in zip(found.instance.tolist(), found.confidence.tolist(), strict=True)
    ]


def kept_of(
    rank: int,
    true: Sequence[tuple[int, int]],
    gone: Sequence[int] = (),
    *,
    offset: int = 0,
    jitter: Callable[[], int] = lambda: 0,
    **fields: object,
) -> list[Call]:
    """Return the calls a rank kept of the true ones, (size, end) each, as its clock shows them."""
    return [
        Call(rank, end + offset - 20 * US, end + offset + jitter(), elements=size, **fields)  # type: ignore[arg-type]
        for place, (size, end) in enumerate(true)
        if place not in gone
    ]


def times_of(count: int, seed: int, kinds: int = 1, low: int = 300 * US) -> list[tuple[int, int]]:
    """Return (size, end) of calls that follow each other in 0.3 to 1.5 ms."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(random.integers(low, 5 * low, count))
    return [(1 + i % kinds, int(end)) for i, end in enumerate(ends)]


class TestConfidence:
    def test_numbers_are_exact(self) -> None:
        calls = [replace(call, seq=3) for rank in (0, 1) for call in calls_of(rank, [8])]
        assert confidences(calls) == ["exact"] * 2

    def test_order_in_a_step_with_equal_sizes_is_high(self) -> None:
        assert confidences([*calls_of(0, [8, 9]), *calls_of(1, [8, 9])]) == ["high"] * 4

    def test_unknown_sizes_are_medium(self) -> None:
        calls = [*calls_of(0, [8, NONE]), *calls_of(1, [8, NONE])]
        assert confidences(calls) == ["high", "medium"] * 2

    def test_sizes_of_an_all_to_all_are_compared_with_nothing(self) -> None:
        calls = [*calls_of(0, [8], op=ALL_TO_ALL), *calls_of(1, [8], op=ALL_TO_ALL)]
        assert confidences(calls) == ["medium"] * 2

    def test_a_list_that_lacks_a_call_of_its_own_size(self) -> None:
        """Times say nothing here, and only one way of leaving a call out fits the sizes."""
        calls = [*calls_of(0, [1, 2, 3]), *calls_of(1, [1, 3])]
        assert confidences(calls) == ["medium", "", "medium", "medium", "medium"]

    def test_which_of_equal_calls_is_lacking_is_low(self) -> None:
        calls = [*calls_of(0, [8, 8, 8, 5]), *calls_of(1, [8, 8, 5])]
        assert confidences(calls) == ["low", "low", "", "medium", "low", "low", "medium"]

    def test_an_instance_is_as_sure_as_its_least_sure_member(self) -> None:
        sizes = [([8, 8, 5], EVERYONE)] * 2 + [([8, 5], EVERYONE)]
        calls = [c for rank, (own, g) in enumerate(sizes) for c in calls_of(rank, own, group=g)]
        assert confidences(calls) == ["low", "high", "medium"] * 2 + ["low", "medium"]

    @pytest.mark.parametrize("lacking", [0, 1, 30, 58, 59])
    def test_times_tell_which_of_equal_calls_is_lacking(self, lacking: int) -> None:
        true = times_of(60, seed=4)
        whole = kept_of(0, true)
        calls = [*whole, *kept_of(1, true, [lacking], offset=10**10)]
        expected = [place for place in range(60) if place != lacking]
        assert matched(calls) == pairs(*((place, i) for i, place in enumerate(expected)))
        assert set(confidences(calls)) == {"medium", ""}


class TestWithoutStepMarks:
    """The whole recording is one list, which begins and ends elsewhere on each rank."""

    def lists(self, *gone: Sequence[int], count: int = 400, kinds: int = 1) -> list[Call]:
        true = times_of(count, seed=1, kinds=kinds)
        random = np.random.default_rng(2)
        return [
            call
            for rank, lacking in enumerate(gone)
            for call in kept_of(
                rank,
                true,
                lacking,
                offset=rank * 700 * MS,
                jitter=lambda: int(random.normal(0, 8 * US)),
                step=BEFORE,
                group=tuple(range(len(gone))),
            )
        ]

    def expected(self, *gone: Sequence[int], count: int = 400) -> set[frozenset[tuple[int, int]]]:
        kept = [[i for i in range(count) if i not in lacking] for lacking in gone]
        instances = (
            frozenset((rank, own.index(i)) for rank, own in enumerate(kept) if i in own)
            for i in range(count)
        )
        return {members for members in instances if len(members) > 1}

    @pytest.mark.parametrize("kinds", [1, 3])
    @pytest.mark.parametrize(
        "gone",
        [
            ((), ()),
            (range(1), range(399, 400)),  # equal lists, of which no two calls belong together
            (range(7), range(350, 400)),
            (range(120), ()),
            ((), (200,)),
            ((13,), (14,)),
            ((0, 1, 77, 300), (5, 77, 399), (6, 78, 301)),
            ((0, 1), (1, 20), (0, 30)),  # what the first lacks, the others have one each of
        ],
        ids=str,
    )
    def test_every_call_finds_its_own(self, gone: tuple[Sequence[int], ...], kinds: int) -> None:
        assert matched(self.lists(*gone, kinds=kinds)) == self.expected(*gone)

    def test_thousands_of_equal_calls(self) -> None:
        gone = (range(3), (2500,), (0, 1, 1700, 4999))
        found = matched(self.lists(*gone, count=5000))
        assert found == self.expected(*gone, count=5000)

    def test_equal_lists_whose_times_agree_are_high(self) -> None:
        assert set(confidences(self.lists((), ()))) == {"high"}

    def test_lists_cut_elsewhere_are_medium(self) -> None:
        assert set(confidences(self.lists(range(9), ()))) == {"medium", ""}

    def test_calls_the_reference_lacks_are_matched_among_the_others(self) -> None:
        """Rank 0's list is as long as any and the first: still its gaps are nobody else's."""
        gone = ((10, 11, 12), (0, 1, 399), (20, 21, 22))
        assert matched(self.lists(*gone)) == self.expected(*gone)

    def test_a_clock_of_steady_ticks_tells_nothing(self) -> None:
        """Equal calls at equal distances: any shift fits, so nothing is more than a guess."""
        true = [(8, 500 * US * i) for i in range(100)]
        calls = [*kept_of(0, true, step=BEFORE), *kept_of(1, true, [0], step=BEFORE)]
        assert set(confidences(calls)) == {"low", ""}

    def test_drift_over_ten_seconds(self) -> None:
        """At 40 ppm the clocks part by 0.4 ms, as long as calls are apart."""
        true = times_of(6000, seed=3, low=600 * US)
        slow = [(size, end + end // 25_000) for size, end in true]
        calls = [*kept_of(0, true, [4], step=BEFORE), *kept_of(1, slow, [3000], step=BEFORE)]
        expected = [(i - (i > 4), i - (i > 3000)) for i in range(6000) if i not in {4, 3000}]
        assert matched(calls) == pairs(*expected)


@st.composite
def _recorded(draw: st.DrawFn) -> tuple[list[Call], set[frozenset[int]]]:
    """Draw calls of ranks that lack any, on clocks that are seconds apart, and what they are."""
    seed = draw(st.integers(0, 2**32 - 1))
    ranks = draw(st.integers(2, 5))
    count = draw(st.integers(40, 80))
    true = times_of(count, seed, kinds=draw(st.integers(1, 4)))
    step = draw(st.sampled_from([BEFORE, 1]))
    random = np.random.default_rng(seed)
    calls: list[Call] = []
    instances: dict[int, set[int]] = {}
    for rank in range(ranks):
        # Equal lists in a step are taken as they are: there each rank lacks another number.
        lacking = draw(st.integers(0, 8)) if step == BEFORE else rank
        gone = set(random.choice(count, lacking, replace=False).tolist())
        if step == BEFORE:
            gone |= set(range(draw(st.integers(0, 8))))
            gone |= set(range(count - draw(st.integers(0, 8)), count))
        for place in sorted(set(range(count)) - gone):
            instances.setdefault(place, set()).add(len(calls))
            [call] = kept_of(
                rank,
                [true[place]],
                offset=rank * 10**9 * (-1) ** rank,
                jitter=lambda: int(random.normal(0, 5 * US)),
                step=step,
                group=tuple(range(ranks)),
            )
            calls.append(call)
    return calls, {frozenset(rows) for rows in instances.values() if len(rows) > 1}


@given(_recorded())
def test_whatever_is_lacking_no_call_is_matched_to_another(
    run: tuple[list[Call], set[frozenset[int]]],
) -> None:
    """Nothing is mistaken, and nothing but a call here and there is missed."""
    calls, expected = run
    found = together(match(table_of(calls)).instance)
    truth = {row: members for members in expected for row in members}
    for members in found:
        assert all(row in truth and members <= truth[row] for row in members)
    assert sum(map(len, found)) >= 0.97 * sum(map(len, expected))


class TestRuns:
    def test_ranks_of_different_runs_never_match(self) -> None:
        calls = [call for rank in range(4) for call in calls_of(rank, [8, 9], group=(0, 1, 2, 3))]
        found = match(table_of(calls), {0: 0, 1: 0, 2: 1, 3: 1})
        assert together(found.instance) == {
            frozenset({0, 2}), frozenset({1, 3}), frozenset({4, 6}), frozenset({5, 7}),
        }  # fmt: skip

    def test_a_rank_alone_in_its_run(self) -> None:
        calls = [call for rank in range(2) for call in calls_of(rank, [8], seq=1)]
        assert together(match(table_of(calls), {0: 0, 1: 1}).instance) == set()


def test_two_groups_of_one_rank_list_count_apart() -> None:
    """World and data-parallel group have the same ranks and start at 0 both: `Comms Id` tells."""
    calls = []
    for rank, order in ((0, (70, 71)), (1, (71, 70))):
        for place, number in enumerate(order):
            calls.append(Call(rank, 10 * place, 10 * place + 5, seq=0, comms_id=number))
    assert together(match(table_of(calls)).instance) == {frozenset({0, 3}), frozenset({1, 2})}


def test_a_comms_id_that_repeats_says_nothing() -> None:
    calls = [Call(r, 10 * i, 10 * i + 5, seq=i, comms_id=5) for r in (0, 1) for i in range(3)]
    found = together(match(table_of(calls)).instance)
    assert found == {frozenset({i, i + 3}) for i in range(3)}


# through files -----------------------------------------------------------------------------------


def table_of_files(*files: RankReduction) -> operations_table.OperationsTable:
    return operations_table.build(assemble(list(files)))


def instances(table: operations_table.OperationsTable) -> set[frozenset[tuple[int, int, int]]]:
    """Return each instance as {(rank, cycle, start in microseconds)}."""
    frame = table.frame
    names = list(zip(frame["rank"], frame["cycle"], frame["start"] // 1000, strict=True))
    return {frozenset(names[row] for row in rows) for rows in together(match(table).instance)}


def test_cycles_of_the_profiler_are_kept_apart() -> None:
    """Both cycles call their steps 1: what rank 1 lacks in the first is not taken of the second."""
    files = []
    for rank, cycle in itertools.product((0, 1), (0, 1)):
        base = Trace().base_ns + cycle * 10**9
        trace = Trace(rank=rank, schema=Schema(torch="2.5"), base_ns=base, pid=7 + rank)
        trace.step(1, 100, 900).all_reduce(300 + rank, 50).all_reduce(500 + rank, 50)
        if (rank, cycle) != (1, 0):
            trace.all_reduce(700 + rank, 50)
        files.append(trace.reduce())
    assert instances(table_of_files(*files)) == {
        frozenset({(0, 0, 300), (1, 0, 301)}),
        frozenset({(0, 0, 500), (1, 0, 501)}),
        frozenset({(0, 1, 300), (1, 1, 301)}),
        frozenset({(0, 1, 500), (1, 1, 501)}),
        frozenset({(0, 1, 700), (1, 1, 701)}),
    }


def test_sequence_numbers_of_torch_2_12() -> None:
    """Rank 1 misses the first of three equal calls: only the number tells which ones it has."""
    first = Trace(rank=0).step(1, 0, 900)
    for place, seq in enumerate((5, 6, 7)):
        first.all_reduce(100 + 100 * place, 50, seq=seq)
    second = Trace(rank=1).step(1, 0, 900).all_reduce(210, 50, seq=6).all_reduce(310, 50, seq=7)
    assert instances(table_of_files(first.reduce(), second.reduce())) == {
        frozenset({(0, 0, 200), (1, 0, 210)}),
        frozenset({(0, 0, 300), (1, 0, 310)}),
    }


def test_groups_of_one_name_in_files() -> None:
    files = []
    for rank in range(4):
        group = Group((0, 1) if rank < 2 else (2, 3), "7", "tp")
        trace = Trace(rank=rank, world=4, schema=Schema(torch="2.5"), groups=(group,))
        files.append(trace.step(1, 0, 900).all_reduce(100 + rank, 50, group=group).reduce())
    assert instances(table_of_files(*files)) == {
        frozenset({(0, 0, 100), (1, 0, 101)}),
        frozenset({(2, 0, 102), (3, 0, 103)}),
    }

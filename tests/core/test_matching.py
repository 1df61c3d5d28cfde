"""Which calls of different ranks are one collective."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from builders import Group, Schema, Trace
from calls import Call, table_of, together
from hypothesis import given
from hypothesis import strategies as st

from tracelens import operations_table
from tracelens.matching import match
from tracelens.model.trace import NONE
from tracelens.operations import ALL_GATHER, ALL_TO_ALL, RECV, SEND, SEND_RECV
from tracelens.run import assemble
from tracelens.steps import BEFORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.reduction import RankReduction


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
    rows = together(match(table_of(calls)))
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
    """Between what agrees at the ends, beyond 400 calls one shift for all is looked for."""

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

    def test_three_more_lose_the_shorter_part_only(self) -> None:
        sizes = list(range(1, 601))
        more = [*sizes[:50], 9001, *sizes[50:300], 9002, *sizes[300:560], 9003, *sizes[560:]]
        shift = [0] * 50 + [1] * 250 + [2] * 260 + [3] * 40
        kept = [i for i in range(600) if shift[i] != 1]
        expected = pairs(*((i, i + shift[i]) for i in kept))
        assert matched([*calls_of(0, sizes), *calls_of(1, more)]) == expected

    def test_ranks_of_the_usual_length_lose_nothing_to_a_longer_one(self) -> None:
        sizes = list(range(1, 601))
        odd = [9001, *sizes[:100], 9002, *sizes[100:], 9003]
        runs = enumerate((odd, sizes, sizes))
        found = matched([c for rank, own in runs for c in calls_of(rank, own, group=(0, 1, 2))])
        assert found == {
            frozenset({(1, i), (2, i)} | ({(0, i + 2)} if i >= 100 else set())) for i in range(600)
        }

    @pytest.mark.parametrize(("cut", "found"), [(33, True), (34, False)])
    def test_lists_too_far_apart_are_not_guessed(self, cut: int, found: bool) -> None:
        sizes = list(range(1, 601))
        calls = [*calls_of(0, sizes), *calls_of(1, [9001, *sizes[cut:], 9002])]
        expected = pairs(*((i + cut, i + 1) for i in range(600 - cut)))
        assert matched(calls) == (expected if found else set())


def test_a_diff_knows_no_rare_and_frequent_sizes() -> None:
    """Of 300 calls each size repeats often, and both ends differ: difflib would call it junk."""
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
    assert together(match(table_of(calls))) == {frozenset(rows) for rows in expected.values()}


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
    assert together(match(table_of(calls))) == {frozenset(rows) for rows in expected.values()}


# through files -----------------------------------------------------------------------------------


def table_of_files(*files: RankReduction) -> operations_table.OperationsTable:
    return operations_table.build(assemble(list(files)))


def instances(table: operations_table.OperationsTable) -> set[frozenset[tuple[int, int, int]]]:
    """Return each instance as {(rank, cycle, start in microseconds)}."""
    frame = table.frame
    names = list(zip(frame["rank"], frame["cycle"], frame["start"] // 1000, strict=True))
    return {frozenset(names[row] for row in rows) for rows in together(match(table))}


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

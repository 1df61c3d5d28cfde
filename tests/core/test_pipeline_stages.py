"""Stages, micro-batches and schedules from what ranks send and in which order they work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tracelens.model.trace import NONE
from tracelens.passes import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Passes
from tracelens.pipeline.schedules import numbered
from tracelens.pipeline.stages import Pipe, find
from tracelens.pipeline.views import View
from tracelens.simulate.messages import plan
from tracelens.simulate.schedules import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": BACKWARD}
_NAMED = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD_INPUT, "W": BACKWARD_WEIGHT}


def passes(
    kinds: Sequence[int],
    stage: Sequence[int] | None = None,
    number: Sequence[int] | None = None,
    work: int = 10,
) -> Passes:
    count = len(kinds)
    none, launch = np.full(count, NONE), 100 * np.arange(count)
    return Passes(
        np.array(kinds, np.int8),
        none if stage is None else np.array(stage, np.int64),
        none if number is None else np.array(number, np.int64),
        launch,
        launch + work,
        np.full(count, work),
        launch,
    )


def simulated(
    schedule: str, stages: int, micro_batches: int, chunks: int = 1, *, named: bool = False
) -> dict[int, View]:
    """Return what the simulator's schedule shows on each rank, with or without ranges."""
    found = {}
    for stage in range(stages):
        messages: list[tuple[str, int]] = []
        done: list[Action] = []
        for entry in plan(schedule, stage, stages, micro_batches, chunks):
            if isinstance(entry, Action):
                done.append(entry)
            else:
                messages += [(message.op, message.peer) for message in entry]
        owed = _owed(plan(schedule, stage, stages, micro_batches, chunks))
        if named:
            listed = passes(
                [_NAMED[a.kind] for a in done],
                [a.chunk * stages + stage for a in done],
                [a.micro_batch for a in done],
            )
        else:
            listed = passes([_KINDS[a.kind] for a in done if a.kind != "W"])
        found[stage] = View(messages, listed, 0 if named else 10 * owed)
    return found


def _owed(entries: Sequence[object]) -> int:
    last = max(i for i, entry in enumerate(entries) if not isinstance(entry, Action))
    return sum(isinstance(e, Action) and e.kind == "W" for e in entries[last:])


def renamed(views: dict[int, View], names: dict[int, int]) -> dict[int, View]:
    return {
        names[rank]: View([(op, names[peer]) for op, peer in v.messages], v.passes, v.owed_ns)
        for rank, v in views.items()
    }


def described(pipe: Pipe) -> tuple[object, ...]:
    return pipe.members, pipe.schedule, pipe.micro_batches, pipe.virtual


SCHEDULES = [
    ("gpipe", 2, 4, 1, "gpipe"),
    ("gpipe", 4, 8, 1, "gpipe"),
    ("gpipe", 4, 4, 1, "gpipe"),
    ("1f1b", 2, 4, 1, "1f1b"),
    ("1f1b", 4, 4, 1, "1f1b"),
    ("1f1b", 8, 32, 1, "1f1b"),
    ("1f1b", 4, 2, 1, "1f1b"),
    ("1f1b", 3, 5, 1, "1f1b"),
    ("zb-h1", 4, 8, 1, "zb-h1"),
    ("zb-h1", 2, 6, 1, "zb-h1"),
    ("interleaved", 4, 8, 2, "interleaved-1f1b"),
    ("interleaved", 4, 4, 2, "interleaved-1f1b"),
    ("interleaved", 3, 6, 4, "interleaved-1f1b"),
    ("interleaved", 2, 4, 2, "interleaved-1f1b"),
    ("interleaved", 2, 8, 3, "interleaved-1f1b"),
]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("schedule", "stages", "count", "chunks", "name"), SCHEDULES)
def test_every_schedule(
    schedule: str, stages: int, count: int, chunks: int, name: str, named: bool
) -> None:
    [pipe] = find(simulated(schedule, stages, count, chunks, named=named))
    assert described(pipe) == (tuple(range(stages)), name, count, chunks)
    assert pipe.whole
    assert pipe.stages == stages


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_messages_alone_tell_as_much(schedule: str) -> None:
    views = {r: View(v.messages) for r, v in simulated(schedule, 4, 8).items()}
    [pipe] = find(views)
    assert described(pipe) == ((0, 1, 2, 3), schedule, 8, 1)


def test_one_micro_batch_names_no_schedule() -> None:
    [pipe] = find(simulated("1f1b", 4, 1))
    assert described(pipe) == ((0, 1, 2, 3), None, 1, 1)


def test_ranks_need_not_be_in_order_of_stage() -> None:
    names = {0: 6, 1: 2, 2: 9, 3: 0}
    [pipe] = find(renamed(simulated("1f1b", 4, 6), names))
    assert described(pipe) == ((6, 2, 9, 0), "1f1b", 6, 1)
    [pipe] = find(renamed(simulated("interleaved", 4, 4, 2), names))
    assert described(pipe) == ((6, 2, 9, 0), "interleaved-1f1b", 4, 2)


def test_several_pipelines_side_by_side() -> None:
    views = simulated("1f1b", 2, 4)
    both = renamed(views, {0: 0, 1: 4}) | renamed(views, {0: 1, 1: 5})
    assert [pipe.members for pipe in find(both)] == [(0, 4), (1, 5)]


def test_forward_only_is_a_pipeline_too() -> None:
    views = {0: View([("send", 1)] * 3), 1: View([("recv", 0)] * 3)}
    assert [described(pipe) for pipe in find(views)] == [((0, 1), None, 3, 1)]


S, R = "send", "recv"


@pytest.mark.parametrize(
    "messages",
    [
        {0: [(S, 1), (S, 2), (R, 2), (R, 1)], 1: [(R, 0), (S, 2), (R, 2), (S, 0)],
         2: [(R, 1), (R, 0), (S, 0), (S, 1)]},  # a ring without a seam
        {0: [(R, 1), (S, 1)], 1: [(R, 0), (S, 0)]},  # nobody sends first
        {0: [(S, 1), (R, 1)], 1: [(S, 0), (R, 0)]},  # both do
        {0: [(S, 1), (S, 2), (S, 3)], 1: [(R, 0)], 2: [(R, 0)], 3: [(R, 0)]},  # a star
        {0: [(S, 0)], 1: [(R, 0)]},  # a damaged peer: rank 0 sends to itself
    ],
)  # fmt: skip
def test_what_is_no_line_gives_no_stages(messages: dict[int, list[tuple[str, int]]]) -> None:
    assert find({rank: View(listed) for rank, listed in messages.items()}) == []


def test_an_order_that_fits_no_schedule_is_not_named() -> None:
    """Stages and micro-batches are counted all the same, as every rank runs as many passes."""
    views = {
        0: View([(S, 1), (S, 1), (R, 1), (S, 1), (R, 1), (R, 1)], passes([0, 0, 1, 0, 1, 1])),
        1: View([(R, 0), (R, 0), (R, 0), (S, 0), (S, 0), (S, 0)], passes([0, 0, 0, 1, 1, 1])),
    }
    assert [described(pipe) for pipe in find(views)] == [((0, 1), None, 3, 1)]


def folded(*, full: bool) -> dict[int, View]:
    """Return a V-shaped schedule of two ranks: stages 0 and 3, 1 and 2; passes named."""
    kinds = [FORWARD, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT]
    views = {}
    for rank, own in ((0, (0, 3)), (1, (1, 2))):
        listed = [(kind, stage) for stage in own for kind in kinds]
        listed += [(BACKWARD, own[0])] if full else []
        messages = [(S, 1 - rank), (R, 1 - rank)]
        numbers = [0] * len(listed)
        views[rank] = View(
            messages[:: 1 if rank == 0 else -1],
            passes([k for k, _ in listed], [s for _, s in listed], numbers),
        )
    return views


@pytest.mark.parametrize(("full", "name"), [(False, "zbv"), (True, "dualpipev")])
def test_v_shaped_schedules(full: bool, name: str) -> None:
    [pipe] = find(folded(full=full))
    assert described(pipe) == ((0, 1), name, 1, 2)
    assert pipe.stage_of == {0: 0, 1: 1}


def test_a_v_without_ranges_is_not_taken_for_a_line() -> None:
    """Its messages count like those of twice as many micro-batches on a line."""
    first = [0, 0, 0, 0, 1, 0, 1, 1, 1]
    views = {
        0: View([(S, 1), (S, 1), (R, 1), (S, 1), (S, 1), (R, 1), (R, 1), (R, 1)], passes(first)),
        1: View([(R, 0), (S, 0), (R, 0), (S, 0), (R, 0), (S, 0), (R, 0), (S, 0)],
                passes([0, 0, 1, 1])),
    }  # fmt: skip
    [pipe] = find(views)
    assert (pipe.schedule, pipe.micro_batches, pipe.virtual) == (None, None, None)


class TestMissingRanks:
    def test_stages_by_the_group(self) -> None:
        views = {rank: simulated("1f1b", 4, 8)[rank] for rank in (1, 2)}
        [pipe] = find(views, [(0, 1, 2, 3)])
        assert described(pipe) == ((1, 2), "1f1b", 8, 1)
        assert (pipe.stages, pipe.stage_of, pipe.whole) == (4, {1: 1, 2: 2}, False)

    def test_nothing_but_its_ranks_without_a_group(self) -> None:
        [pipe] = find({1: simulated("1f1b", 4, 8)[1]})
        assert described(pipe) == ((1,), None, None, None)
        assert (pipe.stages, pipe.stage_of, pipe.whole) == (None, {}, False)

    @pytest.mark.parametrize("group", [(0, 1, 2, 3, 4, 5), (0, 2, 1, 3), (0, 1, 2, 3, 4, 5, 6, 7)])
    def test_a_group_of_more_than_the_pipeline_says_nothing(self, group: tuple[int, ...]) -> None:
        views = renamed(simulated("1f1b", 2, 4), {0: 2, 1: 3})
        [pipe] = find({3: views[3]}, [group])
        assert (pipe.members, pipe.stages, pipe.stage_of) == ((3,), None, {})

    def test_a_ring_counts_no_micro_batches(self) -> None:
        views = {3: simulated("interleaved", 4, 8, 2)[3]}
        [pipe] = find(views, [(0, 1, 2, 3)])
        assert described(pipe) == ((3,), None, None, None)
        assert pipe.stage_of == {3: 3}

    def test_ranges_still_tell(self) -> None:
        views = {3: simulated("interleaved", 4, 8, 2, named=True)[3]}
        [pipe] = find(views, [(0, 1, 2, 3)])
        assert described(pipe) == ((3,), "interleaved-1f1b", 8, 2)
        [pipe] = find(views)
        assert (pipe.stages, pipe.micro_batches, pipe.schedule) == (None, 8, None)


class TestNumbers:
    """Micro-batch and virtual stage of each pass, held against the schedule's own."""

    @pytest.mark.parametrize(
        ("schedule", "stages", "count", "chunks"),
        [(s, p, m, v) for s, p, m, v, _ in SCHEDULES if s != "zb-h1"],
    )
    def test_by_order(self, schedule: str, stages: int, count: int, chunks: int) -> None:
        for stage in range(stages):
            order = [
                a for a in plan(schedule, stage, stages, count, chunks) if isinstance(a, Action)
            ]
            plain = passes([_KINDS[a.kind] for a in order])
            numbers, at = numbered(plain, stage, stages, count, chunks)
            assert numbers.tolist() == [a.micro_batch for a in order]
            assert at.tolist() == [a.chunk * stages + stage for a in order]

    def test_what_ranges_name_is_kept(self) -> None:
        named = passes([0, 1], [5, 5], [7, 7])
        numbers, at = numbered(named, 1, 4, 8, 2)
        assert (numbers.tolist(), at.tolist()) == ([7, 7], [5, 5])

    @pytest.mark.parametrize(("count", "virtual"), [(3, 1), (None, 1), (2, None), (3, 2)])
    def test_nothing_where_counts_do_not_fit(self, count: int | None, virtual: int | None) -> None:
        numbers, _ = numbered(passes([0, 0, 1, 1]), 0, 2, count, virtual)
        assert numbers.tolist() == [NONE] * 4

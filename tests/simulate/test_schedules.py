"""Every pass once and in a possible order; idle times are those of the papers."""

from __future__ import annotations

from collections import Counter

import pytest

from tracelens.errors import OptionError
from tracelens.simulate.messages import Message, plan
from tracelens.simulate.schedules import SCHEDULES, Action, Pass, actions
from tracelens.theory.pipeline import bubble_share

SIZES = [
    ("gpipe", 2, 4, 1),
    ("gpipe", 4, 8, 1),
    ("1f1b", 2, 2, 1),
    ("1f1b", 4, 8, 1),
    ("1f1b", 8, 3, 1),
    ("interleaved", 3, 6, 2),
    ("interleaved", 4, 8, 2),
    ("interleaved", 4, 4, 3),
    ("interleaved", 8, 16, 4),
    ("zb-h1", 2, 4, 1),
    ("zb-h1", 4, 8, 1),
    ("zb-h1", 4, 2, 1),
    ("zb-h1", 8, 24, 1),
]
COSTS = {"F": 2.0, "B": 4.0, "I": 2.0, "W": 2.0}


def all_stages(schedule: str, stages: int, micro_batches: int, chunks: int) -> list[list[Action]]:
    return [actions(schedule, s, stages, micro_batches, chunks) for s in range(stages)]


def needed(
    action: Action, stage: int, stages: int, chunks: int, split: bool
) -> list[tuple[int, Action]]:
    """Return (stage, action) that must be done before an action can begin."""
    virtual, last = action.chunk * stages + stage, stages * chunks - 1
    backward: Pass = "I" if split else "B"

    def at(place: int, kind: Pass) -> tuple[int, Action]:
        return place % stages, Action(kind, action.micro_batch, place // stages)

    if action.kind == "F":
        return [at(virtual - 1, "F")] if virtual else []
    if action.kind == "W":
        return [at(virtual, "I")]
    return [at(virtual, "F")] + ([at(virtual + 1, backward)] if virtual < last else [])


def finish_times(
    order: list[list[Action]], chunks: int, costs: dict[str, float]
) -> dict[tuple[int, Action], float]:
    """Run the stages with free messages: each does its next pass as soon as it can."""
    stages = len(order)
    split = any(action.kind == "I" for listed in order for action in listed)
    ends: dict[tuple[int, Action], float] = {}
    place, free = [0] * stages, [0.0] * stages
    while any(place[s] < len(order[s]) for s in range(stages)):
        moved = False
        for stage in range(stages):
            while place[stage] < len(order[stage]):
                action = order[stage][place[stage]]
                wanted = needed(action, stage, stages, chunks, split)
                if any(one not in ends for one in wanted):
                    break
                begin = max([free[stage], *(ends[one] for one in wanted)])
                free[stage] = ends[stage, action] = begin + costs[action.kind]
                place[stage] += 1
                moved = True
        assert moved, "the stages wait for each other"
    return ends


def idle(
    schedule: str, stages: int, micro_batches: int, chunks: int, costs: dict[str, float]
) -> float:
    """Return the time per stage the whole pipeline takes beyond its work."""
    order = all_stages(schedule, stages, micro_batches, chunks)
    ends = finish_times(order, chunks, costs)
    return max(ends.values()) - sum(costs[action.kind] for action in order[0])


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), SIZES)
def test_every_pass_stands_once_on_every_stage(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    kinds: tuple[Pass, ...] = ("F", "I", "W") if schedule == "zb-h1" else ("F", "B")
    whole = {
        Action(kind, i, c) for kind in kinds for i in range(micro_batches) for c in range(chunks)
    }
    for listed in all_stages(schedule, stages, micro_batches, chunks):
        assert len(listed) == len(whole)
        assert set(listed) == whole


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), SIZES)
def test_the_stages_can_run(schedule: str, stages: int, micro_batches: int, chunks: int) -> None:
    order = all_stages(schedule, stages, micro_batches, chunks)
    assert len(finish_times(order, chunks, COSTS)) == sum(map(len, order))


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches", "chunks"),
    [size for size in SIZES if size[2] >= size[1]],  # the closed forms need a full pipeline
)
def test_idle_time_is_the_closed_form(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    """docs/theory.md: (p-1)(F+B), a v-th of it interleaved, (p-1)(F+I-W) for ZB-H1."""
    costs = {"F": 3.0, "B": 5.0, "I": 3.0, "W": 2.0}
    measured = idle(schedule, stages, micro_batches, chunks, costs)
    if schedule == "zb-h1":
        assert measured == pytest.approx((stages - 1) * (3.0 + 3.0 - 2.0))
    else:
        assert measured == pytest.approx((stages - 1) * 8.0)
        work = 8.0 * micro_batches * chunks
        share = measured / (measured + work)
        assert share == pytest.approx(bubble_share(stages, micro_batches, chunks))


def test_zb_h1_holds_no_more_activations_than_1f1b() -> None:
    stages, micro_batches = 4, 12
    for stage in range(stages):
        held = peak = 0
        for action in actions("zb-h1", stage, stages, micro_batches):
            held += {"F": 1, "I": 0, "W": -1}[action.kind]
            peak = max(peak, held)
        assert peak <= stages + 1


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), SIZES)
def test_messages_are_sent_and_received_once(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    sent: Counter[object] = Counter()
    received: Counter[object] = Counter()
    for stage in range(stages):
        for message in messages(plan(schedule, stage, stages, micro_batches, chunks)):
            ends = (stage, message.peer) if message.op == "send" else (message.peer, stage)
            (sent if message.op == "send" else received)[ends, message.label] += 1
    assert sent == received
    assert set(sent.values()) == {1}
    assert len(sent) == 2 * micro_batches * (stages * chunks - 1)


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), SIZES)
def test_what_a_pass_needs_is_received_before_it_and_sent_after(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    for stage in range(stages):
        done: list[Action] = []
        there: set[Action] = set()
        expected = {
            m.action
            for m in messages(plan(schedule, stage, stages, micro_batches, chunks))
            if m.op == "recv"
        }
        for entry in plan(schedule, stage, stages, micro_batches, chunks):
            if isinstance(entry, Action):
                assert entry in there or entry not in expected
                done.append(entry)
                continue
            for message in entry:
                if message.op == "send":
                    assert message.action in done
                else:
                    there.add(message.action)


def messages(entries: list[Action | tuple[Message, ...]]) -> list[Message]:
    return [m for entry in entries if not isinstance(entry, Action) for m in entry]


def test_1f1b_sends_and_receives_in_one_batch_in_its_steady_phase() -> None:
    entries = plan("1f1b", 1, 4, 8)
    batches = [entry for entry in entries if not isinstance(entry, Action)]
    both = [batch for batch in batches if {m.op for m in batch} == {"send", "recv"}]
    # docs/theory.md: interior stages send 2m messages; all but the warm-up's and cool-down's pair.
    assert sum(len(batch) for batch in batches) == 4 * 8
    assert len(both) == 2 * (8 - 2) - 1
    assert all(len({m.peer for m in batch}) == 1 for batch in batches)


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches", "chunks"),
    [("1f1b", 2, 4, 2), ("interleaved", 4, 8, 1), ("interleaved", 4, 6, 2), ("dualpipe", 4, 8, 1)],
)
def test_impossible_sizes_are_refused(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    with pytest.raises(OptionError):
        actions(schedule, 0, stages, micro_batches, chunks)


def test_all_schedules_are_tested() -> None:
    assert {schedule for schedule, *_ in SIZES} == set(SCHEDULES)

"""Closed forms of bubbles, held against schedules that are replayed pass by pass."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.simulate.schedules import actions
from tracelens.theory.pipeline import PassLength, bubble_share, replayed_share, schedule_share

NAMES = {"gpipe": "gpipe", "1f1b": "1f1b", "zb-h1": "zb-h1", "interleaved": "interleaved-1f1b"}
KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
LENGTHS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}

Orders = list[list[PassLength]]


def orders(
    schedule: str, stages: int, count: int, chunks: int = 1, slow: dict[int, float] | None = None
) -> Orders:
    """Return the passes of each rank: F = I = W = 1, B = 2, times a stage's slowness."""
    return [
        [
            PassLength(
                KINDS[a.kind],
                a.chunk * stages + stage,
                a.micro_batch,
                LENGTHS[a.kind] * (slow or {}).get(stage, 1.0),
            )
            for a in actions(schedule, stage, stages, count, chunks)
        ]
        for stage in range(stages)
    ]


SIZES = [(2, 4, 1), (4, 8, 1), (4, 16, 1), (8, 32, 1), (3, 5, 1)]
CASES = [
    *((schedule, p, m, v) for schedule, (p, m, v) in product(("gpipe", "1f1b", "zb-h1"), SIZES)),
    ("interleaved", 4, 8, 2),
    ("interleaved", 4, 16, 3),
    ("interleaved", 8, 16, 2),
]


@pytest.mark.parametrize(("schedule", "stages", "count", "chunks"), CASES)
def test_equal_stages_lose_what_the_closed_form_says(
    schedule: str, stages: int, count: int, chunks: int
) -> None:
    share = schedule_share(NAMES[schedule], stages, count, chunks)
    assert share == pytest.approx(replayed_share(orders(schedule, stages, count, chunks)))


@pytest.mark.parametrize(("schedule", "stages", "count", "chunks"), CASES)
@pytest.mark.parametrize("stage", [0, 1])
def test_a_slow_stage_makes_the_others_idle(
    schedule: str, stages: int, count: int, chunks: int, stage: int
) -> None:
    """The slow stage itself idles no more than in a pipeline of its equals."""
    slow = replayed_share(orders(schedule, stages, count, chunks, {stage: 2.0}))
    equal = schedule_share(NAMES[schedule], stages, count, chunks)
    assert slow is not None
    assert equal is not None
    # The others work half as much in a phase at least as long as the slow one's work.
    assert (stages - 1) / (2 * stages) - 1e-9 <= slow
    assert equal < slow


def test_by_hand() -> None:
    """Two stages, two micro-batches: stage 1 is twice as slow."""
    found = orders("1f1b", 2, 2, slow={1: 2.0})
    # Stage 1: F0 1-3, B0 3-7, F1 7-9, B1 9-13; stage 0 ends with B1 13-15. Work 6 and 12 of 15.
    assert replayed_share(found) == pytest.approx(1 - 9 / 15)


def test_the_phase_begins_with_the_first_pass() -> None:
    late = [[PassLength("forward", 0, 0, 1.0)], [PassLength("forward", 1, 0, 3.0)]]
    assert replayed_share(late) == pytest.approx(1 - 2 / 4)


def test_a_first_stage_without_input_gradients() -> None:
    """Its weight gradients then wait for the gradient that arrives."""
    passes = [
        [PassLength("forward", 0, 0, 1.0), PassLength("backward_weight", 0, 0, 2.0)],
        [PassLength("forward", 1, 0, 1.0), PassLength("backward_input", 1, 0, 1.0),
         PassLength("backward_weight", 1, 0, 1.0)],
    ]  # fmt: skip
    assert replayed_share(passes) == pytest.approx(1 - 3 / 5)


@pytest.mark.parametrize(
    "passes",
    [
        [],
        [[PassLength("forward", 0, 0, 1.0)] * 2],  # one pass twice
        [[PassLength("backward", 0, 0, 1.0), PassLength("forward", 0, 0, 1.0)]],  # a ring
        [[PassLength("forward", 1, 0, 1.0)]],  # what it needs never comes
        [[PassLength("forward", 0, 0, 0.0)]],
    ],
)
def test_what_cannot_be_replayed(passes: Orders) -> None:
    assert replayed_share(passes) is None


@given(st.integers(1, 12), st.integers(1, 64), st.integers(1, 8))
def test_a_bubble_is_a_share(stages: int, count: int, virtual: int) -> None:
    share = bubble_share(stages, count, virtual)
    assert 0 <= share < 1
    assert share == schedule_share("interleaved-1f1b", stages, count, virtual)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "virtual", "share"),
    [(4, 8, 1, 3 / 11), (1, 8, 1, 0.0), (8, 32, 1, 7 / 39), (4, 8, 2, 3 / 19)],
)
def test_closed_form(stages: int, micro_batches: int, virtual: int, share: float) -> None:
    assert bubble_share(stages, micro_batches, virtual) == pytest.approx(share)


@pytest.mark.parametrize(
    ("schedule", "virtual", "share"),
    [
        ("zb-h1", 1, 3 / (3 * 8 + 3)),  # a third of 1F1B's bubble: F = I = W
        ("interleaved-zb", 2, 3 / (2 * 3 * 8 + 3)),
        ("zbv", 2, 3 / (2 * 3 * 8 + 3)),  # only that stages begin after each other
        ("dualpipev", 2, 2 * 3 / (2 * 3 * 8 + 2 * 3)),
    ],
)
def test_schedules_that_split_backward(schedule: str, virtual: int, share: float) -> None:
    assert schedule_share(schedule, 4, 8, virtual) == pytest.approx(share)


def test_no_form_for_what_is_not_known() -> None:
    assert schedule_share("hanayo", 4, 8) is None

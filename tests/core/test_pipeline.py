"""Stages and schedules from who sends to whom, and the bubble on hand-made pipelines."""

from __future__ import annotations

import pytest

from tracelens.pipeline import Chain, _Message, find_chains
from tracelens.theory.pipeline import bubble_share

S, R = "send", "recv"


def messages(text: str) -> list[_Message]:
    """Read "S1 R0": send to 1, receive from 0."""
    return [_Message({"S": S, "R": R}[word[0]], int(word[1:])) for word in text.split()]


def pipeline(stages: int, micro_batches: int, *, ahead: int | None = None) -> dict[int, str]:
    """Write the messages of GPipe, or of 1F1B with `ahead` activations sent first."""
    found: dict[int, str] = {}
    for stage in range(stages):
        before, after = f"R{stage - 1}", f"S{stage + 1}"
        forward = ([before] if stage else []) + ([after] if stage < stages - 1 else [])
        backward = ([f"R{stage + 1}"] if stage < stages - 1 else []) + (
            [f"S{stage - 1}"] if stage else []
        )
        warm = micro_batches if ahead is None else min(max(ahead - stage, 1), micro_batches)
        words = forward * warm
        for _ in range(micro_batches - warm):
            words += backward + forward
        words += backward * warm
        found[stage] = " ".join(words)
    return found


def chains(listed: dict[int, str]) -> list[Chain]:
    return find_chains({rank: messages(text) for rank, text in listed.items()})


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 32), (3, 5)])
def test_gpipe_and_1f1b(stages: int, micro_batches: int) -> None:
    order = tuple(range(stages))
    assert chains(pipeline(stages, micro_batches)) == [Chain(order, micro_batches, "gpipe")]
    assert chains(pipeline(stages, micro_batches, ahead=stages)) == [
        Chain(order, micro_batches, "1f1b")
    ]


def test_as_many_micro_batches_as_stages_name_no_schedule() -> None:
    assert chains(pipeline(4, 4)) == [Chain((0, 1, 2, 3), 4, None)]


def test_ranks_need_not_be_in_order_of_stage() -> None:
    names = {0: 6, 1: 2, 2: 9}
    plain = pipeline(3, 6)
    renamed = {
        names[stage]: " ".join(f"{word[0]}{names[int(word[1:])]}" for word in text.split())
        for stage, text in plain.items()
    }
    assert chains(renamed) == [Chain((6, 2, 9), 6, "gpipe")]


def test_several_pipelines_side_by_side() -> None:
    both = {0: "S4 R4", 4: "R0 S0", 1: "S5 R5", 5: "R1 S1"}
    assert [chain.ranks for chain in chains(both)] == [(0, 4), (1, 5)]


def test_forward_only_is_a_pipeline_too() -> None:
    assert chains({0: "S1 S1 S1", 1: "R0 R0 R0"}) == [Chain((0, 1), 3, None)]


@pytest.mark.parametrize(
    "listed",
    [
        {},
        {0: "S1 R1"},  # the other end has no trace
        {0: "S1 R1", 1: "R0 S2 R2 S0"},  # the line goes on into a rank without a trace
        {0: "S1 S2 R2 R1", 1: "R0 S2 R2 S0", 2: "R1 R0 S0 S1"},  # a ring: interleaved stages
        {0: "R1 S1", 1: "R0 S0"},  # nobody sends first
    ],
)
def test_what_is_no_whole_line_gives_no_stages(listed: dict[int, str]) -> None:
    assert chains(listed) == []


@pytest.mark.parametrize(
    ("stages", "micro_batches", "virtual", "share"),
    [(4, 8, 1, 3 / 11), (1, 8, 1, 0.0), (8, 32, 1, 7 / 39), (4, 8, 2, 3 / 19)],
)
def test_closed_form(stages: int, micro_batches: int, virtual: int, share: float) -> None:
    assert bubble_share(stages, micro_batches, virtual) == pytest.approx(share)

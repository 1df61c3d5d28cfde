"""Which messages go from stage to stage, as far as one rank's file tells."""

from __future__ import annotations

import pytest

from tracelens.communication import Operation
from tracelens.groups import Group
from tracelens.message_roles import between_stages
from tracelens.model.trace import ProcessGroup, RankInfo

MAIN, AUTOGRAD = 1, 2
PIPELINE = ProcessGroup("1", "PIPELINE_MODEL_PARALLEL_GROUP", 2, (1, 3))
CONTEXT = ProcessGroup("2", "CONTEXT_PARALLEL_GROUP", 2, (0, 1))
LATER = ProcessGroup("3", "CONTEXT_PARALLEL_GROUP", 2, (1, 2))
FIRST, SECOND = (Group(name, None, 2, None, communicator=name) for name in ("a", "b"))


def message(op: str = "send", thread: int = MAIN, size: int = 4096) -> Operation:
    return Operation(op, "payload", buffer_bytes=size, thread=thread)


def found(
    *calls: tuple[Operation, Group], groups: tuple[ProcessGroup, ...] = (), rank: int = 1
) -> list[bool]:
    info = RankInfo("x", "nsight-sqlite", rank=rank, process_groups=groups)
    return between_stages([one for one, _ in calls], [group for _, group in calls], info)


def made(name: str, place: int, size: int = 2) -> ProcessGroup:
    return ProcessGroup(name, None, size, None, "nccl", name, place)


def test_what_nothing_names_is_a_pipeline() -> None:
    assert found((message(), FIRST), (message("recv"), FIRST)) == [True, True]


def test_a_ring_turns_in_both_threads() -> None:
    ring = [(message(op, thread), SECOND) for op in ("send", "recv") for thread in (1, 2)]
    assert found((message(), FIRST), *ring) == [True, False, False, False, False]


def test_most_bytes_decide() -> None:
    calls = [(message(size=1 << 20), FIRST), (message(thread=AUTOGRAD, size=8), FIRST)]
    assert found(*calls, (message(size=8), FIRST)) == [True] * 3


def test_a_described_pipeline_leaves_the_rest_out() -> None:
    named = Group("1", "PIPELINE_MODEL_PARALLEL_GROUP", 2, (1, 3), "pp")
    assert found((message(), FIRST), (message(), named)) == [False, True]


@pytest.mark.parametrize(
    ("place", "size", "expected"),
    [(0, 2, [False, True]), (1, 2, [True, False]), (0, 3, [True, True])],
)
def test_size_and_place_name_a_communicator(place: int, size: int, expected: list[bool]) -> None:
    """Rank 1 is the first member of its pipeline only; the second of its context group.

    Without a pipeline that is known, what is unknown counts.
    """
    groups = (PIPELINE, CONTEXT, made("b", place, size))
    calls = [(message(), FIRST), (message(), SECOND)]
    assert found(*calls, groups=groups) == expected


def test_groups_of_one_size_and_place_leave_it_open() -> None:
    groups = (PIPELINE, LATER, made("a", 0))
    assert found((message(), FIRST), groups=groups) == [True]


def test_collectives_are_no_messages() -> None:
    assert found((message("all_reduce"), FIRST)) == [False]


def test_a_place_that_cannot_be_is_nobody() -> None:
    assert found((message(), FIRST), groups=(PIPELINE, made("a", 99))) == [True]

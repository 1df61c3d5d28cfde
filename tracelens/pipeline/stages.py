"""Order ranks into pipelines by who sends to whom, or by the stages their ranges name.

Ranks that exchange messages form one pipeline: a line of stages, or with interleaved virtual stages
a ring, in which the last rank sends on to the first. A rank that first sends in a step is the first
stage. Messages count micro-batches and virtual stages. What fits none of this is no pipeline.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.operations import SEND
from tracelens.pipeline import schedules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracelens.pipeline.schedules import Style
    from tracelens.pipeline.views import View


@dataclass(frozen=True, slots=True)
class Pipe:
    """One pipeline.

    Attributes:
        members: The ranks that are there, in order of stage where that is known.
        stage_of: Stage of each, as far as known.
        stages: How many there are; None if ranks are missing and no group tells.
        micro_batches: Of a step.
        virtual: Virtual stages of a rank.
        schedule: Its name.
        whole: Whether every stage is there.
    """

    members: tuple[int, ...]
    stage_of: dict[int, int]
    stages: int | None
    micro_batches: int | None = None
    virtual: int | None = None
    schedule: str | None = None
    whole: bool = True


def find(views: Mapping[int, View], groups: Collection[tuple[int, ...]] = ()) -> list[Pipe]:
    """Find the pipelines of a run.

    Args:
        views: What each rank shows.
        groups: Rank lists of pipeline-parallel groups in order of stage, where they are known.
    """
    found = [_pipe(ranks, views, groups) for ranks in _components(views)]
    return [pipe for pipe in found if pipe is not None]


def _components(views: Mapping[int, View]) -> Iterator[list[int]]:
    """Yield the sets of ranks that messages connect; ranks without a trace are among them."""
    links: dict[int, set[int]] = {rank: set() for rank in views}
    for rank, view in views.items():
        for peer in view.peers:
            links[rank].add(peer)
            links.setdefault(peer, set()).add(rank)
    seen: set[int] = set()
    for first in sorted(links):
        if first in seen:
            continue
        waiting, component = deque([first]), {first}
        while waiting:
            new = links[waiting.popleft()] - component
            component |= new
            waiting.extend(new)
        seen |= component
        yield sorted(component)


def _pipe(
    ranks: list[int], views: Mapping[int, View], groups: Collection[tuple[int, ...]]
) -> Pipe | None:
    present = {rank: views[rank] for rank in ranks if rank in views}
    group = next((one for one in groups if _is_line(present, one)), None)
    if all(view.stages for view in present.values()):
        return _by_ranges(ranks, present, group)
    if len(present) == len(ranks):
        order = _order(present)
        return None if order is None else _by_messages(order, present)
    return _in_part(present, group)


# stages that ranges name -------------------------------------------------------------------------


def _by_ranges(
    ranks: list[int], present: dict[int, View], group: tuple[int, ...] | None
) -> Pipe | None:
    whole = len(present) == len(ranks)
    held = {rank: view.stages for rank, view in present.items()}
    virtual = len(next(iter(held.values())))
    all_stages = sorted(stage for stages in held.values() for stage in stages)
    if any(len(stages) != virtual for stages in held.values()):
        return None
    if whole and all_stages != list(range(len(ranks) * virtual)):
        return None
    stages = len(ranks) if whole else len(group) if group is not None else None
    stage_of = {rank: own[0] for rank, own in held.items()}
    numbers = {int(n) for v in present.values() if v.passes for n in v.passes.micro_batch}
    micro_batches = len(numbers)
    style = _style(held, stages)
    schedule = None
    if stages is not None and style is not None:
        by_stage = {stage_of[rank]: view for rank, view in present.items()}
        schedule = schedules.name(by_stage, stages, micro_batches, virtual, style)
    members = tuple(sorted(stage_of, key=lambda rank: stage_of[rank]))
    return Pipe(members, stage_of, stages, micro_batches, virtual, schedule, whole)


def _style(held: dict[int, list[int]], stages: int | None) -> Style | None:
    """Tell how stages are dealt to ranks: round after round, or down and up again."""
    if stages is None:
        return None
    if all(np.all(np.diff(own) == stages) for own in held.values()):
        return "loop"
    folded = all(len(own) == 2 and sum(own) == 2 * stages - 1 for own in held.values())
    return "v" if folded else None


# stages that messages tell -----------------------------------------------------------------------


def _order(views: dict[int, View]) -> list[int] | None:
    """Return the ranks by stage, if they form a line or a ring that shows where it begins."""
    peers = {rank: view.peers for rank, view in views.items()}
    if len(views) < 2 or any(len(others) > 2 for others in peers.values()):
        return None
    if all(len(others) == 2 for others in peers.values()):
        cut = _seam(views)
        if cut is None:
            return None
        peers = {rank: others - cut if rank in cut else others for rank, others in peers.items()}
    ends = [rank for rank, others in peers.items() if len(others) == 1]
    firsts = [rank for rank in ends if views[rank].messages[0][0] == SEND]
    if len(ends) != 2 or len(firsts) != 1:
        return None
    order = firsts
    while following := peers[order[-1]] - set(order):
        order.append(following.pop())
    return order if len(order) == len(views) else None  # else some message's other end is missing


def _seam(views: dict[int, View]) -> set[int] | None:
    """Return the two ranks between which a ring closes: fewest messages pass there.

    An activation goes on to the next virtual stage there in all but the last round.
    """
    count: dict[frozenset[int], int] = {}
    for rank, view in views.items():
        for peer in view.peers:
            edge = frozenset((rank, peer))
            count[edge] = count.get(edge, 0) + view.sends(peer)
    fewest = [edge for edge, number in count.items() if number == min(count.values())]
    return set(fewest[0]) if len(fewest) == 1 else None


def _by_messages(order: list[int], views: dict[int, View]) -> Pipe:
    members = tuple(order)
    stage_of = {rank: stage for stage, rank in enumerate(order)}
    uncounted = Pipe(members, stage_of, len(order))
    if (counted := _counts(order, views)) is None:
        return uncounted
    micro_batches, virtual = counted
    by_stage = {stage: views[rank] for stage, rank in enumerate(order)}
    schedule = schedules.name(by_stage, len(order), micro_batches, virtual, "loop")
    if schedule is None and not _one_pass_each(by_stage, micro_batches * virtual):
        return uncounted
    return replace(uncounted, micro_batches=micro_batches, virtual=virtual, schedule=schedule)


def _counts(order: Sequence[int], views: dict[int, View]) -> tuple[int, int] | None:
    """Return micro-batches and virtual stages: v·m activations go on from rank to rank.

    Only (v - 1)·m of them go on from the last rank to the first. Of two ranks each is the other's
    next *and* previous one: v·m activations and (v - 1)·m gradients travel one way.
    """
    first, second, last = views[order[0]], order[1], views[order[-1]]
    onward, back = first.sends(second), last.sends(order[0])
    if len(order) == 2:
        passes = first.forwards
        micro_batches = onward if passes is None else 2 * passes - onward
        total = onward if passes is None else passes
    else:
        micro_batches, total = onward - back, onward
    if micro_batches < 1 or total % micro_batches:
        return None
    return micro_batches, total // micro_batches


def _one_pass_each(by_stage: Mapping[int, View], total: int) -> bool:
    """Tell whether counting holds though the order of passes fits no schedule.

    Every rank must run as many forward passes; without any backward pass nothing can mislead.
    """
    forward_only = all(op == SEND for op, _ in by_stage[0].messages)
    return forward_only or all(view.forwards == total for view in by_stage.values())


# stages of which some have no trace --------------------------------------------------------------


def _in_part(present: dict[int, View], group: tuple[int, ...] | None) -> Pipe:
    """Describe the ranks that are there by their place in the pipeline's group."""
    if group is None:
        return Pipe(tuple(present), {}, None, whole=False)
    stage_of = {rank: group.index(rank) for rank in present}
    members = tuple(sorted(present, key=lambda rank: stage_of[rank]))
    placed = Pipe(members, stage_of, len(group), whole=False)
    counts = {view.forwards for view in present.values()}
    (forwards,) = counts if len(counts) == 1 else (None,)
    ends = {group[0], group[-1]}
    ring = len(group) == 2 or any(ends <= {r, *v.peers} for r, v in present.items() if r in ends)
    if forwards is None or ring:  # of two ranks nobody can tell
        return placed
    by_stage = {stage_of[rank]: view for rank, view in present.items()}
    schedule = schedules.name(by_stage, len(group), forwards, 1, "loop")
    if schedule is None:
        return placed
    return replace(placed, micro_batches=forwards, virtual=1, schedule=schedule)


def _is_line(present: dict[int, View], group: tuple[int, ...]) -> bool:
    """Tell whether each rank that is there talks to its neighbours in a group, and to no other.

    A group may hold more than one pipeline: the world does.
    """
    for rank, view in present.items():
        if rank not in group:
            return False
        place, last = group.index(rank), len(group) - 1
        around = {group[place - 1], group[(place + 1) % len(group)]}
        line = {group[p] for p in (place - 1, place + 1) if 0 <= p <= last}
        if view.peers not in (around, line):
            return False
    return True

"""Where a stage sends and receives between its passes, and which messages share a batch.

As in Megatron (megatron/core/pipeline_parallel/schedules.py, without overlapped p2p): what a pass
gives is sent right after it, and what the next one needs is received at the same point. 1F1B sends
to and receives from one neighbour in one batch; the interleaved schedule exchanges with both in one
batch, in its steady phase once for a forward and a backward pass. Weight gradients need no message,
so ZB-H1 looks ahead over them: the exchange runs beside W.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracelens.simulate.schedules import Action, actions, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator


class Message(NamedTuple):
    """One activation or gradient on its way.

    Attributes:
        op: send or recv.
        peer: Stage at the other end.
        action: The pass on *this* stage that gives or needs it.
        label: The same at both ends: direction, micro-batch and the virtual stage that gives it.
    """

    op: str
    peer: int
    action: Action
    label: tuple[str, int, int]


Batch = tuple[Message, ...]


def plan(
    schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> list[Action | Batch]:
    """Return a stage's passes of a step with the batches of messages between them.

    Args as `schedules.actions`.
    """
    order = actions(schedule, stage, stages, micro_batches, chunks)
    if stages == 1:
        return list(order)
    ends = _Ends(stage, stages, chunks)
    result: list[Action | Batch] = list(_batches([], [ends.received(order[0])], schedule))
    for points, following in _points(
        order, warm_up(schedule, stage, stages, micro_batches, chunks), schedule
    ):
        result += points
        sends = [ends.sent(action) for action in points]
        result += _batches(sends, [ends.received(action) for action in following], schedule)
    return result


def _points(
    order: list[Action], ahead: int, schedule: str
) -> Iterator[tuple[list[Action], list[Action]]]:
    """Yield passes between two exchanges, and the passes the second exchange receives for."""
    spans = list(_spans(order, ahead if schedule == "interleaved" else len(order)))
    for place, span in enumerate(spans):
        later = (s for s in spans[place + 1 :] if s[0].kind != "W")
        yield span, next(later, []) if span[0].kind != "W" else []


def _spans(order: list[Action], ahead: int) -> Iterator[list[Action]]:
    """Yield single passes, and from pass `ahead` on each forward with its backward."""
    place = 0
    while place < len(order):
        pair = place >= ahead and order[place].kind == "F"
        yield order[place : place + 1 + pair]
        place += 1 + pair


class _Ends:
    """Who is at the other end of a pass's messages."""

    def __init__(self, stage: int, stages: int, chunks: int) -> None:
        self.stage, self.stages = stage, stages
        self.last = stages * chunks - 1

    def sent(self, action: Action) -> Message | None:
        """Return the message a pass gives, None at the ends of the pipeline."""
        if action.kind == "W":
            return None
        own = self._virtual(action)
        to = own + 1 if action.kind == "F" else own - 1
        if not 0 <= to <= self.last:
            return None
        return Message("send", to % self.stages, action, (_way(action), action.micro_batch, own))

    def received(self, action: Action) -> Message | None:
        """Return the message a pass needs, None at the ends of the pipeline."""
        if action.kind == "W":
            return None
        own = self._virtual(action)
        source = own - 1 if action.kind == "F" else own + 1
        if not 0 <= source <= self.last:
            return None
        label = (_way(action), action.micro_batch, source)
        return Message("recv", source % self.stages, action, label)

    def _virtual(self, action: Action) -> int:
        return action.chunk * self.stages + self.stage


def _way(action: Action) -> str:
    return "forward" if action.kind == "F" else "backward"


def _batches(
    sends: list[Message | None], receives: list[Message | None], schedule: str
) -> Iterator[Batch]:
    """Group the messages of one point; sends come first."""
    sent = [message for message in sends if message is not None]
    received = [message for message in receives if message is not None]
    if schedule == "gpipe":
        yield from ((message,) for message in sent + received)
        return
    if schedule == "interleaved":
        if sent or received:
            yield tuple(sent + received)
        return
    by_peer: dict[int, list[Message]] = defaultdict(list)
    for message in sent + received:
        by_peer[message.peer].append(message)
    yield from (tuple(messages) for messages in by_peer.values())

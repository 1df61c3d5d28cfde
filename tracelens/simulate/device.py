"""Work on the device, and where members of a collective or the ends of a message meet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.errors import TraceLensError
from tracelens.simulate.script import item_bytes
from tracelens.theory.collectives import full_elements, wire_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.simulate.instructions import Batch, Collective, Work
    from tracelens.simulate.machine import Machine
    from tracelens.simulate.recording import Group


class SimulationError(TraceLensError):
    """The simulated program hangs or contradicts itself: a bug of the simulator."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="this is a bug: please report it with the command", slug="internal-error"
        )


@dataclass(slots=True, eq=False)
class Item:
    """One kernel, copy or memset.

    Attributes:
        rank: Whose it is.
        work: What it is.
        correlation: That of its launch.
        communications: What it carries, as indices into its rank's list.
        earliest: When its launch arrives at the device.
        meetings: What it takes part in.
        blockers: Work it still waits for before it can start.
        followers: What waits for it.
        start: When it began, -1 before.
        end: When it ended, -1 before.
        open_meetings: Meetings whose transfer has not been timed yet.
        finish: When the last transfer timed so far ends.
    """

    rank: int
    work: Work | Collective | Batch
    correlation: int
    communications: tuple[int, ...]
    earliest: int
    meetings: tuple[Meeting, ...] = ()
    blockers: int = 0
    followers: list[Item] = field(default_factory=list)
    start: int = -1
    end: int = -1
    open_meetings: int = 0
    finish: int = 0

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.end >= 0


@dataclass(slots=True, eq=False)
class Meeting:
    """A collective, or the two ends of a message.

    Attributes:
        number: Number of the instance in the run.
        what: What every member must agree on.
        expected: How many items must have started before anything moves.
        transfer_ns: How long the transfer then takes.
        items: The items that started.
    """

    number: int
    what: tuple[object, ...]
    expected: int
    transfer_ns: float
    items: list[Item] = field(default_factory=list)


class Meetings:
    """Finds the meeting of each collective and message by its place in the order of launches."""

    def __init__(self, groups: Sequence[Group], machine: Machine) -> None:
        self._groups, self._machine = groups, machine
        self._found: dict[tuple[object, ...], Meeting] = {}
        self._messages: dict[tuple[int, int, int], int] = {}

    def collective(self, work: Collective, seq: int) -> Meeting:
        """Return the meeting of a group's collective number `seq`."""
        ranks = self._groups[work.group].ranks
        what = (work.op, work.dtype, work.in_elems, work.out_elems)
        full = full_elements(work.op, work.in_elems, work.out_elems, len(ranks)) or 0
        wire = full * (wire_factor(work.op, len(ranks)) or 0.0)
        return self._meet(
            ("collective", work.group, seq), what, ranks, len(ranks), wire * item_bytes(work.dtype)
        )

    def message(self, work: Batch, place: int, rank: int) -> Meeting:
        """Return the meeting of a message: the n-th from one rank to another in a group."""
        post = work.posts[place]
        source, target = (rank, post.peer) if post.op == "send" else (post.peer, rank)
        counter = (work.group, source if post.op == "send" else ~source, target)
        count = self._messages[counter] = self._messages.get(counter, -1) + 1
        return self._meet(
            ("message", work.group, source, target, count),
            (work.dtype, post.elements, post.label),
            (source, target),
            2,
            post.elements * item_bytes(work.dtype),
        )

    def _meet(
        self,
        key: tuple[object, ...],
        what: tuple[object, ...],
        ranks: Sequence[int],
        expected: int,
        wire_bytes: float,
    ) -> Meeting:
        found = self._found.get(key)
        if found is None:
            link = self._machine.link(ranks)
            transfer = link.latency_ns + wire_bytes / link.gb_per_s
            found = self._found[key] = Meeting(len(self._found), what, expected, transfer)
        elif found.what != what:
            raise SimulationError(f"ranks disagree on {key}: {found.what} and {what}")
        return found

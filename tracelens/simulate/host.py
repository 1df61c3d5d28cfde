"""Play a rank's script on its host: when each call runs, and what it hands to the device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.simulate.device import Item, Meeting, Meetings
from tracelens.simulate.instructions import (
    Batch,
    Close,
    Collective,
    Open,
    RecordEvent,
    Spend,
    Synchronize,
    WaitEvent,
    Work,
)
from tracelens.simulate.recording import Communication, Launch, Range

if TYPE_CHECKING:
    from tracelens.simulate.instructions import Instruction
    from tracelens.simulate.machine import Chance, Machine
    from tracelens.simulate.script import Script

_COLLECTIVE = 2.5
"""Host time of a collective in plain operators'."""
_NCCL_LAUNCH = "cuLaunchKernelEx"


@dataclass(slots=True)
class Recorded:
    """What the host of a rank did."""

    launches: list[Launch] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


class Host:
    """A rank's host and what it remembers of its streams.

    Attributes:
        now: How far it has come.
        recorded: What it did.
        waits_for: The items a synchronisation still waits for; empty if it runs.
    """

    def __init__(
        self, script: Script, machine: Machine, chance: Chance, meetings: Meetings
    ) -> None:
        self.rank = script.rank
        self.recorded = Recorded()
        self.now = 0
        self.waits_for: list[Item] = []
        self._instructions = script.instructions
        self._next = 0
        self._cost = machine.host_ns * machine.slow_hosts.get(script.rank, 1.0)
        self._slow = machine.slow_hosts.get(script.rank, 1.0)
        self._latency = machine.launch_latency_ns
        self._chance, self._meetings = chance, meetings
        self._correlation = 0
        self._batches = 0
        self._seq: dict[tuple[int, bool], int] = defaultdict(int)
        self._tail: dict[int, Item] = {}
        self._communicator: dict[int, Item] = {}
        self._awaited: dict[int, list[Item]] = defaultdict(list)
        self._events: dict[int, list[Item]] = {}
        self._open: dict[int, list[tuple[Open, int]]] = defaultdict(list)

    @property
    def finished(self) -> bool:
        """Whether the script has come to its end."""
        return self._next == len(self._instructions) and not self.waits_for

    def run(self) -> list[Item]:
        """Go on until the script ends or blocks; return what was launched."""
        launched: list[Item] = []
        while self._next < len(self._instructions):
            instruction = self._instructions[self._next]
            if isinstance(instruction, Synchronize) and not self._synchronized(instruction):
                break
            self._next += 1
            item = self._play(instruction)
            if item is not None:
                launched.append(item)
        return launched

    def _play(self, instruction: Instruction) -> Item | None:
        match instruction:
            case Work():
                return self._work(instruction)
            case Collective():
                return self._collective(instruction)
            case Batch():
                return self._batch(instruction)
            case RecordEvent():
                self._events[instruction.event] = self._end_of(instruction.stream)
            case WaitEvent():
                self._awaited[instruction.stream] += self._events[instruction.event]
            case Spend():
                self.now += self._chance.around(instruction.ns * self._slow)
            case Open():
                self._open[instruction.thread].append((instruction, self.now))
                self.now += 1
            case Close():
                opened, start = self._open[instruction.thread].pop()
                self.now += 1
                self.recorded.ranges.append(
                    Range(opened.kind, opened.name, start, self.now, opened.thread)
                )
        return None

    # calls ---------------------------------------------------------------------------------------

    def _work(self, work: Work) -> Item:
        start, cost = self.now, self._chance.around(self._cost)
        launch = self._launch(work.call, start + cost * 35 // 100, cost * 4 // 10, work.thread)
        self.now = start + cost
        if work.operator:
            self.recorded.ranges.append(
                Range("operator", work.operator, start, self.now, work.thread)
            )
        return self._submit(work, launch, (), ())

    def _collective(self, work: Collective) -> Item:
        start, cost = self.now, self._chance.around(self._cost * _COLLECTIVE)
        seq = self._number(work.group, message=False)
        meeting = self._meetings.collective(work, seq)
        launch = self._launch(_NCCL_LAUNCH, start + cost // 2, cost // 4, work.thread)
        self.now = start + cost
        self.recorded.communications.append(
            Communication(
                work.op, work.group, work.dtype, work.in_elems, work.out_elems,
                start + cost // 10, start + cost * 9 // 10, work.thread, seq,
                in_splits=work.in_splits, instance=meeting.number,
            )
        )  # fmt: skip
        carried = (len(self.recorded.communications) - 1,)
        return self._submit(work, launch, carried, (meeting,))

    def _batch(self, work: Batch) -> Item:
        first = len(self.recorded.communications)
        meetings = tuple(self._post(work, place) for place in range(len(work.posts)))
        self._batches += 1
        cost = self._chance.around(self._cost)
        launch = self._launch(_NCCL_LAUNCH, self.now + cost // 4, cost // 2, work.thread)
        self.now += cost
        carried = tuple(range(first, len(self.recorded.communications)))
        return self._submit(work, launch, carried, meetings)

    def _post(self, work: Batch, place: int) -> Meeting:
        """Record one send or receive of a batch."""
        post = work.posts[place]
        start, cost = self.now, self._chance.around(self._cost)
        meeting = self._meetings.message(work, place, self.rank)
        self.now = start + cost
        self.recorded.communications.append(
            Communication(
                post.op, work.group, work.dtype, post.elements, post.elements,
                start + cost // 10, start + cost * 9 // 10, work.thread,
                self._number(work.group, message=True),
                peer=post.peer, batch=self._batches, instance=meeting.number,
            )
        )  # fmt: skip
        return meeting

    def _synchronized(self, instruction: Synchronize) -> bool:
        """Block on the stream's end; the second time round it is there, and the call returns."""
        ends = self._end_of(instruction.stream)
        self.waits_for = [item for item in ends if not item.done]
        if self.waits_for:
            return False
        returned = max([self.now, *(item.end for item in ends)]) + self._chance.around(self._cost)
        self._launch("cudaStreamSynchronize", self.now, returned - self.now, instruction.thread)
        self.now = returned
        return True

    def _launch(self, name: str, start: int, length: int, thread: int) -> Launch:
        self._correlation += 1
        launch = Launch(name, self._correlation, start, start + length, thread)
        self.recorded.launches.append(launch)
        return launch

    def _number(self, group: int, *, message: bool) -> int:
        seq = self._seq[group, message]
        self._seq[group, message] += 1
        return seq

    # order on the device -------------------------------------------------------------------------

    def _submit(
        self,
        work: Work | Collective | Batch,
        launch: Launch,
        carried: tuple[int, ...],
        meetings: tuple[Meeting, ...],
    ) -> Item:
        """Put work at the end of its stream, behind what stream and communicator wait for."""
        item = Item(
            self.rank, work, launch.correlation, carried, launch.end + self._latency, meetings
        )
        before = self._end_of(work.stream)
        if not isinstance(work, Work):
            if work.group in self._communicator:
                before.append(self._communicator[work.group])
            self._communicator[work.group] = item
        for blocker in {id(one): one for one in before if not one.done}.values():
            blocker.followers.append(item)
            item.blockers += 1
        self._tail[work.stream] = item
        self._awaited.pop(work.stream, None)
        return item

    def _end_of(self, stream: int) -> list[Item]:
        """Return what must have ended for a stream to have come to its present end."""
        tail = [self._tail[stream]] if stream in self._tail else []
        return tail + self._awaited.get(stream, [])

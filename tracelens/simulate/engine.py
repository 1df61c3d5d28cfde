"""Run the scripts of all ranks: a discrete-event simulation of hosts, streams and communication.

Hosts run ahead: a script's instructions follow one another, and only a synchronisation looks at the
device. Work starts when its launch has arrived, and its stream and the events it waits for are
there. A collective's kernels spin until the last member has started, and then end together; a
message's do so until both ends have. Kernels of one communicator run one after the other, whatever
their streams: NCCL orders them.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tracelens.simulate import kernels
from tracelens.simulate.device import Item, Meeting, Meetings, SimulationError
from tracelens.simulate.host import Host
from tracelens.simulate.instructions import Batch, Work
from tracelens.simulate.machine import Chance
from tracelens.simulate.recording import DeviceEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.simulate.host import Recorded
    from tracelens.simulate.machine import Machine
    from tracelens.simulate.recording import Group
    from tracelens.simulate.script import Script

_START, _END = 0, 1


class Engine:
    """Simulates a run; times are true time since it began."""

    def __init__(
        self, scripts: Sequence[Script], groups: Sequence[Group], machine: Machine, seed: int
    ) -> None:
        meetings = Meetings(groups, machine)
        self.machine = machine
        self.groups = groups
        self.chance = Chance(machine, seed, "transfers")
        self.hosts = [
            Host(script, machine, Chance(machine, seed, f"host {script.rank}"), meetings)
            for script in scripts
        ]
        self.items: list[list[Item]] = [[] for _ in scripts]
        self.communicating = [0] * len(scripts)
        self.waiting_hosts: dict[Item, Host] = {}
        self.heap: list[tuple[int, int, int, Item]] = []
        self.events = 0

    def run(self) -> list[tuple[Recorded, list[DeviceEvent]]]:
        """Return per rank what its host and its device did.

        Raises:
            SimulationError: If the ranks wait for each other in a ring.
        """
        for host in self.hosts:
            self._resume(host, 0)
        while self.heap:
            now, _, kind, item = heapq.heappop(self.heap)
            if kind == _START:
                self._start(item, now)
            else:
                self._end(item, now)
        self._check_finished()
        return [
            (host.recorded, [_event(item) for item in sorted(items, key=lambda one: one.start)])
            for host, items in zip(self.hosts, self.items, strict=True)
        ]

    def _resume(self, host: Host, now: int) -> None:
        for item in host.run():
            self.items[item.rank].append(item)
            if not item.blockers:
                self._at(max(item.earliest, now), _START, item)
        for item in host.waits_for:
            self.waiting_hosts[item] = host

    def _at(self, time: int, kind: int, item: Item) -> None:
        self.events += 1
        heapq.heappush(self.heap, (time, self.events, kind, item))

    # device --------------------------------------------------------------------------------------

    def _start(self, item: Item, now: int) -> None:
        item.start = now
        if isinstance(item.work, Work):
            busy = item.work.kind == "kernel" and self.communicating[item.rank] > 0
            factor = self.machine.contention if busy else 1.0
            self._at(now + max(round(item.work.ns * factor), 1), _END, item)
            return
        self.communicating[item.rank] += 1
        item.open_meetings = len(item.meetings)
        for meeting in item.meetings:
            meeting.items.append(item)
            if len(meeting.items) == meeting.expected:
                self._transfer(meeting, now)

    def _transfer(self, meeting: Meeting, now: int) -> None:
        """Let everybody end together, now that the last one has come."""
        end = now + self.chance.around(meeting.transfer_ns)
        for item in meeting.items:
            item.open_meetings -= 1
            item.finish = max(item.finish, end)
            if not item.open_meetings:
                spread = self.chance.below(self.machine.end_spread_ns)
                self._at(item.finish + spread, _END, item)

    def _end(self, item: Item, now: int) -> None:
        item.end = now
        if not isinstance(item.work, Work):
            self.communicating[item.rank] -= 1
        for follower in item.followers:
            follower.blockers -= 1
            if not follower.blockers:
                self._at(max(follower.earliest, now), _START, follower)
        host = self.waiting_hosts.pop(item, None)
        if host is not None:
            host.waits_for.remove(item)
            if not host.waits_for:
                self._resume(host, now)

    # the end -------------------------------------------------------------------------------------

    def _check_finished(self) -> None:
        stuck = [item for items in self.items for item in items if not item.done]
        if stuck or not all(host.finished for host in self.hosts):
            heads = [item for item in stuck if item.start >= 0]
            shown = "; ".join(self._blocked(item) for item in heads[:8])
            raise SimulationError(f"the ranks wait for each other: {shown or 'nobody started'}")

    def _blocked(self, item: Item) -> str:
        work = item.work
        if isinstance(work, Work):
            return f"rank {item.rank} in {work.name}"
        here = {one.rank for meeting in item.meetings for one in meeting.items}
        missing = sorted(set(self.groups[work.group].ranks) - here)
        if isinstance(work, Batch):
            missing = [
                post.peer
                for post, meeting in zip(work.posts, item.meetings, strict=True)
                if len(meeting.items) < meeting.expected
            ]
        name = "+".join(p.op for p in work.posts) if isinstance(work, Batch) else work.op
        group = self.groups[work.group]
        return f"rank {item.rank} in {name} of group {group.name} waits for ranks {missing}"


def _event(item: Item) -> DeviceEvent:
    work, tag = item.work, item.work.tag
    if isinstance(work, Work):
        kind, name, size = work.kind, work.name, work.copy_bytes
    elif isinstance(work, Batch):
        kind, name, size = "kernel", kernels.SEND_RECV, None
    else:
        kind, name, size = "kernel", kernels.nccl(work.op, work.dtype), None
    return DeviceEvent(
        kind, name, work.stream, item.start, item.end, item.correlation, item.communications,
        size, tag.part, tag.micro_batch, tag.chunk,
    )  # fmt: skip

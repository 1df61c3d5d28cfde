"""The calls PyTorch makes to NCCL for the collectives of a rank, with what they are told.

A collective is one call that launches its kernel itself. An all-to-all is a send to and a receive
from every member between ncclGroupStart and ncclGroupEnd, and so is a batch of messages: there the
kernel is launched inside ncclGroupEnd. A single message runs on a communicator of two of its own
(ProcessGroupNCCL::pointToPoint).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.dtypes import item_size
from tracelens.simulate.host_events import ANNOTATION, HostEvent, batches, peer_in_group
from tracelens.simulate.nsight import payloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.simulate.host_events import Links, Splits
    from tracelens.simulate.recording import Communication, RecordedRank, Recording

_CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "send": "ncclSend",
    "recv": "ncclRecv",
}


@dataclass(frozen=True, slots=True)
class Communicator:
    """One NCCL communicator; `number` is the id that all its members share."""

    number: int
    ranks: tuple[int, ...]


class Communicators:
    """All communicators of a run: one a group, and one a pair that sends single messages."""

    def __init__(self, recording: Recording) -> None:
        self._seed, self._groups = recording.seed, recording.groups
        used = (self.of(one, rank.rank) for rank in recording.ranks for one in rank.communications)
        self._all = tuple(dict.fromkeys(used))

    def of(self, one: Communication, rank: int) -> Communicator:
        """Return the communicator a rank's communication runs on."""
        group = self._groups[one.group]
        members = group.ranks
        if one.peer is not None and one.batch is None:
            members = tuple(sorted((rank, one.peer)))
        facts = f"{self._seed}:{group.name}:{members}".encode()
        digest = hashlib.blake2b(facts, digest_size=8).digest()
        return Communicator(int.from_bytes(digest, "little"), members)

    def made_by(self, rank: int) -> list[Communicator]:
        """Return those a rank is a member of: it made them, even if it was not recorded then."""
        return [one for one in self._all if rank in one.ranks]


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `values` are the fields of its payload by name, under all names in use."""

    name: str
    thread: int
    start: int
    end: int
    values: dict[str, int] = field(default_factory=dict)


class Calls:
    """The NCCL calls of one rank."""

    def __init__(
        self,
        rank: RecordedRank,
        recording: Recording,
        host: list[HostEvent],
        links: Links,
        splits: Splits,
        communicators: Communicators,
    ) -> None:
        self._rank, self._recording = rank, recording
        self._links, self._splits, self._communicators = links, splits, communicators
        self._ranges = {
            event.communication: event
            for event in host
            if event.kind == ANNOTATION and event.communication is not None
        }
        self._ends = {event.batch: event for event in host if event.batch is not None}

    def all(self) -> list[Call]:
        """Return every call, in order of start."""
        found: list[Call] = []
        for index, one in enumerate(self._rank.communications):
            if one.op == "all_to_all":
                found += self._all_to_all(index, one)
            elif one.batch is not None:
                around = self._ranges[index]
                found.append(self._call(one, around.start, around.end))
            else:
                found.append(self._single(index, one))
        for number, indices in batches(self._rank).items():
            found += self._around_batch(number, indices)
        return sorted(found, key=lambda call: (call.start, -call.end))

    def _single(self, index: int, one: Communication) -> Call:
        around = self._ranges[index]
        launch = self._links.launch_of(index)
        if launch is None:
            return self._call(one, around.start, around.end)
        return self._call(
            one, (around.start + launch.start) // 2, (around.end + launch.end + 1) // 2
        )

    def _all_to_all(self, index: int, one: Communication) -> Iterator[Call]:
        """Yield the group of sends and receives; parts without elements are not called for."""
        around, launch = self._ranges[index], self._links.launch_of(index)
        size = len(self._recording.groups[one.group].ranks)
        sent = one.in_splits or (one.in_elems // size,) * size
        received = self._splits.received(one, self._rank.rank) or (one.out_elems // size,) * size
        parts = [
            (op, peer, elems)
            for peer in range(size)
            for op, elems in (("send", sent[peer]), ("recv", received[peer]))
            if elems
        ]
        until = around.end if launch is None else launch.start
        slot = (until - around.start) // (len(parts) + 2)
        at = around.start
        yield Call("ncclGroupStart", one.thread, at, at + slot)
        for place, (op, peer, elems) in enumerate(parts, 1):
            values = {payloads.PEER: peer} | self._values(one, elems)
            begin = at + place * slot
            yield Call(_CALLS[op], one.thread, begin, begin + slot, values)
        yield Call("ncclGroupEnd", one.thread, at + (len(parts) + 1) * slot, around.end)

    def _around_batch(self, number: int, indices: list[int]) -> Iterator[Call]:
        """Yield the start and the end of a batch's group."""
        first = self._rank.communications[indices[0]]
        room = self._ranges[indices[0]].start - first.start
        yield Call("ncclGroupStart", first.thread, first.start, first.start + room // 2)
        launch, end = self._links.launch_of(indices[0]), self._ends.get(number)
        if launch is not None and end is not None:
            begin = (end.start + launch.start) // 2
            yield Call("ncclGroupEnd", launch.thread, begin, launch.end)

    def _call(self, one: Communication, start: int, end: int) -> Call:
        # NCCL states one message: the part sent of a gather, the part kept of a reduce-scatter.
        elems = one.out_elems if one.op == "reduce_scatter" else one.in_elems
        values = self._values(one, elems)
        if one.op in ("send", "recv"):
            values[payloads.PEER] = self._peer(one)
        return Call(_CALLS[one.op], one.thread, start, end, values)

    def _values(self, one: Communication, elems: int) -> dict[str, int]:
        size = elems * (item_size(one.dtype) or 1)
        return {
            payloads.COMMUNICATOR: self._communicators.of(one, self._rank.rank).number,
            payloads.BYTES: size,
            payloads.OLD_BYTES: size,
            payloads.REDUCTION: payloads.REDUCTIONS["Sum"],
            payloads.ROOT: 0,
        }

    def _peer(self, one: Communication) -> int:
        if one.batch is None:
            return int(self._rank.rank < (one.peer or 0))  # of the pair in order of ranks
        return peer_in_group(one, self._recording.groups[one.group])

"""The host side of a recording, as every profiler sees it.

Operators and named ranges, and what the process group adds around each collective: a record, the
range inside it, the range around the end of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens.simulate.nesting import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.simulate.recording import (
        Communication,
        DeviceEvent,
        Group,
        Launch,
        RecordedRank,
        Recording,
    )

OPERATOR = "operator"
ANNOTATION = "annotation"
RECORD = "record_param_comms"
_RANGES = {
    "all_reduce": "nccl:all_reduce",
    "all_gather": "nccl:_all_gather_base",
    "reduce_scatter": "nccl:_reduce_scatter_base",
    "all_to_all": "nccl:all_to_all",
    "broadcast": "nccl:broadcast",
}
MESSAGES = ("send", "recv")


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One event of a host thread.

    Attributes:
        kind: operator, annotation or step.
        name: As PyTorch names it.
        thread: The host thread.
        start: When it began.
        end: When it ended.
        number: Its place among the rank's host events in order of start, from 1.
        communication: The one it records, or whose range it is.
        batch: The batch whose end it surrounds.
    """

    kind: str
    name: str
    thread: int
    start: int
    end: int
    number: int = 0
    communication: int | None = None
    batch: int | None = None

    @property
    def span(self) -> Span:
        """Return where it is, by its number."""
        return Span(self.thread, self.start, self.end, self.number)


@dataclass(frozen=True, slots=True)
class Links:
    """Which launch and device event belong together on a rank.

    Attributes:
        launches: By correlation.
        carriers: The device event that carries a communication, by the latter's index.
    """

    launches: dict[int, Launch]
    carriers: dict[int, DeviceEvent]

    @classmethod
    def of(cls, rank: RecordedRank) -> Links:
        """Look the links of a rank up once."""
        carriers: dict[int, DeviceEvent] = {}
        for event in rank.device_events:
            for index in event.communications:
                carriers.setdefault(index, event)
        return cls({launch.correlation: launch for launch in rank.launches}, carriers)

    def launch_of(self, communication: int) -> Launch | None:
        """Return the call that launched a communication's kernel."""
        carrier = self.carriers.get(communication)
        return None if carrier is None else self.launches.get(carrier.correlation)


class Splits:
    """What the members of uneven all-to-alls send, which tells what each receives."""

    def __init__(self, recording: Recording) -> None:
        self._sent: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        self._groups = recording.groups
        for rank in recording.ranks:
            for one in rank.communications:
                if one.in_splits is not None:
                    self._sent[one.instance][rank.rank] = one.in_splits

    def received(self, communication: Communication, rank: int) -> tuple[int, ...] | None:
        """Return the elements a rank receives from each member; None if a member is missing."""
        if communication.in_splits is None:
            return None
        members = self._groups[communication.group].ranks
        sent = self._sent[communication.instance]
        if any(member not in sent for member in members):
            return None
        return tuple(sent[member][members.index(rank)] for member in members)


def events(
    rank: RecordedRank, groups: Sequence[Group], links: Links, *, batches_closed: bool = True
) -> list[HostEvent]:
    """Return all host events of a rank in order of start, numbered.

    Args:
        rank: The rank, on its own clock.
        groups: The process groups of the run.
        links: Its launches and carriers.
        batches_closed: Whether the range around the end of a batch ends there: until pytorch
            160680 (2025) nothing closed it but the end of the work object, after the kernel.
    """
    found = [HostEvent(r.kind, r.name, r.thread, r.start, r.end) for r in rank.ranges]
    found += _records(rank, groups, links)
    found += _batches(rank, links, closed=batches_closed)
    found.sort(key=lambda event: (event.start, -event.end))
    return [replace(event, number=number) for number, event in enumerate(found, 1)]


def range_name(communication: Communication, group: Group, rank: int) -> str:
    """Return the name of the range the process group opens; messages name group ranks."""
    if communication.op not in MESSAGES:
        return _RANGES[communication.op]
    arrow = "->" if communication.op == "send" else "<-"
    here, there = group.ranks.index(rank), peer_in_group(communication, group)
    return f"nccl:{communication.op} {here}{arrow}{there}"


def peer_in_group(communication: Communication, group: Group) -> int:
    """Return the group rank at the other end of a message."""
    assert communication.peer is not None, "a message has a peer"
    return group.ranks.index(communication.peer)


def _records(rank: RecordedRank, groups: Sequence[Group], links: Links) -> Iterator[HostEvent]:
    for index, one in enumerate(rank.communications):
        yield HostEvent(OPERATOR, RECORD, one.thread, one.start, one.end, 0, index)
        launch = None if one.batch is not None else links.launch_of(index)
        start, end = _inside(one, launch)
        name = range_name(one, groups[one.group], rank.rank)
        yield HostEvent(ANNOTATION, name, one.thread, start, end, 0, index)


def _inside(record: Communication, launch: Launch | None) -> tuple[int, int]:
    """Place the process group's range in its record, around the launch if that is inside too."""
    if launch is None or not record.start <= launch.start <= launch.end <= record.end:
        quarter = (record.end - record.start) // 4
        return record.start + quarter, record.end - quarter
    return (record.start + launch.start) // 2, (record.end + launch.end + 1) // 2


def batches(rank: RecordedRank) -> dict[int, list[int]]:
    """Return the communications of each batch, by its number."""
    found: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(rank.communications):
        if one.batch is not None:
            found[one.batch].append(index)
    return found


def _batches(rank: RecordedRank, links: Links, *, closed: bool) -> Iterator[HostEvent]:
    """Yield the range around each ncclGroupEnd: it launches what `batch_isend_irecv` collected."""
    for number, indices in batches(rank).items():
        launch = links.launch_of(indices[0])
        if launch is None:
            continue
        last = max(rank.communications[index].end for index in indices)
        start = (last + launch.start) // 2 if last <= launch.start else launch.start
        end = launch.end if closed else max(launch.end, links.carriers[indices[0]].end)
        yield HostEvent(ANNOTATION, "nccl:coalesced", launch.thread, start, end, batch=number)

"""The host side of a file: operators, named ranges, and the records around collectives."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tracelens.simulate.kineto import arguments
from tracelens.simulate.nesting import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.simulate.recording import (
        Communication,
        DeviceEvent,
        Launch,
        RecordedRank,
        Recording,
    )

OPERATOR = "cpu_op"
ANNOTATION = "user_annotation"


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One event of a host thread; `external` is its "External id", in order of start."""

    category: str
    name: str
    thread: int
    start: int
    end: int
    args: dict[str, object] = field(default_factory=dict)
    external: int = 0
    communication: int | None = None  # the one it records

    @property
    def span(self) -> Span:
        """Return where it is, by External id."""
        return Span(self.thread, self.start, self.end, self.external)


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
    rank: RecordedRank, recording: Recording, links: Links, splits: Splits, torch: str
) -> list[HostEvent]:
    """Return all host events of a rank in order of start, numbered."""
    found = [*_ranges(rank), *_records(rank, recording, links, splits, torch)]
    found += _batches(rank, links, torch)
    found.sort(key=lambda event: (event.start, -event.end))
    return [replace(event, external=number) for number, event in enumerate(found, 1)]


def _ranges(rank: RecordedRank) -> Iterator[HostEvent]:
    for one in rank.ranges:
        category = OPERATOR if one.kind == "operator" else ANNOTATION
        yield HostEvent(category, one.name, one.thread, one.start, one.end)


def _records(
    rank: RecordedRank, recording: Recording, links: Links, splits: Splits, torch: str
) -> Iterator[HostEvent]:
    for index, one in enumerate(rank.communications):
        group = recording.groups[one.group]
        received = splits.received(one, rank.rank)
        args = arguments.of_record(one, group, rank.rank, torch, received)
        record = HostEvent(
            OPERATOR, "record_param_comms", one.thread, one.start, one.end, args, 0, index
        )
        yield record
        launch = None if one.batch is not None else links.launch_of(index)
        start, end = _inside(record, launch)
        name = arguments.annotation(one, group, rank.rank)
        yield HostEvent(ANNOTATION, name, one.thread, start, end)


def _inside(record: HostEvent, launch: Launch | None) -> tuple[int, int]:
    """Place the process group's range in its record, around the launch if that is inside too."""
    if launch is None or not record.start <= launch.start <= launch.end <= record.end:
        quarter = (record.end - record.start) // 4
        return record.start + quarter, record.end - quarter
    return (record.start + launch.start) // 2, (record.end + launch.end + 1) // 2


def _batches(rank: RecordedRank, links: Links, torch: str) -> Iterator[HostEvent]:
    """Yield the range around each ncclGroupEnd: it launches what `batch_isend_irecv` collected.

    Until pytorch 160680 (2025) nothing closed it but the end of the work object, after the kernel.
    """
    batches: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(rank.communications):
        if one.batch is not None:
            batches[one.batch].append(index)
    for indices in batches.values():
        launch = links.launch_of(indices[0])
        if launch is not None:
            closed = links.carriers[indices[0]].end if torch == "2.4" else launch.end
            last = _last_end(rank.communications[index] for index in indices)
            start = (last + launch.start) // 2 if last <= launch.start else launch.start
            end = max(launch.end, closed)
            yield HostEvent(ANNOTATION, "nccl:coalesced", launch.thread, start, end)


def _last_end(communications: Iterable[Communication]) -> int:
    return max(one.end for one in communications)

"""Facts about a rank's file, apart from its tables: they need neither numpy nor pandas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.model.result import Notice

LARGEST_SIZE = 1 << 48
"""Elements or bytes of one operation: more is damage. Sums of thousands still fit 64 bits."""


def believed(number: int | None) -> int | None:
    """Return a recorded rank or number of ranks, None if it cannot be one."""
    return number if number is not None and 0 <= number <= MOST_RANKS else None


MOST_RANKS = 1 << 20
"""A number of ranks beyond any machine: what claims more is damaged or hostile."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group as the trace lists it.

    Attributes:
        name: As operations name it.
        description: What it is for, in the framework's words.
        size: Number of members.
        ranks: Their global ranks in order.
        backend: nccl, gloo ...
        communicator: An id that is equal on all members and on no other group's: with it, the
            ranks that used a group are its members, even if no file lists them.
        place: The rank of this file's process in the group.
    """

    name: str
    description: str | None
    size: int | None
    ranks: tuple[int, ...] | None
    backend: str | None = None
    communicator: str | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Facts about one rank's file.

    `untimed` counts device events without a usable time per (process, device);
    `unknown_device_events` those of kinds the parser cannot attribute; `device_unseen` (the
    reduction finds it) means that there are signs of a device, and no event of it has a usable
    time; `truncated` that events are missing at the end, so every sum is a lower bound; `simulated`
    that the file says it comes from a simulator; `dtype` is what the program says that parameters
    and activations travel in, where only bytes are recorded. `local_rank` is the place of the
    process among those of its file, in order of their devices. `hints` says in the profiler's words
    how to get what a file may lack: `bytes` and `steps`. `settings` are the recorder's own that the
    file says were on, `reported_losses` what the profiler itself says it lost (device, ranges,
    counters; 0 if it does not say how many), `recorded` how many events of each kind it holds, read
    or not (kernel, copy, call, mark, operator, Python frame ...; 1 stands for some): `tracelens
    doctor` reads them.
    """

    path: str
    format: str
    rank: int | None = None
    rank_source: str | None = None  # distributedInfo | sidecar | file name | ...
    local_rank: int | None = None
    world_size: int | None = None
    base_ns: int = 0
    host: str | None = None
    process: int = 0
    backend: str | None = None
    device_kind: str = "unknown"
    device_names: dict[int, str] = field(default_factory=dict)
    process_groups: tuple[ProcessGroup, ...] = ()
    nccl_version: str | None = None
    framework_version: str | None = None
    events: int = 0
    truncated: bool = False
    damaged_device_events: int = 0
    unknown_device_events: int = 0
    device_unseen: bool = False
    shapes_recorded: bool | None = None
    settings: tuple[str, ...] = ()
    reported_losses: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)
    simulated: bool = False
    dtype: str | None = None
    untimed: dict[tuple[int, int], int] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    hints: dict[str, str] = field(default_factory=dict)
    cycle: int = 0

    @property
    def lacks_device_events(self) -> bool:
        """Whether the file says, or shows by itself, that device events are missing."""
        lost = self.truncated or self.damaged_device_events or "device" in self.reported_losses
        return bool(lost)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What `inspect` says about a file without parsing it whole.

    A file of several processes has no `rank` but the `ranks` it knows, and counts its `processes`.
    """

    format: str
    rank: int | None = None
    rank_source: str | None = None
    world_size: int | None = None
    host: str | None = None
    backend: str | None = None
    steps: tuple[int, ...] | None = None  # None: not looked for
    device_events: int | None = None
    complete: bool = True
    note: str | None = None
    processes: int = 1
    ranks: tuple[int, ...] = ()

"""Write down what NVTX says about communication: NCCL's calls with their sizes, torch's ranges.

"Message size" means another thing for each call (NCCL's API counts): the whole buffer of a
reduction or broadcast, one member's part of an all-gather, reduce-scatter or all-to-all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens import operations
from tracelens.host_names import is_communication_range
from tracelens.model.facts import believed
from tracelens.model.trace import COMMUNICATIONS, NONE, ProcessGroup, frame
from tracelens_nsight.frames import OPERATOR, categories

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens_nsight.batches import Carried
    from tracelens_nsight.device import DeviceRows
    from tracelens_nsight.payloads import Payloads
    from tracelens_nsight.ranges import Ranges

_BY_PART = frozenset(
    {
        operations.ALL_GATHER,
        operations.REDUCE_SCATTER,
        operations.ALL_TO_ALL,
        operations.GATHER,
        operations.SCATTER,
    }
)
ONLY = "the only communicator"
"""Names the communicator of a process that made one, before 2.25 put ids into payloads."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a process says about communication.

    Attributes:
        table: The communications table.
        groups: The process's groups.
        calls: Calls of NCCL.
        sized: Those that say their size.
        unread: Those with a payload of which no size could be read.
    """

    table: pd.DataFrame
    groups: tuple[ProcessGroup, ...]
    calls: int
    sized: int
    unread: int


def write(ranges: Ranges, payloads: Payloads, carried: Carried, device: DeviceRows) -> Said:
    """Return what the ranges of a process say about communication."""
    groups = _groups(payloads)
    # A call that no event carries counts only if its payload proves that it is one.
    proven = (carried.event != NONE) | payloads.known[carried.call]
    call, event, batch = (values[proven] for values in carried)
    names, group = _names_of_groups(payloads, call, event, device, groups)
    listed = groups + _by_stream(names, group, groups)
    size_of = {one.name: one.size for one in listed}
    sizes = np.array([_or_none(size_of.get(name)) for name in names] or [NONE], np.int64)
    amount = payloads.fields["size"][call]
    by_part = _is_by_part(ranges)[ranges.name[call]]
    peer, root = payloads.fields["peer"][call], payloads.fields["root"][call]
    spoken = _spoken(ranges)
    count, more = len(call), len(spoken)
    is_operator = np.array([n.startswith(OPERATOR) for n in ranges.names] or [False])
    kind = np.concatenate(
        (np.zeros(count, np.int64), 1 + is_operator[ranges.name[spoken]].astype(np.int64))
    )
    rows = np.concatenate((call, spoken))
    none = np.full(more, NONE)
    data: dict[str, Any] = {
        "source": categories(kind, ("payload", "annotation", "operator")),
        "name": categories(ranges.name[rows], ranges.names),
        "event": np.concatenate((event, none)),
        "start": ranges.start[rows],
        "end": ranges.end[rows],
        "thread": ranges.thread[rows],
        "external_id": np.concatenate((batch, none)),
        "group_name": [*np.array(names, object)[group], *[""] * more],
        "group_size": np.concatenate((sizes[group], none)),
        "buffer_bytes": np.concatenate((np.where(by_part, NONE, amount), none)),
        "part_bytes": np.concatenate((np.where(by_part, amount, NONE), none)),
        "root": np.concatenate((np.where(peer == NONE, root, peer), none)),
        "dtype": [*(payloads.dtypes.get(row, "") for row in call.tolist()), *[""] * more],
    }
    distinct = np.unique(call)
    sized = payloads.fields["size"][distinct] != NONE
    carries = np.array([bool(ranges.blob[row] or ranges.json[row]) for row in distinct.tolist()])
    unread = int((carries & ~sized).sum()) if len(distinct) else 0
    return Said(frame(COMMUNICATIONS, data), listed, len(distinct), int(sized.sum()), unread)


def _spoken(ranges: Ranges) -> Ints:
    """Return the ranges the framework put around a collective."""
    says = [is_communication_range(n) or n.startswith(OPERATOR) for n in ranges.names]
    return np.flatnonzero(np.array(says or [False])[ranges.name] & ~ranges.is_nccl)


def _is_by_part(ranges: Ranges) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([operations.canonical(n) in _BY_PART for n in ranges.names] or [False])


# groups ------------------------------------------------------------------------------------------


def _groups(payloads: Payloads) -> tuple[ProcessGroup, ...]:
    """Return the communicators the process used or made."""
    fields = payloads.fields
    made = np.flatnonzero(fields["ranks"] != NONE)
    facts: dict[int, tuple[int, int]] = {
        int(fields["communicator"][row]): (int(fields["ranks"][row]), int(fields["rank"][row]))
        for row in made
    }
    if set(facts) == {NONE} and len(made) == 1:
        size, place = facts[NONE]
        name = f"{ONLY} of {size}"
        return (ProcessGroup(name, None, size, None, "nccl", name, believed(place)),)
    placed = np.flatnonzero((fields["rank"] != NONE) & (fields["communicator"] != NONE))
    for row in placed.tolist():  # advanced tracing says it with every call
        facts.setdefault(int(fields["communicator"][row]), (NONE, int(fields["rank"][row])))
    used = fields["communicator"][fields["communicator"] != NONE]
    found = []
    for one in sorted({*facts, *np.unique(used).tolist()} - {NONE}):
        size, place = facts.get(int(one), (NONE, NONE))
        name = f"{int(one) & (1 << 64) - 1:016x}"
        sized = believed(size)
        found.append(ProcessGroup(name, None, sized, None, "nccl", name, believed(place)))
    return tuple(found)


def _names_of_groups(
    payloads: Payloads,
    call: Ints,
    event: Ints,
    device: DeviceRows,
    groups: Sequence[ProcessGroup],
) -> tuple[list[str], Ints]:
    """Return distinct group names, and the place of each call's among them."""
    only = next((one.name for one in groups if one.name.startswith(ONLY)), None)
    communicator = payloads.fields["communicator"][call]
    stream = np.append(device.stream, NONE)[np.where(event == NONE, -1, event)]
    stream = np.where(payloads.known[call], stream, NONE)
    both, place = np.unique(np.column_stack([communicator, stream]), axis=0, return_inverse=True)
    names = []
    for comm, on in both.tolist():
        if comm != NONE:
            names.append(f"{comm & (1 << 64) - 1:016x}")
        elif only is not None:
            names.append(only)
        else:
            names.append("" if on == NONE else f"stream {on}")
    return names or [""], place.reshape(-1)


def _by_stream(
    names: list[str], group: Ints, groups: Sequence[ProcessGroup]
) -> tuple[ProcessGroup, ...]:
    """Return a group for each stream whose communicator nothing names: its members are unknown."""
    used = Counter(names[int(one)] for one in np.unique(group))
    known = {one.name for one in groups}
    streams = [n for n in used if n.startswith("stream ") and n not in known]
    return tuple(ProcessGroup(name, None, None, None, "nccl") for name in sorted(streams))


def _or_none(value: int | None) -> int:
    return NONE if value is None else value

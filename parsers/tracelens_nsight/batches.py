"""Attach NCCL's calls to the device events that carry them.

A call outside a group launches its kernel before it returns. Inside ncclGroupStart … ncclGroupEnd
the calls only queue, and the last ncclGroupEnd launches one kernel for all of them (more, if they
are on several communicators). So the calls since the group began belong to the kernels launched in
its end. NCCL 2.28 and later may move data by copy engines instead: then copies between devices,
launched in the call, carry it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.model.trace import NONE
from tracelens.operations import canonical
from tracelens_nsight.device import BETWEEN_DEVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_nsight.calls import Calls
    from tracelens_nsight.device import DeviceRows
    from tracelens_nsight.ranges import Ranges


class Carried(NamedTuple):
    """A call, and the event that carries it.

    Attributes:
        call: Row of the ranges.
        event: Row of the device events, `NONE` if nothing recorded carries it.
        batch: Number of the batch of calls launched together, from 1.
    """

    call: Ints
    event: Ints
    batch: Ints


class _Thread(NamedTuple):
    """NCCL's calls of one thread by start, the batch of each, and the latest end so far."""

    rows: Ints
    batch: Ints
    reach: Ints


def attach(
    ranges: Ranges, communicator: Ints, calls: Calls, device: DeviceRows, launch: NDArray[np.int64]
) -> Carried:
    """Attach the calls of a process that move data.

    Args:
        ranges: All ranges of the process.
        communicator: Per range the communicator id, `NONE` if unknown.
        calls: Its runtime calls.
        device: Its device events.
        launch: Per device event the row of its launch in `calls`, -1 if unknown.
    """
    threads = _threads(ranges)
    batch_of_event = _batches_of_events(threads, ranges, calls, launch)
    moves = np.array([canonical(name) is not None for name in ranges.names] or [False])
    moving = {t: one.rows[moves[ranges.name[one.rows]]] for t, one in threads.items()}
    batch_of_call = np.zeros(len(ranges), np.int64)
    for one in threads.values():
        batch_of_call[one.rows] = one.batch
    rows = np.sort(np.concatenate([*moving.values(), np.empty(0, np.int64)])).astype(np.int64)
    carriers = _carriers(device, batch_of_event, calls, launch)
    pairs = list(_pairs(rows, batch_of_call, carriers, communicator, device))
    columns = np.array(pairs or np.empty((0, 3)), np.int64).T
    return Carried(*columns)


def _threads(ranges: Ranges) -> dict[int, _Thread]:
    """Cut each thread's calls into batches; batches are numbered over all threads from 1."""
    change = np.zeros(len(ranges.names), np.int64)
    for place, name in enumerate(ranges.names):
        change[place] = {"ncclGroupStart": 1, "ncclGroupEnd": -1}.get(name, 0)
    found: dict[int, _Thread] = {}
    following = 1
    nccl = np.flatnonzero(ranges.is_nccl)
    for thread in np.unique(ranges.thread[nccl]):
        rows = nccl[ranges.thread[nccl] == thread]
        depth = np.cumsum(change[ranges.name[rows]])
        depth -= np.minimum(np.minimum.accumulate(depth), 0)  # a group begun before the recording
        outside = np.concatenate(([True], depth[:-1] == 0))
        reach = np.maximum.accumulate(ranges.end[rows])
        nested = np.concatenate(([False], ranges.start[rows][1:] < reach[:-1]))
        batch = np.cumsum(outside & ~nested) + following - 1
        following = int(batch[-1]) + 1
        found[int(thread)] = _Thread(rows, batch, reach)
    return found


def _batches_of_events(
    threads: dict[int, _Thread], ranges: Ranges, calls: Calls, launch: NDArray[np.int64]
) -> Ints:
    """Return the batch that launched each device event, 0 if none did."""
    batch = np.zeros(len(launch), np.int64)
    linked = np.flatnonzero(launch >= 0)
    thread, at = calls.thread[launch[linked]], calls.start[launch[linked]]
    for number, one in threads.items():
        mine = np.flatnonzero(thread == number)
        place = np.searchsorted(ranges.start[one.rows], at[mine], side="right") - 1
        inside = (place >= 0) & (one.reach[place] > at[mine])
        batch[linked[mine[inside]]] = one.batch[place[inside]]
    return batch


def _carriers(
    device: DeviceRows, batch: Ints, calls: Calls, launch: NDArray[np.int64]
) -> dict[int, list[int]]:
    """Return per batch the events that carry it, in order of launch: kernels, else copies."""
    copies = np.isin(device.copy_kind, BETWEEN_DEVICES)
    able = np.flatnonzero((batch > 0) & ((device.kind == 0) | copies))
    able = able[np.argsort(calls.start[launch[able]], kind="stable")]
    found: dict[int, list[int]] = defaultdict(list)
    for event, number in zip(able.tolist(), batch[able].tolist(), strict=True):
        found[number].append(event)
    is_kernel = device.kind == 0
    return {
        number: [event for event in events if is_kernel[event]] or events
        for number, events in found.items()
    }


def _pairs(
    rows: Ints,
    batch_of_call: Ints,
    carriers: dict[int, list[int]],
    communicator: Ints,
    device: DeviceRows,
) -> Iterator[tuple[int, int, int]]:
    """Yield (call, event, batch), and for each further event of a batch its first call again."""
    queues = list(zip(device.device.tolist(), device.stream.tolist(), strict=True))
    calls: dict[int, list[int]] = defaultdict(list)
    for call, number in zip(rows.tolist(), batch_of_call[rows].tolist(), strict=True):
        calls[number].append(call)
    known = _communicator_of_queue(calls, carriers, communicator, queues)
    following = int(batch_of_call.max(initial=0)) + 1
    for number, members in calls.items():
        events = carriers.get(number, [])
        if not events:
            yield from ((call, NONE, number) for call in members)
            continue
        for part, served in _by_communicator(members, events, communicator, queues, known):
            yield from ((call, served[0], following) for call in part)
            yield from ((part[0], event, following) for event in served[1:])
            following += 1


_Queue = tuple[int, int]


def _communicator_of_queue(
    calls: dict[int, list[int]],
    carriers: dict[int, list[int]],
    communicator: Ints,
    queues: list[_Queue],
) -> dict[_Queue, int]:
    """Return which communicator a stream serves, from batches on one stream and communicator."""
    seen: dict[_Queue, Counter[int]] = defaultdict(Counter)
    for number, events in carriers.items():
        on = {queues[event] for event in events}
        of = {int(communicator[call]) for call in calls.get(number, ())} - {NONE}
        if len(on) == 1 and len(of) == 1:
            seen[on.pop()][of.pop()] += 1
    return {queue: count.most_common(1)[0][0] for queue, count in seen.items() if len(count) == 1}


def _by_communicator(
    members: list[int],
    events: list[int],
    communicator: Ints,
    queues: list[_Queue],
    known: dict[_Queue, int],
) -> Iterator[tuple[list[int], list[int]]]:
    """Divide a batch on several communicators; one that cannot be told apart stays whole."""
    of_call = [int(communicator[call]) for call in members]
    of_event = [known.get(queues[event]) for event in events]
    if len(set(of_call)) == 1 or set(of_event) != set(of_call):
        yield members, events
        return
    for one in dict.fromkeys(of_call):
        part = [call for call, said in zip(members, of_call, strict=True) if said == one]
        yield part, [event for event, said in zip(events, of_event, strict=True) if said == one]

"""Match sends with receives across ranks, and split their time into waiting and transfer.

The n-th message from one rank to another meets the n-th receive from it: NCCL keeps that order
within a communicator (its user guide, "Point-to-point communication"), and the tag of other
backends is not recorded. Each step is matched by itself, sizes are checked. Where the two ends
recorded different numbers of messages, those are matched that were in flight at the same time, in
order and as many as possible.

A message waits from its own start to the later start of both ends; what follows is transfer. A
kernel that carries several (`batch_isend_irecv`) waits for the last of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.matching import UNMATCHED
from tracelens.model.trace import NONE
from tracelens.operations import BARRIER, CODE, MESSAGES, SEND
from tracelens.steps import BEFORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from tracelens.clocks import Clocks
    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable
    from tracelens.waiting import Waiting

_CLOCK_ERROR_NS = 200_000
_MOST_SHIFT = 64
"""Recordings that begin or end apart by more messages than this are not matched."""


class _End(NamedTuple):
    """One end of a message: its row, what must be equal at both ends, and when it ran."""

    row: int
    signature: tuple[int, str, int]
    start: int
    end: int


_Block = tuple[list[_End], list[_End]]


def pair(table: OperationsTable, run_of: Mapping[int, int] | None = None) -> Ints:
    """Return per row of `table.frame` the row of the other end; `UNMATCHED` if there is none.

    Args:
        table: The operations.
        run_of: The run of each rank, where ranks of several runs are mixed: nothing matches across.
    """
    partner = np.full(len(table.frame), UNMATCHED)
    exact, open_ = _blocks(table, run_of or {})
    apart = defaultdict[tuple[int, int], list[int]](list)
    rank = table.frame["rank"].to_numpy(np.int64)
    for sends, receives in exact:
        for send, receive in zip(sends, receives, strict=True):
            _join(partner, send, receive)
            key = (int(rank[send.row]), int(rank[receive.row]))
            apart[key].append(receive.end - send.end)
    step = table.frame["step_number"].to_numpy(np.int64)
    for sends, receives in open_:
        key = (int(rank[sends[0].row]), int(rank[receives[0].row]))
        at_end = bool(step[sends[0].row] == BEFORE)
        for send, receive in _aligned(sends, receives, _difference(apart, key), at_end=at_end):
            _join(partner, send, receive)
    return partner


def _join(partner: Ints, send: _End, receive: _End) -> None:
    partner[send.row], partner[receive.row] = receive.row, send.row


def _difference(apart: dict[tuple[int, int], list[int]], key: tuple[int, int]) -> float | None:
    """Return how far the receiver's clock is ahead of the sender's, by the ends of messages.

    A send may end a little before its receive, so both directions are asked.
    """
    said = [
        sign * float(np.median(apart[one]))
        for sign, one in ((1, key), (-1, key[::-1]))
        if apart.get(one)
    ]
    return sum(said) / len(said) if said else None


# blocks ------------------------------------------------------------------------------------------


def _blocks(table: OperationsTable, run_of: Mapping[int, int]) -> tuple[list[_Block], list[_Block]]:
    """Return the messages of each pair of ranks, group and step: those that agree, and the rest."""
    frame = table.frame
    rows = np.flatnonzero(
        frame["op"].isin(MESSAGES).to_numpy()
        & (frame["peer"] != NONE).to_numpy()
        & (carrier_rows(frame) != NONE)
    )
    ends: dict[tuple[int, int, int, int, int], _Block] = {}
    for row, where, is_send in _keyed(table, rows):
        ends.setdefault(where, ([], []))[0 if is_send else 1].append(row)
    exact, rest = list[_Block](), list[_Block]()
    whole = frame["complete"].to_numpy(bool)
    for key, (sends, receives) in ends.items():
        if not sends or not receives or run_of.get(key[0]) != run_of.get(key[1]):
            continue
        agree = [one.signature for one in sends] == [one.signature for one in receives]
        sure = whole[[sends[0].row, receives[0].row]].all()
        (exact if agree and sure else rest).append((sends, receives))
    return exact, rest


def _keyed(
    table: OperationsTable, rows: Ints
) -> Iterator[tuple[_End, tuple[int, int, int, int, int], bool]]:
    """Yield each end in order of launch with its sender, receiver, group and step."""
    frame = table.frame.iloc[rows]
    launch, start = (frame[name].to_numpy(np.int64) for name in ("launch", "start_ns"))
    carrier = carrier_rows(table.frame)[rows]
    begin, finish = (table.frame[n].to_numpy(np.int64)[carrier] for n in ("start_ns", "end_ns"))
    # What was launched before the recording began has no launch, and precedes all that has one.
    order = np.lexsort((np.arange(len(rows)), np.where(launch == NONE, start, launch)))
    known = {group.index: group.ranks is not None for group in table.groups}
    columns = ["rank", "peer", "op", "group", "cycle_key", "step_number", "dtype", "elements"]
    values = list(frame[columns].itertuples(index=False, name=None))
    unnamed = _between_unnamed(values, known)
    for i in order.tolist():
        rank, peer, op, group, cycle, step, dtype, elements = values[i]
        ends = (int(rank), int(peer)) if op == CODE[SEND] else (int(peer), int(rank))
        where = -1 if ends in unnamed else int(group)
        end = _End(int(rows[i]), (where, str(dtype), int(elements)), int(begin[i]), int(finish[i]))
        yield end, (*ends, where, int(cycle), int(step)), op == CODE[SEND]


def _between_unnamed(values: list[tuple[int, ...]], known: dict[int, bool]) -> set[tuple[int, int]]:
    """Return the (sender, receiver) between which an end does not say its group."""
    found = set()
    for rank, peer, op, group, *_ in values:
        if not known[int(group)]:
            found.add((int(rank), int(peer)) if op == CODE[SEND] else (int(peer), int(rank)))
    return found


def carrier_rows(frame: pd.DataFrame) -> Ints:
    """Return per row the row of the frame that has the time of its kernel; `NONE` if none has."""
    carrier = frame["carrier"].to_numpy(np.int64)
    first = np.arange(len(frame)) - frame["row"].to_numpy(np.int64)
    return np.where(carrier == NONE, NONE, first + carrier)


# alignment ---------------------------------------------------------------------------------------


def _aligned(
    sends: list[_End], receives: list[_End], ahead: float | None, *, at_end: bool
) -> list[tuple[_End, _End]]:
    """Pair as many ends as possible in order; among equals, those that end closest together.

    Args:
        sends: In order.
        receives: In order.
        ahead: How far the receiver's clock is ahead; if unknown, times say nothing.
        at_end: Without times, line up the last messages instead of the first.
    """
    if ahead is None and at_end:
        found = _aligned(sends[::-1], receives[::-1], None, at_end=False)
        return found[::-1]
    # best[j]: (pairs, -distance) of the sends so far with the first j receives.
    count = len(receives)
    best: list[tuple[int, float]] = [(0, 0.0)] * (count + 1)
    taken = np.zeros((len(sends), count), bool)
    skipped = np.zeros((len(sends), count), bool)
    for i, send in enumerate(sends):
        row = [(0, 0.0)] * (count + 1)
        for j, receive in enumerate(receives):
            options = [(best[j + 1], 0), (row[j], 1)]
            if (distance := _distance(send, receive, ahead, i - j)) is not None:
                pairs, closeness = best[j]
                options.append(((pairs + 1, closeness - distance), 2))
            row[j + 1], chosen = max(options)
            taken[i, j], skipped[i, j] = chosen == 2, chosen == 1
        best = row
    return _traced(sends, receives, taken, skipped)


def _traced(
    sends: list[_End],
    receives: list[_End],
    taken: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    skipped: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
) -> list[tuple[_End, _End]]:
    found = []
    i, j = len(sends) - 1, len(receives) - 1
    while i >= 0 and j >= 0:
        if taken[i, j]:
            found.append((sends[i], receives[j]))
            i, j = i - 1, j - 1
        elif skipped[i, j]:
            j -= 1
        else:
            i -= 1
    return found[::-1]


def _distance(send: _End, receive: _End, ahead: float | None, shift: int) -> float | None:
    """Return how badly two ends fit; None if they cannot be one message."""
    if send.signature != receive.signature or abs(shift) > _MOST_SHIFT:
        return None
    if ahead is None:
        return abs(shift)
    early = receive.end - ahead < send.start - _CLOCK_ERROR_NS
    late = receive.start - ahead > send.end + _CLOCK_ERROR_NS
    return None if early or late else abs(receive.end - send.end - ahead)


# clocks and waiting ------------------------------------------------------------------------------


def meetings(table: OperationsTable, partner: Ints, clocks: Clocks) -> tuple[pd.DataFrame, Ints]:
    """Return what tells clocks that no collective links: kernels that carry the same messages.

    Such kernels end together, as those of a collective of the two ranks would.

    Args:
        table: The operations.
        partner: From `pair`.
        clocks: What collectives showed.

    Returns:
        Rows with the columns `align` asks for, two for each meeting, and the meeting of each.
    """
    frame = table.frame
    carrier, rank = carrier_rows(frame), frame["rank"].to_numpy(np.int64)
    met = {
        kernel: {int(carrier[partner[row]]) if partner[row] != UNMATCHED else NONE for row in rows}
        for kernel, rows in _kernels(frame).items()
    }
    kernels: list[int] = []
    for kernel, others in met.items():
        other = max(others)
        if len(others) > 1 or kernel > other or met[other] != {kernel}:
            continue
        sets = [clocks.component.get(int(rank[one])) for one in (kernel, other)]
        if sets[0] is None or sets[0] != sets[1]:
            kernels += [kernel, other]
    chosen = frame.iloc[kernels][["rank", "end_ns"]].reset_index(drop=True)
    ends = chosen["rank"].to_numpy(np.int64).reshape(-1, 2)
    pairs = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)[1].ravel()
    chosen = chosen.assign(op=CODE[BARRIER], group=len(table.groups) + np.repeat(pairs, 2))
    return chosen, np.repeat(np.arange(len(ends)), 2)


def add_waiting(table: OperationsTable, partner: Ints, waits: Waiting) -> None:
    """Split the time of matched messages into waiting and transfer, in place.

    Args:
        table: The operations.
        partner: From `pair`.
        waits: What matching collectives showed; its clocks decide which ranks compare.
    """
    frame = table.frame
    carrier = carrier_rows(frame)
    rank, start, end = (frame[n].to_numpy(np.int64) for n in ("rank", "start_ns", "end_ns"))
    started, ended = (_of_partner(at, partner, carrier, rank, waits.clocks) for at in (start, end))
    for kernel, rows in _kernels(frame).items():
        if (started[rows] == NONE).any():
            continue
        own_end = int(end[kernel])
        # A send that ended before its receive began was buffered: it waited for nobody.
        cut = max([int(start[kernel]), *(int(at) for at in started[rows] if at <= own_end)])
        if not waits.times_are_the_devices:
            # A host backend's range lasts until the host asks for it, however early it was done.
            cut = own_end - max(min(own_end, int(ended[rows].max())) - cut, 0)
        waits.wait_ns[rows] = 0
        waits.wait_ns[kernel] = cut - start[kernel]
        waits.cut[kernel] = cut


def _kernels(frame: pd.DataFrame) -> dict[int, list[int]]:
    """Return the messages of each kernel, both as rows of the frame."""
    carrier = carrier_rows(frame)
    kernels: dict[int, list[int]] = defaultdict(list)
    messages = frame["op"].isin(MESSAGES).to_numpy() & (carrier != NONE)
    for row in np.flatnonzero(messages).tolist():
        kernels[int(carrier[row])].append(row)
    return kernels


def _of_partner(at: Ints, partner: Ints, carrier: Ints, rank: Ints, clocks: Clocks) -> Ints:
    """Return a time of each row's other end on the row's own clock; `NONE` if it is unknown."""
    result = np.full(len(partner), NONE)
    component = np.array([clocks.component.get(int(one), NONE) for one in rank], np.int64)
    rows = np.flatnonzero(partner != UNMATCHED)
    others = partner[rows]
    both = (component[rows] != NONE) & (component[rows] == component[others])
    rows, others = rows[both], others[both]
    result[rows] = clocks.own(rank[rows], clocks.common(rank[others], at[carrier[others]]))
    return result

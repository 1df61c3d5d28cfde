"""Match the instances of a collective across ranks.

Calls are matched per group (its rank list, never its name): by sequence number where the trace has
one (torch 2.12), else within each step by order, with sizes checked. A rank may lack calls at the
edges or in the middle, so orders are aligned, not indexed.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens import operations
from tracelens.model.trace import NONE
from tracelens.operations import CODE
from tracelens.steps import BEFORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens.operations_table import OperationsTable

UNMATCHED = -1
# Messages have two ends of their own, and an unknown kernel may be a message.
_NOT_COLLECTIVE = [
    CODE[name]
    for name in (operations.SEND, operations.RECV, operations.SEND_RECV, operations.UNKNOWN)
]
_LONGEST_DIFF = 400  # SequenceMatcher is quadratic
_MOST_SHIFT = 32
_SAME = ["op", "seq", "dtype", "elements"]

Signature = tuple[int, str, int]


def match(table: OperationsTable) -> Ints:
    """Number the instances: equal numbers in the frame's rows are one collective.

    Returns:
        One number per row of `table.frame`, `UNMATCHED` for rows no other rank's row belongs to.
    """
    frame = table.frame
    # An all-to-all's sizes may differ from rank to rank.
    uneven = (frame["op"] == CODE[operations.ALL_TO_ALL]).to_numpy()
    # Where no type is recorded, bytes compare as well.
    sizes = frame["elements"].where(frame["elements"] != NONE, frame["buffer_bytes"])
    frame = frame.assign(elements=sizes.mask(uneven, NONE))
    instance = np.full(len(frame), UNMATCHED)
    known = [group.index for group in table.groups if group.is_one]
    timed = (frame["start"].to_numpy(np.int64) != NONE) & ~frame["op"].isin(_NOT_COLLECTIVE)
    following = 0
    for _, rows in frame[timed & frame["group"].isin(known)].groupby("group", sort=True):
        if rows["rank"].nunique() > 1:
            for members in _instances(rows):
                instance[members] = following
                following += 1
    return instance


def _instances(rows: pd.DataFrame) -> Iterator[list[int]]:
    """Yield the frame rows of each instance that at least two ranks took part in."""
    if _numbered(rows):
        groups: Any = rows.groupby(_SAME, sort=True).groups.values()
        yield from (list(members) for members in groups if len(members) > 1)
        return
    for _, block in rows.groupby(["cycle_key", "step_number"], sort=True):
        yield from _by_order(block)


def _numbered(rows: pd.DataFrame) -> bool:
    """Tell whether every call has a sequence number and no rank uses one twice."""
    if (rows["seq"].to_numpy(np.int64) == NONE).any():
        return False
    return not rows.duplicated(["rank", *_SAME]).any()


def _by_order(block: pd.DataFrame) -> Iterator[list[int]]:
    """Align the ranks' calls of one step to the rank with the most usual number of calls."""
    calls = [_in_order(part) for _, part in block.groupby("rank", sort=True)]
    lengths = Counter(len(part) for part in calls)
    usual = max(lengths, key=lambda length: (lengths[length], length))
    reference = next(part for part in calls if len(part) == usual)
    at_end = bool((block["step_number"] == BEFORE).all())
    members: list[list[int]] = [[] for _ in reference]
    for part in calls:
        for place, own in _pairs(_signatures(reference), _signatures(part), from_end=at_end):
            members[place].append(part[own][0])
    yield from (rows for rows in members if len(rows) > 1)


def _in_order(part: pd.DataFrame) -> list[tuple[int, Signature]]:
    ordered = part.sort_values("start", kind="stable")
    columns = (ordered["op"], ordered["dtype"], ordered["elements"])
    signatures = zip(*columns, strict=True)
    return [
        (int(row), (int(op), str(dtype), int(elements)))
        for row, (op, dtype, elements) in zip(ordered.index, signatures, strict=True)
    ]


def _signatures(calls: Sequence[tuple[int, Signature]]) -> list[Signature]:
    return [signature for _, signature in calls]


def _pairs(
    reference: list[Signature], own: list[Signature], *, from_end: bool
) -> Iterator[tuple[int, int]]:
    """Yield (index in the reference, index in the rank's own calls) of equal calls."""
    if reference != own and from_end:
        yield from _shifted(reference, own, from_end=True)
        return
    # Layers repeat their sizes: what agrees at both ends is no matter for a diff, which takes the
    # longest run wherever it stands.
    head = _common(reference, own)
    tail = min(_common(reference[::-1], own[::-1]), min(len(reference), len(own)) - head)
    ends = len(reference) - tail, len(own) - tail
    yield from ((i, i) for i in range(head))
    for place, mine in _diff(reference[head : ends[0]], own[head : ends[1]]):
        yield head + place, head + mine
    yield from ((ends[0] + i, ends[1] + i) for i in range(tail))


def _common(first: list[Signature], second: list[Signature]) -> int:
    """Count the equal calls two lists begin with."""
    unlike = (i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    return next(unlike, min(len(first), len(second)))


def _diff(reference: list[Signature], own: list[Signature]) -> Iterator[tuple[int, int]]:
    if max(len(reference), len(own)) > _LONGEST_DIFF:
        yield from _shifted(reference, own, from_end=False)
        return
    matcher = SequenceMatcher(None, reference, own, autojunk=False)
    for block in matcher.get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))


def _shifted(
    reference: list[Signature], own: list[Signature], *, from_end: bool
) -> Iterator[tuple[int, int]]:
    """Pair calls at the one shift that makes most of them equal.

    Calls before the first step are cut at the front by the start of recording, so their ends line
    up; a smaller shift wins a tie.
    """
    base = len(reference) - len(own) if from_end else 0
    best: list[tuple[int, int]] = []
    for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
        found = [
            (i + base + shift, i)
            for i in range(len(own))
            if 0 <= i + base + shift < len(reference) and reference[i + base + shift] == own[i]
        ]
        if len(found) > len(best):
            best = found
    yield from best

"""Find the steps of a trace and cut the device's time into them (docs/attribution.md, Steps).

Host marks say when a step was *launched*; the device runs later. Calls and bytes go to the step
that launched them, time is cut by device windows, so that sums close and no tail is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.digits import as_integer
from tracelens.durations import HOUR_NS
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints

BEFORE = -1
AFTER = -2

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
_NUMBERED = re.compile(
    r"^(?:tracelens\.|global[_ -]?|train(?:ing)?[_ -]?)?"
    r"(?:iteration|iter|step|batch)[_ #:=-]*(\d+)$",
    re.IGNORECASE,
)
_REPEATED = re.compile(
    r"^(?:##\s*)?(?:train(?:ing)?[_ -]?step|train[_ -]?iteration|iteration|step|"
    r"\[pl\]\[profile\]run_training_batch)(?:\s*##)?$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Host ranges of the steps in time order; `occurrence` counts repeats of a number.

    `unended` has the places of those whose recorded length cannot be: they end where the next one
    starts, the last with the trace. `unfollowed` has those behind which time without a mark lies,
    though the next mark is of another step than the next: marks of a profiler adjoin.
    """

    number: list[int]
    occurrence: list[int]
    start: Ints
    end: Ints
    source: str | None
    unended: frozenset[int] = frozenset()
    unfollowed: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.number)


def find(marks: pd.DataFrame, pattern: str | None = None, last: int = NONE) -> StepMarks:
    """Find the steps among a trace's marks.

    Args:
        marks: The table `marks` of a RankTrace.
        pattern: A user's regular expression; its first group, if any, is the step's number.
        last: When the last host event ended that is no mark.

    Returns:
        ProfilerStep#N if there are any, else numbered ranges, else a repeating one, else none.
    """
    if pattern is not None:
        return _matching(marks, re.compile(pattern), "pattern")
    for regex, source in ((_PROFILER_STEP, "ProfilerStep"), (_NUMBERED, "range")):
        found = _matching(marks, regex, source, last)
        if len(found):
            return found
    found = _matching(marks, _REPEATED, "range")
    return found if len(found) > 1 else _none()


def numbers_of(names: Collection[str]) -> tuple[int, ...] | None:
    """Return the numbers of the steps among names of ranges, as `find` would choose them.

    None if the steps have names without a number.
    """
    for regex in (_PROFILER_STEP, _NUMBERED):
        found = [number for name in names if (number := _number(regex, name)) is not None]
        if found:
            return tuple(sorted({number for number in found if number != NONE}))
    return None if any(map(_REPEATED.search, names)) else ()


def _none() -> StepMarks:
    return StepMarks([], [], np.empty(0, np.int64), np.empty(0, np.int64), None)


def _matching(
    marks: pd.DataFrame, regex: re.Pattern[str], source: str, last: int = NONE
) -> StepMarks:
    names = marks["name"].cat
    numbers = [_number(regex, str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    rows = np.flatnonzero([numbers[code] is not None for code in codes])
    starts, ends = marks["start"].to_numpy(), marks["end"].to_numpy()
    rows = rows[np.argsort(starts[rows], kind="stable")]
    open_rows: set[int] = set()
    if source == "ProfilerStep":  # ranges of other names may be meant as an instant, or be nested
        rows = _without_twins(rows, starts, ends, [numbers[code] for code in codes[rows]])
        others = np.delete(ends, rows)
        ends, open_rows = _ended(rows, starts, ends, max(last, others.max(initial=NONE)))
    rows = _outermost(rows, starts, ends)
    if not len(rows):
        return _none()
    found = [numbers[codes[row]] for row in rows]
    number = [row if value == NONE else int(value or 0) for row, value in enumerate(found)]
    seen: Counter[int] = Counter()
    occurrence = []
    for value in number:
        occurrence.append(seen[value])
        seen[value] += 1
    unended = frozenset(place for place, row in enumerate(rows.tolist()) if row in open_rows)
    start, end = starts[rows], ends[rows]
    unfollowed = _unfollowed(number, start, end) if source == "ProfilerStep" else frozenset()
    return StepMarks(number, occurrence, start, end, source, unended, unfollowed)


def _unfollowed(number: list[int], start: Ints, end: Ints) -> frozenset[int]:
    apart = start[1:] - end[:-1] > (end - start)[:-1] // 100
    return frozenset(np.flatnonzero(apart & (np.diff(number) != 1)).tolist())


def _without_twins(
    rows: NDArray[np.int64], start: Ints, end: Ints, numbers: list[int | None]
) -> NDArray[np.int64]:
    """Drop marks inside the one before of their number (the same step recorded by two tools)."""
    kept: list[int] = []
    before: int | None = None
    for row, number in zip(rows.tolist(), numbers, strict=True):
        if not kept or number != before or start[row] >= end[kept[-1]]:
            kept.append(row)
        before = number
    return np.array(kept, np.int64)


def _ended(rows: NDArray[np.int64], start: Ints, end: Ints, last: int) -> tuple[Ints, set[int]]:
    """End marks whose length cannot be where the next one starts, the last with the trace.

    A profiler is in one step at a time: of marks that overlap, one's end or the other's start is
    wrong. Less than a hundredth of the length is rounding. A last one that ends an hour after all
    else on the host has no true end either.
    """
    if not len(rows):
        return end, set()
    length = end[rows] - start[rows]
    last = max(last, int(start[rows[-1]]))
    following = np.append(start[rows][1:], last)
    over = np.append(end[rows][:-1] - following[:-1], 0)
    overlaps = over > length // 100
    wrong = (length <= 0) | overlaps | np.append(False, overlaps[:-1])
    wrong[-1] |= bool(end[rows[-1]] > last + HOUR_NS)
    ended = end.copy()
    ended[rows] = np.where(wrong | (over > 0), following, end[rows])
    return ended, set(rows[wrong].tolist())


def _number(regex: re.Pattern[str], name: str) -> int | None:
    match = regex.search(name)
    if match is None:
        return None
    digits = match.group(1) if regex.groups else None
    found = as_integer(digits)
    return NONE if found is None else found


def _outermost(rows: NDArray[np.int64], start: Ints, end: Ints) -> NDArray[np.int64]:
    """Drop marks nested in an earlier one (the same range recorded by two tools)."""
    kept: list[int] = []
    reach = NONE
    for row in rows:
        if start[row] >= reach and end[row] > start[row]:
            kept.append(int(row))
            reach = end[row]
    return np.array(kept, np.int64)


def periods(marks: StepMarks) -> Ints:
    """Return the time from each step's start to the next one's.

    The last step, and one whose number the next does not follow (another profiler cycle in the
    same file), has its own length.
    """
    own = marks.end - marks.start
    following = np.diff(marks.number) == 1
    return np.append(np.where(following, np.diff(marks.start), own[:-1]), own[-1:])


class Windows(NamedTuple):
    """Device windows of the steps, and the launching step of every event."""

    low: Ints
    high: Ints
    step_of: NDArray[np.int64]


def launching_step(marks: StepMarks, launch: Ints) -> NDArray[np.int64]:
    """Return the step that launched each event; `BEFORE` and `AFTER` the marks.

    Work launched between two marks belongs to the earlier one. Unknown launches give `BEFORE`.
    """
    index = np.searchsorted(marks.start, launch, side="right") - 1
    last = len(marks) - 1
    after = (index == last) & (launch >= marks.end[last])
    return np.where(after, AFTER, np.where(launch == NONE, BEFORE, index))


def device_windows(
    marks: StepMarks, start: Ints, end: Ints, launch: Ints, stream: Ints | None = None
) -> Windows:
    """Cut one device's time into the steps' windows.

    Args:
        marks: The steps; at least one.
        start: Start of each device event, ascending.
        end: End of each device event.
        launch: Host time of the launching call, or `NONE`.
        stream: The stream of each event; None if they are all of one.
    """
    step_of = launching_step(marks, launch)
    low = np.full(len(marks), np.iinfo(np.int64).max)
    inside = step_of >= 0
    np.minimum.at(low, step_of[inside], start[inside])
    high_of_last = _last_end(marks, low, end, step_of)
    # A step that launched nothing has an empty window where the next one begins.
    low = np.minimum.accumulate(np.append(low, high_of_last)[::-1])[::-1]
    windows_low, windows_high = low[:-1], low[1:]
    unlinked = launch == NONE
    # Ahead of the first window the index is -1, which is BEFORE.
    by_window = np.searchsorted(windows_low, start[unlinked], side="right") - 1
    step_of[unlinked] = np.where(start[unlinked] >= high_of_last, AFTER, by_window)
    if stream is not None and unlinked.any():
        step_of[_ahead_of_their_stream(stream, launch)] = BEFORE
    return Windows(windows_low, windows_high, step_of)


def between_steps(step_of: NDArray[np.int64], launch: Ints) -> set[int]:
    """Return the steps at whose border an event stands that may be of either.

    Nothing says what launched it: a damaged or lost call. Its step would begin or end with it.

    Args:
        step_of: The step of each event of a device, by start.
        launch: Host time of the launching call, or `NONE`.
    """
    linked = np.flatnonzero(launch != NONE)
    if len(linked) in (0, len(launch)):
        return set()
    unlinked = np.flatnonzero((launch == NONE) & (step_of >= 0))
    place = np.searchsorted(linked, unlinked)
    inside = (place > 0) & (place < len(linked))
    before, after = step_of[linked[place[inside] - 1]], step_of[linked[place[inside]]]
    torn = (before != after) & (before >= 0) & (after >= 0)
    return set(np.concatenate([before[torn], after[torn]]).tolist())


def _ahead_of_their_stream(stream: Ints, launch: Ints) -> NDArray[np.bool_]:
    """Tell which events run before the first linked one of their stream.

    A stream runs in the order of launches, so they were launched before it: before the profiler
    recorded launches. Other streams may have got further by then.
    """
    ahead = np.zeros(len(stream), bool)
    for one in np.unique(stream[launch == NONE]):
        rows = np.flatnonzero(stream == one)
        linked = np.flatnonzero(launch[rows] != NONE)
        if len(linked):
            ahead[rows[: linked[0]]] = True
    return ahead


def _last_end(marks: StepMarks, low: Ints, end: Ints, step_of: NDArray[np.int64]) -> int:
    """End of the last window: its last event's end, or the host's end plus the launch lag.

    A lone step has no lag: nothing shows that the host was ahead of the device all the time.
    """
    last = len(marks) - 1
    mine = end[step_of == last]
    if not len(mine):
        started = low[low < np.iinfo(np.int64).max]
        return int(max(end.max() if len(end) else 0, started.max() if len(started) else 0))
    lag = int(low[last] - marks.start[last]) if last else 0
    return int(max(mine.max(), marks.end[last] + lag))


def host_windows(marks: StepMarks, start: Ints, launch: Ints) -> Windows:
    """Cut host time into steps: on a CPU run a step's window is its own mark."""
    step_of = launching_step(marks, np.where(launch == NONE, start, launch))
    return Windows(marks.start, marks.end, step_of)

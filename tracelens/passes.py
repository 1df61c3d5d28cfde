"""Cut a rank's work in a pipeline into passes: one micro-batch, forward or backward, one stage.

The ranges of a schedule (torch.distributed.pipelining, Megatron, DeepSpeed) tell which pass a
launch belongs to. Without them the messages between stages cut the work, and the thread that
launched it tells backward from forward: autograd runs backward functions on a thread of its own,
or on a CPU inside ranges of its engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.digits import as_integer
from tracelens.intervals import Intervals, clip, pieces, subtract, union, union_of
from tracelens.model.trace import NONE
from tracelens.operations import RECV

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.model.trace import RankTrace
    from tracelens.steps import StepMarks

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(4)
KINDS = ("forward", "backward", "backward_input", "backward_weight")
"""`backward` is a whole backward pass; schedules of the zero-bubble family split it in two."""

# torch: `Optimizer.step#Adam.step`; DeepSpeed: `DeepSpeedZeroOptimizer_Stage3.step`; Megatron:
# `megatron.core.optimizer.…Optimizer.step`.
_OPTIMIZER_STEP = re.compile(r"(?:^|\.)\w*Optimizer\w*\.step(?:#.*)?$")
_MOST_EDGE_GAPS = 256
_TINY = 0.05
"""Runs of work below this share of the usual pass are part of the pass beside them: the filling of
a receive buffer, the scaling of a loss."""


class Passes(NamedTuple):
    """The passes of one step in order of launch; `NONE` where a number is not known.

    `start` and `end` are the first and the last instant of a pass's work on the device, `work_ns`
    the length of that work. `stage` counts virtual stages over all ranks.
    """

    kind: NDArray[np.int8]
    stage: Ints
    micro_batch: Ints
    start: Ints
    end: Ints
    work_ns: Ints
    launch: Ints


@dataclass(frozen=True, slots=True)
class Work:
    """Forward and backward work of a step: from `first` to `last`, `work_ns` long.

    Attributes:
        first: Its first instant.
        last: Its last one.
        work_ns: Length of its union.
        passes: The passes it is made of.
        dependency_ns: Idle time between passes whose next event had been launched.
        dependency_edges: Such idle time before the first and after the last pass: starts and ends
            of the longest gaps.
        synchronized: How often the host waited for the whole device between its first and its last
            message.
    """

    first: int
    last: int
    work_ns: int
    passes: Passes
    dependency_ns: int = 0
    dependency_edges: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
    synchronized: int = 0


class Message(NamedTuple):
    """A send or receive between stages, and when the host launched it."""

    launch: int
    op: str


class Compute(NamedTuple):
    """Compute events of one step; on a host timeline they are their own launch."""

    start: Ints
    end: Ints
    launch: Ints
    thread: Ints


class _Actions(NamedTuple):
    """Ranges of a schedule: disjoint, ascending; a row of `meaning` for forward and for backward.

    Both are equal but for a range in which one forward and one backward pass overlap.
    """

    start: Ints
    end: Ints
    meaning: list[tuple[_Meaning, _Meaning]]


class _Meaning(NamedTuple):
    kind: int
    stage: int = NONE
    micro_batch: int = NONE


class _Rows(NamedTuple):
    """Pieces of compute in order of launch, and whether autograd launched them."""

    start: Ints
    end: Ints
    launch: Ints
    backward: NDArray[np.bool_]

    def take(self, which: NDArray[np.generic]) -> _Rows:
        return _Rows(*(column[which] for column in self))


class PassFinder:
    """Finds the passes of each step of a rank."""

    def __init__(self, trace: RankTrace, marks: StepMarks, *, is_host: bool) -> None:
        self.marks, self.is_host = marks, is_host
        self._ranges = trace.marks
        self._main = _main_thread(trace, marks)
        calls = trace.host_calls
        mine = np.asarray(calls["kind"].astype(object)) == "autograd"
        start, end, thread = (calls[n].to_numpy()[mine] for n in ("start", "end", "thread"))
        self._backward = {int(t): union(start[thread == t], end[thread == t]) for t in set(thread)}
        self._any_backward = union(start, end)
        self._synchronized = _synchronizations(trace)
        names = trace.marks["name"].cat
        said = [str(name) for name in names.categories]
        steps = self._marked([_OPTIMIZER_STEP.search(name) is not None for name in said])
        self._optimizer = union_of(
            steps, self._marked([name.startswith("Optimizer.") for name in said])
        )
        self._optimizer_steps = np.append(steps.start, np.iinfo(np.int64).max)
        self._actions = _actions(trace)

    def _marked(self, chosen: Sequence[bool]) -> Intervals:
        """Return the union of the ranges whose name is chosen."""
        codes = self._ranges["name"].cat.codes.to_numpy()
        mine = np.isin(codes, np.flatnonzero(chosen))
        return union(*(self._ranges[name].to_numpy()[mine] for name in ("start", "end")))

    def of_step(self, index: int, compute: Compute, messages: Sequence[Message]) -> Work | None:
        """Return the work of a step; None without messages between stages, or without work.

        Args:
            index: The step.
            compute: What it computes, in any order.
            messages: What it sends to other stages and receives from them, in order of launch.
        """
        if not messages:
            return None
        low, high = self._span(index)
        actions = _between(self._actions, low, high)
        rows = self._rows(compute)
        if actions.meaning:
            rows, meaning = _by_ranges(rows, actions, cut=self.is_host)
        else:
            rows = self._before_optimizer(rows, index, messages)
            rows, meaning = _by_messages(rows, np.array([m.launch for m in messages], np.int64))
        if not len(rows.start):
            return None
        passes = _passes(rows, meaning)
        whole = union(rows.start, rows.end)
        bounds = [messages[0].launch, messages[-1].launch]
        first, last = np.searchsorted(self._synchronized, bounds).tolist()
        return Work(
            int(whole.start[0]),
            int(whole.end[-1]),
            whole.length,
            passes,
            synchronized=int(last - first),
        )

    def _span(self, index: int) -> tuple[int, int]:
        """Return the host time from a step's mark to the next one's."""
        start = self.marks.start
        last = index + 1 == len(start)
        return int(start[index]), int(self.marks.end[index] if last else start[index + 1])

    def _rows(self, compute: Compute) -> _Rows:
        """Tell backward from forward, and sort by launch."""
        if self.is_host:
            which, start, end = pieces(compute.start, compute.end, self._any_backward)
            rest = subtract(union(compute.start, compute.end), self._any_backward)
            flags = np.repeat([True, False], (len(which), len(rest.start)))
            both = np.concatenate((start, rest.start)), np.concatenate((end, rest.end))
            rows = _Rows(both[0], both[1], both[0], flags)
        else:
            known = compute.launch != NONE
            start, end, launch, thread = (column[known] for column in compute)
            rows = _Rows(start, end, launch, self._by_autograd(launch, thread))
        return rows.take(np.argsort(rows.launch, kind="stable"))

    def _by_autograd(self, launch: Ints, thread: Ints) -> NDArray[np.bool_]:
        """Tell which launches are autograd's: those of other threads than the training loop's."""
        flags: NDArray[np.bool_] = thread != self._main
        own = self._backward.get(self._main)
        if own is not None:
            place = np.searchsorted(own.start, launch, side="right") - 1
            flags = flags | ((place >= 0) & (launch < own.end[np.maximum(place, 0)]))
        return flags

    def _before_optimizer(self, rows: _Rows, index: int, messages: Sequence[Message]) -> _Rows:
        """Leave out what stands around forward and backward in a step.

        A stage that receives first has nothing to work on before that.
        """
        low = messages[0].launch if messages[0].op == RECV else int(self.marks.start[index])
        begins = np.searchsorted(self._optimizer_steps, self.marks.start[index])
        high = int(self._optimizer_steps[begins])
        if self.is_host:  # merged intervals of operators can reach into the optimizer
            inside = clip(subtract(Intervals(rows.start, rows.end), self._optimizer), low, high)
            which, start, end = pieces(rows.start, rows.end, inside)
            return _Rows(start, end, start, rows.backward[which])
        keep = (rows.launch >= low) & (rows.launch < high)
        place = np.searchsorted(self._optimizer.start, rows.launch, side="right") - 1
        if len(self._optimizer.start):
            keep &= (place < 0) | (rows.launch >= self._optimizer.end[np.maximum(place, 0)])
        return rows.take(np.flatnonzero(keep))


def with_dependencies(work: Work, gaps: Intervals) -> Work:
    """Add the idle time between passes and around them.

    Args:
        work: A step's work.
        gaps: When the device waited, though its next event had been launched.
    """
    outside = subtract(gaps, union(work.passes.start, work.passes.end))
    between = clip(outside, work.first, work.last)
    around = (outside.end <= work.first) | (outside.start >= work.last)
    low, high = outside.start[around], outside.end[around]
    longest = np.sort(np.argsort(low - high, kind="stable")[:_MOST_EDGE_GAPS])
    edges = (low[longest], high[longest])
    return replace(work, dependency_ns=between.length, dependency_edges=edges)


def _synchronizations(trace: RankTrace) -> Ints:
    """Return when the host began to wait for the whole device, ascending."""
    names = trace.host_calls["name"].cat
    codes = [i for i, n in enumerate(names.categories) if str(n).endswith("DeviceSynchronize")]
    mine = np.isin(names.codes.to_numpy(), codes)
    starts: Ints = np.sort(trace.host_calls["start"].to_numpy()[mine])
    return starts


def _main_thread(trace: RankTrace, marks: StepMarks) -> int:
    """Return the thread that runs the training loop: the one with the marks of the steps."""
    if not len(marks):
        return NONE
    of_steps = np.isin(trace.marks["start"].to_numpy(), marks.start)
    threads, count = np.unique(trace.marks["thread"].to_numpy()[of_steps], return_counts=True)
    return int(threads[np.argmax(count)]) if len(threads) else NONE


# ranges of a schedule ----------------------------------------------------------------------------

# torch/distributed/pipelining/schedules.py: "PP:3F0" is stage 3, forward, micro-batch 0; I and W
# are the gradients of input and weights; "PP:(3F1;2B0)OVERLAP_F_B" runs two passes at once.
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_RUNTIME = re.compile(r"PP:\d+[FBIW]\d+$|PP:\(.*\)OVERLAP_F_B$")
_LETTERS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD_INPUT, "W": BACKWARD_WEIGHT}
_NUMBERED = re.compile(r"(Forward|Backward) (\d+)$")  # ScheduleGPipe
# Megatron's forward_step and backward_step, DeepSpeed's _exec_forward_pass and _exec_backward_pass;
# whoever marks them by hand adds a number.
_PLAIN = re.compile(
    r"(?:.*\.)?(?:_exec_)?(forward|backward)_(?:step|pass)"
    r"(?:[\W_]+(?:mb|micro[ _-]?batch)?[\W_]*(\d+))?\W*$"
)


def _actions(trace: RankTrace) -> _Actions:
    """Return the schedule's ranges, of the most telling kind there is."""
    names = trace.marks["name"].cat
    said = [str(name) for name in names.categories]
    codes = names.codes.to_numpy()
    for meaning_of in (_runtime, _numbered, _plain):
        meanings = [meaning_of(name) for name in said]
        rows = np.flatnonzero([meanings[code] is not None for code in codes])
        if len(rows):
            break
    start, end = trace.marks["start"].to_numpy(), trace.marks["end"].to_numpy()
    rows = rows[np.argsort(start[rows], kind="stable")]
    kept: list[int] = []
    for row in rows.tolist():
        if not kept or start[row] >= end[kept[-1]]:  # the same pass named twice: the outer one
            kept.append(row)
    found = [meanings[codes[row]] for row in kept]
    return _Actions(start[kept], end[kept], [one for one in found if one is not None])


def _runtime(name: str) -> tuple[_Meaning, _Meaning] | None:
    if not _RUNTIME.match(name):
        return None
    found = [
        _Meaning(_LETTERS[letter], _number(stage), _number(micro_batch))
        for stage, letter, micro_batch in _ACTION.findall(name)
    ]
    if not found:
        return None
    forward = next((one for one in found if one.kind == FORWARD), found[0])
    backward = next((one for one in found if one.kind != FORWARD), found[0])
    return forward, backward


def _numbered(name: str) -> tuple[_Meaning, _Meaning] | None:
    match = _NUMBERED.match(name)
    if match is None:
        return None
    kind = FORWARD if match[1] == "Forward" else BACKWARD
    return (_Meaning(kind, NONE, _number(match[2])),) * 2


def _plain(name: str) -> tuple[_Meaning, _Meaning] | None:
    match = _PLAIN.match(name)
    if match is None:
        return None
    kind = FORWARD if match[1] == "forward" else BACKWARD
    return (_Meaning(kind, NONE, _number(match[2])),) * 2


def _number(digits: str | None) -> int:
    found = as_integer(digits)
    return NONE if found is None else found


def _between(actions: _Actions, low: int, high: int) -> _Actions:
    first, last = np.searchsorted(actions.start, [low, high])
    return _Actions(actions.start[first:last], actions.end[first:last], actions.meaning[first:last])


def _by_ranges(
    rows: _Rows, actions: _Actions, *, cut: bool
) -> tuple[_Rows, list[tuple[_Meaning, Ints]]]:
    """Give each row to the range it was launched in; rows of a host timeline are cut to it."""
    if cut:
        which, start, end = pieces(rows.start, rows.end, Intervals(actions.start, actions.end))
        rows = _Rows(start, end, start, rows.backward[which])
    place = np.searchsorted(actions.start, rows.launch, side="right") - 1
    inside = (place >= 0) & (rows.launch < actions.end[np.maximum(place, 0)])
    rows, place = rows.take(np.flatnonzero(inside)), place[inside]
    found = []
    for number in np.unique(place).tolist():
        forward, backward = actions.meaning[number]
        mine = place == number
        if forward == backward:
            found.append((forward, np.flatnonzero(mine)))
            continue
        both = np.flatnonzero(mine)
        told, _ = _without_tiny(rows.take(both), np.zeros(len(both), np.int64))
        for meaning, flags in ((forward, ~told.backward), (backward, told.backward)):
            if flags.any():
                found.append((meaning, both[flags]))
    return rows, found


# without ranges ----------------------------------------------------------------------------------


def _by_messages(rows: _Rows, launches: Ints) -> tuple[_Rows, list[tuple[_Meaning, Ints]]]:
    """Let messages, and the change between forward and backward, cut the work."""
    if not len(rows.start):
        return rows, []
    place = np.searchsorted(launches, rows.launch, side="right")
    rows, place = _without_tiny(rows, place)
    runs = _runs(place, rows.backward)
    kinds = [bool(rows.backward[run[0]]) for run in runs]
    if any(kinds):  # what follows the last backward pass is no forward pass
        runs = runs[: len(kinds) - kinds[::-1].index(True)]
    found = [(_Meaning(BACKWARD if rows.backward[run[0]] else FORWARD), run) for run in runs]
    kept = np.concatenate([run for _, run in found])
    return rows.take(kept), _renumbered(found)


def _renumbered(found: list[tuple[_Meaning, Ints]]) -> list[tuple[_Meaning, Ints]]:
    bounds = np.cumsum([0, *(len(run) for _, run in found)])
    return [(meaning, np.arange(bounds[i], bounds[i + 1])) for i, (meaning, _) in enumerate(found)]


def _runs(place: Ints, backward: NDArray[np.bool_]) -> list[Ints]:
    """Return the rows of each run that no message and no change of direction interrupts."""
    change = (np.diff(place) != 0) | (np.diff(backward.astype(np.int8)) != 0)
    return np.split(np.arange(len(place)), np.flatnonzero(change) + 1)


def _without_tiny(rows: _Rows, place: Ints) -> tuple[_Rows, Ints]:
    """Let runs far shorter than the usual pass belong to the run beside them."""
    runs = _runs(place, rows.backward)
    work = np.array([int((rows.end[run] - rows.start[run]).sum()) for run in runs])
    kinds = np.array([bool(rows.backward[run[0]]) for run in runs])
    usual = np.where(kinds, _usual(work[kinds]), _usual(work[~kinds]))
    tiny = work < _TINY * usual
    backward, place = rows.backward.copy(), place.copy()
    whole = np.flatnonzero(~tiny)
    for number in np.flatnonzero(tiny).tolist():
        before, after = whole[whole < number], whole[whole > number]
        here = place[runs[number][0]]
        if len(before) and place[runs[before[-1]][0]] == here:
            other = runs[before[-1]][0]
        elif len(after):
            other = runs[after[0]][0]
        else:
            continue
        backward[runs[number]], place[runs[number]] = backward[other], place[other]
    return rows._replace(backward=backward), place


def _usual(work: Ints) -> float:
    """Return the mean length of passes, each weighted by its length: tiny ones do not count."""
    total = float(work.sum())
    return float((work.astype(float) ** 2).sum()) / total if total else 0.0


def _passes(rows: _Rows, found: list[tuple[_Meaning, Ints]]) -> Passes:
    found = sorted(found, key=lambda one: int(rows.launch[one[1][0]]))
    numbers = np.array(
        [
            (
                meaning.stage,
                meaning.micro_batch,
                rows.start[run].min(),
                rows.end[run].max(),
                union(rows.start[run], rows.end[run]).length,
                rows.launch[run[0]],
            )
            for meaning, run in found
        ],
        np.int64,
    ).reshape(-1, 6)
    kinds = np.array([meaning.kind for meaning, _ in found], np.int8)
    return Passes(kinds, *(column.copy() for column in numbers.T))

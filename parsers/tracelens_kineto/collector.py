"""Turn batches of events into the four tables, dropping the rest at once.

Python frames and flow events are never kept; operators only as intervals per thread, except the few
that say something about communication, the optimizer or the data loader.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.host_names import call_kind, is_communication_range
from tracelens.intervals import union
from tracelens.model import trace
from tracelens.model.trace import NONE
from tracelens_kineto import shapes
from tracelens_kineto.categories import (
    BUCKETS,
    IGNORED,
    STEP,
    operator_kind,
)
from tracelens_kineto.columns import Columns, integer, integers, sizes
from tracelens_kineto.device_rows import DeviceRows
from tracelens_kineto.events import (
    CALL_ARGS,
    OPERATOR_ARGS,
    CallArgs,
    Event,
    ExactEvent,
)
from tracelens_kineto.events import OperatorArgs as Args
from tracelens_kineto.processes import Neighbours, Process, normal
from tracelens_kineto.recorded import comm_columns, decode, external, times, with_shapes
from tracelens_kineto.unknown import UnknownEvents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.intervals import Ints
    from tracelens_kineto.tolerant import Damage

_PROCESS = attrgetter("pid")
_DEVICE_BUCKETS = ("kernel", "copy", "memset")
_WORK = (None, "optimizer", "dataloader", "autograd")
_HUNDRED_DAYS_NS = 100 * 86_400 * 10**9
_ENGINE_LOOP_NS = 20_000
"""Backward functions this close together run in one call of the engine: one row for all of them."""


@dataclass
class Collector:
    """Tables of one file under construction.

    Attributes:
        only: Keep host events of this process alone; None keeps all.
        neighbours: Told of every event, where a device event's process has to be found out.
        callers: Events per process among runtime calls, `hosts` among all host events.
        recorded: Events per bucket.
        untimed: Host events without a usable start or duration, by kind.
        categories: Categories seen; `unknown` counts the events of those nothing is known about.
    """

    only: Process = None
    neighbours: Neighbours | None = None
    events: int = 0
    callers: Counter[Process] = field(default_factory=Counter)
    hosts: Counter[Process] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    untimed: Counter[str] = field(default_factory=Counter)
    categories: set[str] = field(default_factory=set)
    unknown: UnknownEvents = field(default_factory=UnknownEvents)
    communications: Columns = field(default_factory=lambda: Columns(trace.COMMUNICATIONS))
    marks: Columns = field(default_factory=lambda: Columns(trace.MARKS))
    host_calls: Columns = field(default_factory=lambda: Columns(trace.HOST_CALLS))
    operators: Columns = field(default_factory=lambda: Columns(trace.OPERATORS))
    device: DeviceRows = field(init=False)
    _operator_kinds: dict[str, str | None] = field(default_factory=dict)
    _call_kinds: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = DeviceRows(self.communications, self.neighbours)

    def add(self, batch: Sequence[Event] | Sequence[ExactEvent]) -> None:
        """Sort a batch into its categories and append each to its table."""
        self.events += len(batch)
        if self.neighbours is not None:
            self.neighbours.see(batch)
        found: defaultdict[str, list[Any]] = defaultdict(list)
        metadata = []
        for event in batch:
            if event.ph == "X":
                found[event.cat].append(event)
            elif event.ph == "M":
                metadata.append(event)
        self.unknown.describe(metadata)
        self.categories |= found.keys()
        buckets: defaultdict[str, list[Any]] = defaultdict(list)
        for category, events in found.items():
            if (bucket := BUCKETS.get(category)) is not None:
                buckets[bucket] += events
            elif category not in IGNORED:
                self.unknown.add(category, events)
        self.recorded.update({bucket: len(events) for bucket, events in buckets.items()})
        for kind in _DEVICE_BUCKETS:
            if buckets[kind]:
                self.device.add(buckets[kind], kind)
        self._add_host(buckets)

    @property
    def on_host(self) -> bool:
        """Tell whether host events stand for the device's: there are none."""
        return not self.device.rows

    def lost_to(self, damage: Damage) -> int:
        """Return how many lost events were, or may have been, the device's work or its steps."""
        on_host = damage.host_skipped if self.on_host else 0
        return damage.device_skipped + self.untimed["step"] + on_host

    @property
    def process(self) -> int:
        """Return the number of the process most host events are of."""
        if self.only is not None:
            return number_of(self.only)
        return number_of(next(iter(self.processes()), None))

    def processes(self) -> list[Process]:
        """Return the processes of the host events, the one with most events first.

        Where there are runtime calls only processes that made some count: others launch nothing.
        """
        counts: Counter[Process] = Counter()
        for process, count in (self.callers or self.hosts).items():
            counts[normal(process)] += count
        if len(counts) > 1:
            del counts[None]  # an event that lost its process is of one of the others
        return [process for process, _ in counts.most_common()]

    # host --------------------------------------------------------------------------------------

    def _add_host(self, buckets: dict[str, list[Any]]) -> None:
        adders = (
            ("call", self._add_calls, self.callers),
            ("operator", self._add_operators, None),
            ("mark", self._add_marks, None),
        )
        for bucket, add, also in adders:
            events = buckets[bucket]
            counts = Counter(map(_PROCESS, events))
            self.hosts.update(counts)
            if also is not None:
                also.update(counts)
            if self.only is not None:
                events = [event for event in events if normal(event.pid) == self.only]
            if events:
                add(events)

    def _times(self, events: list[Any], kind: str) -> tuple[Ints, Ints]:
        """Return starts and ends; a duration that cannot be gives the start as end."""
        start, end, duration = times(events)
        usable = (start != NONE) & (duration >= 0) & (duration < _HUNDRED_DAYS_NS)
        if usable.all():
            return start, end
        for row in np.flatnonzero(~usable):
            if not events[row].name.startswith(STEP):  # those are named as steps
                self.untimed[kind] += 1
            elif start[row] == NONE:
                self.untimed["step"] += 1
        return start, np.where(usable, end, start)

    def _add_calls(self, events: list[Any]) -> None:
        args: list[CallArgs] = [decode(CALL_ARGS, event.args) for event in events]
        start, end = self._times(events, "call")
        known = self._call_kinds
        for name in {event.name for event in events} - known.keys():
            known[name] = call_kind(name)
        self._host_rows(
            events,
            [known[event.name] for event in events],
            start,
            end,
            correlation=integers(a.correlation for a in args),
            external_id=integers(external(a) for a in args),
        )

    def _host_rows(
        self, events: list[Any], kinds: list[str], start: Any, end: Any, **more: Any
    ) -> None:
        keep = start != NONE
        if not keep.all():
            index = np.flatnonzero(keep)
            events, kinds = [events[i] for i in index], [kinds[i] for i in index]
            start, end = start[index], end[index]
            more = {name: values[index] for name, values in more.items()}
        self.host_calls.append(
            name=[event.name for event in events],
            kind=kinds,
            start=start,
            end=end,
            thread=integers(event.tid for event in events),
            **more,
        )

    def _add_operators(self, events: list[Any]) -> None:
        known = self._operator_kinds
        for name in {event.name for event in events} - known.keys():
            known[name] = operator_kind(name)
        if "mark" in known.values():
            self._add_marks([event for event in events if known[event.name] == "mark"])
            events = [event for event in events if known[event.name] != "mark"]
        start, end = self._times(events, "operator")
        thread = integers(event.tid for event in events)
        kinds = [known[event.name] for event in events]
        special = [i for i, kind in enumerate(kinds) if kind not in (None, "autograd")]
        self._add_operator_intervals(thread, start, end, kinds)
        self._add_backward(thread, start, end, kinds)
        if special:
            index = np.array(special)
            self._add_special(
                [events[i] for i in special],
                [kinds[i] or "" for i in special],
                start[index],
                end[index],
            )

    def _add_operator_intervals(
        self, thread: Any, start: Any, end: Any, kinds: list[str | None]
    ) -> None:
        # A collective's own operator is communication, and waiting for one is no work.
        busy = np.array([kind in _WORK for kind in kinds], bool)
        busy &= start != NONE
        for one in np.unique(thread[busy]):
            mine = busy & (thread == one)
            merged = union(start[mine], end[mine])
            self.operators.append(
                thread=np.full(len(merged.start), one), start=merged.start, end=merged.end
            )

    def _add_backward(self, thread: Any, start: Any, end: Any, kinds: list[str | None]) -> None:
        """Keep when each thread runs backward functions."""
        backward = np.array([kind == "autograd" for kind in kinds], bool) & (start != NONE)
        for one in np.unique(thread[backward]):
            mine = backward & (thread == one)
            merged = union(start[mine], end[mine] + _ENGINE_LOOP_NS)
            count = len(merged.start)
            self.host_calls.append(
                name=["backward"] * count,
                kind=["autograd"] * count,
                start=merged.start,
                end=merged.end - _ENGINE_LOOP_NS,
                thread=np.full(count, one),
            )

    def _add_special(self, events: list[Any], kinds: list[str], start: Any, end: Any) -> None:
        args: list[Args] = [decode(OPERATOR_ARGS, event.args) for event in events]
        elements = [
            shapes.optimizer_elements(a.dims) if kind == "optimizer" else NONE
            for a, kind in zip(args, kinds, strict=True)
        ]
        self._host_rows(
            events,
            kinds,
            start,
            end,
            external_id=integers(external(a) for a in args),
            elements=sizes(elements),
        )
        rows = [i for i, kind in enumerate(kinds) if kind in ("record", "collective")]
        self._add_recorded(events, kinds, args, start, end, rows)

    def _add_recorded(
        self,
        events: list[Any],
        kinds: list[str],
        args: list[Args],
        start: Any,
        end: Any,
        rows: list[int],
    ) -> None:
        rows = [i for i in rows if start[i] != NONE]
        if not rows:
            return
        index = np.array(rows)
        picked = [with_shapes(events[i].name, args[i]) for i in rows]
        self.communications.append(
            source=["record" if kinds[i] == "record" else "operator" for i in rows],
            name=[
                (a.collective or "") if kinds[i] == "record" else events[i].name
                for i, (a, _) in zip(rows, picked, strict=True)
            ],
            start=start[index],
            end=end[index],
            thread=integers(events[i].tid for i in rows),
            external_id=integers(external(a) for a, _ in picked),
            tensors=np.array([shape.tensors for _, shape in picked]),
            dimensions=np.array([shape.dimensions for _, shape in picked]),
            **comm_columns([a for a, _ in picked]),
        )

    def _add_marks(self, events: list[Any]) -> None:
        start, end = self._times(events, "range")
        timed = [i for i in range(len(events)) if start[i] != NONE]
        marks = [i for i in timed if not is_communication_range(events[i].name)]
        ranges = [i for i in timed if is_communication_range(events[i].name)]
        if marks:
            index = np.array(marks)
            self.marks.append(
                name=[events[i].name for i in marks],
                start=start[index],
                end=end[index],
                thread=integers(events[i].tid for i in marks),
            )
        if ranges:
            self._add_ranges([events[i] for i in ranges], start[ranges], end[ranges])

    def _add_ranges(self, events: list[Any], start: Any, end: Any) -> None:
        args: list[Args] = [decode(OPERATOR_ARGS, event.args) for event in events]
        named = [shapes.annotation_sizes(a.dims, a.types) for a in args]
        self.communications.append(
            source=["annotation"] * len(events),
            name=[event.name for event in events],
            start=start,
            end=end,
            thread=integers(event.tid for event in events),
            external_id=integers(external(a) for a in args),
            dtype=[size.dtype for size in named],
            in_elems=sizes(size.in_elems for size in named),
            out_elems=sizes(size.out_elems for size in named),
            tensors=np.array([size.tensors for size in named]),
            dimensions=np.array([size.dimensions for size in named]),
        )


def number_of(process: Process) -> int:
    """Return the number in a process id, which merging tools write as "[TP00] 4012"."""
    text = process if isinstance(process, int) else (process or "").rpartition(" ")[2]
    number = integer(text)
    return 0 if number == NONE else number

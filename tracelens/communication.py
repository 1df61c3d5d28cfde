"""Decide which device events communicate, what they do, and which operations they carry.

Layers, strongest first (docs/attribution.md): arguments on the kernel or the calls it carries, the
`record_param_comms` that launched it, the c10d operator around it, the process group's own range,
the kernel's name, the user's rules. Each layer fills what the stronger ones left open: an old
record may know the size, only the range the name. An operation is counted once, however many
records and kernels it has.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens import operations, payloads
from tracelens.digits import as_integer
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.model.trace import RankTrace
    from tracelens.operations import Rule

COMPUTE, COMMUNICATION, COPY = 0, 1, 2
_MESSAGE = re.compile(r":(?:send|recv) \d+(?:->|<-)(\d+)")


@dataclass(slots=True)
class Operation:
    """One collective or p2p operation of one rank; unknown numbers are None."""

    op: str
    source: str  # args | payload | record | operator | annotation | name | rule
    event: int | None = None  # the first device event (or backend range) that carries it
    launch: int | None = None
    group_name: str = ""
    group_description: str = ""
    group_ranks: str = ""
    group_size: int | None = None
    dtype: str = ""
    in_elems: int | None = None
    out_elems: int | None = None
    buffer_bytes: int | None = None  # where bytes and no elements are recorded
    part_bytes: int | None = None
    in_splits: str = ""
    root: int | None = None
    peer: int | None = None
    seq: int | None = None
    comms_id: int | None = None
    tensors: int | None = None
    dimensions: int | None = None
    thread: int | None = None  # the host thread that launched it
    functional: bool = False
    mark: str = ""  # the innermost named range around it, e.g. "FSDP::all_gather (layers.0)"


@dataclass(slots=True)
class Identified:
    """Class and operation of every device event, and the operations of the rank.

    `owner` is the index of the operation whose time an event is, -1 outside communication.
    """

    event_class: NDArray[np.int8]
    event_op: NDArray[np.int8]
    owner: NDArray[np.int64]
    operations: list[Operation] = field(default_factory=list)
    without_device_time: int = 0
    in_graphs: int = 0


class _ThreadRanges(NamedTuple):
    """The ranges of one thread by start; `outer` is the range a range begins in, -1 if none."""

    start: list[int]
    end: list[int]
    row: list[int]
    outer: list[int]


class Ranges:
    """Nested host ranges per thread: who encloses an instant, innermost first."""

    def __init__(self, rows: Iterable[int], thread: Ints, start: Ints, end: Ints) -> None:
        self._threads: dict[int, _ThreadRanges] = {}
        for row in sorted(rows, key=lambda row: (start[row], -end[row])):
            ranges = self._threads.setdefault(int(thread[row]), _ThreadRanges([], [], [], []))
            outer = len(ranges.row) - 1
            while outer >= 0 and ranges.end[outer] < start[row]:
                outer = ranges.outer[outer]
            ranges.start.append(int(start[row]))
            ranges.end.append(int(end[row]))
            ranges.row.append(int(row))
            ranges.outer.append(outer)

    def enclosing(self, thread: int, at: int) -> list[int]:
        """Return the rows around an instant, innermost first."""
        ranges = self._threads.get(thread)
        found: list[int] = []
        if ranges is not None:
            place = bisect_right(ranges.start, at) - 1
            while place >= 0:
                if ranges.end[place] >= at:
                    found.append(ranges.row[place])
                place = ranges.outer[place]
        return found

    def between(self, thread: int, low: int, high: int) -> list[int]:
        """Return the rows of a thread that start in [low, high)."""
        ranges = self._threads.get(thread)
        if ranges is None:
            return []
        return ranges.row[bisect_left(ranges.start, low) : bisect_left(ranges.start, high)]


class Evidence:
    """The communications table with the look-ups the linking needs."""

    def __init__(self, trace: RankTrace) -> None:
        table = trace.communications
        self.table = table
        self.columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.columns}
        # What no row says need not be asked for each operation.
        self.numbers = [name for name in _NUMBERS if (self.columns[name] != NONE).any()]
        self.texts = [name for name in _TEXTS if any(self.columns[name])]
        source = np.asarray(table["source"].astype(object))
        self.by_source = {
            kind: np.flatnonzero(source == kind)
            for kind in ("args", "payload", "record", "operator", "annotation")
        }
        self.dtype = trace.info.dtype or ""
        self.places = {group.name: group.place for group in trace.info.process_groups}
        thread, start, end = (self.columns[name] for name in ("thread", "start", "end"))
        self.ranges = {
            kind: Ranges(self.by_source[kind], thread, start, end)
            for kind in ("record", "operator", "annotation")
        }
        external = self.columns["external_id"]
        self.record_of = {
            int(external[row]): int(row)
            for row in self.by_source["record"]
            if self.name(int(row)).lower() not in operations.LAUNCH_NOTHING
        }
        self.record_of.pop(NONE, None)
        calls = trace.host_calls
        outer = np.flatnonzero(np.asarray(calls["kind"].astype(object)) == "outer")
        self.outer = Ranges(outer, *(calls[name].to_numpy() for name in ("thread", "start", "end")))
        marks = trace.marks
        self.marks = Ranges(
            range(len(marks)), *(marks[name].to_numpy() for name in ("thread", "start", "end"))
        )
        self.mark_names = marks["name"].astype(object).to_numpy()
        self.main_thread = trace.info.process  # Linux gives the first thread its process's id

    def value(self, column: str, row: int) -> Any:
        """Return a value, or None for a missing integer."""
        value = self.columns[column][row]
        if isinstance(value, (int, np.integer)):
            return None if value == NONE else int(value)
        return value

    def name(self, row: int) -> str:
        """Return the recorded name of a row."""
        return str(self.columns["name"][row])

    def own_place(self, row: int) -> int | None:
        """Return the rank's own place in the group of a row."""
        return self.places.get(str(self.columns["group_name"][row]))

    def is_operation(self, row: int) -> bool:
        """Tell whether a record moves data (waits and barriers do not)."""
        return self.name(row).lower() not in operations.NOT_OPERATIONS

    def build(self, rows: Sequence[int], op: str, source: str) -> Operation:
        """Merge rows, strongest first, into one operation."""
        merged: dict[str, Any] = {name: self._first(name, rows) for name in self.numbers}
        if op in _P2P and merged.get("peer") is None and merged.get("root") is None:
            merged["root"] = self._named_peer(rows)
        for column in self.texts:
            merged[column] = next((v for row in rows if (v := self.columns[column][row])), "")
        return Operation(op=op, source=source, **merged)

    def _named_peer(self, rows: Sequence[int]) -> int | None:
        """Return the peer's group rank as the range of a message names it: `nccl:send 0->1`.

        Arguments say it since torch 2.5 only.
        """
        inside = [range_ for row in rows for range_ in self._ranges_inside(row)]
        names = (_MESSAGE.search(self.name(row)) for row in (*rows, *inside))
        return next((as_integer(match[1]) for match in names if match), None)

    def _ranges_inside(self, row: int) -> list[int]:
        thread, start, end = (int(self.columns[c][row]) for c in ("thread", "start", "end"))
        return self.ranges["annotation"].between(thread, start, end + 1)

    def _first(self, column: str, rows: Sequence[int]) -> Any:
        # A size of 0 in a weaker layer means "not recorded", so the first known one wins.
        values = (self.value(column, row) for row in rows)
        return next((value for value in values if value is not None), None)

    def context(self, operation: Operation, thread: int, at: int) -> None:
        """Note the thread, functional wrapper and named range of an operation's launch.

        Backward runs on threads of its own (pt_autograd_N), where a program's ranges are not: there
        the range of the main thread counts, which waits meanwhile.
        """
        operation.thread = thread
        operation.functional = bool(self.outer.enclosing(thread, at))
        around = self.marks.enclosing(thread, at) or self.marks.enclosing(self.main_thread, at)
        operation.mark = str(self.mark_names[around[0]]) if around else ""


def identify(trace: RankTrace, rules: Sequence[Rule] = ()) -> Identified:
    """Classify every device event of a rank and collect its operations."""
    return _Linker(trace, rules).run()


class _Linker:
    def __init__(self, trace: RankTrace, rules: Sequence[Rule]) -> None:
        self.events = trace.device_events
        self.rules = rules
        names = self.events["name"].cat
        self.names: list[str] = [str(name) for name in names.categories]
        self.name_of = names.codes.to_numpy()
        self.evidence = Evidence(trace)
        self.used: set[int] = set()
        self.found: list[Operation] = []
        self.by_key: dict[tuple[str, int], int] = {}
        self.owner = np.full(len(self.events), -1, np.int64)
        self.columns = {
            name: self.events[name].to_numpy()
            for name in ("external_id", "launch", "launch_thread", "graph")
        }
        self.args_of = {
            int(self.evidence.columns["event"][row]): int(row)
            for row in self.evidence.by_source["args"]
        }
        self.payloads_of: dict[int, list[int]] = defaultdict(list)
        for row in self.evidence.by_source["payload"]:
            self.payloads_of[int(self.evidence.columns["event"][row])].append(int(row))
        self.uncarried = self.payloads_of.pop(NONE, [])
        self.last_batch: dict[int, int] = {}  # per thread: what is before it is taken
        self.batch_op: dict[int, str] = {}
        self.carried: dict[tuple[str, int], str] = {}

    def run(self) -> Identified:
        kinds = np.asarray(self.events["kind"].astype(object))
        event_class = np.where(kinds == "kernel", COMPUTE, COPY).astype(np.int8)
        event_op = np.full(len(self.events), -1, np.int8)
        result = Identified(event_class, event_op, self.owner, self.found)
        by_name, candidates = self._candidates(kinds)
        for event in candidates:
            op = self._event(int(event), by_name.get(int(event)))
            if op is not None:
                event_class[event] = COMMUNICATION
                event_op[event] = operations.CODE[op]
        self._add_copy_engines(kinds, result)
        graph = self.columns["graph"]
        result.in_graphs = int(((graph != NONE) & (event_class == COMMUNICATION)).sum())
        self._add_unlinked(result)
        return result

    def _candidates(self, kinds: NDArray[Any]) -> tuple[dict[int, str | None], NDArray[np.intp]]:
        """Return what names say per event, and the events that any layer speaks of."""
        said = [operations.of_kernel_name(name) for name in self.names]
        ruled = [self._rule(name) for name in self.names]
        codes = self.name_of
        named = np.array([a is not None or b is not None for a, b in zip(said, ruled, strict=True)])
        kernel = kinds == "kernel"
        speaks = kernel & (named[codes] if len(named) else np.zeros(len(codes), bool))
        records = np.fromiter(self.evidence.record_of, np.int64, len(self.evidence.record_of))
        speaks |= kernel & np.isin(self.columns["external_id"], records)
        speaks[[*self.args_of, *self.payloads_of]] = True
        rows = np.flatnonzero(speaks)
        order = rows[np.argsort(self.columns["launch"][rows], kind="stable")]
        return {int(row): said[codes[row]] for row in order}, order

    def _name(self, event: int) -> str:
        return self.names[int(self.name_of[event])]

    def _rule(self, name: str) -> str | None:
        return next((rule.operation for rule in self.rules if rule.pattern.search(name)), None)

    def _event(self, event: int, named: str | None) -> str | None:
        """Identify one kernel and add its operation, unless a sibling kernel already did."""
        layers = self._layers(event)
        if event in self.payloads_of:
            return self._carried(event, layers)
        batch = self._batch(event, layers)
        if batch is not None:
            return batch
        op, source = self._decide(event, layers, named)
        if op is not None:
            self._attach(event, layers, op, source)
        return op

    def _carried(self, event: int, layers: list[tuple[str, int]]) -> str:
        """Add the operations of the calls a kernel carries; a second kernel may carry the same."""
        rows = self.payloads_of[event]
        key = ("payload", int(self.evidence.columns["external_id"][rows[0]]))
        if key not in self.by_key:
            said = (operations.canonical(self.evidence.name(row)) for _, row in layers)
            called = next((op for op in said if op is not None), None)
            dtype = operations.dtype_of_kernel_name(self._name(event))
            found = payloads.operations_of(self.evidence, rows, called, dtype)
            for number, operation in enumerate(found):
                self._new(key if not number else ("row", rows[number]), operation, event)
            self.carried[key] = payloads.kind_of(found)
            self.used.update(rows, (row for _, row in layers))
        self.owner[event] = self.by_key[key]
        return self.carried[key]

    def _attach(self, event: int, layers: list[tuple[str, int]], op: str, source: str) -> None:
        rows = [row for _, row in layers]
        key = self._key(event, layers)
        if key not in self.by_key:
            self._new(key, self.evidence.build(rows, op, source), event)
        self.owner[event] = self.by_key[key]
        self.used.update(rows)

    def _new(self, key: tuple[str, int], operation: Operation, event: int) -> None:
        operation.event = event
        at = int(self.columns["launch"][event])
        if at != NONE:
            operation.launch = at
            self.evidence.context(operation, int(self.columns["launch_thread"][event]), at)
        self.by_key[key] = len(self.found)
        self.found.append(operation)

    def _layers(self, event: int) -> list[tuple[str, int]]:
        """Return (source, row) of everything said about a kernel, strongest first."""
        found: list[tuple[str, int]] = []
        if event in self.args_of:
            found.append(("args", self.args_of[event]))
        thread = int(self.columns["launch_thread"][event])
        at = int(self.columns["launch"][event])
        record = self.evidence.record_of.get(int(self.columns["external_id"][event]))
        if record is not None:
            found.append(("record", record))
            thread = int(self.evidence.columns["thread"][record])
            at = int(self.evidence.columns["start"][record])
        if at != NONE:
            for kind in ("record", "operator", "annotation"):
                around = self.evidence.ranges[kind].enclosing(thread, at)
                rows = [row for row in around if self.evidence.is_operation(row)]
                found += [(kind, row) for row in rows if (kind, row) not in found]
        return found

    def _decide(
        self, event: int, layers: list[tuple[str, int]], named: str | None
    ) -> tuple[str | None, str]:
        for source, row in layers:
            if (op := operations.canonical(self.evidence.name(row))) is not None:
                return op, source
        if named is not None and named != operations.UNKNOWN:
            return named, "name"
        ruled = self._rule(self._name(event)) if self.rules else None
        if ruled is not None:
            return ruled, "rule"
        if layers:
            return operations.UNKNOWN, layers[0][0]
        return named, "name"

    def _key(self, event: int, layers: list[tuple[str, int]]) -> tuple[str, int]:
        for source, row in layers:
            external = int(self.evidence.columns["external_id"][row])
            if source in ("args", "record") and external not in (NONE, 0):
                return ("external", external)
        for source, row in layers:
            if source != "args":
                return ("row", row)
        return ("event", event)

    def _batch(self, event: int, layers: list[tuple[str, int]]) -> str | None:
        """Attach the sends and receives of a batch to the kernel launched at its end.

        `batch_isend_irecv` launches in ncclGroupEnd, outside the records of its operations, inside
        an `nccl:coalesced` range or none (pytorch issue 194693).
        """
        coalesced = self._coalesced(layers)
        if coalesced is None:
            return None
        if ("batch", coalesced) in self.by_key:  # a second kernel of the same batch
            self.owner[event] = self.by_key["batch", coalesced]
            return self.batch_op[coalesced]
        thread, at = int(self.columns["launch_thread"][event]), int(self.columns["launch"][event])
        low = self.last_batch.get(thread, NONE)
        self.last_batch[thread] = at
        rows = [
            row
            for row in self.evidence.ranges["record"].between(thread, low, at)
            if row not in self.used and operations.canonical(self.evidence.name(row)) in _P2P
        ]
        for row in rows:
            op = operations.canonical(self.evidence.name(row)) or operations.UNKNOWN
            self._new(("row", row), self.evidence.build([row], op, "record"), event)
        self.used.update(rows)
        if not rows:
            return None
        self.owner[event] = self.by_key["batch", coalesced] = self.by_key["row", rows[0]]
        kinds = {operations.canonical(self.evidence.name(row)) for row in rows}
        self.batch_op[coalesced] = str(kinds.pop()) if len(kinds) == 1 else operations.SEND_RECV
        return self.batch_op[coalesced]

    def _coalesced(self, layers: list[tuple[str, int]]) -> int | None:
        """Return the range of the batch whose end launched a kernel.

        Kernels with a record of their own belong to no batch: until pytorch 160680 (2025) the range
        stayed open long after its batch.
        """
        if any(source in ("args", "record") for source, _ in layers):
            return None
        ranges = (row for source, row in layers if source == "annotation")
        return next((r for r in ranges if self.evidence.name(r).endswith(":coalesced")), None)

    def _add_copy_engines(self, kinds: NDArray[Any], result: Identified) -> None:
        """Let copies between devices communicate where their record launched no kernel.

        NCCL 2.28 and later gathers with copy engines when told to use no SM (its user guide:
        NCCL_CTA_POLICY).
        """
        peer = np.array(["PtoP" in name for name in self.names], bool)
        with_kernel = frozenset(self.used)
        for event in np.flatnonzero((kinds == "copy") & peer[self.name_of]):
            layers = self._layers(int(event))
            if all(source != "record" or row in with_kernel for source, row in layers):
                continue
            op, source = self._decide(int(event), layers, None)
            if op is not None:
                self._attach(int(event), layers, op, source)
                result.event_class[event] = COMMUNICATION
                result.event_op[event] = operations.CODE[op]

    def _add_unlinked(self, result: Identified) -> None:
        """Add recorded operations that launched no kernel: copy engines, lost device records.

        A group of one rank launches nothing and moves nothing.
        """
        for row in (*self.evidence.by_source["record"], *self.uncarried):
            op = operations.canonical(self.evidence.name(int(row)))
            size = self.evidence.value("group_size", int(row))
            if row in self.used or op is None or not self.evidence.is_operation(int(row)):
                continue
            if size is None or size <= 1:
                continue
            source = str(self.evidence.columns["source"][row])
            operation = self.evidence.build([int(row)], op, source)
            operation.launch = int(self.evidence.columns["start"][row])
            thread = int(self.evidence.columns["thread"][row])
            self.evidence.context(operation, thread, operation.launch)
            result.operations.append(operation)
            result.without_device_time += 1


_P2P = (operations.SEND, operations.RECV)
_TEXTS = ("dtype", "group_name", "group_description", "group_ranks", "in_splits")
_NUMBERS = (
    "in_elems",
    "out_elems",
    "buffer_bytes",
    "part_bytes",
    "root",
    "peer",
    "seq",
    "comms_id",
    "tensors",
    "dimensions",
    "group_size",
)

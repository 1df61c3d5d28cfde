"""Turn batches of events into the four tables, dropping the rest at once.

Python frames and flow events are never kept; operators only as intervals per thread, except the few
that say something about communication, the optimizer or the data loader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tracelens.intervals import Ints, union
from tracelens.model import trace
from tracelens.model.trace import NONE
from tracelens_kineto import shapes
from tracelens_kineto.categories import BUCKETS, call_kind, is_communication_range, operator_kind
from tracelens_kineto.columns import Columns, integer, integers
from tracelens_kineto.events import (
    CALL_ARGS,
    KERNEL_ARGS,
    OPERATOR_ARGS,
    CallArgs,
    CommArgs,
    Event,
    ExactEvent,
    KernelArgs,
    OperatorArgs,
)
from tracelens_kineto.times import from_doubles, from_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

_PROCESS = attrgetter("pid")
_NOT_A_SIZE = ("", "wait", "init", "barrier")
_NAMES_A_RANK = ("send", "recv_", "broadcast_", "reduce_")  # as their third argument


@dataclass
class Collector:
    """Tables of one file under construction."""

    events: int = 0
    untimed: Counter[tuple[int, str]] = field(default_factory=Counter)
    untimed_correlations: list[int] = field(default_factory=list)
    host_processes: Counter[int] = field(default_factory=Counter)
    device_events: Columns = field(default_factory=lambda: Columns(trace.DEVICE_EVENTS))
    communications: Columns = field(default_factory=lambda: Columns(trace.COMMUNICATIONS))
    marks: Columns = field(default_factory=lambda: Columns(trace.MARKS))
    host_calls: Columns = field(default_factory=lambda: Columns(trace.HOST_CALLS))
    operators: Columns = field(default_factory=lambda: Columns(trace.OPERATORS))
    _device_rows: int = 0
    _operator_kinds: dict[str, str | None] = field(default_factory=dict)
    _call_kinds: dict[str, str] = field(default_factory=dict)

    def add(self, batch: Sequence[Event] | Sequence[ExactEvent]) -> None:
        """Sort a batch into its categories and append each to its table."""
        self.events += len(batch)
        found: dict[str, list[Any]] = {bucket: [] for bucket in set(BUCKETS.values())}
        sinks = {category: found[bucket] for category, bucket in BUCKETS.items()}
        for event in batch:
            if event.ph == "X" and (sink := sinks.get(event.cat)) is not None:
                sink.append(event)
        for bucket, kind in (("kernel", "kernel"), ("copy", "copy"), ("memset", "memset")):
            if found[bucket]:
                self._add_device_events(found[bucket], kind)
        if found["call"]:
            self._add_calls(found["call"])
        if found["operator"]:
            self._add_operators(found["operator"])
        if found["mark"]:
            self._add_marks(found["mark"])

    # device ------------------------------------------------------------------------------------

    def _add_device_events(self, events: list[Any], kind: str) -> None:
        args: list[KernelArgs] = [_decode(KERNEL_ARGS, event.args) for event in events]
        start, end, duration = _times(events)
        # A kernel of length 0 is one CUPTI gave no times for; a copy can be that short.
        timed = (start != NONE) & (start != 0) & (duration >= (1 if kind == "kernel" else 0))
        device = integers(
            a.device if a.device is not None else e.pid for a, e in zip(args, events, strict=True)
        )
        self._count_untimed(device, start, duration, timed)
        if not timed.all():
            keep = np.flatnonzero(timed)
            lost = np.flatnonzero(~timed)
            self.untimed_correlations += [integer(args[i].correlation) for i in lost]
            events, args = [events[i] for i in keep], [args[i] for i in keep]
            start, end, device = start[keep], end[keep], device[keep]
        self.device_events.append(
            device=device,
            stream=integers(
                a.stream if a.stream is not None else e.tid
                for a, e in zip(args, events, strict=True)
            ),
            start=start,
            end=end,
            name=[event.name for event in events],
            kind=[kind] * len(events),
            correlation=integers(a.correlation for a in args),
            external_id=integers(_external(a) for a in args),
            copy_bytes=integers(a.bytes for a in args),
            graph=_graphs(args),
        )
        if kind == "kernel":
            self._add_kernel_args(args, start, end)
        self._device_rows += len(events)

    def _count_untimed(
        self, device: Ints, start: Ints, duration: Ints, timed: NDArray[np.bool_]
    ) -> None:
        for row in np.flatnonzero(~timed):
            if start[row] in (0, NONE) or duration[row] == 0:
                reason = "without times"
            elif duration[row] == NONE:
                reason = "without a duration"
            else:
                reason = "with a negative duration"
            self.untimed[int(device[row]), reason] += 1

    def _add_kernel_args(self, args: list[KernelArgs], start: Any, end: Any) -> None:
        rows = [i for i, a in enumerate(args) if _says_collective(a)]
        if rows:
            index = np.array(rows)
            picked = [args[i] for i in rows]
            self.communications.append(
                source=["args"] * len(rows),
                name=[a.collective or "" for a in picked],
                event=self._device_rows + index,
                start=start[index],
                end=end[index],
                external_id=integers(_external(a) for a in picked),
                **_comm_columns(picked),
            )

    # host --------------------------------------------------------------------------------------

    def _add_calls(self, events: list[Any]) -> None:
        args: list[CallArgs] = [_decode(CALL_ARGS, event.args) for event in events]
        start, end, _ = _times(events)
        self._count_processes(events)
        known = self._call_kinds
        for name in {event.name for event in events} - known.keys():
            known[name] = call_kind(name)
        self._host_rows(
            events,
            [known[event.name] for event in events],
            start,
            end,
            correlation=integers(a.correlation for a in args),
            external_id=integers(_external(a) for a in args),
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
        start, end, _ = _times(events)
        thread = integers(event.tid for event in events)
        self._count_processes(events)
        kinds = [known[event.name] for event in events]
        special = [i for i, kind in enumerate(kinds) if kind is not None]
        self._add_operator_intervals(thread, start, end, kinds)
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
        busy = np.array([kind in (None, "optimizer", "dataloader") for kind in kinds])
        busy &= start != NONE
        for one in np.unique(thread[busy]):
            mine = busy & (thread == one)
            merged = union(start[mine], end[mine])
            self.operators.append(
                thread=np.full(len(merged.start), one), start=merged.start, end=merged.end
            )

    def _add_special(self, events: list[Any], kinds: list[str], start: Any, end: Any) -> None:
        args: list[OperatorArgs] = [_decode(OPERATOR_ARGS, event.args) for event in events]
        elements = [
            shapes.optimizer_elements(a.dims) if kind == "optimizer" else NONE
            for a, kind in zip(args, kinds, strict=True)
        ]
        self._host_rows(
            events,
            kinds,
            start,
            end,
            external_id=integers(_external(a) for a in args),
            elements=np.array(elements),
        )
        rows = [i for i, kind in enumerate(kinds) if kind in ("record", "collective")]
        self._add_recorded(events, kinds, args, start, end, rows)

    def _add_recorded(
        self,
        events: list[Any],
        kinds: list[str],
        args: list[OperatorArgs],
        start: Any,
        end: Any,
        rows: list[int],
    ) -> None:
        rows = [i for i in rows if start[i] != NONE]
        if not rows:
            return
        index = np.array(rows)
        picked = [_with_shapes(events[i].name, args[i]) for i in rows]
        self.communications.append(
            source=["record" if kinds[i] == "record" else "operator" for i in rows],
            name=[
                (a.collective or "") if kinds[i] == "record" else events[i].name
                for i, (a, _) in zip(rows, picked, strict=True)
            ],
            start=start[index],
            end=end[index],
            thread=integers(events[i].tid for i in rows),
            external_id=integers(_external(a) for a, _ in picked),
            tensors=np.array([sizes.tensors for _, sizes in picked]),
            dimensions=np.array([sizes.dimensions for _, sizes in picked]),
            **_comm_columns([a for a, _ in picked]),
        )

    def _add_marks(self, events: list[Any]) -> None:
        start, end, _ = _times(events)
        self._count_processes(events)
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
        args: list[OperatorArgs] = [_decode(OPERATOR_ARGS, event.args) for event in events]
        sizes = [shapes.annotation_sizes(a.dims, a.types) for a in args]
        self.communications.append(
            source=["annotation"] * len(events),
            name=[event.name for event in events],
            start=start,
            end=end,
            thread=integers(event.tid for event in events),
            external_id=integers(_external(a) for a in args),
            dtype=[size.dtype for size in sizes],
            in_elems=np.array([size.in_elems for size in sizes]),
            out_elems=np.array([size.out_elems for size in sizes]),
            tensors=np.array([size.tensors for size in sizes]),
            dimensions=np.array([size.dimensions for size in sizes]),
        )

    def _count_processes(self, events: list[Any]) -> None:
        counts = Counter(map(_PROCESS, events))
        self.host_processes.update({pid: n for pid, n in counts.items() if isinstance(pid, int)})

    def sorted_device_events(self) -> tuple[pd.DataFrame, NDArray[np.int64]]:
        """Return the device events by start, and the new row of each old one."""
        table = self.device_events.table()
        order = np.argsort(table["start"].to_numpy(), kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return table.iloc[order].reset_index(drop=True), rank


def _decode(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw) -> Any:
    """Decode raw arguments; damaged or missing ones give an object with nothing in it."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _field_by_field(decoder, bytes(raw))


def _field_by_field(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """Keep the arguments that have a usable type when one of them has not."""
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.type()
    result = decoder.type()
    for info in msgspec.structs.fields(result):
        if info.encode_name in values if isinstance(values, dict) else False:
            try:
                value = msgspec.convert(values[info.encode_name], info.type, strict=False)
            except msgspec.ValidationError:
                continue
            setattr(result, info.name, value)
    return result


def _external(args: Any) -> Any:
    return args.external if args.external is not None else args.old_external


def _times(events: list[Any]) -> tuple[Ints, Ints, Ints]:
    """Return start, end and duration in ns; a missing or negative duration gives end = start."""
    convert: Any = from_texts if events and isinstance(events[0], ExactEvent) else from_doubles
    start = convert([event.ts for event in events])
    duration = convert([event.dur for event in events])
    return start, start + np.where(duration > 0, duration, 0), duration


def _says_collective(args: CommArgs) -> bool:
    if args.collective is not None:
        return True
    return (args.in_elems if args.in_elems is not None else args.old_in_elems) is not None


def _comm_columns(args: list[Any]) -> dict[str, Any]:
    """Return the columns every source of collective arguments shares."""
    return {
        "group_name": ["" if a.group_name is None else str(a.group_name) for a in args],
        "group_description": [a.group_description or "" for a in args],
        "group_ranks": ["" if a.group_ranks is None else str(a.group_ranks) for a in args],
        "group_size": integers(a.group_size for a in args),
        "dtype": [a.dtype or "" for a in args],
        "in_elems": integers(_first(a.in_elems, a.old_in_elems) for a in args),
        "out_elems": integers(_first(a.out_elems, a.old_out_elems) for a in args),
        "in_splits": ["" if a.in_splits is None else str(a.in_splits) for a in args],
        "out_splits": ["" if a.out_splits is None else str(a.out_splits) for a in args],
        "root": integers(a.rank for a in args),
        "peer": integers(_first(a.target_rank, a.source_rank) for a in args),
        "seq": integers(a.seq for a in args),
        "comms_id": integers(a.comms_id for a in args),
    }


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _with_shapes(name: str, args: OperatorArgs) -> tuple[OperatorArgs, shapes.Sizes]:
    """Fill sizes from shapes where no named argument gives them."""
    if name == "record_param_comms":
        sizes = shapes.annotation_sizes(args.dims, args.types)
    else:
        sizes = shapes.operator_sizes(name, args.dims, args.types)
    if not _says_collective(args) and (args.collective or name) not in _NOT_A_SIZE:
        args.in_elems = None if sizes.in_elems == NONE else sizes.in_elems
        args.out_elems = None if sizes.out_elems == NONE else sizes.out_elems
        args.dtype = args.dtype or sizes.dtype
    if name.rpartition("::")[2] in _NAMES_A_RANK and len(args.concrete) > 2:
        args.rank = args.concrete[2]
    return args, sizes


def _graphs(args: list[KernelArgs]) -> NDArray[np.int64]:
    # Kineto writes graph id 0 for kernels outside a graph.
    return np.array([integer(a.graph) if a.graph not in (None, 0, "0") else NONE for a in args])

"""Turn kernels, copies and memsets into rows of `device_events`, and count those without a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.model import trace
from tracelens.model.trace import NONE
from tracelens_kineto.columns import Columns, integer, integers, sizes
from tracelens_kineto.events import KERNEL_ARGS, KernelArgs
from tracelens_kineto.recorded import (
    comm_columns,
    decode,
    external,
    graphs,
    says_collective,
    times,
)

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_kineto.processes import Hint, Neighbours


@dataclass
class DeviceRows:
    """The device events of one file under construction.

    Attributes:
        communications: Where arguments of collectives go, shared with the host's records.
        hints: What `neighbours` know of each row, if they are asked.
        untimed: Events without a usable time, by device and reason.
        untimed_correlations: Their correlations: their launches have not lost their record.
        fractions: Some time is no whole number of microseconds.
        zero_length: Kernels of length 0, (kind, event), until it is known what that means.
        short: Kernels of length 0 that were kept, because the file has whole microseconds only.
        homeless: Events that name no device where there are several.
    """

    communications: Columns
    neighbours: Neighbours | None = None
    hints: list[Hint] = field(default_factory=list)
    untimed: Counter[tuple[int, str]] = field(default_factory=Counter)
    untimed_correlations: list[int] = field(default_factory=list)
    fractions: bool = False
    zero_length: list[tuple[str, Any]] = field(default_factory=list)
    short: int = 0
    homeless: int = 0
    columns: Columns = field(default_factory=lambda: Columns(trace.DEVICE_EVENTS))
    rows: int = 0

    def add(self, events: list[Any], kind: str) -> None:
        """Add events of one kind (kernel, copy or memset)."""
        args: list[KernelArgs] = [decode(KERNEL_ARGS, event.args) for event in events]
        start, end, duration = times(events)
        self.fractions = self.fractions or _has_fractions(start, duration)
        timed = (start != NONE) & (start != 0) & (duration >= 0)
        if kind == "kernel" and not duration.all():
            zero = timed & (duration == 0)
            self.zero_length += [(kind, events[i]) for i in np.flatnonzero(zero)]
            self._append(events, args, start, end, kind, timed & ~zero)
            timed |= zero
        else:
            self._append(events, args, start, end, kind, timed)
        if not timed.all():
            self._count_untimed(events, args, start, duration, ~timed)

    def settle(self, *, whole_microseconds: bool) -> None:
        """Decide what kernels of length 0 are, once the whole file is known.

        In a file of whole microseconds they are shorter than one; in one of nanoseconds CUPTI gave
        no times for them.
        """
        waiting, self.zero_length = self.zero_length, []
        for kind in sorted({kind for kind, _ in waiting}):
            events = [event for one, event in waiting if one == kind]
            args = [decode(KERNEL_ARGS, event.args) for event in events]
            start, end, duration = times(events)
            every = np.ones(len(events), bool)
            if whole_microseconds and not self.fractions:
                self.short += len(events)
                self._append(events, args, start, end, kind, every)
            else:
                self._count_untimed(events, args, start, duration, every)

    def _append(
        self,
        events: list[Any],
        args: list[KernelArgs],
        start: Ints,
        end: Ints,
        kind: str,
        keep: NDArray[np.bool_],
    ) -> None:
        if not keep.all():
            index = np.flatnonzero(keep)
            events, args = [events[i] for i in index], [args[i] for i in index]
            start, end = start[index], end[index]
        if not events:
            return
        self.columns.append(
            device=_devices(events, args),
            stream=integers(
                a.stream if a.stream is not None else e.tid
                for a, e in zip(args, events, strict=True)
            ),
            start=start,
            end=end,
            name=[event.name for event in events],
            kind=[kind] * len(events),
            correlation=integers(a.correlation for a in args),
            external_id=integers(external(a) for a in args),
            copy_bytes=sizes(a.bytes for a in args),
            graph=graphs(args),
            grid=[str(a.grid, "ascii", "replace") for a in args],
        )
        if self.neighbours is not None:
            self.hints += [self.neighbours.of(event) for event in events]
        if kind == "kernel":
            self._append_arguments(args, start, end)
        self.rows += len(events)

    def _append_arguments(self, args: list[KernelArgs], start: Ints, end: Ints) -> None:
        rows = [i for i, a in enumerate(args) if says_collective(a)]
        if rows:
            index = np.array(rows)
            picked = [args[i] for i in rows]
            self.communications.append(
                source=["args"] * len(rows),
                name=[a.collective or "" for a in picked],
                event=self.rows + index,
                start=start[index],
                end=end[index],
                external_id=integers(external(a) for a in picked),
                **comm_columns(picked),
            )

    def _count_untimed(
        self,
        events: list[Any],
        args: list[KernelArgs],
        start: Ints,
        duration: Ints,
        lost: NDArray[np.bool_],
    ) -> None:
        index = np.flatnonzero(lost)
        device = _devices([events[i] for i in index], [args[i] for i in index])
        for row, number in zip(index, device.tolist(), strict=True):
            self.untimed[number, _why_untimed(start[row], duration[row])] += 1
        self.untimed_correlations += [integer(args[i].correlation) for i in index]

    def table(self) -> tuple[pd.DataFrame, NDArray[np.int64]]:
        """Return the events by start, and the new row of each old one."""
        table = self._with_devices(self.columns.table())
        order = np.argsort(table["start"].to_numpy(), kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return table.iloc[order].reset_index(drop=True), rank

    def _with_devices(self, table: pd.DataFrame) -> pd.DataFrame:
        """Give events that lost their device the only one there is."""
        device = table["device"].to_numpy()
        unknown = device == NONE
        if not unknown.any():
            return table
        known = np.unique(device[~unknown])
        if len(known) != 1:
            self.homeless = int(unknown.sum())
            return table
        return table.assign(device=np.where(unknown, known[0], device))


def _devices(events: list[Any], args: list[KernelArgs]) -> NDArray[np.int64]:
    return integers(
        a.device if a.device is not None else e.pid for a, e in zip(args, events, strict=True)
    )


def _has_fractions(start: Ints, duration: Ints) -> bool:
    return bool(
        np.any((start % 1000 != 0) & (start != NONE))
        or np.any((duration % 1000 != 0) & (duration != NONE))
    )


def _why_untimed(start: int, duration: int) -> str:
    if start in (0, NONE) or duration == 0:
        return "without times"
    return "without a duration" if duration == NONE else "with a negative duration"

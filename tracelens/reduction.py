"""Reduce one rank's trace to what the cross-rank passes need.

This is the parallel part: it runs in the process that parsed the file, and what it returns grows
with the number of collectives and steps, never with the number of events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens import (
    contention,
    device_views,
    kernel_totals,
    link_use,
    lost_launches,
    message_roles,
    network_cards,
    steps,
)
from tracelens.attribution import Unions, exposed_per_event, exposed_pieces, partition, unions
from tracelens.communication import COMPUTE, Operation, identify
from tracelens.groups import Group, Groups
from tracelens.idle import idle_causes, idle_gaps
from tracelens.model.trace import NONE
from tracelens.notices import notice
from tracelens.operation_rows import ROW_COLUMNS, operation_row
from tracelens.passes import Compute, Message, PassFinder, Work, with_dependencies
from tracelens.reduced import DeviceReduction, RankReduction, StepReduction
from tracelens.unseen import unseen_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.device_views import DeviceView
    from tracelens.intervals import Ints
    from tracelens.link_use import StepUse
    from tracelens.model.result import Notice
    from tracelens.model.trace import RankTrace
    from tracelens.operations import Rule
    from tracelens.steps import StepMarks


@dataclass(frozen=True, slots=True)
class Selection:
    """Which steps to look at (`--steps`), how to find them, and the user's kernel rules."""

    first_step: int | None = None
    last_step: int | None = None
    step_pattern: str | None = None
    rules: tuple[Rule, ...] = ()

    def keeps(self, number: int) -> bool:
        """Tell whether a step number is selected."""
        low, high = self.first_step, self.last_step
        return (low is None or number >= low) and (high is None or number <= high)


def reduce_rank(trace: RankTrace, selection: Selection = Selection()) -> RankReduction:
    """Reduce one trace."""
    last = replace(trace, marks=trace.marks[:0]).host_extent[1]
    marks = steps.find(trace.marks, selection.step_pattern, last)
    unseen = unseen_device(trace)
    if len(trace.device_events) or unseen is not None:
        identified = identify(trace, selection.rules)
        views = device_views.of_devices(trace, identified)
        found = identified.operations
        extra = {
            "without_device_time": identified.without_device_time,
            "in_graphs": identified.in_graphs,
        }
    else:
        views, found = device_views.of_host(trace)
        extra = {}
    if unseen is not None:
        trace = _without_device(trace, unseen)
    return _Reducer(trace, marks, views, found, selection).result(extra)


def _without_device(trace: RankTrace, unseen: str) -> RankTrace:
    """Say that nothing is known of the time of a rank's device."""
    info = trace.info
    said = notice("device-unseen", file=info.path, rank=info.rank, found=unseen)
    kind = "unknown" if info.device_kind == "cpu" else info.device_kind
    return trace.with_info(device_unseen=True, device_kind=kind, notices=(*info.notices, said))


class _Reducer:
    """Reduces one trace; steps that are not selected still cut time, and are dropped at the end."""

    def __init__(
        self,
        trace: RankTrace,
        marks: StepMarks,
        views: list[DeviceView],
        found: list[Operation],
        selection: Selection,
    ) -> None:
        self.trace, self.marks, self.views, self.found = trace, marks, views, found
        self.kept = [i for i, number in enumerate(marks.number) if selection.keeps(number)]
        self.place = np.full(len(marks), steps.AFTER)
        self.place[self.kept] = np.arange(len(self.kept))
        self.is_host = not len(trace.device_events)
        self.lost = lost_launches.of(trace)
        self.untimed = _untimed_launches(trace)
        self.passes = PassFinder(trace, marks, is_host=self.is_host)
        count = len(found)
        self.step = np.full(count, steps.BEFORE)
        self.time, self.exposed = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.messages: dict[int, list[Message]] = {}
        self.start = np.full(count, NONE)
        self.end = np.full(count, NONE)
        self.per_step: list[pd.DataFrame] = []
        self.pieces: list[pd.DataFrame] = []
        self.kernels: list[pd.DataFrame] = []
        self.compared: list[pd.DataFrame] = []
        self.links: list[StepUse] = []

    def result(self, extra: dict[str, int]) -> RankReduction:
        groups = Groups(self.trace.info)
        group_of = [groups.of(operation) for operation in self.found]
        self._launch_steps(group_of)
        devices = [self._device(view, place) for place, view in enumerate(self.views)]
        table, group_list = self._operation_table(group_of)
        base = self.trace.info.base_ns
        first, last = self._extent()
        return RankReduction(
            info=self.trace.info,
            devices=devices,
            groups=group_list,
            operations=table,
            operation_steps=_join(self.per_step, ("row", "step", "time_ns", "exposed_ns")),
            exposed=_join(self.pieces, ("row", "op", "device", "start", "end")),
            kernels=kernel_totals.longest(
                _join(self.kernels, ("name", "class", "op", "step", "count", "total_ns"))
            ),
            mark_counts=self._mark_counts(),
            step_source=self.marks.source,
            recorded_steps=list(self.marks.number),
            contention=_join(self.compared, contention.COLUMNS),
            network=network_cards.reduce(self.trace.counters, devices),
            link_use=self.links,
            first_ns=base + first,
            last_ns=base + last,
            guessed_groups=groups.guessed,
            launches_without_record=len(self.lost),
            lost=lost_launches.unexplained(self.trace, self.lost),
            notices=[*self.trace.info.notices, *self._odd_marks()],
            **extra,
        )

    def _odd_marks(self) -> list[Notice]:
        found, file, rank = [], self.trace.info.path, self.trace.info.rank
        count, steps = self._named(self.marks.unended)
        if count:
            found.append(notice("unended-steps", file=file, rank=rank, count=count, steps=steps))
        count, steps = self._named(self.marks.unfollowed)
        if count:
            found.append(notice("unmarked-steps", file=file, rank=rank, count=count, steps=steps))
        return found

    def _named(self, places: frozenset[int]) -> tuple[int, str]:
        """Count the selected ones of some steps, and write their numbers."""
        kept = sorted(places & set(self.kept))
        return len(kept), ", ".join(str(self.marks.number[place]) for place in kept)

    def _extent(self) -> tuple[int, int]:
        """Return when the first event began and the last one ended; the host's, without others."""
        if self.views:
            lines = [view.timeline for view in self.views]
            return min(int(t.start[0]) for t in lines), max(int(t.end.max()) for t in lines)
        first, last = self.trace.host_extent
        return (first, last) if first != NONE else (0, 0)

    def _placed(self, step_of: Ints) -> Ints:
        """Number the selected steps from 0; work of the others counts as after the steps."""
        if not len(self.marks):
            return step_of
        return np.where(step_of >= 0, self.place[np.maximum(step_of, 0)], step_of)

    def _mark_counts(self) -> pd.DataFrame:
        counted = _mark_counts(self.trace.marks, self.marks)
        counted["step"] = self._placed(counted["step"].to_numpy(np.int64))
        return counted[counted["step"] >= 0].reset_index(drop=True)

    def _launch_steps(self, group_of: list[Group]) -> None:
        if not len(self.marks) or not self.views:  # without a timeline there are no steps
            return
        launch = np.array([NONE if o.launch is None else o.launch for o in self.found], np.int64)
        self.step = steps.launching_step(self.marks, launch)
        between = message_roles.between_stages(self.found, group_of, self.trace.info)
        for row in np.argsort(launch, kind="stable").tolist():
            if between[row] and launch[row] != NONE:
                message = Message(int(launch[row]), self.found[row].op)
                self.messages.setdefault(int(self.step[row]), []).append(message)

    def _device(self, view: DeviceView, place: int) -> DeviceReduction:
        timeline, parts = view.timeline, unions(view.timeline)
        low, high = int(timeline.start[0]), int(timeline.end.max())
        windows = self._windows(view)
        step_of = windows.step_of if windows else np.full(len(timeline.start), steps.BEFORE)
        self._operations_of(view, parts, low, high, step_of)
        self._pieces_of(view, parts, place)
        self.kernels.append(kernel_totals.of_device(self.trace, view, self._placed(step_of)))
        if not self.is_host:
            events = self.trace.device_events.iloc[view.rows]
            counted = self._placed(step_of) >= 0 if len(self.marks) else step_of < 0
            self.compared.append(contention.compare(view.timeline, parts, events, counted))
        info = self.trace.info
        key = (view.process, view.device)
        total = partition(timeline, parts, low, high, launches_without_record=len(self.lost))
        reductions = []
        if windows is not None:
            self._per_step(view, parts, windows)
            reductions = self._steps(view, parts, windows)
            counters = self.trace.counters
            self.links.extend(link_use.reduce(counters, view.device, place, parts.comm, reductions))
        return DeviceReduction(
            process=view.process,
            device=view.device,
            name=info.device_names.get(view.device),
            untimed=info.untimed.get(key, 0),
            before_first_step=int((step_of == steps.BEFORE).sum()) if windows else 0,
            total=total,
            steps=reductions,
        )

    def _windows(self, view: DeviceView) -> steps.Windows | None:
        if not len(self.marks):
            return None
        timeline = view.timeline
        if self.is_host:
            return steps.host_windows(self.marks, timeline.start, view.launch)
        return steps.device_windows(
            self.marks, timeline.start, timeline.end, view.launch, view.stream
        )

    def _steps(
        self, view: DeviceView, parts: Unions, windows: steps.Windows
    ) -> list[StepReduction]:
        lost_in = steps.launching_step(self.marks, self.lost)
        lost_per_step = [int((lost_in == index).sum()) for index in range(len(self.marks))]
        uncertain = set(steps.launching_step(self.marks, self.untimed).tolist())
        uncertain |= steps.between_steps(windows.step_of, view.launch)
        periods = steps.periods(self.marks)
        result = []
        for index in self.kept:
            number = self.marks.number[index]
            low, high = int(windows.low[index]), int(windows.high[index])
            lost = lost_per_step[index]
            cut = partition(view.timeline, parts, low, high, launches_without_record=lost)
            result.append(
                StepReduction(
                    step=number,
                    occurrence=self.marks.occurrence[index],
                    complete=high > low
                    and not lost
                    and index not in uncertain
                    and not self._cut_here(index)
                    and not self._end_may_be_lost(view, windows, index),
                    period_ns=int(periods[index]),
                    low=low,
                    high=high,
                    partition=cut,
                    idle=None
                    if self.is_host
                    else idle_causes(view.timeline, parts, view.launch_end, low, high),
                    work=self._work(view, parts, windows, index),
                )
            )
        return result

    def _work(
        self, view: DeviceView, parts: Unions, windows: steps.Windows, index: int
    ) -> Work | None:
        """Return the step's forward and backward work, if it is a stage's of a pipeline."""
        mine = (windows.step_of == index) & (view.timeline.event_class == COMPUTE)
        compute = Compute(
            view.timeline.start[mine], view.timeline.end[mine], view.launch[mine], view.thread[mine]
        )
        work = self.passes.of_step(index, compute, self.messages.get(index, []))
        if work is None or self.is_host:
            return work
        low, high = int(windows.low[index]), int(windows.high[index])
        _, dependency = idle_gaps(view.timeline, parts, view.launch_end, low, high)
        return with_dependencies(work, dependency)

    def _cut_here(self, index: int) -> bool:
        """Tell whether events of this step may be lacking, or its end is not known."""
        info = self.trace.info
        if info.damaged_device_events or index in self.marks.unended | self.marks.unfollowed:
            return True
        return info.truncated and (self.is_host or index == len(self.marks) - 1)

    def _end_may_be_lost(self, view: DeviceView, windows: steps.Windows, index: int) -> bool:
        """Tell whether the first event of the next step, which ends this one, may be lost."""
        if self.is_host or index == len(self.marks) - 1:
            return False
        lost = self.lost[steps.launching_step(self.marks, self.lost) > index]
        if not len(lost) and not self.trace.info.truncated:
            return False
        later = np.flatnonzero(windows.step_of > index)
        return not len(later) or bool((lost < view.launch[later[0]]).any())

    def _operations_of(
        self, view: DeviceView, parts: Unions, low: int, high: int, step_of: Ints
    ) -> None:
        """Add each communication event's time to the operation it carries."""
        rows = parts.rows
        owner = view.owner[rows]
        keep = owner >= 0
        owner, rows = owner[keep], rows[keep]
        timeline = view.timeline
        np.add.at(self.time, owner, timeline.end[rows] - timeline.start[rows])
        np.add.at(self.exposed, owner, exposed_per_event(parts, low, high)[keep])
        first = owner[::-1]  # the earliest event of an operation wins
        self.start[first] = timeline.start[rows][::-1]
        np.maximum.at(self.end, owner, timeline.end[rows])
        unlaunched = np.array([self.found[i].launch is None for i in first], bool)
        self.step[first[unlaunched]] = step_of[rows][::-1][unlaunched]

    def _pieces_of(self, view: DeviceView, parts: Unions, place: int) -> None:
        which, start, end = exposed_pieces(parts)
        owner = view.owner[parts.rows[which]]
        keep = owner >= 0
        columns: dict[str, Ints] = {
            "row": owner,
            "op": view.timeline.event_op[parts.rows[which]].astype(np.int64),
            "device": np.full(len(owner), place),
            "start": start,
            "end": end,
        }
        self.pieces.append(pd.DataFrame({name: v[keep] for name, v in columns.items()}))

    def _per_step(self, view: DeviceView, parts: Unions, windows: steps.Windows) -> None:
        owner = view.owner[parts.rows]
        start, end = view.timeline.start[parts.rows], view.timeline.end[parts.rows]
        for place, index in enumerate(self.kept):
            low, high = int(windows.low[index]), int(windows.high[index])
            exposed = exposed_per_event(parts, low, high)
            time = np.clip(end, low, high) - np.clip(start, low, high)
            keep = (time > 0) & (owner >= 0)
            self.per_step.append(
                pd.DataFrame(
                    {
                        "row": owner[keep],
                        "step": place,
                        "time_ns": time[keep],
                        "exposed_ns": exposed[keep],
                    }
                )
            )

    def _operation_table(self, group_of: list[Group]) -> tuple[pd.DataFrame, list[Group]]:
        index: dict[tuple[object, ...], int] = {}
        group_list: list[Group] = []
        rows = []
        for operation, group in zip(self.found, group_of, strict=True):
            place = index.setdefault((*group.key, group.name), len(group_list))
            if place == len(group_list):
                group_list.append(group)
            rows.append(operation_row(operation, group, place, self.trace.info.rank))
        table = pd.DataFrame(rows, columns=list(ROW_COLUMNS))
        for name, values in (
            ("step", self._placed(self.step)),
            ("time_ns", self.time),
            ("exposed_ns", self.exposed),
            ("start", self.start),
            ("end", self.end),
            ("carrier", self._carriers()),
        ):
            table[name] = values
        return table, group_list

    def _carriers(self) -> list[int]:
        """Return the operation that has the time of each one's kernel: a batch has one kernel."""
        first: dict[int | None, int] = {}
        for row, operation in enumerate(self.found):
            if self.start[row] != NONE:
                first.setdefault(operation.event, row)
        return [first.get(operation.event, NONE) for operation in self.found]


def _untimed_launches(trace: RankTrace) -> Ints:
    """Return the times of launches whose event has no usable time: its step lacks that time."""
    calls = trace.host_calls
    times: Ints = calls["start"].to_numpy()[(calls["kind"] == "untimed").to_numpy(bool)]
    return times


def _join(parts: Sequence[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    whole = [part for part in parts if len(part)]
    return pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=list(columns))


def _mark_counts(marks: pd.DataFrame, step_marks: StepMarks) -> pd.DataFrame:
    if not len(step_marks) or not len(marks):
        return pd.DataFrame({"name": [], "step": [], "count": []})
    step = steps.launching_step(step_marks, marks["start"].to_numpy())
    frame = pd.DataFrame({"name": marks["name"].astype(object), "step": step})
    counted = frame.groupby(["name", "step"], sort=True).size().reset_index(name="count")
    return counted[counted["step"] >= 0].reset_index(drop=True)

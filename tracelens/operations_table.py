"""Join the operations of all ranks into one frame, with groups numbered across ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.dtypes import item_size
from tracelens.model.trace import NONE

if TYPE_CHECKING:
    from tracelens.groups import Group
    from tracelens.reduced import RankReduction
    from tracelens.run import RankRun, Run

_MORE_THAN_STEPS = 1 << 40
MONITORING_BYTES = 1024
"""Collectives up to this size are norms, flags and losses, no gradients or parameters."""


@dataclass(slots=True)
class MergedGroup:
    """A group across ranks: identity is its rank list."""

    index: int
    names: set[str]
    description: str | None
    size: int | None
    ranks: tuple[int, ...] | None
    role: str
    communicator: str | None = None

    @property
    def is_one(self) -> bool:
        """Tell whether it is surely one group, not several of one name."""
        return self.ranks is not None or self.communicator is not None


@dataclass(slots=True)
class OperationsTable:
    """The operations of the counted ranks.

    Attributes:
        frame: The columns of `RankReduction.operations` plus rank, cycle, cycle_key, row (in the
            cycle), group (index into `groups`), step_number, complete (its step is whole), small
            (at most 1 KiB), item_bytes (of an element, `NONE` if unknown), start_ns and end_ns
            (absolute), time_in_mean_ns and exposed_in_mean_ns.
        groups: The groups.
        complete_steps: Number of complete steps per rank.
        mean_steps: Number of steps in the mean per rank.
    """

    frame: pd.DataFrame
    groups: list[MergedGroup]
    complete_steps: dict[int, int]
    mean_steps: dict[int, int]


def build(run: Run) -> OperationsTable:
    """Build the table of a run's counted ranks."""
    merger = _Merger()
    frames = [
        _rank_frame(merger, rank, number, cycle)
        for rank in run.counted
        for number, cycle in enumerate(rank.cycles)
    ]
    frame = pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)
    return OperationsTable(
        frame=frame,
        groups=merger.groups,
        complete_steps={r.rank: sum(r.complete(*k) for k in r.step_keys()) for r in run.counted},
        mean_steps={r.rank: sum(r.in_mean.values()) for r in run.counted},
    )


class _Merger:
    def __init__(self) -> None:
        self.groups: list[MergedGroup] = []
        self._index: dict[tuple[object, ...], int] = {}

    def index_of(self, group: Group) -> int:
        place = self._index.setdefault(group.key, len(self.groups))
        if place == len(self.groups):
            self.groups.append(
                MergedGroup(
                    place,
                    set(),
                    group.description,
                    group.size,
                    group.ranks,
                    group.role,
                    group.communicator,
                )
            )
        merged = self.groups[place]
        merged.names |= {group.name} - {""}
        if merged.role == "unknown" and group.role != "unknown":
            merged.role, merged.description = group.role, group.description
        return place


def _rank_frame(merger: _Merger, rank: RankRun, number: int, cycle: RankReduction) -> pd.DataFrame:
    frame = cycle.operations.copy()
    frame["row"] = np.arange(len(frame))
    local = np.array([merger.index_of(group) for group in cycle.groups], np.int64)
    frame["group"] = local[frame["group"].to_numpy(np.int64)] if len(frame) else frame["group"]
    frame["rank"], frame["cycle"] = rank.rank, number
    frame["cycle_key"] = cycle_key(rank, number)
    step = frame["step"].to_numpy(np.int64)
    count = cycle.step_count  # without a device no step has a window, and none is complete
    whole = np.array([*(rank.complete(number, i) for i in range(count)), False])
    mean = np.array([*(rank.in_mean.get((number, i), False) for i in range(count)), False])
    frame["complete"] = whole[np.where((step >= 0) & (step < count), step, count)]
    frame["item_bytes"] = _item_bytes(frame)
    frame["small"] = _small(frame)
    numbers = np.array([s.step for s in cycle.devices[0].steps] if cycle.devices else [], np.int64)
    frame["step_number"] = (
        np.where(step >= 0, numbers[np.maximum(step, 0)], step) if len(numbers) else step
    )
    for name in ("start", "end"):
        timed = frame[name].to_numpy(np.int64)
        frame[f"{name}_ns"] = np.where(timed == NONE, NONE, timed + cycle.info.base_ns)
    times = cycle.operation_steps
    kept = times[mean[times["step"].to_numpy(np.int64)]] if len(times) else times
    for name in ("time_ns", "exposed_ns"):
        sums = np.zeros(len(frame), np.int64)
        np.add.at(sums, kept["row"].to_numpy(np.int64), kept[name].to_numpy(np.int64))
        frame[name.replace("_ns", "_in_mean_ns")] = sums
    return frame


def cycle_key(rank: RankRun, number: int) -> int:
    """Number a cycle by its first step: a rank may lack the file of an earlier cycle.

    Cycles that begin with the same step, because the profiler was set up anew, are counted.
    """
    firsts = [c.recorded_steps[0] if c.recorded_steps else 0 for c in rank.cycles]
    return firsts[number] + firsts[:number].count(firsts[number]) * _MORE_THAN_STEPS


def _item_bytes(frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = {name: item_size(str(name)) for name in frame["dtype"].unique()}
    return np.array([sizes[name] or NONE for name in frame["dtype"]], np.int64)


def _small(frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    elements, buffer = (frame[n].to_numpy(np.int64) for n in ("elements", "buffer_bytes"))
    each = frame["item_bytes"].to_numpy(np.int64)
    of_elements = np.where(elements == NONE, NONE, elements * np.where(each == NONE, 4, each))
    sizes = np.where(buffer == NONE, of_elements, buffer)
    small: np.ndarray[tuple[int], np.dtype[np.bool_]] = (sizes != NONE) & (
        sizes <= MONITORING_BYTES
    )
    return small

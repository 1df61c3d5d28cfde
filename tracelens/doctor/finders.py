"""The questions to one rank's file that every format shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.doctor.check import Found
from tracelens.model.trace import NONE
from tracelens.operations import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from tracelens.reduced import RankReduction

    Rows = NDArray[np.bool_]

_BY_NAME = ("name", "rule")
_DEVICE_KINDS = ("kernel", "copy", "memset")
_SHARE_OF_IDLE = 0.1
_SET_UP_STEPS = 3


def some(count: int, total: int = 0) -> Found | None:
    """Return a find if there is anything to count."""
    return Found(count, total) if count else None


def when(lacks: bool, detail: str = "") -> Found | None:
    """Return a find if something lacks."""
    return Found(detail=detail) if lacks else None


# the file ----------------------------------------------------------------------------------------


def ends_early(rank: RankReduction) -> Found | None:
    """Find a file that stops before its events do."""
    return when(rank.info.truncated)


def damaged(rank: RankReduction) -> Found | None:
    """Find device events that could not be read."""
    return some(rank.info.damaged_device_events)


def unnamed_rank(rank: RankReduction) -> Found | None:
    """Find a file that says no rank, neither inside nor in its name."""
    return when(rank.info.rank_source is None)


def lost_launches(rank: RankReduction) -> Found | None:
    """Find launches whose kernel or copy was not recorded."""
    return some(rank.lost)


def untimed(rank: RankReduction) -> Found | None:
    """Find device events without a usable time."""
    return some(sum(rank.info.untimed.values()))


# device ------------------------------------------------------------------------------------------


def has_device_events(rank: RankReduction) -> bool:
    """Tell whether anything of a device was recorded."""
    info = rank.info
    seen = info.device_kind != "cpu" and not info.device_unseen
    return seen or bool(info.unknown_device_events) or holds(rank, *_DEVICE_KINDS)


def several_devices(rank: RankReduction) -> Found | None:
    """Find a process that drives several devices."""
    return some(len(rank.devices)) if len(rank.devices) > 1 else None


def idle_without_cause(rank: RankReduction) -> Found | None:
    """Find idle time that ends with an event whose launch was not recorded.

    The last step is left out: its window may reach beyond the last event, so idle time at its end
    has no cause even where every launch is known.
    """
    steps = [step for device in rank.devices for step in device.steps[:-1]]
    idle = sum(step.partition.idle_ns for step in steps if step.idle)
    explained = sum(step.idle.host_ns + step.idle.dependency_ns for step in steps if step.idle)
    unknown = idle - explained
    return some(unknown, idle) if unknown > _SHARE_OF_IDLE * idle else None


# steps -------------------------------------------------------------------------------------------


def no_steps(rank: RankReduction) -> Found | None:
    """Find a file without step marks."""
    return when(not rank.recorded_steps)


def set_up_steps(rank: RankReduction) -> Found | None:
    """Find a recording that begins with the first steps of the process."""
    first = min(rank.recorded_steps, default=_SET_UP_STEPS)
    return when(rank.step_source == "ProfilerStep" and first < _SET_UP_STEPS, str(first))


def steps_without_optimizer(rank: RankReduction) -> Found | None:
    """Find steps that hold no optimizer step beside steps that do: micro-batches, as a rule."""
    steps, stepping = len(rank.recorded_steps), len(_optimizer_steps(rank))
    return some(steps - stepping, steps) if stepping else None


# operations --------------------------------------------------------------------------------------


def no_operations(rank: RankReduction) -> Found | None:
    """Find a file without a collective, of a run that should have some."""
    return when(not len(rank.operations) and rank.info.world_size != 1)


def one_process(rank: RankReduction) -> Found | None:
    """Find a run of a single process."""
    return when(rank.info.world_size == 1)


def in_graphs(rank: RankReduction) -> Found | None:
    """Find communication inside CUDA graphs."""
    return some(rank.in_graphs)


def known_by_name(rank: RankReduction) -> Found | None:
    """Find communication kernels outside graphs that only their name speaks of."""
    rows = by_name(rank)
    return some(max(int(rows.sum()) - rank.in_graphs, 0), int(_launched(rank).sum()))


def without_size(rank: RankReduction) -> Found | None:
    """Find recorded collectives whose size was not recorded."""
    rows = recorded(rank)
    return some(int((rows & _lacks(rank, "message_bytes")).sum()), int(rows.sum()))


def without_group(rank: RankReduction) -> Found | None:
    """Find recorded collectives whose process group is not known rank by rank."""
    rows = recorded(rank)
    unknown = np.array([*(group.ranks is None for group in rank.groups), False])
    return some(
        int((rows & unknown[_column(rank, "group").astype(np.int64)]).sum()), int(rows.sum())
    )


def without_number(rank: RankReduction) -> Found | None:
    """Find collectives on a device that are not numbered."""
    rows = recorded(rank)
    return some(int((rows & _lacks(rank, "seq")).sum()), int(rows.sum()))


def without_peer(rank: RankReduction) -> Found | None:
    """Find sends and receives that do not say with whom."""
    rows = _messages(rank)
    return some(int((rows & _lacks(rank, "peer")).sum()), int(rows.sum()))


def pipeline_without_optimizer(rank: RankReduction) -> Found | None:
    """Find a pipeline whose optimizer step has no range of its own."""
    piped = bool(_messages(rank).any()) and bool(rank.recorded_steps)
    return when(piped and not _optimizer_steps(rank))


def launched_before(rank: RankReduction) -> Found | None:
    """Find collectives that were launched before the recording began and are in no step."""
    rows = ~_launched(rank) & ~_in_steps(rank)
    return some(int(rows.sum()), len(rank.operations))


def without_launch(rank: RankReduction) -> Found | None:
    """Find collectives inside steps whose launch was not recorded."""
    rows = ~_launched(rank) & _in_steps(rank)
    return some(int(rows.sum()), int(_in_steps(rank).sum()))


def by_name(rank: RankReduction) -> Rows:
    """Return the communication kernels of which nothing but their name is known."""
    named: Rows = np.isin(_column(rank, "source").astype(str), _BY_NAME)
    return _launched(rank) & named


def recorded(rank: RankReduction) -> Rows:
    """Return the operations that something else than a kernel's name speaks of."""
    return _launched(rank) & ~by_name(rank)


def sized(rank: RankReduction) -> Rows:
    """Return the operations whose size is known."""
    return recorded(rank) & ~_lacks(rank, "message_bytes")


def unsized(rank: RankReduction) -> Rows:
    """Return the operations whose size is not known, however they are known otherwise."""
    return _launched(rank) & _lacks(rank, "message_bytes")


def both(first: Finder, second: Callable[[RankReduction], bool]) -> Finder:
    """Return a finder that finds what the first one does where the second one is true."""
    return lambda rank: first(rank) if second(rank) else None


def holds(rank: RankReduction, *kinds: str) -> bool:
    """Tell whether the file holds events of one of these kinds; parsers need not count them."""
    return any(rank.info.recorded.get(kind) for kind in kinds)


def _column(rank: RankReduction, name: str) -> NDArray[Any]:
    return rank.operations[name].to_numpy()


def _lacks(rank: RankReduction, name: str) -> Rows:
    lacking: Rows = _column(rank, name).astype(np.int64) == NONE
    return lacking


def _launched(rank: RankReduction) -> Rows:
    return ~_lacks(rank, "launch")


def _in_steps(rank: RankReduction) -> Rows:
    inside: Rows = _column(rank, "step").astype(np.int64) >= 0
    return inside


def _optimizer_steps(rank: RankReduction) -> set[int]:
    """Return the places of the steps in which an optimizer's own range begins."""
    marks = rank.mark_counts[["name", "step"]].itertuples(index=False)
    return {int(step) for name, step in marks if str(name).startswith("Optimizer.step")}


def _messages(rank: RankReduction) -> Rows:
    return np.isin(_column(rank, "op").astype(np.int64), MESSAGES)


if TYPE_CHECKING:
    Finder = Callable[[RankReduction], Found | None]

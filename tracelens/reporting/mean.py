"""The mean step over all devices that count: the one the verdict speaks of."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.devices import DeviceStep, exposed_by_op, known_classes

if TYPE_CHECKING:
    from tracelens.model.result import Breakdown

Times = dict[str, float]


@dataclass(frozen=True, slots=True)
class MeanStep:
    """Time by class, and what is known about the inside of a class; the classes add up."""

    devices: int
    window_ns: float
    parts: Times
    inside: dict[str, Times]


def mean_step(steps: list[DeviceStep]) -> MeanStep | None:
    """Average the mean steps of devices; None without any."""
    if not steps:
        return None
    return MeanStep(
        devices=len(steps),
        window_ns=statistics.fmean(step.window_ns for step in steps),
        parts=_average([step.parts for step in steps], known_classes(steps)),
        inside={name: _inside(steps, name) for name in _INSIDE},
    )


def _average(times: list[dict[str, int]], names: list[str]) -> Times:
    """Average by name; a device without a name spent no time there."""
    return {name: sum(one.get(name, 0) for one in times) / len(times) for name in names}


def _inside(steps: list[DeviceStep], name: str) -> Times:
    """Return the parts of a class, longest first; nothing unless every device could split it."""
    breakdowns = [step.device.breakdown for step in steps]
    known = [breakdown for breakdown in breakdowns if breakdown is not None]
    if len(known) < len(steps):
        return {}
    split = [_INSIDE[name](breakdown) for breakdown in known]
    means = _average(split, list(dict.fromkeys(part for one in split for part in one)))
    ordered = sorted(means, key=lambda part: -means[part])
    return {part: means[part] for part in ordered if means[part]}


def _exposed(breakdown: Breakdown) -> dict[str, int]:
    times = {words.op(op): time for op, time in exposed_by_op(breakdown).items()}
    return {**times, "waiting for the last rank": breakdown.wait_ns or 0}


def _idle(breakdown: Breakdown) -> dict[str, int]:
    if breakdown.idle_host_ns is None and breakdown.idle_dependency_ns is None:
        return {}
    return {
        "the host had not launched yet": breakdown.idle_host_ns or 0,
        "launched, waiting for other work": breakdown.idle_dependency_ns or 0,
        "cause unknown": breakdown.idle_unknown_ns,
    }


_INSIDE = {"exposed": _exposed, "idle": _idle}

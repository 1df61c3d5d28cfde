"""The mean step of every device, cut into exclusive classes, and which device stands for all."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.reporting import words

if TYPE_CHECKING:
    from tracelens.model.result import (
        Analysis,
        Breakdown,
        DeviceResult,
        Partition,
        RankResult,
    )

MOST_BARS = 128
_OUTLIERS = 24


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """One device's mean step; a class that is not known is not in `parts`."""

    rank: RankResult
    device: DeviceResult
    label: str
    window_ns: int
    parts: dict[str, int]


def counted_ranks(analysis: Analysis) -> list[RankResult]:
    """Return the ranks that count in means; where none does, all there are."""
    return [rank for rank in analysis.ranks if rank.in_means] or analysis.ranks


def device_steps(analysis: Analysis) -> list[DeviceStep]:
    """Return every device that has a mean step and counts, in order of rank."""
    steps = [
        _device_step(rank, device)
        for rank in counted_ranks(analysis)
        for device in rank.devices
        if device.breakdown is not None or device.mean_step is not None
    ]
    if analysis.run.device_kind == "cpu":
        for step in steps:
            if not step.parts["copies"]:
                del step.parts["copies"]  # a CPU profile says nothing about copies
    return steps


def _device_step(rank: RankResult, device: DeviceResult) -> DeviceStep:
    if device.breakdown is not None:
        window, parts = device.breakdown.window_ns, _refined(device.breakdown)
    else:
        assert device.mean_step is not None
        window, parts = device.mean_step.window_ns, basic(device.mean_step)
    return DeviceStep(rank, device, device_label(rank, device), window, parts)


def device_label(rank: RankResult, device: DeviceResult) -> str:
    """Name a device by its rank, and by its number where a rank has several."""
    alone = len(rank.devices) == 1
    return f"rank {rank.rank}" if alone else f"rank {rank.rank}, device {device.device}"


def basic(partition: Partition) -> dict[str, int]:
    """Cut a window into classes by its basic partition; the bubble is not known there."""
    return {
        "compute": partition.compute_ns,
        "exposed": partition.exposed_comm_ns,
        "copies": partition.exposed_copy_ns,
        "idle": partition.idle_ns,
    }


def exposed_by_op(breakdown: Breakdown) -> dict[str, int]:
    """Return exposed communication by collective, without the waiting that could be split off."""
    both = dict(breakdown.exposed_unsplit_by_op_ns)
    for name, time in (breakdown.transfer_by_op_ns or {}).items():
        both[name] = both.get(name, 0) + time
    return both


def _refined(breakdown: Breakdown) -> dict[str, int]:
    parts = {
        "compute": breakdown.compute_ns,
        "exposed": sum(exposed_by_op(breakdown).values()) + (breakdown.wait_ns or 0),
        "copies": breakdown.exposed_copy_ns,
    }
    if breakdown.bubble_ns is not None:
        parts["bubble"] = breakdown.bubble_ns
    parts["idle"] = (
        (breakdown.idle_host_ns or 0)
        + (breakdown.idle_dependency_ns or 0)
        + breakdown.idle_unknown_ns
    )
    return parts


def known_classes(steps: list[DeviceStep]) -> list[str]:
    """Return the classes known for at least one device, in stacking order."""
    return [name for name in words.CLASSES if any(name in step.parts for step in steps)]


def by_distance(steps: list[DeviceStep]) -> list[DeviceStep]:
    """Sort devices by how far their step lies from the median of every class, nearest first."""
    classes = known_classes(steps)
    medians = {
        name: statistics.median([step.parts.get(name, 0) for step in steps]) for name in classes
    }

    def distance(step: DeviceStep) -> float:
        return sum(abs(step.parts.get(name, 0) - medians[name]) for name in classes)

    return sorted(steps, key=distance)


def median_device(steps: list[DeviceStep]) -> DeviceStep | None:
    """Return the device whose step is nearest to the median: a real step, so its parts add up."""
    return by_distance(steps)[0] if steps else None


def shown(steps: list[DeviceStep]) -> list[DeviceStep]:
    """Return the devices to draw: all, or the median and the outliers where there are too many."""
    if len(steps) <= MOST_BARS:
        return steps
    ordered = by_distance(steps)
    outliers = sorted(ordered[-_OUTLIERS:], key=lambda step: (step.rank.rank, step.device.device))
    return [ordered[0], *outliers]

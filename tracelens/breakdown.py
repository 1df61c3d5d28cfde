"""The refined breakdown of the mean step: exclusive classes that sum to the window exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.result import Breakdown, Partition
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from tracelens.intervals import Ints


def of_mean_step(mean: Partition | None, steps: int, split: Ints | None) -> Breakdown | None:
    """Split exposed communication into waiting, transfer and what cannot be split.

    Args:
        mean: The partition of the mean step.
        steps: How many steps it is the mean of.
        split: Sums over these steps, from `waiting.exposed_wait`; None or all 0 if nothing matched.
    """
    if mean is None:
        return None
    count = len(OPERATIONS)
    known = split is not None and bool(split[count:].any())
    waited, transfer, unsplit = 0, dict[str, int](), dict[str, int]()
    for op, exposed in mean.exposed_by_op_ns.items():
        code = OPERATIONS.index(op)
        matched = round(int(split[count + code]) / steps) if split is not None else 0
        if abs(matched - exposed) <= 1:
            matched = exposed  # both are rounded: one nanosecond is no unmatched call
        matched = min(matched, exposed)
        wait = min(round(int(split[code]) / steps), matched) if split is not None else 0
        waited += wait
        _add(transfer, op, matched - wait)
        _add(unsplit, op, exposed - matched)
    return Breakdown(
        window_ns=mean.window_ns,
        compute_ns=mean.compute_ns,
        transfer_by_op_ns=transfer if known else None,
        wait_ns=waited if known else None,
        exposed_unsplit_by_op_ns=unsplit,
        bubble_ns=None,
        exposed_copy_ns=mean.exposed_copy_ns,
        idle_host_ns=None,
        idle_dependency_ns=None,
        idle_unknown_ns=mean.idle_ns,
    )


def _add(parts: dict[str, int], op: str, time: int) -> None:
    if time:
        parts[op] = time

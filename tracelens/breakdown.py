"""The refined breakdown of the mean step: exclusive classes that sum to the window exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.result import Breakdown, Partition
from tracelens.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.idle import IdleCauses
    from tracelens.intervals import Ints
    from tracelens.pipeline.bubble import BubbleTime


def of_mean_step(
    mean: Partition | None,
    steps: int,
    split: Ints | None,
    idle: Sequence[IdleCauses | None] = (),
    bubble: BubbleTime | None = None,
) -> Breakdown | None:
    """Split exposed communication into waiting, transfer and what cannot be split.

    Waiting of messages and idle time that are the pipeline's bubble are its alone.

    Args:
        mean: The partition of the mean step.
        steps: How many steps it is the mean of.
        split: Sums over these steps, from `waiting.exposed_wait`; None or all 0 if nothing matched.
        idle: Causes of idle time of these steps; none for a CPU run.
        bubble: Sums over these steps; None where no pipeline phase is known.
    """
    if mean is None:
        return None
    count = len(OPERATIONS)
    known = split is not None and bool(split[count:].any())
    waited, in_bubble, transfer, unsplit = 0, 0, dict[str, int](), dict[str, int]()
    for op, exposed in mean.exposed_by_op_ns.items():
        code = OPERATIONS.index(op)
        in_all = int(split[count + code]) if split is not None else 0
        matched = round(in_all / steps)
        if in_all and abs(matched - exposed) <= len(mean.exposed_by_op_ns):
            matched = exposed  # both are rounded, and one of them closes the sum: no unmatched call
        matched = min(matched, exposed)
        wait = min(round(int(split[code]) / steps), matched) if split is not None else 0
        of_bubble = min(round(int(bubble.waiting[code]) / steps), wait) if bubble else 0
        in_bubble += of_bubble
        waited += wait - of_bubble
        _add(transfer, op, matched - wait)
        _add(unsplit, op, exposed - matched)
    host, dependency = _idle(mean, steps, idle)
    idle_bubble = 0
    if bubble is not None and dependency is not None:
        idle_bubble = min(round(bubble.dependency / steps), dependency)
        in_bubble, dependency = in_bubble + idle_bubble, dependency - idle_bubble
    return Breakdown(
        window_ns=mean.window_ns,
        compute_ns=mean.compute_ns,
        transfer_by_op_ns=transfer if known else None,
        wait_ns=waited if known else None,
        exposed_unsplit_by_op_ns=unsplit,
        bubble_ns=in_bubble if bubble is not None else None,
        exposed_copy_ns=mean.exposed_copy_ns,
        idle_host_ns=host,
        idle_dependency_ns=dependency,
        idle_unknown_ns=mean.idle_ns - (host or 0) - (dependency or 0) - idle_bubble,
    )


def _idle(
    mean: Partition, steps: int, idle: Sequence[IdleCauses | None]
) -> tuple[int | None, int | None]:
    known = [causes for causes in idle if causes is not None]
    if not known:
        return None, None
    host = min(round(sum(causes.host_ns for causes in known) / steps), mean.idle_ns)
    rest = mean.idle_ns - host
    dependency = round(sum(causes.dependency_ns for causes in known) / steps)
    # Both are rounded: one nanosecond more than there is, or left over, is no third cause.
    return host, rest if abs(rest - dependency) <= 1 else min(dependency, rest)


def _add(parts: dict[str, int], op: str, time: int) -> None:
    if time:
        parts[op] = time

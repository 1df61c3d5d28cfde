"""Why a straggler is late: what its mean step has more of than the other ranks'."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.model.result import Breakdown, RankResult, Straggler

_EXCESS = 0.03
"""An excess below this share of the step explains nothing."""


def explained(stragglers: list[Straggler], ranks: list[RankResult]) -> list[Straggler]:
    """Add the cause to each straggler, where its breakdown shows one."""
    late = {straggler.rank for straggler in stragglers}
    steps = {rank.rank: step for rank in ranks if rank.in_means and (step := _step(rank))}
    others = [step for rank, step in steps.items() if rank not in late]
    return [
        dataclasses.replace(s, cause=_cause(steps[s.rank], others))
        if others and s.rank in steps
        else s
        for s in stragglers
    ]


def _step(rank: RankResult) -> Breakdown | None:
    return next((device.breakdown for device in rank.devices if device.breakdown), None)


def _cause(own: Breakdown, others: list[Breakdown]) -> str | None:
    """Return the larger of the two excesses over the median of the ranks that are not late."""
    compute = own.compute_ns - statistics.median(other.compute_ns for other in others)
    host = (own.idle_host_ns or 0) - statistics.median(other.idle_host_ns or 0 for other in others)
    excess, cause = max((compute, "compute"), (host, "host"))
    return cause if excess > _EXCESS * own.window_ns else None

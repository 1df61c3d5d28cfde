"""What a reader must know of how the ranks were linked: runs, matches, clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.cohorts import DATE, TIME
from tracelens.matching import LOW
from tracelens.model.trace import NONE
from tracelens.notices import notice
from tracelens.run import ranges
from tracelens.waiting import lacks_ranks

if TYPE_CHECKING:
    from tracelens.clocks import Clocks
    from tracelens.joining import Joined
    from tracelens.model.result import Notice
    from tracelens.operations_table import OperationsTable
    from tracelens.run import Run
    from tracelens.waiting import Waiting


def joined_notices(run: Run, table: OperationsTable, waits: Waiting) -> list[Notice]:
    """Say how far matches and clocks can be trusted, or why waiting is unknown."""
    found = _runs(run, waits.joined)
    if not waits.clocks.offset_ns or (waits.wait_ns == NONE).all():
        return [*found, notice("wait-unknown")]
    found += _uncertain(table, waits)
    if len(waits.clocks.residual_ns):
        found.append(_aligned(waits.clocks))
    if (sets := len(set(waits.clocks.component.values()))) > 1:
        found.append(notice("clocks-apart", count=sets))
    if waits.implausible:
        found.append(notice("implausible-matches", count=waits.implausible))
    if waits.incomplete and lacks_ranks(table, waits):
        found.append(notice("members-missing", count=waits.incomplete))
    elif waits.incomplete:
        found.append(notice("wait-lower-bound", count=waits.incomplete))
    return found


def _runs(run: Run, joined: Joined) -> list[Notice]:
    """Name the ranks that are not of the largest run, unless that was said already."""
    said = any(one.code == "different-times" for one in run.notices)
    if len(joined.runs) < 2 or (said and joined.reasons == {TIME}):
        return []
    first, *others = joined.runs
    why = " and ".join(sorted(joined.reasons))
    apart = _named({rank for ranks in others for rank in ranks})
    if joined.reasons == {DATE}:
        return [notice("clock-undated", first=_named(first), others=apart)]
    count = len(joined.runs)
    return [notice("mixed-runs", count=count, first=_named(first), others=apart, why=why)]


def _named(ranks: set[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(sorted(ranks))}"


def _uncertain(table: OperationsTable, waits: Waiting) -> list[Notice]:
    """Count the matches that may be of other calls: in the steps, if there are any."""
    step = table.frame["step_number"].to_numpy(np.int64)[waits.rows[waits.first]]
    low = waits.joined.matching.confidence[waits.rows[waits.first]] == LOW
    counted = step >= 0 if (step >= 0).any() else np.ones(len(step), bool)
    count = int((low & counted).sum())
    if not count:
        return []
    return [notice("uncertain-matches", count=count, matched=f"{int(counted.sum()):,}")]


def _aligned(clocks: Clocks) -> Notice:
    largest = max(abs(offset) for offset in clocks.offset_ns.values())
    fastest = max((abs(drift) for drift in clocks.drift_ppm.values()), default=None)
    drift = "" if fastest is None else f" and drift up to {fastest:.1f} ppm"
    return notice(
        "clocks-aligned",
        largest=f"{largest / 1000:.1f}",
        drift=drift,
        median=f"{np.median(clocks.residual_ns) / 1000:.1f}",
        high=f"{np.percentile(clocks.residual_ns, 95) / 1000:.1f}",
    )

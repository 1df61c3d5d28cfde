"""Aggregate operations into the report's rows: one per group, operation, dtype and content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens import bandwidth, latency
from tracelens.matching import CONFIDENCES, NOT_COLLECTIVE
from tracelens.model.result import CollectiveResult, GroupResult, RankVolume, StepBytes
from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS
from tracelens.transfer_estimate import estimate

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens.latency import Fit
    from tracelens.links import Peaks
    from tracelens.model.result import Confidence
    from tracelens.nodes import Nodes
    from tracelens.operations_table import MergedGroup, OperationsTable
    from tracelens.transfer_estimate import Estimate
    from tracelens.waiting import Waiting


_USED = (
    "rank",
    "group",
    "op",
    "dtype",
    "complete",
    "source",
    "start",
    "buffer_bytes",
    "message_bytes",
    "wire_bytes",
    "message_elements",
    "time_ns",
    "time_in_mean_ns",
    "exposed_ns",
    "exposed_in_mean_ns",
)
"""The columns of operations that rows are made of: cutting a frame costs by its columns."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Final roles of the groups: described, or concluded from the strategy."""

    role: dict[int, str]
    confidence: dict[int, Confidence]


def group_results(table: OperationsTable, roles: Roles, nodes: Nodes) -> list[GroupResult]:
    """List the groups that carried operations."""
    return [
        GroupResult(
            id=f"g{group.index}",
            names=sorted(group.names),
            description=group.description,
            role=roles.role[group.index],
            role_confidence=roles.confidence[group.index],
            size=group.size,
            ranks=list(group.ranks) if group.ranks is not None else None,
            nodes=None if span is None else len(span),
            node_names=None if span is None else [nodes.names[node] for node in span],
        )
        for group in table.groups
        for span in (nodes.of(group.ranks),)
    ]


def collective_results(
    table: OperationsTable, kinds: pd.Series, waiting: Waiting, transfer: Ints, peaks: Peaks
) -> list[CollectiveResult]:
    """Aggregate all operations; numbers are means per member rank that is present.

    Args:
        table: The operations.
        kinds: What each carries.
        waiting: How long each waited.
        transfer: How long each was exposed without waiting, see `exposed_wait.exposed_transfer`.
        peaks: What the links allow.
    """
    frame = table.frame[list(_USED)].assign(
        kind=kinds,
        wait_ns=waiting.wait_ns,
        exposed_transfer_ns=transfer,
        confidence=waiting.joined.matching.confidence,
    )
    fits = latency.fit_all(frame, waiting.wait_ns) if waiting.times_are_the_devices else {}
    results = []
    for key, rows in frame.groupby(["group", "op", "dtype", "kind"]):
        group, op, dtype, kind = (str(part) for part in key)
        merged = table.groups[int(group)]
        fitted = fits.get((int(group), int(op)))
        name = OPERATIONS[int(op)]
        peak = peaks.of(name, merged.ranks)
        results.append(_collective(table, merged, name, dtype, kind, rows, fitted, peak))
    return sorted(results, key=lambda c: (-(c.exposed_ns or 0), -(c.time_ns or 0), c.group, c.op))


def _collective(
    table: OperationsTable,
    group: MergedGroup,
    op: str,
    dtype: str,
    kind: str,
    rows: pd.DataFrame,
    fitted: Fit | None,
    peak: float | None,
) -> CollectiveResult:
    members = _members(table, group, rows)
    steps = sum(table.complete_steps[rank] for rank in members)
    mean_steps = sum(table.mean_steps[rank] for rank in members)
    complete = rows[rows["complete"].to_numpy(bool)]
    timed = bool((rows["start"] != NONE).any())
    unknown = int((rows["message_bytes"] == NONE).sum())
    guess = _estimate(rows, group, members)
    matched = rows[rows["wait_ns"] != NONE]
    rates = bandwidth.measure(matched, fitted)
    return CollectiveResult(
        group=f"g{group.index}",
        op=op,
        dtype=dtype or None,
        calls=len(rows) / len(members),
        calls_without_bytes=unknown / len(members),
        message_bytes=_mean(rows["message_bytes"], len(members)),
        wire_bytes=_mean(rows["wire_bytes"], len(members)),
        message_elements_per_step=_elements(complete, steps),
        bytes_per_step=StepBytes(
            _mean(complete["message_bytes"], steps), _mean(complete["wire_bytes"], steps)
        ),
        calls_per_step=len(complete) / steps if steps else None,
        time_ns=_sum(rows["time_ns"], len(members)) if timed else None,
        time_per_step_ns=_sum(rows["time_in_mean_ns"], mean_steps) if timed else None,
        exposed_ns=_sum(rows["exposed_ns"], len(members)) if timed else None,
        exposed_per_step_ns=_sum(rows["exposed_in_mean_ns"], mean_steps) if timed else None,
        wait_ns=_sum(matched["wait_ns"], len(members)) if len(matched) else None,
        transfer_ns=_sum(matched["time_ns"] - matched["wait_ns"], len(members))
        if len(matched)
        else None,
        wait_per_step_ns=_sum(_wait_in_mean(matched), mean_steps) if len(matched) else None,
        exposed_transfer_per_step_ns=_sum(matched["exposed_transfer_ns"], mean_steps)
        if len(matched)
        else None,
        busbw_gbps=rates.busbw_gbps,
        algbw_gbps=rates.algbw_gbps,
        alpha_us=fitted.alpha_us if fitted else None,
        beta_gbps=fitted.beta_gbps if fitted else None,
        by_rank=_by_rank(rows, members),
        sources=sorted(set(rows["source"])),
        kind=kind,
        matched_calls=_matched(matched, len(members)),
        link_peak_gbps=peak,
        busbw_of_link_pct=_percent(rates.busbw_gbps, peak),
        large_busbw_gbps=rates.large_busbw_gbps,
        half_bandwidth_bytes=rates.half_bandwidth_bytes,
        latency_bound_calls_pct=rates.latency_bound_calls_pct,
        latency_bound_time_pct=rates.latency_bound_time_pct,
        transfer_estimate_ns=guess.transfer_ns if guess else None,
        busbw_estimate_gbps=guess.busbw_gbps if guess else None,
    )


def _wait_in_mean(matched: pd.DataFrame) -> pd.Series:
    """Return the waiting in steps of the mean; of a call across an edge, in proportion."""
    time = matched["time_ns"].clip(lower=1)
    return (matched["wait_ns"] * (matched["time_in_mean_ns"] / time)).round()


def _matched(matched: pd.DataFrame, members: int) -> dict[str, float]:
    """Count the matched calls per member by confidence, the surest first."""
    counts = np.bincount(matched["confidence"].to_numpy(np.int64), minlength=len(CONFIDENCES))
    return {name: int(n) / members for name, n in zip(CONFIDENCES, counts, strict=True) if n}


def _estimate(rows: pd.DataFrame, group: MergedGroup, members: list[int]) -> Estimate | None:
    """Estimate transfer where no other member's trace is there to tell it."""
    alone = len(members) == 1 and group.size != 1
    if not alone or rows["op"].to_numpy(np.int64)[0] in NOT_COLLECTIVE:
        return None
    return estimate(rows)


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _members(table: OperationsTable, group: MergedGroup, rows: pd.DataFrame) -> list[int]:
    calling = set(rows["rank"])
    present = [rank for rank in table.complete_steps if group.ranks and rank in group.ranks]
    return sorted(calling | set(present))


def _by_rank(rows: pd.DataFrame, members: list[int]) -> dict[int, RankVolume]:
    """Return what each member called; a rank without a call of known size has none."""
    place = np.searchsorted(members, rows["rank"].to_numpy(np.int64))
    calls = np.bincount(place, minlength=len(members)).tolist()
    message, wire = (_sums(rows[name], place, calls) for name in ("message_bytes", "wire_bytes"))
    return {rank: RankVolume(calls[i], message[i], wire[i]) for i, rank in enumerate(members)}


def _sums(values: pd.Series, place: Ints, calls: list[int]) -> list[int | None]:
    numbers = values.to_numpy(np.int64)
    known = numbers != NONE
    sums = np.zeros(len(calls), np.int64)
    np.add.at(sums, place[known], numbers[known])
    sized = np.bincount(place[known], minlength=len(calls)).tolist()
    return [
        None if called and not of_known_size else total
        for total, called, of_known_size in zip(sums.tolist(), calls, sized, strict=True)
    ]


def _mean(values: pd.Series, divisor: int) -> int | None:
    """Average what is known; None if nothing is (the unknown calls are counted beside it)."""
    numbers = values.to_numpy(np.int64)
    known = numbers[numbers != NONE]
    if not divisor or (len(numbers) and not len(known)):
        return None
    return round(float(known.sum()) / divisor)


def _elements(rows: pd.DataFrame, steps: int) -> float | None:
    numbers = rows["message_elements"].to_numpy(np.int64)
    known = numbers[numbers != NONE]
    if not steps or (len(numbers) and not len(known)):
        return None
    return float(known.sum()) / steps


def _sum(values: pd.Series, divisor: int) -> int | None:
    return round(float(values.to_numpy(np.int64).sum()) / divisor) if divisor else None

"""Read one file whole: events into tables, and what was odd about it into notices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import UnreadableTrace
from tracelens.model.trace import NONE, RankInfo, RankTrace
from tracelens.notices import notice
from tracelens_kineto import header
from tracelens_kineto.collector import Collector
from tracelens_kineto.header import host_of, rank_of
from tracelens_kineto.inflate import Source
from tracelens_kineto.scanner import Scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd

    from tracelens.model.result import Notice
    from tracelens_kineto.header import Header


def read(path: Path, on_bytes: Callable[[int], None] | None = None) -> RankTrace:
    """Read one file into a `RankTrace`.

    Raises:
        UnreadableTrace: If it holds no trace events.
    """
    source = Source(path, on_bytes)
    scan = Scan()
    collector = Collector()
    try:
        for batch in scan.batches(iter(source.blocks())):
            collector.add(batch)
    except OSError as error:
        raise UnreadableTrace(f"{path}: {error.strerror or error}") from error
    if not scan.found:
        reason = source.cut or "it holds no traceEvents"
        raise UnreadableTrace(f"{path}: {reason}", slug="unreadable-file")
    return _finish(path, source, scan, collector)


def _finish(path: Path, source: Source, scan: Scan, collector: Collector) -> RankTrace:
    facts = header.read(scan.header, scan.footer)
    device_events, moved = collector.sorted_device_events()
    communications = collector.communications.table()
    if len(moved):
        event = communications["event"].to_numpy()
        has_event = event != NONE
        place = moved[np.where(has_event, event, 0)]
        communications["event"] = np.where(has_event, place, NONE)
    host_calls = _without_untimed(collector.host_calls.table(), collector)
    device_events = _link(device_events, host_calls, collector)
    truncated = source.cut is not None or not scan.closed or scan.damage.cut
    rank, rank_source = rank_of(facts, path)
    process = _process(collector)
    info = RankInfo(
        path=str(path),
        format="kineto",
        rank=rank,
        rank_source=rank_source,
        world_size=facts.world_size,
        base_ns=facts.base_ns,
        host=host_of(facts, path, process),
        process=process,
        backend=facts.backend,
        device_kind=_device_kind(facts, device_events, host_calls),
        device_names=facts.devices,
        process_groups=facts.groups,
        nccl_version=facts.nccl_version,
        framework_version=facts.framework_version,
        events=collector.events,
        truncated=truncated,
        damaged_device_events=scan.damage.device_skipped,
        shapes_recorded=facts.shapes_recorded,
        settings=facts.settings,
        recorded=dict(collector.recorded),
        simulated=facts.simulated,
        untimed=_untimed(collector),
        notices=tuple(_notices(path, source, scan, collector, rank, truncated=truncated)),
    )
    return RankTrace(
        info=info,
        device_events=device_events,
        communications=communications,
        marks=collector.marks.table(),
        host_calls=host_calls,
        operators=collector.operators.table(),
    )


def _process(collector: Collector) -> int:
    most = collector.host_processes.most_common(1)
    return most[0][0] if most else 0


def _untimed(collector: Collector) -> dict[tuple[int, int], int]:
    counts: Counter[tuple[int, int]] = Counter()
    for (device, _), count in collector.untimed.items():
        counts[_process(collector), device] += count
    return dict(counts)


def _without_untimed(calls: pd.DataFrame, collector: Collector) -> pd.DataFrame:
    """Keep launches of untimed events from counting as lost: their record is there."""
    untimed = np.isin(calls["correlation"].to_numpy(), collector.untimed_correlations)
    if not untimed.any():
        return calls
    kinds = calls["kind"].cat.add_categories(
        [kind for kind in ("untimed",) if kind not in calls["kind"].cat.categories]
    )
    return calls.assign(kind=kinds.where(~untimed, "untimed"))


def _link(events: pd.DataFrame, calls: pd.DataFrame, collector: Collector) -> pd.DataFrame:
    """Give each device event the time and thread of the call that launched it, by correlation."""
    process = np.full(len(events), _process(collector))
    correlation = calls["correlation"].to_numpy()
    rows = np.flatnonzero((correlation != NONE) & (correlation != 0))
    order = rows[np.argsort(correlation[rows], kind="stable")]
    keys = correlation[order]
    wanted = events["correlation"].to_numpy()
    at = np.searchsorted(keys, wanted)
    inside = at < len(keys)
    at = np.where(inside, at, 0)
    linked = inside & (keys[at] == wanted) if len(keys) else np.zeros(len(wanted), bool)
    call = order[at] if len(keys) else at
    found = {
        target: np.where(linked, calls[source].to_numpy()[call], NONE) if len(keys) else NONE
        for target, source in _LAUNCH_COLUMNS
    }
    return events.assign(process=process, **found)


_LAUNCH_COLUMNS = (("launch", "start"), ("launch_end", "end"), ("launch_thread", "thread"))


def _device_kind(facts: Header, events: pd.DataFrame, calls: pd.DataFrame) -> str:
    if not len(events):
        return "cpu"
    names = calls["name"].cat.categories
    if facts.amd or any(name.startswith("hip") for name in names):
        return "rocm"
    if any(name.startswith(("ze", "ur")) for name in names):
        return "xpu"
    return "cuda" if facts.devices or any(name.startswith("cu") for name in names) else "unknown"


def _notices(
    path: Path,
    source: Source,
    scan: Scan,
    collector: Collector,
    rank: int | None,
    *,
    truncated: bool,
) -> Iterator[Notice]:
    name, who = path.name, "unknown" if rank is None else rank
    damage = scan.damage
    if truncated:
        where = source.cut or f"inside the events, after {collector.events:,} of them"
        yield notice("truncated-file", file=name, rank=rank, where=where, who=who)
    if damage.count:
        lost = damage.device_skipped
        yield notice(
            "damaged-events",
            file=name,
            rank=rank,
            count=damage.count,
            where=f"{damage.first_byte or 0:,}",
            repaired=damage.repaired,
            skipped=damage.skipped,
            device=f"{lost} device events lost" if lost else "no device event is lost",
        )
    if source.trailing:
        yield notice("trailing-bytes", file=name, rank=rank, count=source.trailing)
    if collector.untimed:
        reasons: Counter[str] = Counter()
        for (_, reason), count in collector.untimed.items():
            reasons[reason] += count
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        total = sum(reasons.values())
        yield notice("untimed-events", file=name, rank=rank, count=total, reasons=text)

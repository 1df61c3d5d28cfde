"""Say what was odd about a trace: each loss once, its count, and what it does to the numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens.notices import notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Notice
    from tracelens_kineto.collector import Collector
    from tracelens_kineto.inflate import Source
    from tracelens_kineto.scanner import Scan

_SHOWN = 5


@dataclass(frozen=True)
class Shared:
    """A trace that holds events of several processes, as one of them sees it."""

    processes: int
    device_events: int
    guessed: int


@dataclass(frozen=True)
class Odd:
    """What is known about one trace of a file after reading."""

    name: str
    rank: int | None
    source: Source
    scan: Scan
    collector: Collector
    cut: bool
    traces: int
    clipped: int
    impossible: int
    shared: Shared | None


def about(odd: Odd) -> Iterator[Notice]:
    """Yield the notices of a trace."""
    who: dict[str, Any] = {"file": odd.name, "rank": odd.rank}
    yield from _endings(odd, who)
    yield from _damage(odd, who)
    yield from _several(odd, who)
    yield from _times(odd, who)
    if odd.collector.device.homeless:
        yield notice("device-unknown", **who, count=odd.collector.device.homeless)
    if odd.collector.unknown:
        names = [name or "none" for name, _ in odd.collector.unknown.most_common()]
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        device = odd.collector.unknown_device
        yield notice(
            "unknown-categories",
            **who,
            count=odd.collector.unknown.total(),
            names=shown,
            device=f"{device:,} of them name a device: sums are lower bounds"
            if device
            else "none of them names a device",
        )


def _endings(odd: Odd, who: dict[str, Any]) -> Iterator[Notice]:
    shown = "unknown" if odd.rank is None else odd.rank
    scan = odd.scan
    if odd.cut:
        where = odd.source.cut or f"inside the events, after {odd.collector.events:,} of them"
        if scan.too_long:
            where = f"nothing usable follows its first {odd.collector.events:,} events"
        yield notice("truncated-file", **who, where=where, who=shown)
    elif not scan.whole and not scan.foreign:
        yield notice("metadata-cut", **who)
    trailing = odd.source.trailing if scan.rest is None else 0
    if trailing:
        yield notice("trailing-bytes", **who, count=trailing, what="the compressed data")
    if scan.trailing:
        yield notice("trailing-bytes", **who, count=scan.trailing, what="the trace")


def _damage(odd: Odd, who: dict[str, Any]) -> Iterator[Notice]:
    damage = odd.scan.damage
    if damage.count:
        lost = odd.collector.lost_to(damage) - odd.collector.untimed_steps
        what = "operators or ranges" if odd.collector.on_host else "device events"
        yield notice(
            "damaged-events",
            **who,
            count=damage.count,
            where=f"{damage.first_byte or 0:,}",
            repaired=damage.repaired,
            skipped=damage.skipped,
            device=f"{lost} {what} lost" if lost else "no device event is lost",
        )


def _several(odd: Odd, who: dict[str, Any]) -> Iterator[Notice]:
    if odd.traces > 1:
        yield notice("several-traces", **who, count=odd.traces)
    if odd.scan.foreign:
        yield notice("several-writers", **who, count=odd.scan.foreign)
    if odd.shared is not None:
        shared = odd.shared
        guess = (
            f"; {shared.guessed:,} device events could be of more than one and are a guess"
            if shared.guessed
            else ""
        )
        yield notice(
            "several-processes",
            **who,
            count=shared.processes,
            process=odd.collector.process,
            guess=guess,
        )


def _times(odd: Odd, who: dict[str, Any]) -> Iterator[Notice]:
    reasons: Counter[str] = Counter()
    for (_, reason), count in odd.collector.device.untimed.items():
        reasons[reason] += count
    if odd.collector.untimed and (odd.collector.on_host or odd.collector.untimed_steps):
        shown = odd.collector.untimed if odd.collector.on_host else odd.collector.untimed_steps
        reasons["without times"] += shown
    if odd.impossible:
        reasons["with an impossible duration"] = odd.impossible
    if reasons:
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        yield notice("untimed-events", **who, count=reasons.total(), reasons=text)
    if odd.collector.device.short:
        yield notice("short-kernels", **who, count=odd.collector.device.short)
    if odd.clipped:
        yield notice("clipped-durations", **who, count=odd.clipped)

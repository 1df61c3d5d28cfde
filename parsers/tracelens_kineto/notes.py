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
    from tracelens_kineto.tolerant import Damage

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
    strays: int
    repeated: int
    shared: Shared | None
    others: str | None = None


def about(odd: Odd) -> Iterator[Notice]:
    """Yield the notices of a trace."""
    who: dict[str, Any] = {"file": odd.name, "rank": odd.rank}
    yield from _endings(odd, who)
    yield from _damage(odd, who)
    yield from _several(odd, who)
    if odd.others:
        yield notice("rank-conflict", **who, others=odd.others)
    yield from _times(odd, who)
    if odd.collector.device.homeless:
        yield notice("device-unknown", **who, count=odd.collector.device.homeless)
    if devices := odd.collector.unknown.of_devices():
        names = _names(devices)
        yield notice("unread-device-events", **who, count=devices.total(), names=names)
    if others := odd.collector.unknown.others():
        yield notice("unknown-categories", **who, count=others.total(), names=_names(others))


def _names(counts: Counter[str]) -> str:
    names = [name for name, _ in counts.most_common()]
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _endings(odd: Odd, who: dict[str, Any]) -> Iterator[Notice]:
    shown = "unknown" if odd.rank is None else odd.rank
    scan = odd.scan
    if odd.cut:
        where = odd.source.cut or f"inside the events, after {odd.collector.events:,} of them"
        if scan.too_long:
            where = f"no event ends in the 32 MiB after event {odd.collector.events:,}"
        if scan.damage.hopeless:
            where = f"after event {odd.collector.events:,} there is nothing but damage"
        yield notice("truncated-file", **who, where=where, who=shown)
    elif not scan.whole and not scan.foreign:
        yield notice("metadata-cut", **who)
    trailing = odd.source.trailing if scan.rest is None else 0
    if trailing:
        yield notice("trailing-bytes", **who, count=trailing, what="the compressed data")
    if scan.trailing:
        yield notice("trailing-bytes", **who, count=scan.trailing, what="the trace")


def _lost(count: int, what: str) -> str:
    shown = what if count == 1 else " or ".join(f"{one}s" for one in what.split(" or "))
    return f"{count:,} {shown} lost"


def _damage(odd: Odd, who: dict[str, Any]) -> Iterator[Notice]:
    damage = odd.scan.damage
    if damage.count:
        lost = odd.collector.lost_to(damage) - odd.collector.untimed["step"]
        what = "operator or range" if odd.collector.on_host else "device event"
        yield notice(
            "damaged-events",
            **who,
            count=damage.count,
            where=f"{damage.first_byte or 0:,}",
            repaired=damage.repaired,
            skipped=damage.skipped,
            device=_effect(damage, lost, what),
        )


def _effect(damage: Damage, lost: int, what: str) -> str:
    if not lost:
        return "no device event skipped"  # what is whole, but of two events, nobody can tell
    if not damage.holes:
        return ("up to " if damage.unnamed else "") + _lost(lost, what)
    places = "1 place" if damage.holes == 1 else f"{damage.holes:,} places"
    return f"at least {_lost(lost, what)}: bytes that are no text stand in {places}"


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
    if odd.impossible:
        reasons["with an impossible duration"] = odd.impossible
    if odd.strays:
        reasons["with an impossible start"] = odd.strays
    if reasons:
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        yield notice("untimed-events", **who, count=reasons.total(), reasons=text)
    if untimed := odd.collector.untimed:
        kinds = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in untimed.items())
        yield notice("untimed-host-events", **who, count=untimed.total(), kinds=kinds)
    if odd.collector.device.short:
        yield notice("short-kernels", **who, count=odd.collector.device.short)
    if odd.repeated:
        yield notice("repeated-events", **who, count=odd.repeated)
    if odd.clipped:
        yield notice("clipped-durations", **who, count=odd.clipped)

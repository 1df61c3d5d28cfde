"""Which collectives cost time?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tracelens.operations import POINT_TO_POINT_NAMES
from tracelens.reporting import words
from tracelens.reporting.content import Bars, Block, Cell, Column, Figure, Section, Series, Table
from tracelens.reporting.numbers import (
    UNKNOWN,
    count,
    ms,
    number,
    percent,
    share,
    size,
    size_unit,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.result import Analysis, CollectiveResult, GroupResult
    from tracelens.reporting.content import Row
    from tracelens.reporting.numbers import SizeUnit

_MOST_BARS = 16
_ESTIMATED = (
    "Estimates (≈) are what calls would take if all were as fast as the fastest 5 % of their size: "
    "one rank's trace cannot tell waiting from transfer, and the time shown still holds both."
)
_BOUNDS = (
    "Bounds (≥) are of groups of which some members have no whole trace: the others may have "
    "waited for these too, which looks like transfer."
)
_EMPTY = (
    "No communication was recorded. Profile a run of at least two ranks with CUDA activity on, "
    "or name your communication kernels with `--comm-kernel`."
)


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective on all groups of one role and size; numbers are means per rank."""

    label: str
    dtype: str | None
    kind: str
    groups: int
    calls_per_step: float | None
    message_bytes: float | None
    wire_bytes: float | None
    time_ns: float | None
    exposed_ns: float | None
    wait_ns: float | None
    busbw_gbps: float | None
    of_link_pct: float | None
    calls: float
    calls_without_bytes: float
    transfer_estimate_ns: float | None = None
    busbw_estimate_gbps: float | None = None
    matched_calls: dict[str, float] = field(default_factory=dict)
    whole: bool = True

    @property
    def overlapped_ns(self) -> float | None:
        """Time hidden behind compute or other communication."""
        if self.time_ns is None or self.exposed_ns is None:
            return None
        return max(self.time_ns - self.exposed_ns, 0)


def collective_rows(analysis: Analysis) -> list[CollectiveRow]:
    """Return the collectives, groups of one role and size merged, most exposed first."""
    groups = {group.id: group for group in analysis.groups}
    merged: dict[tuple[str, ...], list[CollectiveResult]] = {}
    for collective in analysis.collectives:
        key = _key(collective, groups.get(collective.group))
        merged.setdefault(key, []).append(collective)
    rows = [_row(same, groups) for same in merged.values()]
    return sorted(rows, key=lambda row: (-(row.exposed_ns or 0), -(row.time_ns or 0), row.label))


def _key(collective: CollectiveResult, group: GroupResult | None) -> tuple[str, ...]:
    what = (collective.op, str(collective.dtype), collective.kind)
    # Groups whose role is not known may have nothing in common: they stay apart.
    if group is None or group.role == "unknown":
        return (*what, "group", collective.group)
    return (*what, group.role, str(group.size))


def _row(same: list[CollectiveResult], groups: dict[str, GroupResult]) -> CollectiveRow:
    def mean(value: Callable[[CollectiveResult], float | None]) -> float | None:
        return _mean(same, value)

    return CollectiveRow(
        label=words.collective(same[0].op, groups.get(same[0].group)),
        dtype=same[0].dtype,
        kind=same[0].kind,
        groups=len(same),
        calls_per_step=mean(lambda c: c.calls_per_step),
        message_bytes=mean(lambda c: c.bytes_per_step.message),
        wire_bytes=mean(lambda c: c.bytes_per_step.wire),
        time_ns=mean(lambda c: c.time_per_step_ns),
        exposed_ns=mean(lambda c: c.exposed_per_step_ns),
        wait_ns=mean(lambda c: c.wait_per_step_ns),
        busbw_gbps=mean(lambda c: c.busbw_gbps),
        of_link_pct=mean(lambda c: c.busbw_of_link_pct),
        calls=mean(lambda c: c.calls) or 0,
        calls_without_bytes=mean(lambda c: c.calls_without_bytes) or 0,
        transfer_estimate_ns=mean(_estimate_per_step),
        busbw_estimate_gbps=mean(lambda c: c.busbw_estimate_gbps),
        matched_calls=_matched(same),
        whole=all(_is_whole(one, groups.get(one.group)) for one in same),
    )


def _is_whole(one: CollectiveResult, group: GroupResult | None) -> bool:
    """Tell whether every member that a call waits for has a trace; a message has two ends."""
    if one.op in POINT_TO_POINT_NAMES or group is None or group.size is None:
        return True
    return len(one.by_rank) >= group.size


def _matched(same: list[CollectiveResult]) -> dict[str, float]:
    """Average the matched calls of each confidence over all groups of a row."""
    found: dict[str, float] = {}
    weight = sum(max(len(one.by_rank), 1) for one in same)
    for one in same:
        for level, calls in one.matched_calls.items():
            found[level] = found.get(level, 0) + calls * max(len(one.by_rank), 1) / weight
    return found


def _mean(
    same: list[CollectiveResult], value: Callable[[CollectiveResult], float | None]
) -> float | None:
    """Average over member ranks: a group counts as often as it has ranks here."""
    known = [(value(one), max(len(one.by_rank), 1)) for one in same]
    pairs = [(number, weight) for number, weight in known if number is not None]
    if not pairs:
        return None
    return sum(number * weight for number, weight in pairs) / sum(weight for _, weight in pairs)


def _estimate_per_step(collective: CollectiveResult) -> float | None:
    """Scale the estimate to a step as the time it is of was scaled."""
    guess, time, step = (
        collective.transfer_estimate_ns,
        collective.time_ns,
        collective.time_per_step_ns,
    )
    return None if guess is None or step is None or not time else guess * step / time


def collectives_section(analysis: Analysis) -> Section:
    """Say which collectives run, and which of them the step waits for."""
    rows = collective_rows(analysis)
    title, nav = "Which collectives cost time?", "Collectives"
    if not rows:
        return Section("collectives", nav, title, _EMPTY, empty=_EMPTY)
    timed = [row for row in rows if row.time_ns and row.exposed_ns is not None]
    figure = _figure(timed) if timed else None
    notes = [_coverage(rows)]
    if _has_estimates(rows):
        notes.append(_ESTIMATED)
    elif not _knows_waits(rows) or not _knows_bandwidths(rows):
        notes.append("Waiting and bandwidth are known only where collectives are matched.")
    if any(not row.whole and row.wait_ns is not None for row in rows):
        notes.append(_BOUNDS)
    if not timed:
        notes.append("Their time per step is not known: no complete step was recorded.")
    if len(timed) > _MOST_BARS:
        notes.append(f"The figure shows the {_MOST_BARS} most exposed of {len(timed)}.")
    notes += _link_note(analysis) + _fits(analysis)
    in_steps = [row for row in rows if row.calls_per_step != 0] or rows
    if len(in_steps) < len(rows):
        left = words.plural(len(rows) - len(in_steps), "row")
        notes.append(f"Left out: {left} of collectives that ran outside complete steps only.")
    blocks = [Block(collective_table(in_steps), figure)]
    return Section("collectives", nav, title, _lead(rows), blocks, notes)


def _lead(rows: list[CollectiveRow]) -> str:
    known = [row for row in rows if row.exposed_ns is not None]
    total = sum(row.exposed_ns or 0 for row in known)
    if not known:
        return f"{words.plural(len(rows), 'collective')} ran; their exposed time is not known."
    if not total:
        return "All communication is hidden behind compute: none of it costs step time."
    worst = known[0]
    return (
        f"{words.upper_first(worst.label)} costs most: {ms(worst.exposed_ns)} ms of every step "
        f"wait for it, {share(worst.exposed_ns, total)} of all exposed communication. "
        "Overlapped time is free; exposed time is not."
    )


def _coverage(rows: list[CollectiveRow]) -> str:
    calls = sum(row.calls for row in rows)
    without = sum(row.calls_without_bytes for row in rows)
    if not without:
        return "Bytes are known for every call."
    return (
        f"Over the whole recording, bytes are known for {count(round(calls - without))} of "
        f"{count(round(calls))} calls of an average rank; the notices say why."
    )


def _fits(analysis: Analysis) -> list[str]:
    """Say from which size on a call is bound by bandwidth, and how many calls are below it."""
    groups = {group.id: group for group in analysis.groups}
    fitted: dict[str, list[CollectiveResult]] = {}
    for one in analysis.collectives:
        if one.alpha_us is not None and one.beta_gbps is not None:
            label = words.collective(one.op, groups.get(one.group))
            fitted.setdefault(label, []).append(one)
    return [_fit(label, rows) for label, rows in sorted(fitted.items())[:_MOST_BARS]]


def _fit(label: str, rows: list[CollectiveResult]) -> str:
    alpha, beta = rows[-1].alpha_us, rows[-1].beta_gbps
    half = None if alpha is None or beta is None else 1000 * alpha * beta
    calls = sum(row.calls for row in rows if row.latency_bound_calls_pct is not None)
    below = sum(row.calls * (row.latency_bound_calls_pct or 0.0) / 100 for row in rows)
    return (
        f"{words.upper_first(label)}: a call takes {number(alpha)} µs plus its wire bytes at "
        f"{number(beta)} GB/s, so below {size(half)} it is bound by latency; "
        f"{share(below, calls)} of the matched calls are."
    )


def _link_note(analysis: Analysis) -> list[str]:
    """Say what the share of the link is a share of."""
    if analysis.topology is None or not any(
        one.busbw_of_link_pct is not None for one in analysis.collectives
    ):
        return []
    links = analysis.topology.links
    inside = f"{number(links.intra_gbps)} GB/s one way a GPU" if links.intra_gbps else None
    named = f"{inside} ({links.kind}; {links.source})" if links.kind else f"{inside} (as given)"
    across = f"{number(links.inter_gbps)} GB/s between nodes" if links.inter_gbps else None
    parts = [part for part in (named if inside else None, across) if part]
    return [
        f"The share of the link is of {' and '.join(parts)}. Reductions inside a switch (NVLS) "
        "send less than a ring, so they may exceed 100 %."
    ]


def collective_table(rows: list[CollectiveRow]) -> Table:
    """Return calls, sizes and times per step and rank."""
    sizes = size_unit(value for row in rows for value in (row.message_bytes, row.wire_bytes))
    columns = (
        Column("Collective"),
        Column("Type"),
        Column("Carries"),
        Column("Calls", "number"),
        Column("Exposed ms", "number"),
        Column("Overlapped ms", "number"),
        *([Column("Wait ms", "number")] if _knows_waits(rows) else []),
        *([Column("Transfer ms, estimate", "number")] if _has_estimates(rows) else []),
        Column(f"Message {sizes.name}", "number"),
        Column(f"Wire {sizes.name}", "number"),
        *([Column("Bus GB/s", "number")] if _shows_bandwidths(rows) else []),
        *([Column("% of link", "number")] if _knows_links(rows) else []),
        Column("Bytes known", "number"),
    )
    known = _Known(
        _knows_waits(rows), _has_estimates(rows), _shows_bandwidths(rows), _knows_links(rows)
    )
    cells = [_cells(row, sizes, known) for row in rows]
    return Table("Collectives, per step and rank", columns, cells, sortable=True)


class _Known(NamedTuple):
    waits: bool
    estimates: bool
    bandwidths: bool
    links: bool


def _cells(row: CollectiveRow, sizes: SizeUnit, known: _Known) -> Row:
    wait = [_at_least(row, ms(row.wait_ns), row.wait_ns)] if known.waits else []
    if known.estimates:
        wait.append(_estimated(ms(row.transfer_estimate_ns), row.transfer_estimate_ns))
    bandwidth = [_bandwidth(row)] if known.bandwidths else []
    bandwidth += [_at_least(row, percent(row.of_link_pct), row.of_link_pct)] if known.links else []
    return (
        Cell(_with_groups(row)),
        Cell(row.dtype or UNKNOWN),
        Cell(row.kind),
        Cell(count(row.calls_per_step), row.calls_per_step),
        Cell(ms(row.exposed_ns), row.exposed_ns),
        Cell(ms(row.overlapped_ns), row.overlapped_ns),
        *wait,
        Cell(sizes.of(row.message_bytes), row.message_bytes),
        Cell(sizes.of(row.wire_bytes), row.wire_bytes),
        *bandwidth,
        Cell(share(row.calls - row.calls_without_bytes, row.calls)),
    )


def _bandwidth(row: CollectiveRow) -> Cell:
    if row.busbw_gbps is None and row.busbw_estimate_gbps is not None:
        guess = row.busbw_estimate_gbps
        return _estimated(number(guess, decimals=3), guess)
    return _at_least(row, number(row.busbw_gbps, decimals=3), row.busbw_gbps)


def _at_least(row: CollectiveRow, text: str, value: float | None) -> Cell:
    return Cell(text if row.whole or value is None else f"≥ {text}", value)


def _estimated(text: str, value: float | None) -> Cell:
    return Cell(text if value is None else f"≈ {text}", value)


def _knows_waits(rows: list[CollectiveRow]) -> bool:
    return any(row.wait_ns is not None for row in rows)


def _has_estimates(rows: list[CollectiveRow]) -> bool:
    return any(row.transfer_estimate_ns is not None for row in rows)


def _shows_bandwidths(rows: list[CollectiveRow]) -> bool:
    return _knows_bandwidths(rows) or any(row.busbw_estimate_gbps is not None for row in rows)


def _knows_bandwidths(rows: list[CollectiveRow]) -> bool:
    return any(row.busbw_gbps is not None for row in rows)


def _knows_links(rows: list[CollectiveRow]) -> bool:
    return any(row.of_link_pct is not None for row in rows)


def _with_groups(row: CollectiveRow) -> str:
    return row.label if row.groups == 1 else f"{row.label} × {row.groups:,} groups"


def _told_apart(rows: list[CollectiveRow]) -> list[str]:
    """Add type and cargo to the labels that several rows share."""
    labels = [row.label for row in rows]
    return [
        " · ".join([row.label, row.dtype or UNKNOWN, row.kind])
        if labels.count(row.label) > 1
        else row.label
        for row in rows
    ]


def _figure(rows: list[CollectiveRow]) -> Figure:
    drawn = rows[:_MOST_BARS]
    labels = _told_apart(drawn)
    series = [
        Series("Exposed", "exposed", [(row.exposed_ns or 0) / 1e6 for row in drawn]),
        Series("Overlapped", "overlapped", [(row.overlapped_ns or 0) / 1e6 for row in drawn]),
    ]
    return Figure("figure-collectives", _lead(rows), Bars(labels, series, "ms per step"))

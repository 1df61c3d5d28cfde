"""The plugin: recognise, inspect and parse one Kineto file."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import UnreadableTrace
from tracelens.model.trace import NONE, FileFacts, RankInfo, RankTrace
from tracelens.notices import notice
from tracelens_kineto import header
from tracelens_kineto.collector import Collector
from tracelens_kineto.inflate import Source
from tracelens_kineto.scanner import Scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd

    from tracelens.model.result import Notice
    from tracelens_kineto.header import Header

_EVENT_KEYS = re.compile(
    rb'"(?:ph|traceEvents|schemaVersion|deviceProperties|distributedInfo)"\s*:'
)
_STEP = re.compile(rb'"ProfilerStep#(\d+)"')
_KERNEL = re.compile(rb'"cat"\s*:\s*"(?:kernel|Kernel|gpu_mem|Mem)')
_LONGEST_HEAD = 1 << 24  # process groups of ten thousand ranks are below
_FILE_RANK = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d+)|(?:^|[-_.])r(\d+)(?=[-_.])", re.IGNORECASE)


class KinetoParser:
    """Reads PyTorch profiler traces: `.json` or gzip, decided by content."""

    name = "kineto"
    formats: tuple[str, ...] = ("kineto",)
    suffixes: tuple[str, ...] = (".json", ".gz", ".trace")

    def recognise(self, path: Path, head: bytes) -> str | None:  # noqa: ARG002 - the Protocol's
        """Return "kineto" if the head looks like a list of trace events or their container."""
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not text.startswith((b"{", b"[")):
            return None
        if b'"nodes"' in text[:4096] and b'"traceEvents"' not in text:
            return None  # a PyTorch execution trace often lies beside
        return "kineto" if _EVENT_KEYS.search(text) else None

    def inspect(self, path: Path) -> FileFacts:
        """Read a file's facts with regular expressions over its bytes; no event is decoded."""
        source = Source(path)
        steps: set[int] = set()
        kernels = 0
        head = tail = b""
        in_head = True
        for piece in _between_braces(source.blocks()):
            if in_head:
                head += piece
                in_head = b'"traceEvents"' not in piece and len(head) < _LONGEST_HEAD
            steps.update(int(match) for match in _STEP.findall(piece))
            kernels += len(_KERNEL.findall(piece))
            tail = (tail + piece)[-(1 << 20) :]
        facts = _facts_from_edges(head, tail)
        rank, rank_source = _rank(facts, path)
        return FileFacts(
            format="kineto",
            rank=rank,
            rank_source=rank_source,
            world_size=facts.world_size,
            host=facts.host,
            backend=facts.backend,
            steps=tuple(sorted(steps)),
            device_events=kernels,
            complete=source.cut is None and tail.rstrip().endswith((b"}", b"]")),
            note=source.cut,
        )

    def parse(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> list[RankTrace]:
        """Read one file into one `RankTrace`.

        Raises:
            UnreadableTrace: If it holds no trace events.
        """
        source = Source(path, on_bytes)
        scan = Scan()
        collector = Collector()
        try:
            for batch in scan.batches(_blocks(source)):
                collector.add(batch)
        except OSError as error:
            raise UnreadableTrace(f"{path}: {error.strerror or error}") from error
        if not scan.found:
            reason = source.cut or "it holds no traceEvents"
            raise UnreadableTrace(f"{path}: {reason}", slug="unreadable-file")
        return [_finish(path, source, scan, collector)]


def _blocks(source: Source) -> Iterator[bytes]:
    return iter(source.blocks())


def _between_braces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Cut at opening braces, so that no key and its value are torn apart."""
    rest = b""
    for block in blocks:
        piece, brace, rest = (rest + block).rpartition(b"{")
        rest = brace + rest
        yield piece
    yield rest


def _facts_from_edges(head: bytes, tail: bytes) -> Header:
    before, _, _ = head.partition(b'"traceEvents"')
    footer = tail[tail.rfind(b"]", 0, max(tail.find(b'"distributedInfo"'), 0)) + 1 :]
    return header.read(before, footer)


def _rank(facts: Header, path: Path) -> tuple[int | None, str | None]:
    if facts.rank is not None:
        return facts.rank, "distributedInfo"
    for name in (path.name, path.parent.name):
        if match := _FILE_RANK.search(name):
            return int(match[1] or match[2]), "file name"
    return None, None


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
    rank, rank_source = _rank(facts, path)
    info = RankInfo(
        path=str(path),
        format="kineto",
        rank=rank,
        rank_source=rank_source,
        world_size=facts.world_size,
        base_ns=facts.base_ns,
        host=facts.host,
        process=_process(collector),
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
    start, thread = calls["start"].to_numpy(), calls["thread"].to_numpy()
    return events.assign(
        process=process,
        launch=np.where(linked, start[call], NONE) if len(keys) else NONE,
        launch_thread=np.where(linked, thread[call], NONE) if len(keys) else NONE,
    )


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

"""Read one file whole: events into tables, and what was odd about it into notices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tracelens import durations
from tracelens.errors import ForeignTrace, UnreadableTrace
from tracelens.model.trace import NONE, RankInfo, RankTrace
from tracelens.notices import notice
from tracelens_kineto import evidence, header, links, notes, processes, repeats
from tracelens_kineto.collector import Collector
from tracelens_kineto.header import host_of, rank_of
from tracelens_kineto.inflate import Source
from tracelens_kineto.scanner import Scan, traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from tracelens_kineto.header import Header

# Made and freed once, a block of this size lets glibc keep smaller freed ones for the next block of
# the file. Else it hands them back, and filling the next costs a page fault every 4 KiB: a tenth of
# the reading time (malloc(3), M_MMAP_THRESHOLD: it follows the largest block freed, up to 32 MiB).
_HEAP = 31 << 20
_NEVER_ENDS = "32 MiB of it hold neither an event nor the beginning of traceEvents"


@cache
def _keep_freed_memory() -> None:
    bytes(_HEAP)


def read(path: Path, on_bytes: Callable[[int], None] | None = None) -> list[RankTrace]:
    """Read one file: mostly one trace of one process, but there may be more in it.

    Raises:
        UnreadableTrace: If it holds no trace events.
        ForeignTrace: If another tool wrote them.
    """
    _keep_freed_memory()
    source = Source(path, on_bytes)
    found: list[_Read] = []
    try:
        for number, scan in enumerate(traces(source.blocks())):
            collector = Collector()
            for batch in scan.batches():
                collector.add(batch)
            if scan.found:
                found.append(_Read(path, source, number, scan, collector))
        for one in found:
            one.of = len(found)
        ours = [one for one in found if one.ours]
        ranks = [trace for one in ours for trace in one.traces()]
    except OSError as error:
        raise UnreadableTrace(
            f"{path}: {error.strerror or error}", slug="unreadable-file"
        ) from error
    if not found:
        reason = source.cut or (_NEVER_ENDS if scan.too_long else "it holds no traceEvents")
        raise UnreadableTrace(f"{path}: {reason}", slug="unreadable-file")
    cut = source.cut is not None or any(one.cut for one in found)
    if cut and not any(one.collector.events for one in found):
        reason = source.cut or (_NEVER_ENDS if scan.too_long else "it ends before its first event")
        raise UnreadableTrace(f"{path}: {reason}", slug="unreadable-file")
    if not ours:
        if cut:
            raise UnreadableTrace(f"{path}: {evidence.CUT}", slug="unreadable-file")
        raise ForeignTrace(f"{path}: {evidence.FOREIGN}", slug="foreign-trace")
    if foreign := len(found) - len(ours):
        reason = evidence.SOME.format(count=foreign, of=len(found))
        said = notice("foreign-trace", file=path.name, reason=reason)
        ranks[0] = ranks[0].with_info(notices=(*ranks[0].info.notices, said))
    return ranks


@dataclass
class _Read:
    """One trace of a file, read once."""

    path: Path
    source: Source
    number: int
    scan: Scan
    collector: Collector
    of: int = 1  # so many traces are in the file

    @property
    def cut(self) -> bool:
        """Tell whether events are missing at the end."""
        ends = self.scan.rest is None  # what stopped the file did not stop an earlier trace in it
        return (
            not self.scan.closed
            or self.scan.damage.cut
            or self.scan.too_long
            or (ends and self.source.cut is not None)
        )

    @property
    def ours(self) -> bool:
        """Tell whether this is, or in spite of damage may be, a profiler's trace of a run."""
        scan = self.scan
        known = evidence.in_events(self.collector) or scan.damage.count > 0
        return known or evidence.in_root(scan.header, scan.footer, self.path)

    def traces(self) -> Iterator[RankTrace]:
        """Yield one `RankTrace` for each process."""
        several = self.collector.processes()
        whole = not self.scan.decimals
        if len(several) < 2:
            self.collector.device.settle(whole_microseconds=whole)
            yield self._finish(self._linked(self.collector))
            return
        parts = []
        for process in several:
            collector = Collector(process, processes.Neighbours(several))
            for scan in self._again():
                for batch in scan.batches():
                    collector.add(batch)
            collector.device.settle(whole_microseconds=whole)
            parts.append(self._linked(collector))
        yield from self._shared_out(parts)

    def _shared_out(self, parts: list[_Part]) -> Iterator[RankTrace]:
        """Give each device event to the process it is of."""
        first = parts[0]
        hints = np.array(first.collector.device.hints, np.intp).reshape(-1, 2)
        by_row = np.empty_like(hints)
        by_row[first.moved] = hints
        neighbours = first.collector.neighbours
        owned = processes.owners(
            [part.events["launch"].to_numpy() for part in parts],
            first.events["device"].to_numpy(),
            by_row,
            NONE,
            in_order=neighbours is not None and neighbours.follow_one_another,
        )
        for place, part in enumerate(parts):
            mine = owned.place == place
            shared = notes.Shared(len(parts), int(mine.sum()), owned.guessed)
            yield self._finish(part, mine, shared)

    def _again(self, *, links: bool = False) -> Iterator[Scan]:
        """Yield this trace of the file once more."""
        for number, scan in enumerate(traces(Source(self.path).blocks(), links=links)):
            if number == self.number:
                yield scan
                return
            for _ in scan.batches():
                pass

    def _linked(self, collector: Collector) -> _Part:
        """Give the device events their launches."""
        table, moved = collector.device.table()
        calls = collector.host_calls.table()
        found = links.Links(table)
        found.by_correlation(calls)
        found.by_external_id(calls)
        if found.needs_second_look():
            flows = links.Flows(found.external_ids(), collector.only)
            for scan in self._again(links=True):
                for batch in scan.batches():
                    flows.add(batch)
            found.use_external(flows.operators)
            found.use_flows(flows)
        events = table.assign(process=collector.process, **found.columns())
        return _Part(collector, events, moved, calls, found.far)

    def _finish(
        self,
        part: _Part,
        mine: NDArray[np.bool_] | None = None,
        shared: notes.Shared | None = None,
    ) -> RankTrace:
        facts = header.with_sidecar(header.read(self.scan.header, self.scan.footer), self.path)
        collector, moved = part.collector, part.moved
        operators, marks = collector.operators.table(), collector.marks.table()
        endless = durations.endless(part.events, _last(part.calls, operators, marks))
        strays = durations.strays(part.events)
        timeless = endless | strays
        if calls_elsewhere := int((part.far & ~strays).sum()):
            collector.untimed["call"] += calls_elsewhere
        impossible = part.events["device"].to_numpy()[timeless]
        launches = part.events["correlation"].to_numpy()[timeless].tolist()
        untimed = [*collector.device.untimed_correlations, *launches]
        host_calls = _without_untimed(part.calls, untimed)
        # Processes whose events stand in one file may have done the same at the same time.
        again = np.zeros(len(timeless), bool) if shared else repeats.of_device(part.events)
        out = timeless | again
        table, clipped = durations.clip(part.events, out)
        keep = ~out & (table["device"].to_numpy() != NONE)
        keep = keep if mine is None else keep & mine
        communications = _moved(collector.communications.table(), moved, keep)
        twice = int((again & ~timeless).sum())
        (communications, marks), found = _once(communications, marks)
        if twice := twice + found:
            (host_calls,), _ = _once(host_calls)
        rank, rank_source = (None, None) if shared else rank_of(facts, self.path)
        info = RankInfo(
            path=str(self.path),
            format="kineto",
            rank=rank,
            rank_source=rank_source,
            world_size=facts.world_size,
            base_ns=facts.base_ns,
            host=host_of(facts, self.path, collector.process),
            process=collector.process,
            backend=facts.backend,
            device_kind=_device_kind(facts, table, host_calls, collector.categories),
            device_names=facts.devices,
            process_groups=facts.groups,
            nccl_version=facts.nccl_version,
            framework_version=facts.framework_version,
            events=collector.events,
            truncated=self.cut,
            damaged_device_events=self._lost(collector, shared),
            unknown_device_events=collector.unknown.of_devices().total(),
            shapes_recorded=facts.shapes_recorded,
            settings=facts.settings,
            recorded=dict(collector.recorded),
            simulated=facts.simulated,
            untimed=_untimed(collector, impossible),
            notices=tuple(
                notes.about(
                    notes.Odd(
                        name=self.path.name,
                        rank=rank,
                        source=self.source,
                        scan=self.scan,
                        collector=collector,
                        cut=self.cut,
                        traces=self.of if self.number == 0 else 1,
                        clipped=clipped,
                        impossible=int((endless & ~strays).sum()),
                        strays=int(strays.sum()),
                        repeated=twice,
                        shared=shared,
                        others=None if shared else header.others_said(facts, self.path),
                    )
                )
            ),
        )
        return RankTrace(
            info=info,
            device_events=table if keep.all() else table[keep].reset_index(drop=True),
            communications=communications,
            marks=marks,
            host_calls=host_calls,
            operators=operators,
        )

    def _lost(self, collector: Collector, shared: notes.Shared | None) -> int:
        """Count the device events that are, or may be, lost or given to the wrong process."""
        lost = (
            collector.lost_to(self.scan.damage)
            + self.scan.foreign
            + collector.unknown.of_devices().total()
        )
        return lost + collector.device.homeless + (shared.guessed if shared else 0)


@dataclass(frozen=True)
class _Part:
    """What one process did: its device events with launches, the new row of each, its calls.

    `far` tells which events have a call at an impossible time.
    """

    collector: Collector
    events: pd.DataFrame
    moved: NDArray[np.int64]
    calls: pd.DataFrame
    far: NDArray[np.bool_]


def _last(*tables: pd.DataFrame) -> int:
    return max((int(table["end"].max()) for table in tables if len(table)), default=NONE)


def _moved(
    communications: pd.DataFrame, moved: NDArray[np.int64], keep: NDArray[np.bool_]
) -> pd.DataFrame:
    """Point each record to the row its device event has now; drop those of events that are gone."""
    event = communications["event"].to_numpy()
    linked = event != NONE
    if not linked.any():
        return communications
    row = moved[np.where(linked, event, 0)]
    new = np.cumsum(keep) - 1
    stays = ~linked | keep[row]
    table = communications.assign(event=np.where(linked, new[row], NONE))
    return table if stays.all() else table[stays].reset_index(drop=True)


def _once(*tables: pd.DataFrame) -> tuple[list[pd.DataFrame], int]:
    """Drop the rows of host events that repeat others, and count them."""
    again = [repeats.of_host(table) for table in tables]
    kept = [
        table[~rows].reset_index(drop=True) if rows.any() else table
        for table, rows in zip(tables, again, strict=True)
    ]
    return kept, sum(int(rows.sum()) for rows in again)


def _untimed(collector: Collector, impossible: NDArray[np.int64]) -> dict[tuple[int, int], int]:
    counts: Counter[tuple[int, int]] = Counter()
    for (device, _), count in collector.device.untimed.items():
        counts[collector.process, device] += count
    for device in impossible.tolist():
        counts[collector.process, device] += 1
    return dict(counts)


def _without_untimed(calls: pd.DataFrame, correlations: list[int]) -> pd.DataFrame:
    """Keep launches of untimed events from counting as lost: their record is there."""
    untimed = np.isin(calls["correlation"].to_numpy(), correlations)
    if not untimed.any():
        return calls
    kinds = calls["kind"].cat.add_categories(
        [kind for kind in ("untimed",) if kind not in calls["kind"].cat.categories]
    )
    return calls.assign(kind=kinds.where(~untimed, "untimed"))


# Whose runtime the host calls are of. PrivateUse1 is any device outside torch: Ascend NPUs so far.
_RUNTIMES = (("xpu_", "xpu"), ("mtia_", "mtia"), ("hpu_", "hpu"), ("privateuse1_", "npu"))


def _device_kind(
    facts: Header, events: pd.DataFrame, calls: pd.DataFrame, categories: set[str]
) -> str:
    if not len(events):
        return "cpu"
    names = calls["name"].cat.categories
    for prefix, kind in _RUNTIMES:
        if any(category.startswith(prefix) for category in categories):
            return kind
    if facts.amd or any(name.startswith("hip") for name in names):
        return "rocm"
    if any(name.startswith(("ze", "ur")) for name in names):
        return "xpu"
    if any(name.startswith(("aclrt", "aclnn", "hccl")) for name in names):
        return "npu"
    return "cuda" if facts.devices or any(name.startswith("cu") for name in names) else "unknown"

"""Give each device event the host call that launched it: by correlation, External id, then flow.

A correlation is exact. An External id names the operator, which may launch several kernels. Flow
arrows (`ph` s and f) carry the same as correlations and are only asked where a file lost those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens import durations
from tracelens.model.trace import NONE
from tracelens_kineto.categories import BUCKETS
from tracelens_kineto.columns import integer
from tracelens_kineto.events import CALL_ARGS
from tracelens_kineto.processes import Process, normal
from tracelens_kineto.recorded import decode, external, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens_kineto.events import LinkEvent

_CLOCK_SKEW_NS = 1_000_000  # a device's clock may run so far behind the host's
_LARGEST_SKEW_NS = 100_000_000  # and never so far, where most events run behind their launch


class Launch(NamedTuple):
    """When and where an event was launched; `end` is unknown where only the operator is known."""

    start: int
    end: int
    thread: int


@dataclass
class Links:
    """Launches of the rows of a device table, found so far."""

    events: pd.DataFrame
    start: Ints = field(init=False)
    end: Ints = field(init=False)
    thread: Ints = field(init=False)
    far: NDArray[np.bool_] = field(init=False)  # events that cannot be of their launch's time
    exact: bool = False  # some call of the file has a correlation

    def __post_init__(self) -> None:
        rows = len(self.events)
        self.start, self.end, self.thread = (np.full(rows, NONE) for _ in range(3))
        self.far = np.zeros(rows, bool)

    @property
    def open_rows(self) -> NDArray[np.intp]:
        """Return the rows without a launch."""
        return np.flatnonzero(self.start == NONE)

    def columns(self) -> dict[str, Ints]:
        """Return the columns of the device table that say what launched an event."""
        return {"launch": self.start, "launch_end": self.end, "launch_thread": self.thread}

    def by_correlation(self, calls: pd.DataFrame) -> None:
        """Link every event whose correlation a call has."""
        correlation = calls["correlation"].to_numpy()
        rows = np.flatnonzero((correlation != NONE) & (correlation != 0))
        self.exact = bool(len(rows))
        if not self.exact or not len(self.events):
            return
        order = rows[np.argsort(correlation[rows], kind="stable")]
        keys = correlation[order]
        wanted = self.events["correlation"].to_numpy()
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        linked = keys[at] == wanted
        call = order[at]
        after = self.events["start"].to_numpy() - calls["start"].to_numpy()[call]
        wrong = (after > durations.HOUR_NS) | (after < -_LARGEST_SKEW_NS)
        linked &= ~self._apart(linked & wrong)
        for column, source in ((self.start, "start"), (self.end, "end"), (self.thread, "thread")):
            column[linked] = calls[source].to_numpy()[call[linked]]

    def _apart(self, apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Remember which events lie hours behind their launch, or before it, if only few do."""
        self.far = apart if durations.are_few(apart) else np.zeros(len(apart), bool)
        return self.far

    def by_external_id(self, calls: pd.DataFrame) -> None:
        """Link open events to the calls and operators of their External id."""
        wanted = self.external_ids()
        if not wanted:
            return
        ids = calls["external_id"].to_numpy()
        kinds = calls["kind"].astype(object).to_numpy()
        rows = np.flatnonzero(np.isin(ids, list(wanted)))
        launches: dict[int, list[Launch]] = {}
        operators: dict[int, list[Launch]] = {}
        columns = [calls[name].to_numpy() for name in ("start", "end", "thread")]
        for row in rows[np.argsort(columns[0][rows], kind="stable")]:
            start, end, thread = (int(column[row]) for column in columns)
            if kinds[row] == "launch":
                launches.setdefault(int(ids[row]), []).append(Launch(start, end, thread))
            elif kinds[row] not in ("sync", "memory", "other"):
                operators.setdefault(int(ids[row]), []).append(Launch(start, NONE, thread))
        self.use_external(operators | launches)

    def external_ids(self) -> set[int]:
        """Return the External ids open events name, without those that say nothing.

        Kineto fills in the correlation where an event has no operator.
        """
        ids = self.events["external_id"].to_numpy()[self.open_rows]
        own = self.events["correlation"].to_numpy()[self.open_rows]
        return set(ids[(ids != NONE) & (ids != 0) & (ids != own)].tolist())

    def use_external(self, launches: dict[int, list[Launch]]) -> None:
        """Link open events in order to the launches of their External id, in order."""
        wanted = self.external_ids()
        ids = self.events["external_id"].to_numpy()
        used: dict[int, int] = {}
        for row in self.open_rows:
            key = int(ids[row])
            if key in wanted and key in launches:
                place = min(used.get(key, 0), len(launches[key]) - 1)
                if self._take(int(row), launches[key][place]):
                    used[key] = place + 1

    def use_flows(self, flows: Flows) -> None:
        """Link open events to the source of the arrow that ends at their start."""
        device, stream, start = (
            self.events[name].to_numpy() for name in ("device", "stream", "start")
        )
        for row in self.open_rows:
            launch = flows.source(int(device[row]), int(stream[row]), int(start[row]))
            if launch is not None:
                self._take(int(row), launch)

    def _take(self, row: int, launch: Launch) -> bool:
        if launch.start > self.events["start"].to_numpy()[row] + _CLOCK_SKEW_NS:
            return False  # ids repeat: nothing is launched after it ran
        self.start[row], self.end[row], self.thread[row] = launch
        return True

    def needs_second_look(self) -> bool:
        """Tell whether flows could link what correlations cannot: they are missing on a side."""
        if not len(self.open_rows):
            return False
        own = self.events["correlation"].to_numpy()[self.open_rows]
        return not self.exact or bool(np.any((own == NONE) | (own == 0)))


@dataclass
class Flows:
    """Flow arrows and operators of a file, read in a second pass."""

    wanted: set[int]  # External ids to find operators of
    only: Process = None  # the process that launches
    operators: dict[int, list[Launch]] = field(default_factory=dict)
    _sources: dict[int | str, Launch] = field(default_factory=dict)
    _targets: dict[tuple[int, int, int], int | str] = field(default_factory=dict)

    def add(self, batch: Sequence[LinkEvent]) -> None:
        """Take arrows between host and device, and operators whose id is wanted."""
        arrows = [e for e in batch if e.ph in ("s", "f") and e.id is not None]
        arrows = [e for e in arrows if e.cat not in ("fwdbwd", "forward_backward")]
        start = times(arrows)[0] if arrows else np.empty(0, np.int64)
        for event, at in zip(arrows, start.tolist(), strict=True):
            assert event.id is not None
            if event.ph == "s":
                if self.only is not None and normal(event.pid) != self.only:
                    continue
                launch = Launch(at, NONE, integer(event.tid))
                self._sources.setdefault(event.id, launch)
            else:
                self._targets[integer(event.pid), integer(event.tid), at] = event.id
        if self.wanted:
            self._add_operators([e for e in batch if BUCKETS.get(e.cat) == "operator"])

    def _add_operators(self, events: Iterable[LinkEvent]) -> None:
        for event in events:
            key = integer(external(decode(CALL_ARGS, event.args)))
            mine = self.only is None or normal(event.pid) == self.only
            if event.ph == "X" and mine and key in self.wanted:
                at = int(times([event])[0][0])
                self.operators.setdefault(key, []).append(Launch(at, NONE, integer(event.tid)))

    def source(self, device: int, stream: int, start: int) -> Launch | None:
        """Return where the arrow begins that ends at a device event."""
        for tid in (stream, NONE):  # a tid can be "stream 7", which is no number
            found = self._targets.get((device, tid, start))
            if found is not None:
                return self._sources.get(found)
        return None

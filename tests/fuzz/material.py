"""What is mutated: samples of every kind, thinned to some dozens of events, and built traces.

An event keeps the text it has in its file, so that what profilers really write is mutated.
"""

from __future__ import annotations

import functools
import gzip
import json
import sqlite3
import tempfile
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders import Schema, Trace
from nsight_exports import Export
from samples import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable

EVENTS = 60
"""Kept of a rank: two of them are analysed in a tenth of a second then."""

_ROWS = 200  # of a table of an export
_STEP = "ProfilerStep#"
_TELLING = ("nccl", "gloo:", "c10d::", "record_param_comms")


@dataclass(frozen=True)
class Text:
    """A trace as its file has it: what stands before the events, each event, what follows them."""

    name: str
    before: str
    events: tuple[str, ...]
    after: str

    def file(self, events: Iterable[bytes] | None = None) -> bytes:
        """Return the file, with these events instead of its own."""
        given = [event.encode() for event in self.events] if events is None else events
        return b"".join((self.before.encode(), b",\n".join(given), self.after.encode()))


@dataclass(frozen=True)
class Run:
    """Two ranks of a run."""

    name: str
    files: tuple[Text, ...]


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all runs: recorded and simulated samples, and built ones."""
    samples = {path.parent.name for path in SAMPLES.glob("*/*.json.gz")}
    return (*sorted(samples), *_SCHEMAS)


@functools.cache
def run(name: str) -> Run:
    """Return a run, small enough to analyse thousands of its mutations."""
    if name in _SCHEMAS:
        return Run(name, tuple(_built(rank, _SCHEMAS[name]) for rank in (0, 1)))
    paths = sorted((SAMPLES / name).glob("*.json.gz"))
    return Run(name, tuple(_thinned(path) for path in (paths[0], paths[-1])))


@functools.cache
def exports() -> tuple[bytes, ...]:
    """Return SQLite exports of Nsight Systems: two built ones, and samples with fewer rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [_export(steps).write(folder / f"{steps}.sqlite") for steps in (1, 3)]
        for sample in sorted(SAMPLES.glob("*nsight*/*.sqlite"))[:2]:
            paths.append(folder / sample.name)
            paths[-1].write_bytes(sample.read_bytes())
            _thin(paths[-1])
        return tuple(path.read_bytes() for path in paths)


# samples -----------------------------------------------------------------------------------------


def _thinned(path: Path) -> Text:
    """Keep the steps, and whole bundles: a launch with its kernel, record and arrows."""
    text = split(path.name.removesuffix(".gz"), gzip.decompress(path.read_bytes()).decode())
    events = [json.loads(event) for event in text.events]
    always = [i for i, event in enumerate(events) if _is_step(event)]
    bundles: defaultdict[object, list[int]] = defaultdict(list)
    for i in sorted(set(range(len(events))) - set(always)):
        bundles[_bundle(events[i], i)].append(i)
    telling = [b for b in bundles.values() if any(_is_telling(events[i]) for i in b)]
    others = [b for b in bundles.values() if not any(_is_telling(events[i]) for i in b)]
    half = (EVENTS - len(always)) // 2
    kept = sorted([*always, *_spread(telling, half), *_spread(others, half)])
    return Text(text.name, text.before, tuple(text.events[i] for i in kept), text.after)


def split(name: str, text: str) -> Text:
    """Split a sound trace into its events and what stands around them."""
    start = text.index("[", max(text.find('"traceEvents"'), 0)) + 1
    decoder = json.JSONDecoder()
    place, events = start, []
    while text[place := _next(text, place)] != "]":
        _, end = decoder.raw_decode(text, place)
        events.append(text[place:end])
        place = end
    return Text(name, text[:start], tuple(events), text[place:])


def _next(text: str, place: int) -> int:
    while text[place] in " \t\r\n,":
        place += 1
    return place


def _is_step(event: dict[str, Any]) -> bool:
    return str(event.get("name")).startswith(_STEP)


def _is_telling(event: dict[str, Any]) -> bool:
    return str(event.get("name")).startswith(_TELLING)


def _bundle(event: dict[str, Any], place: int) -> object:
    args = event.get("args") or {}
    return args.get("External id") or args.get("correlation") or event.get("id") or (place,)


def _spread(bundles: list[list[int]], most: int) -> list[int]:
    """Return bundles from all over the file, as many as give so many events."""
    each = max(sum(map(len, bundles)) // max(most, 1), 1)
    return [i for bundle in bundles[::each] for i in bundle]


# built -------------------------------------------------------------------------------------------

_SCHEMAS = {
    "built, absolute times": Schema(torch="2.4", times="epoch", info="after"),
    "built, legacy": Schema(torch="2.1", times="whole", root="array", capitals=True),
    "built, minified": Schema(times="text", text_ids=True, minified=True),
}


def _built(rank: int, schema: Schema) -> Text:
    trace = Trace(rank=rank, schema=schema)
    for step in range(3):
        at = 1_000 + 2_000 * step
        trace.step(step, at, 1_900).operator("aten::mm", at + 20, 200)
        trace.kernel("gemm", at + 100, 300).copy(at + 450, 30).memset(at + 500, 5)
        trace.all_reduce(at + 600, 300 + 40 * rank).kernel("gemm", at + 700, 100)
        trace.all_gather(at + 1_000, 200, 4_096).kernel("gemm", at + 1_100, 100, device=1)
    return split(f"rank{rank}.json", trace.text())


def _export(steps: int) -> Export:
    made = Export()
    for step in range(steps):
        at = 100_000 * step
        made.step(step, at, at + 90_000).kernel("gemm", at + 10_000, 20_000)
        made.call("ncclAllReduce", at + 40_000, size=64)
    return made


def _thin(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            (rows,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()
            database.execute(f'DELETE FROM "{table}" WHERE rowid % {1 + rows // _ROWS} != 0')
        database.commit()
        database.execute("VACUUM")

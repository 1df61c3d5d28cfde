"""Say what an export holds without reading its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens import steps
from tracelens.errors import UnreadableTrace
from tracelens.file_names import rank_in_name
from tracelens.model.facts import FileFacts
from tracelens_nsight import device, facts
from tracelens_nsight.export import Export
from tracelens_nsight.ranges import EVENTS, plain_name
from tracelens_nsight.reading import processes
from tracelens_nsight.tables import Like

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_nsight.tables import Tables

_WORDS = ("tracelens.", "global", "train", "iter", "step", "batch", "## ", "[pl]")
_BEGINNINGS = (
    "ProfilerStep#",
    *(spelt(w) for w in _WORDS for spelt in (str, str.title, str.upper)),
)
"""What names of steps begin with: SQLite holds patterns against letters as they are."""


def inspect(tables: Tables, path: Path, form: str) -> FileFacts:
    """Return the facts of an export."""
    try:
        return _facts(tables, path, form)
    except UnreadableTrace as error:
        return FileFacts(form, complete=False, note=error.message.removeprefix(f"{path}: "))
    finally:
        tables.close()


def _facts(tables: Tables, path: Path, form: str) -> FileFacts:
    found = facts.read(tables)
    members = processes(tables, path)
    alone = len(members) == 1
    export = Export(tables, alone=alone)
    known = [
        facts.rank_of(export, found, path, one, facts.mark_of(export, one), alone=alone)
        for one in members
    ]
    worlds = {one.world for one in known} - {None}
    sources = {one.source for one in known} - {None}
    return FileFacts(
        format=form,
        rank=known[0].rank if alone else None,
        rank_source=sources.pop() if len(sources) == 1 else None,
        world_size=worlds.pop() if len(worlds) == 1 else None,
        host=found.host,
        steps=_steps(export),
        device_events=sum(tables.count(table) for table in device.TABLES),
        processes=len(members),
        ranks=tuple(sorted(one.rank for one in known if one.rank is not None)),
    )


def _steps(export: Export) -> tuple[int, ...] | None:
    """Return the numbers of the steps: of ranges with a text of their own, and registered ones."""
    tables = export.tables
    rows = tables.read(EVENTS, texts=["text"], where=[Like("text", _BEGINNINGS)])
    registered = export.strings.of(tables.distinct(EVENTS, "textId"))
    return steps.numbers_of([plain_name(name) for name in (*rows.texts["text"].names, *registered)])


def inspect_report(path: Path, form: str) -> FileFacts:
    """Return the facts of a report if its export is there already; making one takes minutes."""
    from tracelens_nsight.report import cached, find_nsys
    from tracelens_nsight.sqlite import SqliteTables

    export = cached(path)
    if export.exists():
        return inspect(SqliteTables(export), path, form)
    how = "exported when it is analysed" if find_nsys() else "no nsys to export it with"
    return FileFacts(form, rank=rank_in_name(path), note=how)

"""Say what an export holds without reading its events."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens.errors import UnreadableTrace
from tracelens.file_names import rank_in_name
from tracelens.model.facts import FileFacts
from tracelens_nsight import device, facts
from tracelens_nsight.export import Export
from tracelens_nsight.ranges import EVENTS
from tracelens_nsight.reading import processes

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_nsight.tables import Tables


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
    export = Export(tables)
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
        steps=_steps(tables),
        device_events=sum(tables.count(table) for table in device.TABLES),
        processes=len(members),
        ranks=tuple(sorted(one.rank for one in known if one.rank is not None)),
    )


def _steps(tables: Tables) -> tuple[int, ...] | None:
    from tracelens_nsight.tables import Like

    beginnings = ("ProfilerStep#", "iteration ", "step ", "tracelens.step ")
    rows = tables.read(EVENTS, texts=["text"], where=[Like("text", beginnings)])
    numbers = [re.search(r"(\d{1,18})$", name) for name in rows.texts["text"].names]
    return tuple(sorted({int(one[1]) for one in numbers if one}))


def inspect_report(path: Path, form: str) -> FileFacts:
    """Return the facts of a report if its export is there already; making one takes minutes."""
    from tracelens_nsight.report import cached, find_nsys
    from tracelens_nsight.sqlite import SqliteTables

    export = cached(path)
    if export.exists():
        return inspect(SqliteTables(export), path, form)
    how = "exported when it is analysed" if find_nsys() else "no nsys to export it with"
    return FileFacts(form, rank=rank_in_name(path), note=how)

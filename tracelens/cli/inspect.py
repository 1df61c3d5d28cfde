"""`tracelens inspect`: a quick look, without decoding a single event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracelens.listing import Listed
    from tracelens.model.facts import FileFacts

_WIDEST_NAME = 60
_RANGES = 20


@click.command("inspect", short_help="Say what is in here: files, ranks, steps, gaps.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--json", is_flag=True, help="Print the files and what was decided as a JSON list.")
def command(paths: tuple[str, ...], *, json: bool) -> None:
    """List every file under PATH with its format, rank and steps, or why it is left out."""
    from tracelens.listing import list_files

    files = list_files(paths)
    if json:
        click.echo(_as_json(files))
        return
    width = min(max(len(file.path) for file in files), _WIDEST_NAME)
    for file in files:
        click.echo(_line(file, width))
    click.echo(_totals(files))


def _as_json(files: list[Listed]) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(files), indent=2).decode()


def _line(file: Listed, width: int) -> str:
    from tracelens.reporting.words import visible

    name, facts = visible(file.path).ljust(width), file.facts
    if facts is None:
        said = "cannot be read" if file.lost else "left out"
        return f"{name}  {said}: {visible(file.reason or '')}"
    rank = _rank(facts)
    world = f" of {facts.world_size}" if facts.world_size else ""
    parts = [facts.format, f"{rank}{world}"]
    if facts.rank_source:
        parts[-1] += f" ({facts.rank_source})"
    parts.append(_steps(facts.steps))
    if facts.device_events is not None:
        parts.append(f"{facts.device_events:,} device events")
    parts.append(f"{file.bytes / 1e6:.2f} MB")
    if not facts.complete:
        parts.append(f"INCOMPLETE{f': {facts.note}' if facts.note else ''}")
    elif facts.note:
        parts.append(facts.note)
    return f"{name}  {visible(' · '.join(parts))}"


def _rank(facts: FileFacts) -> str:
    from tracelens.run import ranges

    if facts.processes > 1:
        named = f"ranks {ranges(list(facts.ranks))}" if facts.ranks else "ranks ?"
        return f"{facts.processes} processes, {named}"
    return "rank ?" if facts.rank is None else f"rank {facts.rank}"


def _steps(steps: tuple[int, ...] | None) -> str:
    from tracelens.run import ranges

    if steps is None:
        return "steps unknown"
    return f"steps {ranges(list(steps))}" if steps else "no step marks"


def _totals(files: list[Listed]) -> str:
    from tracelens.reporting.words import plural
    from tracelens.run import ranges

    facts = [file.facts for file in files if file.facts is not None]
    alone = {f.rank for f in facts if f.rank is not None}
    ranks = sorted(alone | {rank for f in facts for rank in f.ranks})
    worlds = {f.world_size for f in facts if f.world_size}
    text = f"{plural(len(facts), 'trace file')}, ranks {ranges(ranks, _RANGES) or 'unknown'}"
    if len(worlds) == 1:
        world = worlds.pop()
        missing = sorted(set(range(world)) - set(ranks))
        text += f" of {world}" + (f"; missing: {ranges(missing, _RANGES)}" if missing else "")
    elif worlds:
        text += f"; the files disagree on the world size: {', '.join(map(str, sorted(worlds)))}"
    for said, lost in (("left out", False), ("cannot be read", True)):
        if count := sum(file.facts is None and file.lost == lost for file in files):
            text += f"; {count:,} {said}"
    return text

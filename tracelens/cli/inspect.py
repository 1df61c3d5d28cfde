"""`tracelens inspect`: a quick look, without decoding a single event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracelens.discovery import Candidate
    from tracelens.model.trace import FileFacts


@click.command("inspect", short_help="Say what is in here: files, ranks, steps, gaps.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
def command(paths: tuple[str, ...]) -> None:
    """List every file under PATH with its format, rank and steps, or why it is left out."""
    from tracelens import addresses
    from tracelens.discovery import discover
    from tracelens.errors import InputError
    from tracelens.registry import parsers
    from tracelens.workspace import Workspace

    with Workspace() as workspace:
        found = discover(list(paths), parsers(), workspace)
        if not found:
            where = " ".join(addresses.shown(path) for path in paths)
            raise InputError(f"{where}: no trace file in it", slug="no-traces")
        facts = [(candidate, _facts(candidate)) for candidate in found]
    width = min(max(len(candidate.shown) for candidate in found), 60)
    for candidate, said in facts:
        click.echo(_line(candidate, said, width))
    click.echo(_totals([said for _, said in facts if not isinstance(said, str)]))


def _facts(candidate: Candidate) -> FileFacts | str:
    """Return what a parser says of a file, or why it is left out."""
    from tracelens.errors import TraceLensError
    from tracelens.registry import parsers

    for parser in parsers():
        if parser.name == candidate.parser:
            try:
                return parser.inspect(candidate.path)
            except TraceLensError as error:
                return error.message.removeprefix(f"{candidate.path}: ")
            except Exception as error:  # a plugin may raise anything; the others are still asked
                return f"the parser {parser.name} failed ({type(error).__name__}: {error})"
    return candidate.reason or ""


def _line(candidate: Candidate, facts: FileFacts | str, width: int) -> str:
    from tracelens.reporting.words import visible

    name = visible(candidate.shown).ljust(width)
    if isinstance(facts, str):
        return f"{name}  left out: {visible(facts)}"
    rank = _rank(facts)
    world = f" of {facts.world_size}" if facts.world_size else ""
    parts = [facts.format, f"{rank}{world}"]
    if facts.rank_source:
        parts[-1] += f" ({facts.rank_source})"
    parts.append(_steps(facts.steps))
    if facts.device_events is not None:
        parts.append(f"{facts.device_events:,} device events")
    parts.append(f"{candidate.size / 1e6:.2f} MB")
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


def _totals(facts: list[FileFacts]) -> str:
    from tracelens.reporting.words import plural
    from tracelens.run import ranges

    alone = {f.rank for f in facts if f.rank is not None}
    ranks = sorted(alone | {rank for f in facts for rank in f.ranks})
    worlds = {f.world_size for f in facts if f.world_size}
    text = f"{plural(len(facts), 'trace file')}, ranks {ranges(ranks) or 'unknown'}"
    if len(worlds) == 1:
        world = worlds.pop()
        missing = sorted(set(range(world)) - set(ranks))
        text += f" of {world}" + (f"; missing: {ranges(missing)}" if missing else "")
    elif worlds:
        text += f"; the files disagree on the world size: {', '.join(map(str, sorted(worlds)))}"
    return text

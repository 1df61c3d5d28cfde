"""`tracelens doctor`: is the installation sound, and what does a capture lack?"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING

import click

from tracelens.cli import values
from tracelens.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.doctor.check import Lack
    from tracelens.run import Run

_DISTRIBUTION = "tracelens-distributed"
_LACKING = 4
_MARKS = {"missing": "✗", "poorer": "▲", "remark": "–"}
_WIDEST = 100


@click.command("doctor", short_help="Check the installation, and what a capture lacks.")
@click.argument("paths", nargs=-1, metavar="[PATH…]")
@click.option(
    "--step-pattern",
    type=values.Typed("REGEX", values.pattern),
    help="Which named ranges are the steps.",
)
@click.option("--json", is_flag=True, help="Print what is lacking as a JSON list.")
@click.option("-v", "--verbose", is_flag=True, help="Print remarks that change no number too.")
@click.option("--strict", is_flag=True, help="Exit with 4 if a section lacks something.")
def command(
    paths: tuple[str, ...], step_pattern: str | None, *, json: bool, verbose: bool, strict: bool
) -> None:
    r"""Check the installation; with PATH, what those traces lack for which section of the report.

    \b
    Exit codes: 0 done · 1 nothing analysable · 2 wrong usage ·
    4 with --strict, if a section is empty or poorer than it could be
    """
    if not paths:
        for line in (*_versions(), *_trouble()):
            click.echo(line)
        return
    for line in _trouble():
        click.echo(line, err=True)
    run, lacks = _examined(paths, step_pattern)
    if json:
        click.echo(_as_json(lacks))
    else:
        for line in _report(run, lacks, verbose=verbose):
            click.echo(line)
    if strict and any(lack.level != "remark" for lack in lacks):
        sys.exit(_LACKING)


# the installation --------------------------------------------------------------------------------


def _versions() -> Iterator[str]:
    yield f"tracelens {__version__}, Python {sys.version.split()[0]}"
    for name in ("pandas", "numpy", "plotly", "msgspec", "click", "rich", "jinja2", "isal"):
        yield f"  {name} {_version(name)}"


def _trouble() -> Iterator[str]:
    from tracelens.registry import plugins
    from tracelens.reporting.words import visible

    for other in _clashes():
        yield visible(f"▲ {other} also installs the package or command `tracelens`: uninstall one")
    for group in ("tracelens.parsers", "tracelens.reports"):
        for plugin in plugins(group):
            if plugin.error is not None:
                yield visible(f"▲ plugin {plugin.name} is broken: {plugin.error}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _clashes() -> list[str]:
    """Return other distributions that own our package or command (PyPI's `tracelens`, AMD's)."""
    owners = set(metadata.packages_distributions().get("tracelens", []))
    for entry in metadata.entry_points(group="console_scripts", name="tracelens"):
        if entry.dist is not None:
            owners.add(entry.dist.name)
    return sorted(owner for owner in owners if owner.lower() != _DISTRIBUTION)


# the capture -------------------------------------------------------------------------------------


def _examined(paths: tuple[str, ...], step_pattern: str | None) -> tuple[Run, list[Lack]]:
    from tracelens.cli.progress import progress_for
    from tracelens.engine import Options, examine
    from tracelens.reduction import Selection

    options = Options(selection=Selection(step_pattern=step_pattern), workers=None)
    return examine(list(paths), options, progress_for(quiet=False))


def _as_json(lacks: list[Lack]) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(lacks), indent=2).decode()


def _report(run: Run, lacks: list[Lack], *, verbose: bool) -> Iterator[str]:
    """Say what is here, what lacks, and which sections lack nothing."""
    from tracelens.doctor.check import SECTIONS
    from tracelens.reporting.words import plural

    yield _here(run)
    shown = [lack for lack in lacks if verbose or lack.level != "remark"]
    for lack in shown:
        yield from _lines(lack, run)
    poor = {section for lack in lacks if lack.level != "remark" for section in lack.sections}
    rich = [section for section in SECTIONS if section not in poor]
    if not poor:
        yield "✓ no section of the report lacks anything"
    elif rich:
        yield f"✓ nothing is lacking for {', '.join(rich)}"
    if hidden := len(lacks) - len(shown):
        yield f"– {plural(hidden, 'remark')} that change{'s' if hidden == 1 else ''} no number: -v"
    if poor:
        yield "How to record: docs/recording.md"


def _here(run: Run) -> str:
    from tracelens.reporting.words import plural, visible
    from tracelens.run import ranges

    cycles = [cycle for rank in run.ranks for cycle in rank.cycles]
    formats = Counter(cycle.info.format for cycle in cycles)
    ranks = sorted({rank.rank for rank in run.ranks})
    steps = sorted({step for cycle in cycles for step in cycle.recorded_steps})
    world = "" if run.world_size is None else f" of {run.world_size:,}"
    parts = [
        f"{plural(len(cycles), 'trace')} ({', '.join(sorted(formats))})",
        f"{'ranks' if len(ranks) > 1 else 'rank'} {ranges(ranks)}{world}",
        f"{'steps' if len(steps) > 1 else 'step'} {ranges(steps)}" if steps else "no steps",
    ]
    return visible(", ".join(parts))


def _lines(lack: Lack, run: Run) -> Iterator[str]:
    from tracelens.reporting.words import visible

    where = _where(lack, run)
    title = f"{_MARKS[lack.level]} {', '.join(lack.sections)}: {lack.what}{where}"
    yield _wrapped(visible(title), first="", rest="    ")
    yield _wrapped(visible(lack.costs), first="    costs  ", rest="           ")
    advice, *commands = lack.remedy.split("\n")
    yield _wrapped(visible(advice), first="    do     ", rest="           ")
    for line in commands:  # to be copied: never broken
        yield f"           {visible(line)}"


def _where(lack: Lack, run: Run) -> str:
    """Name the ranks that lack it, or the files where no file says its rank."""
    from tracelens.run import ranges

    cycles = [cycle for rank in run.ranks for cycle in rank.cycles]
    named = {cycle.info.path for cycle in cycles if cycle.info.rank is not None}
    if lack.ranks and set(lack.ranks) == {rank.rank for rank in run.ranks}:
        return " (all ranks)" if len(lack.ranks) > 1 else ""
    if lack.ranks and named.issuperset(lack.files):
        return f" ({'ranks' if len(lack.ranks) > 1 else 'rank'} {ranges(list(lack.ranks))})"
    more = f", and {len(lack.files) - 3:,} more" if len(lack.files) > 3 else ""
    return f" ({', '.join(lack.files[:3])}{more})" if lack.files else ""


def _wrapped(text: str, *, first: str, rest: str) -> str:
    width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
    return textwrap.fill(
        text,
        width=width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )

"""`tracelens doctor`: is the installation sound, and what does a trace lack?"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING

import click

from tracelens.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.trace import RankTrace

_DISTRIBUTION = "tracelens-distributed"


@click.command("doctor", short_help="Check the installation, and what a trace lacks.")
@click.argument("paths", nargs=-1, metavar="[PATH…]")
def command(paths: tuple[str, ...]) -> None:
    """Check the installation; with PATH, say what those traces lack for which section."""
    for line in _environment():
        click.echo(line)
    if paths:
        from tracelens.engine import load

        for trace in load(list(paths)):
            _report(trace)


def _environment() -> Iterator[str]:
    from tracelens.registry import plugins

    yield f"tracelens {__version__}, Python {sys.version.split()[0]}"
    for name in ("pandas", "numpy", "plotly", "msgspec", "click", "rich", "jinja2", "isal"):
        yield f"  {name} {_version(name)}"
    for other in _clashes():
        yield f"▲ {other} also installs the package or command `tracelens`: uninstall one"
    for group in ("tracelens.parsers", "tracelens.reports"):
        for plugin in plugins(group):
            if plugin.error is not None:
                yield f"▲ plugin {plugin.name} is broken: {plugin.error}"


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


def _report(trace: RankTrace) -> None:
    from tracelens.reporting.words import visible

    rank = "unknown" if trace.info.rank is None else trace.info.rank
    click.echo(visible(f"{trace.info.path} (rank {rank})"))
    lacks = list(lacking(trace))
    for text in lacks or ["  ✓ nothing is missing for any section"]:
        click.echo(text)


def lacking(trace: RankTrace) -> Iterator[str]:
    """Say what a trace lacks, what that costs, and what would bring it."""
    from tracelens import steps
    from tracelens.model.trace import NONE

    info = trace.info
    if info.rank_source is None:
        yield "  ▲ no rank: initialise torch.distributed before the profiler starts"
    if not len(steps.find(trace.marks)):
        yield "  ▲ no steps (no per-step numbers): call prof.step() once per optimizer step"
    operations = trace.communications
    if not len(operations):
        yield "  ▲ no collective recorded (no volumes): profile CPU activities too"
    else:
        known = operations[operations["in_elems"] != NONE]
        moving = operations[~operations["name"].isin(["wait", "init", ""])]
        if len(known) < len(moving):
            share = f"{len(known)} of {len(moving)} records"
            yield f"  ▲ {share} have sizes (volumes): record_shapes=True"
    if not len(trace.device_events):
        yield "  ▲ no device events (CPU run): add ProfilerActivity.CUDA if there is a GPU"
    if info.truncated:
        yield "  ▲ the file ends early (lower bounds): let the profiler finish before exit"

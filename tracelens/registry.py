"""Find parser and report plugins through entry points, exactly as a stranger's plugin is found.

A parser is any object with the methods of `Parser`, a report any with those of `Report`; there is
no base class to import. Groups: `tracelens.parsers` and `tracelens.reports`. A plugin that fails to
load is listed with its error (`tracelens formats`) and never stops a run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from tracelens.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tracelens.model.result import Analysis
    from tracelens.model.trace import FileFacts, RankTrace

Group = Literal["tracelens.parsers", "tracelens.reports"]


class Parser(Protocol):
    """Turn files of one or more formats into `RankTrace` objects."""

    name: str
    formats: tuple[str, ...]
    suffixes: tuple[str, ...]  # endings of files to look at in a folder, such as ".json.gz"

    def recognise(self, path: Path, head: bytes) -> str | None:
        """Return the format of a file, or None if it is not ours.

        Args:
            path: The file, or a folder (with an empty head) that may be one trace as a whole.
            head: Its first bytes (at most 64 KiB), inflated if it is compressed with gzip.
        """

    def inspect(self, path: Path) -> FileFacts:
        """Say what a file holds without parsing it whole (rank, world size, steps)."""

    def parse(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> Iterable[RankTrace]:
        """Read a file, however broken, into one trace for each rank and profiler cycle in it.

        A file of many ranks should yield them one by one: each is reduced before the next is read.

        Args:
            path: The file.
            on_bytes: Called with the number of input bytes read since the last call.

        Raises:
            UnreadableTrace: If nothing in it can be used.
        """


class Report(Protocol):
    """Render an `Analysis` to one file."""

    name: str
    suffixes: tuple[str, ...]

    def render(self, analysis: Analysis) -> bytes:
        """Return the whole report; equal analyses give equal bytes."""


@dataclass(frozen=True)
class Plugin:
    """One entry point, loaded or broken."""

    group: Group
    name: str
    distribution: str | None
    version: str | None
    instance: Any | None
    error: str | None


def _distribution(entry: metadata.EntryPoint) -> tuple[str | None, str | None]:
    dist = entry.dist
    return (dist.name, dist.version) if dist is not None else (None, None)


_REQUIRED: dict[str, tuple[str, ...]] = {
    "tracelens.parsers": ("name", "formats", "suffixes", "recognise", "inspect", "parse"),
    "tracelens.reports": ("name", "suffixes", "render"),
}


def _load(group: Group, entry: metadata.EntryPoint) -> Plugin:
    distribution, version = _distribution(entry)
    try:
        factory = entry.load()
        instance = factory()
        missing = [name for name in _REQUIRED[group] if not hasattr(instance, name)]
        if missing:
            raise TypeError(f"it has no {', '.join(missing)}")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Plugin(group, entry.name, distribution, version, None, reason)
    return Plugin(group, entry.name, distribution, version, instance, None)


@functools.cache
def plugins(group: Group) -> tuple[Plugin, ...]:
    """Load every plugin of a group, in order of name; broken ones carry their error."""
    entries = sorted(metadata.entry_points(group=group), key=lambda entry: entry.name)
    return tuple(_load(group, entry) for entry in entries)


def _working(group: Group) -> list[Any]:
    found = [plugin.instance for plugin in plugins(group) if plugin.instance is not None]
    broken = [f"{p.name} ({p.error})" for p in plugins(group) if p.error is not None]
    if not found and broken:
        raise PluginError(
            f"every plugin of {group} is broken: {'; '.join(broken)}",
            hint="`tracelens formats` lists them; install again",
            slug="no-plugin",
        )
    if not found:
        raise PluginError(
            f"no plugin is installed for {group}",
            hint="run `pip install tracelens-distributed` (in a checkout: `pip install -e .`)",
            slug="no-plugin",
        )
    return found


def parsers() -> list[Parser]:
    """Return the working parsers.

    Raises:
        PluginError: If there is none.
    """
    return cast("list[Parser]", _working("tracelens.parsers"))


def reports() -> list[Report]:
    """Return the working reports.

    Raises:
        PluginError: If there is none.
    """
    return cast("list[Report]", _working("tracelens.reports"))


def report_for(suffix: str) -> Report:
    """Return the report that writes files of a suffix such as `.html`.

    Raises:
        PluginError: If no installed report does.
    """
    known: dict[str, Report] = {s: report for report in reports() for s in report.suffixes}
    if suffix.lower() not in known:
        choices = ", ".join(sorted([*known, ".json"]))
        raise PluginError(
            f"no report writes {suffix or 'files without a suffix'}",
            hint=f"choose one of {choices}",
            slug="unknown-report",
        )
    return known[suffix.lower()]

"""`tracelens formats`: what is installed, and what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracelens.registry import Plugin


@click.command("formats", short_help="List the parsers and reports found, and broken plugins.")
def command() -> None:
    """List parser and report plugins with their versions; broken ones with their error."""
    from tracelens.registry import plugins

    for group, title in (("tracelens.parsers", "Parsers"), ("tracelens.reports", "Reports")):
        click.echo(title)
        found = plugins(group)
        if not found:
            click.echo("  none: run `pip install tracelens-distributed`")
        for plugin in found:
            home = f"{plugin.distribution or 'unknown'} {plugin.version or ''}".strip()
            click.echo(f"  {plugin.name:<12} {_what(plugin):<24} {home}")


def _what(plugin: Plugin) -> str:
    from tracelens.reporting.words import visible

    if plugin.error is not None:
        return visible(f"broken: {plugin.error}")
    handled = getattr(plugin.instance, "formats", None) or getattr(plugin.instance, "suffixes", ())
    return visible(" ".join(str(name) for name in handled or ()))

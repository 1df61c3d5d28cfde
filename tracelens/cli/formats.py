"""`tracelens formats`: what is installed, and what is broken."""

from __future__ import annotations

import click


@click.command("formats", short_help="List the parsers and reports found, and broken plugins.")
def command() -> None:
    """List parser and report plugins with their versions; broken ones with their error."""
    from tracelens.registry import plugins

    for group, title in (("tracelens.parsers", "Parsers"), ("tracelens.reports", "Reports")):
        click.echo(title)
        found = plugins(group)  # type: ignore[arg-type]
        if not found:
            click.echo("  none: run `pip install tracelens-distributed`")
        for plugin in found:
            home = f"{plugin.distribution or 'unknown'} {plugin.version or ''}".strip()
            click.echo(f"  {plugin.name:<12} {_what(plugin):<24} {home}")


def _what(plugin: object) -> str:
    from tracelens.registry import Plugin
    from tracelens.reporting.words import visible

    assert isinstance(plugin, Plugin)
    if plugin.error is not None:
        return visible(f"broken: {plugin.error}")
    handled = getattr(plugin.instance, "formats", None) or getattr(plugin.instance, "suffixes", ())
    return visible(" ".join(map(str, handled)))

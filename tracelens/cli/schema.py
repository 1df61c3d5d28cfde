"""`tracelens schema`: the contract, for those who read the JSON."""

from __future__ import annotations

import json

import click


@click.command("schema", short_help="Print the JSON Schema of the result.")
def command() -> None:
    """Print the JSON Schema of `analyze --json`, derived from the dataclasses."""
    from tracelens.model.document import schema

    click.echo(json.dumps(schema(), indent=1, sort_keys=True))

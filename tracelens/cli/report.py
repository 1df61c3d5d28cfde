"""`tracelens report`: render a saved analysis."""

from __future__ import annotations

from pathlib import Path

import click

from tracelens.addresses import is_remote, shown
from tracelens.cli.output import check_targets, render, say_written, write
from tracelens.errors import InputError

_LONGEST = 1 << 28  # a thousand ranks take 20 MB


@click.command("report", short_help="Render a saved analysis.json.")
@click.argument("saved", type=click.Path(path_type=Path), metavar="ANALYSIS.json")
@click.option(
    "-o",
    "--output",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Write a report; the suffix chooses it (.html .md .json). May repeat.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite existing files.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(saved: Path, output: tuple[Path, ...], *, force: bool, quiet: bool) -> None:
    """Render a result that `tracelens analyze` saved; the traces are not needed."""
    from tracelens.model.result import Analysis

    check_targets(list(output), force=force)
    if is_remote(saved):
        raise InputError(
            f"{shown(saved)}: a saved result is read from a local file only",
            hint="copy it here first",
            slug="no-such-path",
        )
    try:
        analysis = Analysis.from_json(_text_of(saved))
    except InputError as error:
        raise InputError(f"{saved}: {error.message}", hint=error.hint, slug=error.slug) from error
    for target in output:
        data = render(analysis, target.suffix)
        write(target, data)
        if not quiet:
            say_written(target, len(data))


def _text_of(saved: Path) -> bytes:
    try:
        with saved.open("rb") as file:
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise InputError(f"{error.strerror or error}", slug="no-such-path") from error
    if len(text) > _LONGEST:
        raise InputError("not a TraceLens result: more than 256 MiB", slug="not-a-result")
    return text

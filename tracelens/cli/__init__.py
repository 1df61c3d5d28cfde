"""The command line: one file a command, loaded only when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from tracelens.errors import TraceLensError
from tracelens.version import __version__

COMMANDS = {
    "analyze": "Read traces, print the verdict, write reports.",
    "report": "Render a saved analysis.json.",
    "inspect": "Say what is in here: files, ranks, steps, gaps.",
    "formats": "List the parsers and reports found, and broken plugins.",
    "doctor": "Check the installation, and what a trace lacks.",
    "simulate": "Write traces of a simulated training run.",
    "schema": "Print the JSON Schema of the result.",
}
"""Names and one-line helps, so that `--help` imports no command."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used (click docs, complex.md)."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return the commands in the order of the documentation."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tracelens.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "TRACELENS",
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="tracelens")
def cli() -> None:
    """Read profiler traces of distributed training: where time goes, whether bytes match theory."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; every TraceLensError becomes one clear message and its exit code."""
    _open_closed_streams()
    try:
        return cli.main(args=arguments, prog_name="tracelens")
    except TraceLensError as error:
        click.echo(_message(error), err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away: nothing to say, and nobody to say it to.
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        click.echo(_message(_refused(error) or _internal(error)), err=True)
        sys.exit(1)


def _open_closed_streams() -> None:
    """Give a command that was started without stdin, stdout or stderr (`>&-`) a null one.

    Python has None in its place, and the first file that is opened would get the free number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - for good


_TRACEBACK = "TRACELENS_TRACEBACK"


def _refused(error: Exception) -> TraceLensError | None:
    if not isinstance(error, OSError) or not error.strerror:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return TraceLensError(f"{where}{error.strerror}", slug="system-refused")


def _internal(error: Exception) -> TraceLensError:
    return TraceLensError(
        f"TraceLens itself failed ({type(error).__name__}: {error})",
        hint=f"this is a bug: please report it with the output of {_TRACEBACK}=1",
        slug="internal-error",
    )


def _message(error: TraceLensError) -> str:
    lines = [f"Error: {_printable(error.message)}"]
    if error.hint:
        lines.append(f"Hint: {_printable(error.hint)}")
    if error.slug:
        lines.append(f"(see docs/messages.md#{error.slug})")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Escape control characters: names come from files."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)

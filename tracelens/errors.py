"""Everything TraceLens can refuse, as one tree.

TraceLensError                 base: `slug` points into docs/messages.md
├── InputError                 nothing analysable, or a path that is not there        exit 1
│   ├── UnreadableTrace        one file cannot be read (a notice unless it is the only one)
│   └── ForeignTrace           one file is a trace of another tool (likewise)
├── OutputError                a report cannot be written, or would overwrite         exit 1
├── OptionError                options of a simulation that do not go together        exit 2
└── PluginError                a parser or report plugin is missing or broken         exit 1
"""

from __future__ import annotations


class TraceLensError(Exception):
    """Report a problem in one line a user can act on.

    Args:
        message: What is wrong, naming the file or rank.
        hint: What to do about it.
        slug: Anchor in docs/messages.md.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, slug: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.slug = slug

    def __reduce__(self) -> tuple[object, ...]:
        """Keep hint and slug when a worker process sends the error home."""
        return (_rebuild, (type(self), self.message, self.hint, self.slug))


def _rebuild(
    kind: type[TraceLensError], message: str, hint: str | None, slug: str | None
) -> TraceLensError:
    return kind(message, hint=hint, slug=slug)


class InputError(TraceLensError):
    """Nothing analysable was found where the user pointed."""


class UnreadableTrace(InputError):  # noqa: N818 - reads as what it is
    """One file could not be read at all."""


class ForeignTrace(InputError):  # noqa: N818 - reads as what it is
    """A file holds a trace, but of nothing that is analysed here: no rank is lost with it."""


class OutputError(TraceLensError):
    """A report could not be written."""


class OptionError(TraceLensError):
    """What was asked for cannot be simulated."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        slug: str | None = None,  # noqa: ARG002 - it is always this one
    ) -> None:
        super().__init__(message, hint=hint, slug="cannot-simulate")


class PluginError(TraceLensError):
    """A parser or report plugin is missing or broken."""

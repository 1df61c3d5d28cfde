"""What `tracelens inspect` finds out: every file, what was decided about it, and why.

No event is decoded, so it is quick; a file that is taken here can still turn out to be damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens import addresses
from tracelens.discovery import Candidate, discover
from tracelens.errors import ForeignTrace, InputError, TraceLensError
from tracelens.registry import parsers
from tracelens.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.model.facts import FileFacts


@dataclass(frozen=True, slots=True)
class Listed:
    """A file: what its parser says of it, or the reason why it is left out.

    `lost` is True for one that is left out though a trace may be in it.
    """

    path: str
    bytes: int
    facts: FileFacts | None
    reason: str | None
    lost: bool = False


def list_files(paths: Sequence[str | Path]) -> list[Listed]:
    """List every file under the given paths.

    Raises:
        InputError: If there is none, or a path does not exist.
    """
    with Workspace() as workspace:
        found = discover(paths, parsers(), workspace)
        if not found:
            where = " ".join(addresses.shown(path) for path in paths)
            raise InputError(f"{where}: no trace file in it", slug="no-traces")
        return [_listed(candidate) for candidate in found]


def _listed(candidate: Candidate) -> Listed:
    shown, size = candidate.shown, candidate.size
    for parser in parsers():
        if parser.name == candidate.parser:
            try:
                facts = parser.inspect(candidate.path)
                if candidate.damage:
                    facts = replace(facts, complete=False, note=candidate.damage)
                return Listed(shown, size, facts, None)
            except ForeignTrace as error:
                reason = error.message.removeprefix(f"{candidate.path}: ")
                return Listed(shown, size, None, reason)
            except TraceLensError as error:
                reason = error.message.removeprefix(f"{candidate.path}: ")
            except OSError as error:  # it is gone, or was replaced
                reason = f"cannot be opened: {error.strerror or error}"
            except Exception as error:  # a plugin may raise anything; the others are still asked
                reason = f"the parser {parser.name} failed ({type(error).__name__}: {error})"
            return Listed(shown, size, None, reason, lost=True)
    return Listed(shown, size, None, candidate.reason, candidate.lost)

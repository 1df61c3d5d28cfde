"""What file names say: the rank, if nothing inside the file does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens.model.facts import believed

if TYPE_CHECKING:
    from pathlib import Path

_RANK = re.compile(
    r"(?:^|[^a-z])rank[-_. ]?(\d+)|(?:^|[-_.])r(\d+)(?=[-_.])",
    re.IGNORECASE,
)
# A rank inside a node, or inside one dimension of the layout, is not the rank in the world.
_INSIDE = re.compile(r"(?:^|[^a-z])(?:local|node|tp|pp|ep|cp)[-_. ]?$", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name says, or its folder's."""
    for name in (path.name, path.parent.name):
        for match in _RANK.finditer(name):
            number = believed(int(match[1] or match[2]))
            if number is not None and not _INSIDE.search(name[: match.start() + 1]):
                return number
    return None

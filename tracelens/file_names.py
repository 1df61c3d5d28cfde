"""What file names say: the rank, if nothing inside the file does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens.model.facts import believed

if TYPE_CHECKING:
    from pathlib import Path

_RANK = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d+)|(?:^|[-_.])r(\d+)(?=[-_.])", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name says, or its folder's."""
    for name in (path.name, path.parent.name):
        if match := _RANK.search(name):
            return believed(int(match[1] or match[2]))
    return None

"""What the rules about links look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.model.result import CollectiveResult, Contention, GroupResult, Links


@dataclass(frozen=True, slots=True)
class Network:
    """Collectives, their groups and the links under them."""

    collectives: list[CollectiveResult] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)
    links: Links | None = None
    contention: Contention | None = None

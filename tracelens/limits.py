"""How far compressed data may grow: a small file can inflate to more than any disk holds."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RATIO = 200  # traces shrink to a tenth or a thirtieth; deflate can do 1032, zstd far more
ALWAYS = 256 << 20  # ... and so much is always allowed
LARGEST = 64 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What a compressed file may inflate to.

    Attributes:
        inflated: Bytes the user allows. None: 200 times the file's size, at most 64 GiB.
    """

    inflated: int | None = None

    def bytes_for(self, size: int) -> int:
        """Return how many plain bytes a compressed file of a size may have."""
        if self.inflated is not None:
            return self.inflated
        return min(max(RATIO * size, ALWAYS), LARGEST)


_CURRENT: ContextVar[Limits | None] = ContextVar("limits", default=None)


def current() -> Limits:
    """Return the limits in force."""
    return _CURRENT.get() or Limits()


@contextmanager
def use(limits: Limits) -> Iterator[None]:
    """Put limits in force for what is read inside."""
    token = _CURRENT.set(limits)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def exceeded(allowed: int) -> str:
    """Say that data inflate to more than they may."""
    return (
        f"it inflates to more than {allowed / 1e9:.3g} GB, which looks like an attack; "
        "--max-inflated allows more"
    )

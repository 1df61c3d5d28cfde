"""The small file a profiler plugin can leave beside a trace: facts the trace itself may lack.

`rank3.pt.trace.json.gz` has `rank3.pt.trace.json.gz.tracelens.json`: one JSON object. Only the keys
named here are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tracelens.model.facts import believed

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".tracelens.json"
_LONGEST = 1 << 20


class Sidecar(msgspec.Struct, frozen=True):
    """Facts about one trace."""

    rank: int | None = None
    world_size: int | None = None
    host: str | None = None


def read(trace: Path) -> Sidecar:
    """Return what stands beside a trace; nothing usable gives an empty one."""
    return _decoded(trace.with_name(trace.name + SUFFIX)) or Sidecar()


def purpose(path: Path) -> str:
    """Say what a file of this kind is good for."""
    if _decoded(path) is None:
        return "meant for facts about the trace beside it, but not usable"
    if not path.with_name(path.name[: -len(SUFFIX)]).exists():
        return "facts about a trace that is not here"
    return "facts about the trace beside it"


def _decoded(path: Path) -> Sidecar | None:
    try:
        if not path.is_file():  # a pipe would not end
            return None
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_LONGEST), type=Sidecar)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Sidecar(believed(found.rank), believed(found.world_size) or None, found.host)

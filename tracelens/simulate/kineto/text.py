"""The text of single events, laid out as Kineto lays them out.

Times never become floats: microseconds with three decimals are nanoseconds with a point in between.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE_NS = 225 * 7_889_238 * 10**9
"""What times count from: Kineto takes the last multiple of a quarter of a year."""


def microseconds(ns: int) -> str:
    """Print nanoseconds as microseconds, exactly."""
    sign, size = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


def complete(
    category: str,
    name: str,
    process: int | str,
    thread: int | str,
    start: int,
    end: int,
    args: Mapping[str, object],
) -> str:
    """Return an event with a duration (`"ph": "X"`)."""
    body = json.dumps(args)[1:-1]
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, '
        f'"pid": {json.dumps(process)}, "tid": {json.dumps(thread)},\n'
        f'    "ts": {microseconds(start)}, "dur": {microseconds(end - start)},\n'
        f'    "args": {{\n      {body}\n    }}\n  }}'
    )


def flow(phase: str, number: int, process: int, thread: int, at: int) -> str:
    """Return one end of the arrow from a launch (s) to what it launched (f)."""
    bind = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {process}, "tid": {thread}, '
        f'"ts": {microseconds(at)},\n    "cat": "ac2g", "name": "ac2g"{bind}\n  }}'
    )


def metadata(
    name: str, process: int | str, thread: int, at: int, args: Mapping[str, object]
) -> str:
    """Return a name or a place in the display of a process or thread (`"ph": "M"`)."""
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {microseconds(at)}, '
        f'"pid": {json.dumps(process)}, "tid": {thread},\n'
        f'    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'
    )


def instant(name: str, process: str, thread: str, at: int) -> str:
    """Return a mark without a duration (`"ph": "i"`)."""
    return (
        f'  {{\n    "name": {json.dumps(name)}, "ph": "i", "s": "g",\n'
        f'    "pid": {json.dumps(process)}, "tid": {json.dumps(thread)}, "ts": {microseconds(at)}\n'
        "  }"
    )

"""Recompute a trace's device time from its raw JSON with nothing of TraceLens: the other opinion.

Times stay decimals from the file's text to the nanosecond; unions are swept event by event.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DEVICE_CATEGORIES = frozenset(
    {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
)  # fmt: skip
KERNELS = frozenset({"kernel", "Kernel"})
Span = tuple[int, int]


@dataclass
class RawDevice:
    """The timed spans of one device, in nanoseconds after its first event."""

    compute: list[Span] = field(default_factory=list)
    comm: list[Span] = field(default_factory=list)
    copy: list[Span] = field(default_factory=list)


def load(path: Path) -> list[dict[str, Any]]:
    """Read a file's complete events; numbers with a fraction stay decimals."""
    data = path.read_bytes()
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    root = json.loads(plain.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
    events = root if isinstance(root, list) else root["traceEvents"]
    return [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]


def devices(events: Iterable[dict[str, Any]]) -> dict[int, RawDevice]:
    """Sort the timed device events into classes; communication by NCCL's and RCCL's name."""
    found: dict[int, RawDevice] = {}
    for event in events:
        if event.get("cat") not in DEVICE_CATEGORIES or not is_timed(event):
            continue
        device = found.setdefault(int(event["args"].get("device", event["pid"])), RawDevice())
        span = (nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"]))
        if event["cat"] not in KERNELS:
            device.copy.append(span)
        elif event["name"].startswith("nccl"):
            device.comm.append(span)
        else:
            device.compute.append(span)
    return found


def is_timed(event: dict[str, Any]) -> bool:
    if "dur" not in event or not nanoseconds(event["ts"]):
        return False
    shortest = 1 if event["cat"] in KERNELS else 0
    return nanoseconds(event["dur"]) >= shortest


def nanoseconds(us: int | Decimal | str) -> int:
    value = Decimal(us) * 1000
    assert value == int(value), "finer than a nanosecond"
    return int(value)


def length(*parts: list[Span]) -> int:
    """Return the length of the union of spans."""
    total, reach = 0, None
    for start, end in sorted(span for part in parts for span in part):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def partition(device: RawDevice) -> dict[str, int]:
    """Return the parts of the window from the first to the last event, by lengths of unions."""
    spans = [*device.compute, *device.comm, *device.copy]
    window = max(end for _, end in spans) - min(start for start, _ in spans)
    compute, comm, copy = (length(part) for part in (device.compute, device.comm, device.copy))
    kernels = length(device.compute, device.comm)
    busy = length(device.compute, device.comm, device.copy)
    return {
        "window_ns": window,
        "compute_ns": compute,
        "comm_ns": comm,
        "exposed_comm_ns": kernels - compute,
        "copy_ns": copy,
        "exposed_copy_ns": busy - kernels,
        "busy_ns": busy,
        "idle_ns": window - busy,
    }


def kernel_times(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Sum the durations of each kernel and copy name."""
    times: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in DEVICE_CATEGORIES and is_timed(event):
            times[event["name"]] += nanoseconds(event["dur"])
    return times

"""Losses that nsys reports itself, in the messages it keeps about a capture.

Messages hold paths and names of the user's machine. None is copied: each is held against the few
texts below, and what is kept is what kind of events was lost, and how many.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tracelens.digits import as_integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_nsight.tables import Tables

MESSAGES = "DIAGNOSTIC_EVENT"
DEVICE, RANGES, COUNTERS = "device", "ranges", "counters"

# Texts of nsys 2023.4 (its libraries hold them), and the same words for other counts. A number is
# how many were lost; "0 were dropped" is no loss.
_LOSSES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (DEVICE, r"CUPTI dropped\s+(?P<count>\d+) records"),
        (DEVICE, r"(?P<count>\d+) CUPTI events were detected incomplete"),
        (DEVICE, r"incomplete CUPTI events dropped:\s*(?P<count>\d+)"),
        (DEVICE, r"(?P<count>\d+) GPU events were discarded"),
        (DEVICE, r"(?P<count>\d+) (?:CUDA|CUPTI) events were (?:dropped|discarded|lost)"),
        (DEVICE, r"(?:CUDA|CUPTI) events (?:dropped|discarded|lost):\s*(?P<count>\d+)"),
        (DEVICE, r"allocate CUPTI buffer"),
        (DEVICE, r"not all CUDA events might have been collected"),
        (DEVICE, r"some (?:CUDA|CUPTI) events might be missing"),
        (RANGES, r"(?P<count>\d+) NVTX \w+ were (?:dropped|discarded|lost)"),
        (RANGES, r"NVTX events (?:dropped|discarded|lost):\s*(?P<count>\d+)"),
        (RANGES, r"not all NVTX events might have been collected"),
        (COUNTERS, r"NIC metric data is incomplete"),
        (COUNTERS, r"\((?P<count>\d+) dropped samples\)"),
        (COUNTERS, r"Sampling buffer overflow"),
    )
)


def losses(tables: Tables, process: int) -> dict[str, int]:
    """Return how many events of each kind nsys says it lost, 0 where it gives no number.

    Args:
        tables: The export.
        process: The process they shall be of.
    """
    found: dict[str, dict[re.Pattern[str], int]] = defaultdict(lambda: defaultdict(int))
    for text in _messages(tables, process):
        kind, pattern, count = _read(text)
        if pattern is not None:
            found[kind][pattern] += count
    # One loss may be reported in several ways: the largest number is that of all.
    return {kind: max(counts.values()) for kind, counts in found.items()}


def _messages(tables: Tables, process: int) -> Iterator[str]:
    """Yield the messages about a process, and those about none: these have negative ids."""
    if MESSAGES not in tables.columns:
        return
    rows = tables.read(MESSAGES, ["globalPid"], ["text"])
    owners = rows.integers["globalPid"].tolist()
    for owner, text in zip(owners, rows.texts["text"].texts(), strict=True):
        if owner == process or owner < 0:
            yield text


def _read(text: str) -> tuple[str, re.Pattern[str] | None, int]:
    """Return what a message says was lost, by which pattern, and how many; None if nothing."""
    for kind, pattern in _LOSSES:
        if match := pattern.search(text):
            count = match.groupdict().get("count")
            nothing = count is not None and not count.strip("0")
            return kind, None if nothing else pattern, as_integer(count) or 0
    return "", None, 0

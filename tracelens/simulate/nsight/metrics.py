"""Samples of how busy each GPU's links are, as `nsys profile --gpu-metrics-devices=all` takes them.

A simulated link has one speed, so what is sampled is a share of time: a link is `BUSY` per cent
busy from when the last member of a collective or message is there until its kernel ends, and idle
while members wait. Numbers of counters mean nothing, so each GPU counts from another.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tracelens.intervals import Intervals, covered, union
from tracelens.simulate import clocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.simulate.nsight.tables import Database
    from tracelens.simulate.recording import RecordedRank, Recording

PERIOD_NS = 100_000  # 10 kHz, the default
BUSY = {"Requests User Data": 60, "Requests Protocol Data": 8,
        "Responses User Data": 0, "Responses Protocol Data": 4}  # fmt: skip
_TYPE = 0x0101_0000_0000_0000  # of the samples of GPU 0


def transfers(recording: Recording) -> dict[int, Intervals]:
    """Return when each rank's links carry something, in true time."""
    last: dict[int, int] = defaultdict(int)
    for rank in recording.ranks:
        for event in rank.device_events:
            for place in event.communications:
                instance = rank.communications[place].instance
                last[instance] = max(last[instance], event.start)
    found = {}
    for rank in recording.ranks:
        carrying = [event for event in rank.device_events if event.communications]
        start = [
            max(last[rank.communications[place].instance] for place in event.communications)
            for event in carrying
        ]
        end = [event.end for event in carrying]
        found[rank.rank] = union(np.array(start, np.int64), np.array(end, np.int64))
    return found


def add(
    database: Database, ranks: Sequence[RecordedRank], carried: dict[int, Intervals], begin_ns: int
) -> None:
    """Add the samples of the GPUs of one file.

    Args:
        database: The export.
        ranks: Its ranks in true time.
        carried: When each rank's links carry something, in true time.
        begin_ns: What a right clock shows when the run begins.
    """
    for rank in ranks:
        times = carried[rank.rank]
        start, end = (_shown(rank, part, begin_ns) for part in times)
        low = begin_ns + clocks.reading(rank.clock, min(e.start for e in rank.device_events))
        high = begin_ns + clocks.reading(rank.clock, max(e.end for e in rank.device_events))
        taken = np.arange(low - PERIOD_NS, high + 2 * PERIOD_NS, PERIOD_NS)
        share = covered(Intervals(start, end), taken - PERIOD_NS, taken) / PERIOD_NS
        _add_counters(database, rank.device, taken, share)


def _shown(rank: RecordedRank, times: Ints, begin_ns: int) -> Ints:
    return np.array([begin_ns + clocks.reading(rank.clock, int(t)) for t in times], np.int64)


def _add_counters(database: Database, device: int, taken: Ints, share: NDArray[np.float64]) -> None:
    counters = {
        f"NVLink {way} {kind}": busy for way in ("RX", "TX") for kind, busy in BUSY.items()
    } | {"PCIe RX Throughput": 0, "PCIe TX Throughput": 0, "SM Active": 50}
    for number, (name, busy) in enumerate(counters.items(), 3 * device):
        key = {"typeId": _TYPE | device, "metricId": number}
        database.add(
            "TARGET_INFO_GPU_METRICS",
            **key,
            sourceId=_TYPE,
            typeName="GPU Metrics",
            metricName=f"{name} [Throughput %]",
        )
        for moment, value in zip(taken.tolist(), np.rint(share * busy).tolist(), strict=True):
            database.add("GPU_METRICS", timestamp=moment, **key, value=int(value))

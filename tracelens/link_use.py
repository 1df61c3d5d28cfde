"""How busy the links of each device were: samples of hardware, beside the time of communication.

Samples state a share of the link's peak, so only shares are facts; bytes need the peak
(`tracelens.links`), and are called an estimate. A link that idles while collectives run shows what
neither their bytes nor their time does: members wait, or something other than the link limits them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tracelens.intervals import Intervals, clip, covered, union
from tracelens.model.result import LinkUse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.intervals import Ints
    from tracelens.model.result import Links
    from tracelens.reduced import StepReduction
    from tracelens.run import RankRun, Run

PERCENT = "%"
Direction = Literal["sent", "received"]

# Names as nsys's metric sets have them (GpuMetrics/*.config). It stacks the four kinds of a
# direction of NVLink: together they are the link's throughput. PCIe is counted with its protocol.
_NVLINK = re.compile(r"NVLink (TX|RX) (?:Requests|Responses) (User|Protocol) Data\b")
_PCIE = re.compile(r"PCIe (TX|RX|Write|Read) (?:Throughput|Bandwidth)\b")
_SENT = ("TX", "Write")
_COUNTERS = {"NVLink": 4, "PCIe": 1}  # of one direction
_OF_PAYLOAD = 2
_INSIDE = 0.9
"""The share of a sample that communication must fill for it to say how busy a link is then."""
_OF_STEP, _OF_COMMUNICATION = 0.9, 0.5
"""The share of the time that samples must cover: kernels shorter than two samples say nothing."""


class Metric(NamedTuple):
    """What a counter is about; `payload` is True where it leaves the protocol out."""

    link: str
    direction: Direction
    payload: bool


def metric(name: str) -> Metric | None:
    """Return what a counter is about; None if it is no throughput of a link."""
    if found := _NVLINK.match(name):
        return Metric("NVLink", _direction(found[1]), found[2] == "User")
    found = _PCIE.match(name)
    return None if found is None else Metric("PCIe", _direction(found[1]), False)


def _direction(text: str) -> Direction:
    return "sent" if text in _SENT else "received"


# in one rank -------------------------------------------------------------------------------------


class Use(NamedTuple):
    """What samples say about some time: of `time_ns` they cover `covered_ns`.

    `sum_ns` is the sum of per cent times nanoseconds; `peak` is of those that lie in it by half,
    -1 if none does.
    """

    time_ns: int
    covered_ns: int
    sum_ns: int
    peak: int

    def mean(self, least: float) -> float | None:
        """Return the mean in per cent; None unless samples cover this share of the time."""
        known = self.covered_ns > 0 and self.covered_ns >= least * self.time_ns
        return self.sum_ns / self.covered_ns if known else None

    def highest(self, least: float) -> float | None:
        """Return the highest sample, in per cent; None as for the mean."""
        return None if self.mean(least) is None or self.peak < 0 else float(self.peak)


class StepUse(NamedTuple):
    """What the samples of one direction of a link say about one step.

    Attributes:
        device: Place of the device among the rank's.
        link: NVLink or PCIe.
        direction: sent or received.
        step: Place of the step.
        sample_ns: The usual length of a sample.
        whole: The step's window.
        communicating: The part of it in which communication runs on the device.
        payload: The step's window, data without protocol.
    """

    device: int
    link: str
    direction: Direction
    step: int
    sample_ns: int
    whole: Use
    communicating: Use
    payload: Use


class _Samples(NamedTuple):
    """Consecutive samples, in per cent."""

    start: Ints
    end: Ints
    value: Ints


_NOTHING = _Samples(*(np.empty(0, np.int64) for _ in range(3)))


def reduce(
    counters: pd.DataFrame,
    device: int,
    place: int,
    communicating: Intervals,
    steps: Sequence[StepReduction],
) -> list[StepUse]:
    """Sum up what the links of a device carried in each step, and while communication ran.

    Args:
        counters: The table `counters` of a RankTrace.
        device: The device, as the trace numbers it.
        place: Its place among the rank's devices.
        communicating: When communication runs on it.
        steps: Its steps.
    """
    found = []
    for link, direction, every, payload in _series(counters, device):
        length = (every.end - every.start) if len(every.end) else (payload.end - payload.start)
        sample = round(float(np.median(length)))
        for number, step in enumerate(steps):
            window = union(np.array([step.low], np.int64), np.array([step.high], np.int64))
            busy = clip(communicating, step.low, step.high)
            uses = _use(every, window), _use(every, busy, _INSIDE), _use(payload, window)
            found.append(StepUse(place, link, direction, number, sample, *uses))
    return found


def _series(
    counters: pd.DataFrame, device: int
) -> Iterator[tuple[str, Direction, _Samples, _Samples]]:
    """Yield each direction of each link that was sampled: all of it, and its data alone."""
    if not len(counters):
        return
    codes: dict[tuple[str, Direction], dict[int, bool]] = defaultdict(dict)
    for code, text in enumerate(counters["name"].cat.categories):
        if (found := metric(str(text))) is not None:
            codes[found.link, found.direction][code] = found.payload
    own = (counters["device"] == device).to_numpy() & (counters["unit"] == PERCENT).to_numpy()
    name = counters["name"].cat.codes.to_numpy()
    for (link, direction), members in sorted(codes.items()):
        mine = np.flatnonzero(own & np.isin(name, list(members)))
        data = np.isin(name[mine], [code for code, is_payload in members.items() if is_payload])
        every = _summed(counters, mine, name, _COUNTERS[link])
        payload = _summed(counters, mine[data], name, _OF_PAYLOAD)
        if len(every.end) or len(payload.end):
            yield link, direction, every, payload


def _summed(
    counters: pd.DataFrame, rows: NDArray[np.intp], name: NDArray[np.generic], expected: int
) -> _Samples:
    """Add up the counters of each sample; one that lacks a counter is left out."""
    if len(np.unique(name[rows])) != expected:
        return _NOTHING
    end, at, count = np.unique(
        counters["end"].to_numpy(np.int64)[rows], return_inverse=True, return_counts=True
    )
    start, total = np.zeros(len(end), np.int64), np.zeros(len(end), np.int64)
    start[at] = counters["start"].to_numpy()[rows]
    np.add.at(total, at, counters["value"].to_numpy()[rows])
    whole = count == expected
    return _Samples(start[whole], end[whole], total[whole])


def _use(samples: _Samples, time: Intervals, inside: float = 0.0) -> Use:
    """Weigh each sample by how much of it lies in some time.

    Args:
        samples: The samples.
        time: The time they shall speak for.
        inside: The share of a sample that must lie in it: else it speaks for something else too.
    """
    length = samples.end - samples.start
    within = covered(time, samples.start, samples.end)
    within = np.where(within >= inside * length, within, 0)
    peak = int(samples.value[(within > 0) & (2 * within >= length)].max(initial=-1))
    return Use(time.length, int(within.sum()), int((within * samples.value).sum()), peak)


# over the run ------------------------------------------------------------------------------------


def observe(run: Run, links: Links) -> list[LinkUse]:
    """Return the use of each device's links over the steps of the mean."""
    return [use for rank in run.counted for use in _of_rank(rank, links)]


def _of_rank(rank: RankRun, links: Links) -> Iterator[LinkUse]:
    steps: dict[tuple[int, str, Direction], list[StepUse]] = defaultdict(list)
    for number, cycle in enumerate(rank.cycles):
        for one in cycle.link_use:
            if rank.in_mean.get((number, one.step), False):
                device = cycle.devices[one.device].device
                steps[device, one.link, one.direction].append(one)
    for (device, link, direction), mine in sorted(steps.items()):
        whole, communicating, payload = (
            _total([getattr(one, name) for one in mine])
            for name in ("whole", "communicating", "payload")
        )
        data, peak = payload.mean(_OF_STEP), _peak_gbps(link, links)
        carried = None
        if data is not None and peak is not None:  # GB/s are bytes a nanosecond
            carried = round(data / 100 * peak * payload.time_ns / len(mine))
        yield LinkUse(
            rank=rank.rank,
            device=device,
            link=link,
            direction=direction,
            sample_ns=round(float(np.median([one.sample_ns for one in mine]))),
            mean_percent=whole.mean(_OF_STEP),
            peak_percent=whole.highest(_OF_STEP),
            payload_percent=data,
            communicating_mean_percent=communicating.mean(_OF_COMMUNICATION),
            communicating_peak_percent=communicating.highest(_OF_COMMUNICATION),
            estimated_payload_bytes_per_step=carried,
        )


def _total(parts: Sequence[Use]) -> Use:
    time, inside, total, peak = zip(*parts, strict=True)
    return Use(sum(time), sum(inside), sum(total), max(peak))


def _peak_gbps(link: str, links: Links) -> float | None:
    """Return the peak of a device's links: what is known is of the link its kind names.

    `--intra-bw` names none: it is of what joins the GPUs, so of NVLink where that was counted.
    """
    of = "NVLink" if links.kind is None else links.kind.partition(" ")[0]
    return links.intra_gbps if of == link else None

"""Do kernels run slower while a collective does? Both need multiprocessors and memory bandwidth.

Compared is like with like: calls wholly inside communication with calls of the same work wholly
outside. A kernel's name and grid do not fix its work (a matrix multiplication's inner size is in
neither), so the kernels before and after it on its stream must be the same too: equal layers do
equal work. A call that shares the device with other compute counts in neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.communication import COMPUTE
from tracelens.intervals import covered
from tracelens.model import result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tracelens.attribution import Timeline, Unions
    from tracelens.intervals import Ints

COLUMNS = ("name", "alone", "alone_ns", "beside", "beside_ns")
_FEWEST = 3
"""Calls of a kernel on a rank, alone and beside communication each, for a median to mean much."""
_MOST_SHOWN = 10
_NEIGHBOURS = (-2, -1, 1, 2)
# cuBLAS, CUTLASS, cuBLASLt's nvjet, Tensile (AMD), Triton's and CK's own.
_GEMM = re.compile(r"gemm|xmma|cutlass|nvjet|^Cijk_|wgmma|matmul|triton_tem_fused_.*mm", re.I)


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    alone: int
    alone_ns: float
    beside: int
    beside_ns: float


def is_gemm(name: str) -> bool:
    """Tell whether a kernel's name is that of a matrix multiplication."""
    return _GEMM.search(name) is not None


def compare(
    timeline: Timeline, parts: Unions, events: pd.DataFrame, counted: NDArray[np.bool_]
) -> pd.DataFrame:
    """Compare the calls of each kernel on one device.

    Args:
        timeline: The device's events.
        parts: Their unions.
        events: The same events with `name` and `grid`.
        counted: Which events to look at.

    Returns:
        A row for each kind of work with calls of both kinds: `COLUMNS`, their numbers and median
        durations.
    """
    rows = np.flatnonzero(timeline.event_class == COMPUTE)
    start, end = timeline.start[rows], timeline.end[rows]
    shared = covered(parts.comm, start, end)
    comparable = _apart(start, end) & counted[rows] & ((shared == end - start) | (shared == 0))
    calls = events.iloc[rows]
    frame = pd.DataFrame(
        {
            "name": calls["name"].array[comparable],
            "work": _works(calls)[comparable],
            "beside": shared[comparable] > 0,
            "ns": (end - start)[comparable],
        }
    )
    grouped = frame.groupby(["name", "work", "beside"], observed=True)["ns"]
    found = grouped.agg(["size", "median"])
    wide = found[found["size"] >= _FEWEST].unstack("beside").dropna()
    if len(wide.columns) < 2 * len(found.columns) or not len(wide):
        return pd.DataFrame(columns=list(COLUMNS))
    return pd.DataFrame(
        {
            "name": wide.index.get_level_values("name").astype(object),
            "alone": wide["size", False].to_numpy(np.int64),
            "alone_ns": wide["median", False].to_numpy(float),
            "beside": wide["size", True].to_numpy(np.int64),
            "beside_ns": wide["median", True].to_numpy(float),
        }
    )


def _works(calls: pd.DataFrame) -> Ints:
    """Number calls that do the same work: equal in name and grid, as are their neighbours."""
    order = np.lexsort((np.arange(len(calls)), calls["stream"].to_numpy()))
    codes = calls["name"].cat.codes.to_numpy(np.int64) * len(calls["grid"].cat.categories)
    own = pd.factorize((codes + calls["grid"].cat.codes.to_numpy())[order])[0].astype(np.int64)
    work, kinds = own, int(own.max(initial=0)) + 1
    for distance in _NEIGHBOURS:
        # Calls at the ends of the recording borrow from the other end, and match nothing there.
        work = pd.factorize(work * kinds + np.roll(own, distance))[0].astype(np.int64)
    result = np.empty_like(work)
    result[order] = work
    return result


def _apart(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Tell which of some intervals, ascending by start, overlap none of the others."""
    apart = np.ones(len(start), bool)
    apart[1:] &= start[1:] >= np.maximum.accumulate(end)[:-1]
    apart[:-1] &= end[:-1] <= start[1:]
    return apart


def merge(parts: Iterable[pd.DataFrame], steps: int) -> result.Contention | None:
    """Join the comparisons of all devices; None if nothing could be compared.

    Args:
        parts: From `compare`, one a device.
        steps: Steps recorded by all devices together.
    """
    whole = [part for part in parts if len(part)]
    if not whole:
        return None
    kernels = _by_name(pd.concat(whole, ignore_index=True))
    gemms = [kernel for kernel in kernels if is_gemm(kernel.name)]
    costly = sorted(kernels, key=lambda k: (k.beside * (k.alone_ns - k.beside_ns), k.name))
    return result.Contention(
        slowdown=_slowdown(kernels),
        gemm_slowdown=_slowdown(gemms),
        lost_per_step_ns=_lost(kernels, steps),
        gemm_lost_per_step_ns=_lost(gemms, steps) if gemms else None,
        kernels=[
            result.SlowedKernel(
                name=kernel.name,
                is_gemm=is_gemm(kernel.name),
                alone=kernel.alone,
                alone_ns=round(kernel.alone_ns),
                beside=kernel.beside,
                beside_ns=round(kernel.beside_ns),
                slowdown=kernel.beside_ns / kernel.alone_ns,
            )
            for kernel in costly[:_MOST_SHOWN]
        ],
    )


def _by_name(frame: pd.DataFrame) -> list[_Kernel]:
    """Average a name's grids and devices, each weighted by its calls beside communication."""
    weight = frame["beside"]
    weighted = frame.assign(
        alone_ns=frame["alone_ns"] * weight, beside_ns=frame["beside_ns"] * weight
    )
    sums = weighted.groupby("name", sort=True)[list(COLUMNS[1:])].sum()
    return [
        _Kernel(str(name), int(alone), alone_ns / beside, int(beside), beside_ns / beside)
        for name, alone, alone_ns, beside, beside_ns in sums.itertuples()
    ]


def _slowdown(kernels: list[_Kernel]) -> float | None:
    """Return how much longer all calls beside communication took than they would have alone."""
    alone = sum(kernel.beside * kernel.alone_ns for kernel in kernels)
    return sum(kernel.beside * kernel.beside_ns for kernel in kernels) / alone if alone else None


def _lost(kernels: list[_Kernel], steps: int) -> int | None:
    if not steps:
        return None
    lost = sum(kernel.beside * (kernel.beside_ns - kernel.alone_ns) for kernel in kernels)
    return round(lost / steps)

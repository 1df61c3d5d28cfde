"""Parts of the result: where ranks sit, the links under them, kernels slowed by communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Confidence = Literal["exact", "high", "medium", "low", "unknown"]


@dataclass(frozen=True, slots=True)
class Node:
    """One machine and its ranks."""

    name: str
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the layout with more than one rank.

    `stride` is how many ranks lie between neighbours, None if that differs; `nodes_per_group` is
    the most machines that one of its groups is spread over, None if unknown.
    """

    name: str  # pp dp replicate shard ep cp tp
    size: int
    groups: int
    stride: int | None
    first_group: list[int] | None
    nodes_per_group: int | None
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where a rank sits: its place on each axis, its pipeline stage, its machine in `nodes`."""

    rank: int
    coordinates: dict[str, int]
    stage: int | None
    node: int | None


@dataclass(frozen=True, slots=True)
class Links:
    """One-way peaks per GPU in decimal GB/s: inside a machine, and of its network."""

    kind: str | None  # NVLink 4, PCIe 4.0 x16 ...
    intra_gbps: float | None
    inter_gbps: float | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Topology:
    """The parallel layout of all ranks, those without a trace too.

    `nodes` is None if no rank's machine is known; ranks of no node in it are on an unknown one.
    """

    nodes: list[Node] | None
    nodes_source: str | None  # option | hosts | devices
    axes: list[Axis]
    positions: list[RankPosition]
    links: Links


@dataclass(frozen=True, slots=True)
class SlowedKernel:
    """A kernel's calls alone and beside communication, with median durations."""

    name: str
    is_gemm: bool
    alone: int
    alone_ns: int
    beside: int
    beside_ns: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class Contention:
    """How much slower equal kernels run beside communication than alone.

    `slowdown` is over all kernels that could be compared, each call as it occurred; the time lost
    is per step and device.
    """

    slowdown: float | None
    gemm_slowdown: float | None
    lost_per_step_ns: int | None
    gemm_lost_per_step_ns: int | None
    kernels: list[SlowedKernel]

"""The machine: how fast GPUs, links and hosts are, which ranks are slow, and what clocks show."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.simulate.recording import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHORTEST_KERNEL_NS = 2_000


@dataclass(frozen=True, slots=True)
class Link:
    """A link in the alpha-beta model: a transfer takes `latency + bytes / bandwidth`.

    Attributes:
        latency_ns: alpha.
        gb_per_s: beta, in 1e9 bytes a second, which is bytes a nanosecond.
    """

    latency_ns: int
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds. The defaults are near an H100 node's.

    Attributes:
        tflops: Matrix multiplication, 1e12 operations a second.
        memory_gb_per_s: Memory bandwidth: what bounds every other kernel.
        gpus_per_node: Ranks that share a host.
        intra: Links between the GPUs of a node.
        inter: Links between nodes.
        launch_latency_ns: From the end of a launch to the start of the kernel.
        host_ns: Host time of an operator that launches one kernel.
        end_spread_ns: The members of a collective end at most this much after the first one.
        slow: Per rank the factor of its kernels' times.
        slow_hosts: Per rank the factor of its host's times.
        contention: Factor of a kernel that starts while a collective of the rank runs.
        skew_ns: Clocks are off by at most this much.
        drift_ppm: Clocks run wrong by at most this.
        jitter: Standard deviation of kernel, host and transfer times, as a share.
    """

    tflops: float = 400.0
    memory_gb_per_s: float = 2500.0
    gpus_per_node: int = 8
    intra: Link = Link(12_000, 300.0)
    inter: Link = Link(25_000, 45.0)
    launch_latency_ns: int = 3_000
    host_ns: int = 6_000
    end_spread_ns: int = 500
    slow: Mapping[int, float] = field(default_factory=dict)
    slow_hosts: Mapping[int, float] = field(default_factory=dict)
    contention: float = 1.0
    skew_ns: int = 0
    drift_ppm: float = 0.0
    jitter: float = 0.01

    def kernel_ns(self, operations: float, moved: float) -> float:
        """Return how long a kernel takes that computes and moves so much, on a right GPU."""
        computing = operations / self.tflops / 1e3
        return max(computing, moved / self.memory_gb_per_s, _SHORTEST_KERNEL_NS)

    def link(self, ranks: Sequence[int]) -> Link:
        """Return the slowest link between ranks."""
        nodes = {rank // self.gpus_per_node for rank in ranks}
        return self.intra if len(nodes) == 1 else self.inter


class Chance:
    """Jitter and clocks by seed; every rank draws from its own sequence."""

    def __init__(self, machine: Machine, seed: int, who: int | str) -> None:
        self._machine = machine
        self._random = random.Random(f"{seed}/{who}")  # noqa: S311 - a simulation

    def around(self, ns: float) -> int:
        """Return a time with jitter, at least a nanosecond."""
        jitter = self._machine.jitter
        return max(round(ns * self._random.gauss(1.0, jitter) if jitter else ns), 1)

    def below(self, ns: int) -> int:
        """Return a time from 0 to `ns`, both included."""
        return self._random.randint(0, ns)

    def clock(self) -> Clock:
        """Return a clock within the machine's skew and drift."""
        skew, drift = self._machine.skew_ns, self._machine.drift_ppm
        return Clock(self._random.randint(-skew, skew), self._random.uniform(-drift, drift))

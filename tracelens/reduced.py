"""What is left of one rank's trace after its reduction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from tracelens.communication import COMMUNICATION

if TYPE_CHECKING:
    from tracelens.groups import Group
    from tracelens.idle import IdleCauses
    from tracelens.link_use import StepUse
    from tracelens.model.result import Notice, Partition
    from tracelens.model.trace import RankInfo
    from tracelens.passes import Work

CLASS_NAMES = ("compute", "communication", "copy")


@dataclass(slots=True)
class StepReduction:
    """One step of one device."""

    step: int
    occurrence: int
    complete: bool
    period_ns: int
    low: int
    high: int
    partition: Partition
    idle: IdleCauses | None
    work: Work | None


@dataclass(slots=True)
class DeviceReduction:
    """One device timeline, reduced."""

    process: int
    device: int
    name: str | None
    untimed: int
    before_first_step: int
    total: Partition
    steps: list[StepReduction]


@dataclass(slots=True)
class RankReduction:
    """What is left of one rank and cycle.

    Attributes:
        operations: One row per operation, see `operation_rows`; `carrier` is the row that has the
            time of the kernel it travels in.
        exposed: Per piece of exposed communication: row, op (of its kernel: a batch of messages
            may send and receive), device (place in `devices`), start, end.
        operation_steps: Per (row of operations, step): time and exposed time in its window.
        kernels: Per (name, class, op, step): count and total time.
        contention: Per (name, grid) of a kernel: calls alone and beside communication.
        mark_counts: Per (name, step): how often a named range starts in a step.
        recorded_steps: Numbers of all steps in the trace, selected or not.
        first_ns: Absolute time of the first event, for the report's date and cycle order.
        network: Per (step, direction): bytes the machine's network cards counted.
        link_use: Per device, link, direction and step: how busy the link was.
    """

    info: RankInfo
    devices: list[DeviceReduction]
    groups: list[Group]
    operations: pd.DataFrame
    operation_steps: pd.DataFrame
    exposed: pd.DataFrame
    kernels: pd.DataFrame
    mark_counts: pd.DataFrame
    step_source: str | None
    recorded_steps: list[int]
    first_ns: int
    last_ns: int
    contention: pd.DataFrame = field(default_factory=pd.DataFrame)
    network: pd.DataFrame = field(default_factory=pd.DataFrame)
    link_use: list[StepUse] = field(default_factory=list)
    guessed_groups: int = 0
    without_device_time: int = 0
    in_graphs: int = 0
    launches_without_record: int = 0
    lost: int = 0  # those of which no other notice says why
    notices: list[Notice] = field(default_factory=list)

    @property
    def step_count(self) -> int:
        """Return how many steps its devices have."""
        return len(self.devices[0].steps) if self.devices else 0


assert CLASS_NAMES[COMMUNICATION] == "communication"

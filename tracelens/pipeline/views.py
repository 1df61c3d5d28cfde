"""What one rank shows of its pipeline in a step: whom it talks to, and its passes in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.model.trace import NONE
from tracelens.operations import CODE, MESSAGES, RECV, SEND
from tracelens.passes import BACKWARD, FORWARD, Passes

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.operations_table import OperationsTable
    from tracelens.passes import Work
    from tracelens.run import RankRun, Run

_NO_PIPELINE = ("tp", "ep", "cp", "dp", "edp", "shard", "replicate")


@dataclass(frozen=True, slots=True)
class View:
    """The last step of a rank's mean.

    Attributes:
        messages: (op, peer) in order of launch.
        passes: Its passes in order of launch; None if it did no work.
        owed_ns: Backward work launched after the last message: weight gradients nobody waits for.
    """

    messages: list[tuple[str, int]]
    passes: Passes | None = None
    owed_ns: int = 0

    @property
    def peers(self) -> set[int]:
        """The ranks at the other ends."""
        return {peer for _, peer in self.messages}

    @property
    def stages(self) -> list[int]:
        """The virtual stages its schedule's ranges name, ascending; empty if they name none."""
        if self.passes is None or (self.passes.stage == NONE).any():
            return []
        return sorted({int(stage) for stage in self.passes.stage})

    @property
    def forwards(self) -> int | None:
        """How many forward passes it runs; None if it is not known which passes are forward."""
        if self.passes is None:
            return None
        return int((self.passes.kind == FORWARD).sum())

    @property
    def ahead(self) -> int | None:
        """How many forward passes it runs before its first backward pass; None without one."""
        if self.passes is None or not (backward := self.passes.kind != FORWARD).any():
            return None
        return int(np.argmax(backward))

    @property
    def owes(self) -> float:
        """The share of its backward work that follows the last message."""
        if self.passes is None:
            return 0.0
        backward = int(self.passes.work_ns[self.passes.kind == BACKWARD].sum())
        return self.owed_ns / backward if backward else 0.0

    def sends(self, peer: int) -> int:
        """Return how many messages it sends to a rank."""
        return sum(op == SEND and to == peer for op, to in self.messages)


def views(run: Run, table: OperationsTable, roles: dict[int, str]) -> dict[int, View]:
    """Return the view of each rank that takes part in a pipeline.

    Args:
        run: All ranks.
        table: Their operations.
        roles: Role of each group: only messages that may go from stage to stage count.
    """
    frame = table.frame
    stageless = [index for index, role in roles.items() if role in _NO_PIPELINE]
    chosen = frame["op"].isin(MESSAGES) & (frame["peer"] != NONE)
    chosen &= ~frame["group"].isin(stageless) & (frame["launch"] != NONE)
    by_rank = {int(str(rank)): rows for rank, rows in frame[chosen].groupby("rank")}
    found = {}
    for rank in run.counted:
        keys = [key for key in rank.step_keys() if rank.in_mean.get(key, False)]
        if keys and rank.rank in by_rank:
            view = _view(rank, keys[-1], by_rank[rank.rank])
            if view.messages:
                found[rank.rank] = view
    return found


def _view(rank: RankRun, key: tuple[int, int], rows: pd.DataFrame) -> View:
    cycle, index = key
    mine = rows[(rows["cycle"] == cycle) & (rows["step"] == index)]
    mine = mine.sort_values("launch", kind="stable")
    names = {CODE[SEND]: SEND, CODE[RECV]: RECV}
    messages = [
        (names[int(op)], int(peer)) for op, peer in zip(mine["op"], mine["peer"], strict=True)
    ]
    work = work_of(rank, key)
    if work is None or not messages:
        return View(messages, None if work is None else work.passes)
    late = (work.passes.launch > mine["launch"].max()) & (work.passes.kind == BACKWARD)
    return View(messages, work.passes, int(work.passes.work_ns[late].sum()))


def device_of(rank: RankRun, cycle: int) -> int | None:
    """Return the place of the device that works in the pipeline; None if there is none."""
    devices = rank.cycles[cycle].devices
    working = (i for i, d in enumerate(devices) if any(step.work for step in d.steps))
    return next(working, None)


def work_of(rank: RankRun, key: tuple[int, int]) -> Work | None:
    """Return a rank's forward and backward work of a step, on its own clock."""
    cycle, index = key
    if cycle >= len(rank.cycles) or (device := device_of(rank, cycle)) is None:
        return None
    steps = rank.cycles[cycle].devices[device].steps
    return steps[index].work if index < len(steps) else None

"""Find pipelines in the sends and receives of a run, and measure their bubble.

Stages follow from who sends to whom first, micro-batches from the number of messages, the schedule
from how many activations the first stage sends before it receives a gradient (docs/theory.md,
"Pipelines"). The bubble is what a stage does not work during the pipeline phase: from the first
work of any stage to the last one before the optimizer, on aligned clocks. A window from a stage's
own first to its own last work would hide the bubble of the late stages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.model.trace import NONE
from tracelens.operations import CODE, RECV, SEND
from tracelens.theory.pipeline import bubble_share

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.clocks import Clocks
    from tracelens.operations_table import OperationsTable
    from tracelens.run import RankRun, Run

_MODEL_PARALLEL = ("tp", "ep", "cp")


@dataclass(frozen=True, slots=True)
class Chain:
    """The ranks of one pipeline in order of stage, its micro-batches and schedule."""

    ranks: tuple[int, ...]
    micro_batches: int
    schedule: str | None


@dataclass(frozen=True, slots=True)
class _Message:
    op: str
    peer: int


def observe(
    run: Run, table: OperationsTable, roles: dict[int, str], clocks: Clocks
) -> dict[str, Any] | None:
    """Measure the run's pipelines; None if there is none whose stages can be told.

    Args:
        run: All ranks.
        table: Their operations.
        roles: Role of each group: exposed tensor, expert and context parallel time is work.
        clocks: Offsets of the ranks.
    """
    messages = {rank.rank: _messages(table.frame, rank.rank) for rank in run.counted}
    chains = find_chains({rank: listed for rank, listed in messages.items() if listed})
    if not chains:
        return None
    ranks = {rank.rank: rank for rank in run.counted}
    model_parallel = _model_parallel(table, roles)
    measured = [_Measured(chain, ranks, model_parallel, clocks) for chain in chains]
    return _document(chains, measured)


def _messages(frame: pd.DataFrame, rank: int) -> list[_Message]:
    """Return the messages of the rank's last complete step, in launch order."""
    mine = frame[(frame["rank"] == rank) & frame["complete"].to_numpy(bool)]
    mine = mine[mine["op"].isin([CODE[SEND], CODE[RECV]]) & (mine["peer"] != NONE)]
    if not len(mine):
        return []
    last = mine[(mine["cycle"] == mine["cycle"].max())]
    last = last[last["step"] == last["step"].max()].sort_values("launch", kind="stable")
    names = {CODE[SEND]: SEND, CODE[RECV]: RECV}
    return [
        _Message(names[int(op)], int(peer))
        for op, peer in zip(last["op"], last["peer"], strict=True)
    ]


# structure ---------------------------------------------------------------------------------------


def find_chains(messages: dict[int, list[_Message]]) -> list[Chain]:
    """Order ranks into pipelines.

    Args:
        messages: Per rank its messages of one step, in launch order.

    Returns:
        One chain for each set of ranks that forms a line and whose first rank sends first;
        a ring (interleaved stages) or a line with a gap gives none.
    """
    neighbours = {rank: {m.peer for m in listed} for rank, listed in messages.items()}
    firsts = [
        rank
        for rank, listed in messages.items()
        if len(neighbours[rank]) == 1 and listed[0].op == SEND
    ]
    found = (_walk(first, neighbours) for first in sorted(firsts))
    return [_chain(ranks, messages) for ranks in found if ranks is not None]


def _walk(first: int, neighbours: dict[int, set[int]]) -> tuple[int, ...] | None:
    order = [first]
    while True:
        following = neighbours.get(order[-1], set()) - set(order[-2:])
        if not following:
            return tuple(order) if len(order) > 1 else None
        if len(following) > 1 or not following <= neighbours.keys() or following & set(order):
            return None
        order.append(following.pop())


def _chain(ranks: tuple[int, ...], messages: dict[int, list[_Message]]) -> Chain:
    first = messages[ranks[0]]
    sends = sum(message.op == SEND for message in first)
    ahead = next((i for i, message in enumerate(first) if message.op == RECV), None)
    schedule = None if ahead is None else _schedule(len(ranks), sends, ahead)
    return Chain(ranks, sends, schedule)


def _schedule(stages: int, micro_batches: int, ahead: int) -> str | None:
    """Name the schedule by the activations the first stage sends before it gets a gradient.

    With as many micro-batches as stages, GPipe and 1F1B send alike, so neither is named.
    """
    is_gpipe, is_1f1b = ahead == micro_batches, ahead == min(stages, micro_batches)
    if is_gpipe and is_1f1b:
        return None
    return "gpipe" if is_gpipe else "1f1b" if is_1f1b else None


# measurement -------------------------------------------------------------------------------------


def _model_parallel(table: OperationsTable, roles: dict[int, str]) -> dict[int, int]:
    """Return per rank the exposed model-parallel communication of the mean step."""
    frame = table.frame
    inside = [roles[int(group)] in _MODEL_PARALLEL for group in frame["group"]]
    sums = frame[inside].groupby("rank")["exposed_in_mean_ns"].sum()
    return {
        int(str(rank)): round(int(total) / table.mean_steps[int(str(rank))])
        for rank, total in sums.items()
        if table.mean_steps[int(str(rank))]
    }


class _Measured:
    """The mean step of one chain: its phase, and when each stage works in it."""

    def __init__(
        self,
        chain: Chain,
        ranks: dict[int, RankRun],
        model_parallel: dict[int, int],
        clocks: Clocks,
    ) -> None:
        self.phase: list[int] = []
        self.work: dict[int, list[int]] = {rank: [] for rank in chain.ranks}
        self.before: dict[int, list[int]] = {rank: [] for rank in chain.ranks}
        self.after: dict[int, list[int]] = {rank: [] for rank in chain.ranks}
        offsets = [clocks.offset_ns.get(rank, 0) for rank in chain.ranks]
        for key in ranks[chain.ranks[0]].step_keys():
            works = [_work(ranks[rank], key) for rank in chain.ranks]
            if any(work is None for work in works):
                continue
            spans = [
                (work[0] - offset, work[1] - offset, work[2])
                for work, offset in zip(works, offsets, strict=True)
                if work is not None
            ]
            low, high = min(s[0] for s in spans), max(s[1] for s in spans)
            self.phase.append(high - low)
            for rank, (first, last, worked) in zip(chain.ranks, spans, strict=True):
                self.work[rank].append(worked + model_parallel.get(rank, 0))
                self.before[rank].append(first - low)
                self.after[rank].append(high - last)

    def bubble_of(self, rank: int) -> float | None:
        """Return the share of the phase in which a rank does not work."""
        total = sum(self.phase)
        return 1 - sum(self.work[rank]) / total if total else None


def _work(rank: RankRun, key: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return first and last instant (absolute) and length of a rank's work in a step."""
    number, index = key
    if not rank.in_mean.get(key, False) or number >= len(rank.cycles):
        return None
    cycle = rank.cycles[number]
    work = cycle.devices[0].steps[index].work
    base = cycle.info.base_ns
    return None if work is None else (work.first + base, work.last + base, work.work_ns)


def _document(chains: list[Chain], measured: list[_Measured]) -> dict[str, Any]:
    """Build the result's `pipeline`; numbers are means over steps, stages and pipelines."""
    first = chains[0]
    same = {(len(c.ranks), c.micro_batches, c.schedule) for c in chains}
    schedule = first.schedule if len(same) == 1 else None
    # Keys are texts, as they will be in JSON: a saved result must read back equal.
    by_rank = {
        str(rank): one.bubble_of(rank)
        for chain, one in zip(chains, measured, strict=True)
        for rank in chain.ranks
    }
    known = [value for value in by_rank.values() if value is not None]
    return {
        "schedule": schedule,
        "stages": len(first.ranks),
        "virtual_stages": 1,
        "microbatches": first.micro_batches,
        "stage_of_rank": {str(r): stage for c in chains for stage, r in enumerate(c.ranks)},
        "bubble": {
            "theory": bubble_share(len(first.ranks), first.micro_batches),
            "measured": float(np.mean(known)) if known else None,
            "by_rank": by_rank,
            **_times(chains, measured),
        },
        "timeline": [],
    }


def _times(chains: list[Chain], measured: list[_Measured]) -> dict[str, int | None]:
    """Split the bubble into idle before a stage's first work, after its last, and between."""
    totals: Counter[str] = Counter()
    count = 0
    for chain, one in zip(chains, measured, strict=True):
        worked = [sum(one.work[rank]) for rank in chain.ranks]
        for rank in chain.ranks:
            idle = sum(one.phase) - sum(one.work[rank])
            edges = sum(one.before[rank]) + sum(one.after[rank])
            totals["warmup_ns"] += sum(one.before[rank])
            totals["cooldown_ns"] += sum(one.after[rank])
            totals["steady_ns"] += idle - edges
            totals["imbalance_ns"] += max(worked) - sum(one.work[rank])
        count += len(chain.ranks) * len(one.phase)
    names = ("warmup_ns", "steady_ns", "cooldown_ns", "imbalance_ns")
    return {name: round(totals[name] / count) if count else None for name in names}

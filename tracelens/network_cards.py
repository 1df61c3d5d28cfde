"""What really left each machine: the counters of its network cards beside what was asked for.

Bytes of collectives are what a program asks for; cards count what travels, headers, other programs
and file systems included. So the two are shown side by side, never mixed. What has to leave a
machine follows from the ring (docs/attribution.md): a ring over several machines passes from each
to the next once, a message and a part of an all-to-all leave if their receiver is elsewhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.model.result import NetworkVolume
from tracelens.model.trace import NONE
from tracelens.operations import ALL_TO_ALL, CODE, MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.nodes import Nodes
    from tracelens.operations_table import MergedGroup, OperationsTable
    from tracelens.reduced import DeviceReduction, RankReduction
    from tracelens.run import RankRun, Run

_DIRECTIONS = {
    "sent": re.compile(r"bytes (?:sent|transmitted)|transmit(?:ted)? bytes", re.IGNORECASE),
    "received": re.compile(r"bytes received|receive(?:d)? bytes", re.IGNORECASE),
}
COLUMNS = ("step", "direction", "bytes")


def reduce(counters: pd.DataFrame, devices: Sequence[DeviceReduction]) -> pd.DataFrame:
    """Sum the bytes that network cards counted in the window of each step.

    Args:
        counters: The table `counters` of a RankTrace.
        devices: The reduced devices of the rank; the first one's windows cut time.
    """
    if not len(counters) or not devices:
        return pd.DataFrame({name: [] for name in COLUMNS})
    names = counters["name"].cat
    rows = []
    for direction, pattern in _DIRECTIONS.items():
        codes = [code for code, name in enumerate(names.categories) if pattern.search(str(name))]
        mine = counters[np.isin(names.codes.to_numpy(), codes)]
        for place, step in enumerate(devices[0].steps):
            counted = _within(mine, step.low, step.high)
            if counted is not None:
                rows.append((place, direction, counted))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _within(samples: pd.DataFrame, low: int, high: int) -> int | None:
    """Return what was counted in a window; None unless samples cover all of it.

    A sample that reaches over the edge counts in proportion.
    """
    if not len(samples):
        return None
    start, end = samples["start"].to_numpy(np.int64), samples["end"].to_numpy(np.int64)
    if int(start.min()) > low or int(end.max()) < high:
        return None
    inside = np.clip(end, low, high) - np.clip(start, low, high)
    share = np.where(end > start, inside / np.maximum(end - start, 1), 0.0)
    return round(float((share * samples["value"].to_numpy(np.int64)).sum()))


def observe(run: Run, table: OperationsTable, nodes: Nodes) -> list[NetworkVolume]:
    """Return the traffic of each machine whose cards were recorded, per step in the mean."""
    found = []
    for rank in _recorders(run, nodes):
        node = nodes.of_rank.get(rank.rank)
        ranks = sorted(r for r, place in nodes.of_rank.items() if place == node)
        host = rank.cycles[0].info.host
        found.append(
            NetworkVolume(
                host=host if node is None or host else nodes.names[node],
                ranks=ranks if node is not None else [rank.rank],
                sent_bytes_per_step=_mean(rank, "sent"),
                received_bytes_per_step=_mean(rank, "received"),
                requested_bytes_per_step=None if node is None else _leaving(table, nodes, node),
            )
        )
    return found


def _recorders(run: Run, nodes: Nodes) -> list[RankRun]:
    """Return one rank for each machine: all its files hold the same counters."""
    first: dict[object, RankRun] = {}
    for rank in run.counted:
        if any(len(cycle.network) for cycle in rank.cycles):
            node = nodes.of_rank.get(rank.rank)
            host = rank.cycles[0].info.host
            first.setdefault(node if node is not None else host or rank.rank, rank)
    return list(first.values())


def _mean(rank: RankRun, direction: str) -> int | None:
    """Average over the steps of the mean; None if cards were not recorded all through one."""
    steps = [key for key in rank.step_keys() if rank.in_mean.get(key, False)]
    counted = [_of_step(rank.cycles[number], index, direction) for number, index in steps]
    known = [value for value in counted if value is not None]
    return round(sum(known) / len(known)) if known and len(known) == len(counted) else None


def _of_step(cycle: RankReduction, index: int, direction: str) -> int | None:
    frame = cycle.network
    if not len(frame):
        return None
    mine = frame[(frame["step"] == index) & (frame["direction"] == direction)]["bytes"]
    return int(mine.iloc[0]) if len(mine) else None


# what was asked for ------------------------------------------------------------------------------


def _leaving(table: OperationsTable, nodes: Nodes, node: int) -> int | None:
    """Return the bytes per step that the machine's ranks have to send to others; None if unknown.

    A rank without steps counts nothing; a group whose machines are unknown makes all unknown.
    """
    frame = table.frame
    on_node = frame["rank"].map(nodes.of_rank) == node
    rows = frame[(on_node & frame["complete"].to_numpy(bool)).to_numpy(bool)]
    total = 0.0
    for place, mine in rows.groupby("group"):
        group = table.groups[int(str(place))]
        places = nodes.of(group.ranks)
        if places is None and (group.size or 2) > 1:
            return None
        if places is None or len(places) < 2:
            continue
        bytes_of_group = _of_group(mine, group, table, nodes, node)
        if bytes_of_group is None:
            return None
        total += bytes_of_group
    return round(total)


def _of_group(
    rows: pd.DataFrame, group: MergedGroup, table: OperationsTable, nodes: Nodes, node: int
) -> float | None:
    wire = rows["wire_bytes"].to_numpy(np.int64)
    if (wire == NONE).any():
        return None
    op = rows["op"].to_numpy(np.int64)
    per_step = wire / np.array([max(table.complete_steps[int(r)], 1) for r in rows["rank"]])
    messages = np.isin(op, MESSAGES)
    exchanges = op == CODE[ALL_TO_ALL]
    away = np.array([nodes.of_rank.get(int(peer), node) != node for peer in rows["peer"]])
    members = group.ranks or ()
    local = sum(nodes.of_rank.get(rank) == node for rank in members)
    outside = (len(members) - local) / max(len(members) - 1, 1)
    rings = per_step[~messages & ~exchanges]
    # Every rank of a ring sends as much, and one of them to the next machine.
    return float(
        rings.sum() / max(local, 1)
        + per_step[messages & away].sum()
        + per_step[exchanges].sum() * outside
    )

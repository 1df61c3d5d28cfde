"""Which machine each rank ran on: as the user says, by host names, or by the devices ranks use.

Profiles of GPUs seldom name their host, and containers share names. So names are held against the
devices: two ranks of one machine do not drive the same device (NCCL refuses that), and launchers
give consecutive ranks the devices of a machine in order. What contradicts itself is unknown.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens.notices import notice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.model.result import Notice
    from tracelens.run import RankRun, Run

_MOST_DEVICES = 16
"""Devices of the largest machines (DGX-2, HGX with 16); more ranks are on several."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of a run.

    Attributes:
        names: Their names in order of their first rank; "node 0" where no host name is known.
        of_rank: The place of each rank's machine in `names`; ranks that are not in it are unknown.
        source: option, hosts or devices; None if no machine is known.
    """

    names: list[str] = field(default_factory=list)
    of_rank: dict[int, int] = field(default_factory=dict)
    source: str | None = None

    def of(self, ranks: Iterable[int] | None) -> list[int] | None:
        """Return the machines some ranks are on; None if one of them is unknown."""
        if ranks is None:
            return None
        found = {self.of_rank.get(rank) for rank in ranks}
        return None if None in found else sorted(node for node in found if node is not None)


def locate(run: Run, per_node: int | None = None) -> tuple[Nodes, list[Notice]]:
    """Find the machine of each rank.

    Args:
        run: All ranks.
        per_node: Ranks on each machine, as the user says (`--gpus-per-node`).
    """
    hosts = {r.rank: host for r in run.counted if (host := r.cycles[0].info.host)}
    ranks = sorted({*range(run.world_size or 0), *(r.rank for r in run.ranks)})
    if per_node is not None:
        return _as_given(ranks, hosts, per_node)
    devices = _devices(run)
    shared = sorted({host for host in hosts.values() if _is_shared(host, hosts, devices)})
    notices = [_shared_notice(host, hosts) for host in shared]
    hosts = {rank: host for rank, host in hosts.items() if host not in shared}
    size = _block(run.counted, devices)
    if size is None or not _agree(hosts, size):
        return _by_host(hosts), notices
    nodes = _in_blocks(ranks, hosts, size, "hosts" if hosts else "devices")
    if not hosts:
        notices.append(notice("nodes-from-devices", size=size, nodes=len(nodes.names)))
    return nodes, notices


def _as_given(ranks: list[int], hosts: dict[int, str], size: int) -> tuple[Nodes, list[Notice]]:
    mixed = [names for names in _names(hosts, size).values() if len(names) > 1]
    notices = []
    if mixed:
        text = ", ".join(sorted(mixed[0]))
        notices.append(notice("nodes-disagree", count=len(mixed), size=size, hosts=text))
    return _in_blocks(ranks, hosts, size, "option"), notices


def _by_host(hosts: dict[int, str]) -> Nodes:
    names = list(dict.fromkeys(hosts[rank] for rank in sorted(hosts)))
    of_rank = {rank: names.index(host) for rank, host in hosts.items()}
    return Nodes(names, of_rank, "hosts" if names else None)


def _in_blocks(ranks: list[int], hosts: dict[int, str], size: int, source: str) -> Nodes:
    """Put each `size` consecutive ranks on one machine, named after their host if it is one."""
    said = _names(hosts, size)
    blocks = sorted({rank // size for rank in ranks})
    names = [
        next(iter(said[block])) if len(said.get(block, ())) == 1 else f"node {block}"
        for block in blocks
    ]
    if len(set(names)) < len(names):  # containers of several machines share a name
        names = [f"node {block}" for block in blocks]
    return Nodes(names, {rank: blocks.index(rank // size) for rank in ranks}, source)


def _names(hosts: dict[int, str], size: int) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for rank, host in hosts.items():
        found.setdefault(rank // size, set()).add(host)
    return found


def _agree(hosts: dict[int, str], size: int) -> bool:
    """Tell whether host names change exactly where blocks of ranks do."""
    pairs = {(rank // size, host) for rank, host in hosts.items()}
    return len(pairs) == len({block for block, _ in pairs}) == len({host for _, host in pairs})


# devices -----------------------------------------------------------------------------------------


def _devices(run: Run) -> dict[int, int]:
    """Return the device of each rank that drives exactly one."""
    found: dict[int, int] = {}
    for rank in run.counted:
        used = {device.device for cycle in rank.cycles for device in cycle.devices}
        if len(used) == 1 and rank.cycles[0].info.device_kind != "cpu":
            found[rank.rank] = used.pop()
    return found


def _is_shared(host: str, hosts: dict[int, str], devices: dict[int, int]) -> bool:
    """Tell whether a host name must stand for several machines.

    Ranks that each see one device only, number 0, say nothing, unless they are too many.
    """
    used = [devices[rank] for rank, name in hosts.items() if name == host and rank in devices]
    repeated = len(set(used)) < len(used)
    return repeated and (len(set(used)) > 1 or len(used) > _MOST_DEVICES)


def _shared_notice(host: str, hosts: dict[int, str]) -> Notice:
    return notice("host-shared", host=host, count=sum(name == host for name in hosts.values()))


def _block(ranks: list[RankRun], devices: dict[int, int]) -> int | None:
    """Return how many consecutive ranks share a machine, if devices follow the ranks.

    That is the number of devices a rank sees, or fewer if the numbers start anew before.
    """
    if len(set(devices.values())) < 2:
        return None
    listed = {len(r.cycles[0].info.device_names) for r in ranks if r.rank in devices}
    seen = listed.pop() if len(listed) == 1 else 0
    if seen > 1 and _follow(devices, seen):
        return seen
    size = max(devices.values()) + 1
    restarts = any(
        after == before + 1 and devices[before] == size - 1
        for before, after in itertools.pairwise(sorted(devices))
    )
    return size if restarts and _follow(devices, size) else None


def _follow(devices: dict[int, int], size: int) -> bool:
    return all(device == rank % size for rank, device in devices.items())

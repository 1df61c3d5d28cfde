"""The peak of the links between GPUs, which bus bandwidth is held against.

All figures are one way and per GPU: a ring sends as much as it receives, so bus bandwidth compares
with one direction. Data sheets count both. The network between nodes is in no trace: `--inter-bw`
says it. Reductions inside a switch (NVLS) send less than a ring, so their bus bandwidth may exceed
the peak.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.model.result import Links
from tracelens.operations import ALL_TO_ALL, POINT_TO_POINT_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.nodes import Nodes


@dataclass(frozen=True, slots=True)
class Link:
    """How the GPUs of a machine reach each other.

    Attributes:
        pattern: What the device's name matches.
        kind: Name of the link.
        gbps: One-way peak of all links of a GPU, decimal GB/s.
        source: Where the figure is from.
        to_each: One-way peak to each other GPU, where GPUs are wired in pairs and no switch lets
            them use all links for one partner.
    """

    pattern: re.Pattern[str]
    kind: str
    gbps: float
    source: str
    to_each: float | None = None

    def peak(self, ranks: int) -> float:
        """Return the peak among so many GPUs."""
        return self.gbps if self.to_each is None else min(self.gbps, self.to_each * (ranks - 1))


def _link(pattern: str, kind: str, gbps: float, source: str, to_each: float | None = None) -> Link:
    return Link(re.compile(pattern, re.I), kind, gbps, source, to_each)


# Names as the CUDA and HIP runtimes report them; the first that matches counts. Cards that may or
# may not be bridged (A100 and H100 PCIe, NVL, A40, A6000, MI210) are left out: their name does not
# say what connects them.
LINKS = (
    _link(r"\bG?B[123]00\b", "NVLink 5", 900, "NVIDIA DGX B200 and GB200 NVL72: 1.8 TB/s a GPU"),
    _link(r"\bGH200\b", "NVLink 4", 450, "NVIDIA GH200 data sheet: 900 GB/s"),
    _link(r"\bH800\b(?!.*PCIe)", "NVLink 4", 200, "NVIDIA H800 SXM: 400 GB/s"),
    _link(r"\bH(?:100|200|20)\b(?!.*(?:PCIe|NVL))", "NVLink 4", 450,
          "NVIDIA H100, H200, H20 SXM data sheets: 900 GB/s"),
    _link(r"\bA800-SXM", "NVLink 3", 200, "NVIDIA A800 SXM: 400 GB/s"),
    _link(r"\bA100-SXM", "NVLink 3", 300, "NVIDIA A100 SXM data sheet: 600 GB/s"),
    _link(r"\bV100-SXM", "NVLink 2", 150, "NVIDIA V100 SXM data sheet: 300 GB/s"),
    _link(r"\bP100-SXM", "NVLink 1", 80, "NVIDIA P100 SXM data sheet: 160 GB/s"),
    _link(r"\b(?:L40S?|L4|A10|RTX 40\d\d)\b", "PCIe 4.0 x16", 31.5, "PCI-SIG: 16 GT/s x 16 lanes"),
    _link(r"\b(?:T4|RTX 20\d\d)\b", "PCIe 3.0 x16", 15.75, "PCI-SIG: 8 GT/s x 16 lanes"),
    _link(r"\bMI3(?:00|25)X", "Infinity Fabric", 448,
          "AMD MI300X and MI325X data sheets: 7 links of 128 GB/s", 64),
    _link(r"\bMI35[05]X", "Infinity Fabric", 537.6,
          "AMD MI350X and MI355X data sheets: 7 links of 153.6 GB/s", 76.8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peaks:
    """What is known about the links of a run.

    Attributes:
        link: The link of its GPUs; None if the names tell none, or several.
        nodes: The machine of each rank.
        intra_gbps: As given by the user, instead of the link's.
        inter_gbps: One-way peak of the network per GPU, as given by the user.
    """

    link: Link | None
    nodes: Nodes
    intra_gbps: float | None = None
    inter_gbps: float | None = None

    def of(self, op: str, ranks: tuple[int, ...] | None) -> float | None:
        """Return the bus bandwidth that the links allow a group; None if unknown."""
        if ranks is None or self.nodes.of(ranks) is None or len(ranks) < 2:
            return None
        members = Counter(self.nodes.of_rank[rank] for rank in ranks)
        inside = self._inside(len(ranks) if len(members) == 1 else max(members.values()))
        if len(members) == 1:
            return inside
        across = self._across(op, len(ranks), min(members.values()))
        if max(members.values()) == 1 or across is None:
            return across
        return None if inside is None else min(inside, across)

    def described(self) -> Links:
        """Return what reports say about the links."""
        if self.intra_gbps is not None:
            return Links(None, self.intra_gbps, self.inter_gbps, "--intra-bw")
        if self.link is None:
            return Links(None, None, self.inter_gbps, None)
        return Links(self.link.kind, self.link.gbps, self.inter_gbps, self.link.source)

    def _inside(self, ranks: int) -> float | None:
        if self.intra_gbps is not None:
            return self.intra_gbps
        return self.link.peak(ranks) if self.link is not None and ranks > 1 else None

    def _across(self, op: str, ranks: int, on_a_node: int) -> float | None:
        """Return the peak of a group on several nodes.

        As many rings as a node has members cross its border, each over its own adapter. In an
        all-to-all a rank sends to all that are elsewhere over its own.
        """
        if self.inter_gbps is None:
            return None
        if op in POINT_TO_POINT_NAMES:
            return self.inter_gbps
        if op == ALL_TO_ALL:
            return self.inter_gbps * (ranks - 1) / (ranks - on_a_node)
        return self.inter_gbps * on_a_node


def link_of(names: Iterable[str | None]) -> Link | None:
    """Return the link that the names of a run's GPUs tell; None if they tell none or several."""
    found = {_by_name(name) for name in set(names) if name}
    return found.pop() if len(found) == 1 else None


def _by_name(name: str) -> Link | None:
    return next((link for link in LINKS if link.pattern.search(name)), None)

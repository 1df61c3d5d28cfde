"""Peaks of links: by the GPUs' names, by what the user says, and for groups on several nodes."""

from __future__ import annotations

import pytest

from tracelens.links import Link, Peaks, link_of
from tracelens.nodes import Nodes

ONE_NODE = Nodes(["a"], dict.fromkeys(range(8), 0), "hosts")
TWO_NODES = Nodes(["a", "b"], {rank: rank // 8 for rank in range(16)}, "hosts")


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("NVIDIA H100 80GB HBM3", 450), ("NVIDIA H200", 450), ("NVIDIA GH200 480GB", 450),
        ("NVIDIA H20", 450), ("NVIDIA H800", 200), ("NVIDIA B200", 900), ("NVIDIA GB200", 900),
        ("NVIDIA B300 SXM6 AC", 900), ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA A800-SXM4-80GB", 200), ("Tesla V100-SXM2-16GB", 150), ("NVIDIA L40S", 31.5),
        ("AMD Instinct MI300X", 448), ("AMD Instinct MI355X", 537.6),
        # What connects these their name does not say.
        ("NVIDIA H100 PCIe", None), ("NVIDIA H100 NVL", None), ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA RTX A6000", None), ("NVIDIA A40", None), ("ACME G90 80GB", None), ("", None),
    ],
)  # fmt: skip
def test_links_by_name(name: str, gbps: float | None) -> None:
    link = link_of([name])
    assert (None if link is None else link.gbps) == gbps


def test_gpus_of_several_kinds_have_no_common_link() -> None:
    assert link_of(["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]) is None
    assert link_of(["NVIDIA H100 80GB HBM3", "ACME G90 80GB"]) is None
    assert link_of(["NVIDIA H100 80GB HBM3", "NVIDIA H200", None]) is not None
    assert link_of([]) is None


def h100() -> Link:
    link = link_of(["NVIDIA H100 80GB HBM3"])
    assert link is not None
    return link


def test_a_group_on_one_node_has_the_links_peak() -> None:
    assert Peaks(h100(), ONE_NODE).of("all_reduce", (0, 1, 2, 3)) == 450
    assert Peaks(h100(), ONE_NODE, intra_gbps=400).of("all_reduce", (0, 1)) == 400
    assert Peaks(None, ONE_NODE).of("all_reduce", (0, 1)) is None


def test_gpus_wired_in_pairs_reach_two_of_them_by_one_link() -> None:
    peaks = Peaks(link_of(["AMD Instinct MI300X"]), ONE_NODE)
    assert [peaks.of("all_reduce", tuple(range(n))) for n in (2, 4, 8)] == [64, 192, 448]


def test_unknown_nodes_have_no_peak() -> None:
    peaks = Peaks(h100(), Nodes(), inter_gbps=50)
    assert peaks.of("all_reduce", (0, 1)) is None
    assert Peaks(h100(), ONE_NODE).of("all_reduce", None) is None
    assert Peaks(h100(), ONE_NODE).of("all_reduce", (0,)) is None


def test_the_network_is_unknown_unless_given() -> None:
    assert Peaks(h100(), TWO_NODES).of("all_reduce", (0, 8)) is None
    assert Peaks(h100(), TWO_NODES, inter_gbps=50).of("all_reduce", (0, 8)) == 50


@pytest.mark.parametrize(
    ("op", "ranks", "peak"),
    [
        ("all_reduce", (0, 1, 8, 9), 100),  # two rings cross the border, each over its adapter
        ("all_gather", tuple(range(16)), 400),
        ("all_gather", (0, 1, 8), 50),
        ("send", (0, 8), 50),
        ("send_recv", tuple(range(16)), 50),
        # Each of 16 sends to the 8 elsewhere over its own adapter: 8/15 of what it sends at all.
        ("all_to_all", tuple(range(16)), 50 * 15 / 8),
    ],
)
def test_a_group_on_several_nodes(op: str, ranks: tuple[int, ...], peak: float) -> None:
    assert Peaks(h100(), TWO_NODES, inter_gbps=50).of(op, ranks) == pytest.approx(peak)


def test_the_links_inside_bound_what_crosses_the_border() -> None:
    fast = Peaks(h100(), TWO_NODES, inter_gbps=100)
    assert fast.of("all_reduce", tuple(range(16))) == 450
    unknown = Peaks(None, TWO_NODES, inter_gbps=100)
    assert unknown.of("all_reduce", tuple(range(16))) is None
    assert unknown.of("all_reduce", (0, 8)) == 100

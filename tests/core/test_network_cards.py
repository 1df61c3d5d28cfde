"""Counters of network cards: cut by steps, one a machine, beside what has to leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nsight_exports import Export

import tracelens
from tracelens.network_cards import reduce
from tracelens.reporting.volumes import network_table

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis, NetworkVolume

SENT, RECEIVED, WAITS = 0, 1, 2
STEP = 10_000


def metrics(export: Export, unit: str = "B") -> Export:
    names = ("IB: Bytes sent", "IB: Bytes received", "IB: Send waits")
    for index, name in enumerate(names):
        row = {"metricsListId": 5, "metricsIdx": index, "name": name}
        export.add("TARGET_INFO_NETWORK_METRICS", **row, unit=unit if index < 2 else "")
    return export


def sample(export: Export, metric: int, start: int, end: int, value: int) -> Export:
    return export.add(
        "NET_NIC_METRIC", start=start, end=end, globalId=1, metricsListId=5, metricsIdx=metric,
        value=value,
    )  # fmt: skip


def node(
    host: str, ranks: range, world: int, *, call: str = "ncclAllReduce", size: int = 1000
) -> Export:
    """Two steps of one collective of the world, the kernels in the middle of each."""
    export = Export(nccl="2.28").add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=host)
    for place, rank in enumerate(ranks):
        pid = 4000 + place
        export.gpu(place, "H100", pid=pid).mark(pid, rank=rank, world=world)
        export.call("ncclCommInitRank", 10, pid=pid, comm=7, nranks=world, rank=rank)
        for step in (1, 2):
            begin = STEP * step
            export.step(step, begin, begin + 9_000, pid)
            export.kernel("gemm", begin + 1_000, 7_000, pid=pid, device=place)
            export.collective(call, begin + 5_000, pid=pid, device=place, comm=7, size=size)
    return export


def analysed(folder: Path, *nodes: Export) -> Analysis:
    for number, export in enumerate(nodes):
        export.write(folder / f"node{number}.sqlite")
    return tracelens.analyze(folder)


def only(analysis: Analysis) -> NetworkVolume:
    (found,) = analysis.volumes.network
    return found


def test_samples_are_cut_by_the_steps(tmp_path: Path) -> None:
    export = metrics(node("a", range(1), 1))
    for place in range(40):  # 1,000 ns each
        sample(export, SENT, 1_000 * place, 1_000 * place + 1_000, 100)
    found = only(analysed(tmp_path, export))
    # Windows begin with their first kernel, and the last ends as long after its mark: 9,000 ns.
    assert found.sent_bytes_per_step == (10 * 100 + 9 * 100) // 2
    assert found.received_bytes_per_step is None
    assert (found.host, found.ranks) == ("a", [0])


def test_a_long_sample_counts_in_proportion(tmp_path: Path) -> None:
    export = sample(metrics(node("a", range(1), 1)), RECEIVED, 0, 100_000, 10_000)
    assert only(analysed(tmp_path, export)).received_bytes_per_step == (1_000 + 900) // 2


def test_rates_become_amounts(tmp_path: Path) -> None:
    export = metrics(node("a", range(1), 1), unit="B/s")
    sample(export, SENT, 0, 100_000, 10**9)  # a byte a nanosecond
    assert only(analysed(tmp_path, export)).sent_bytes_per_step == (10_000 + 9_000) // 2


def test_samples_that_leave_a_step_out_say_nothing(tmp_path: Path) -> None:
    export = sample(metrics(node("a", range(1), 1)), SENT, 0, 15_000, 100)
    found = analysed(tmp_path, export).volumes.network
    assert [one.sent_bytes_per_step for one in found] == []


def test_waits_and_unknown_units_are_no_bytes(tmp_path: Path) -> None:
    export = metrics(node("a", range(1), 1), unit="packets")
    sample(export, SENT, 0, 100_000, 100)
    sample(export, WAITS, 0, 100_000, 100)
    assert analysed(tmp_path, export).volumes.network == []


def test_without_counters_there_is_no_network(tmp_path: Path) -> None:
    assert analysed(tmp_path, node("a", range(1), 1)).volumes.network == []


def test_processes_of_a_machine_share_its_cards(tmp_path: Path) -> None:
    export = sample(metrics(node("a", range(2), 2)), SENT, 0, 100_000, 10_000)
    found = only(analysed(tmp_path, export))
    assert found.sent_bytes_per_step == (1_000 + 900) // 2
    assert found.ranks == [0, 1]
    assert found.requested_bytes_per_step == 0, "nothing has to leave the machine"


@pytest.mark.parametrize(
    ("call", "requested"),
    [
        ("ncclAllReduce", 2 * 3 * 1000 // 4),  # 2S(N-1)/N, by one rank of each machine
        ("ncclAllGather", 3 * 1000),  # S(N-1)/N of S = 4 parts
        ("ncclAlltoAll", 2 * 2 * 1000),  # two ranks send a part to each of two elsewhere
    ],
)
def test_what_has_to_leave_a_machine(call: str, requested: int, tmp_path: Path) -> None:
    nodes = [
        node(host, ranks, 4, call=call) for host, ranks in (("a", range(2)), ("b", range(2, 4)))
    ]
    for export in nodes:
        if call == "ncclAlltoAll":
            export.nccl = "2.28"
        sample(metrics(export), SENT, 0, 100_000, 10_000)
    found = analysed(tmp_path, *nodes).volumes.network
    assert [one.requested_bytes_per_step for one in found] == [requested, requested]
    assert [(one.host, one.ranks) for one in found] == [("a", [0, 1]), ("b", [2, 3])]


def test_messages_leave_if_their_receiver_is_elsewhere(tmp_path: Path) -> None:
    nodes = []
    for host, rank in (("a", 0), ("b", 1)):
        export = node(host, range(rank, rank + 1), 2)
        for step in (1, 2):
            export.collective(
                "ncclSend", STEP * step + 6_000, comm=7, size=300, peer=1 - rank, device=0,
                kernel="ncclDevKernel_SendRecv", stream=30,
            )  # fmt: skip
        nodes.append(sample(metrics(export), SENT, 0, 100_000, 10_000))
    found = analysed(tmp_path, *nodes).volumes.network
    assert [one.requested_bytes_per_step for one in found] == [1000 + 300] * 2


def test_unknown_sizes_make_the_sum_unknown(tmp_path: Path) -> None:
    nodes = []
    for host, rank in (("a", 0), ("b", 1)):
        export = node(host, range(rank, rank + 1), 2)
        export.blobs = False
        export.collective("ncclAllReduce", 2 * STEP + 6_000, comm=7, size=10, stream=30)
        nodes.append(sample(metrics(export), SENT, 0, 100_000, 10_000))
    for one in analysed(tmp_path, *nodes).volumes.network:
        assert one.sent_bytes_per_step is not None
        assert one.requested_bytes_per_step is None


def test_reports_show_them(tmp_path: Path) -> None:
    export = sample(metrics(node("a", range(2), 2)), SENT, 0, 100_000, 10_000)
    (row,) = network_table(analysed(tmp_path, export).volumes).rows
    assert [cell.text for cell in row] == ["a", "0–1", "0 B", "950 B", "unknown"]


def test_nothing_is_reduced_from_nothing() -> None:
    from tracelens.model.trace import COUNTERS, frame

    assert len(reduce(frame(COUNTERS), [])) == 0

"""Which machine a rank is on: options, host names held against devices, devices alone."""

from __future__ import annotations

import pytest
from builders import Trace

from tracelens.nodes import Nodes, locate
from tracelens.run import Run, assemble

Hosts = list[str | None]


def run_of(
    hosts: Hosts,
    devices: list[int] | None = None,
    *,
    seen: int = 8,
    ranks: list[int] | None = None,
    world: int | None = None,
) -> Run:
    """A run whose rank i has the i-th host and device; each process sees `seen` devices."""
    properties = [{"id": i, "name": "ACME G90"} for i in range(seen)]
    found = []
    for place, rank in enumerate(ranks or range(len(hosts))):
        keys = {"deviceProperties": properties}
        if (host := hosts[place]) is not None:
            keys["host_name"] = host  # type: ignore[assignment]
        trace = Trace(rank=rank, world=world or len(hosts), keys=keys)
        device = 0 if devices is None else devices[place]
        found.append(trace.kernel("gemm", 100, 50, device=device).reduce())
    return assemble(found)


def located(run: Run, per_node: int | None = None) -> tuple[list[list[int]], Nodes, list[str]]:
    nodes, notices = locate(run, per_node)
    members: list[list[int]] = [[] for _ in nodes.names]
    for rank, node in sorted(nodes.of_rank.items()):
        members[node].append(rank)
    return members, nodes, [one.code for one in notices]


def test_hosts_name_the_nodes() -> None:
    members, nodes, notices = located(run_of(["b", "b", "a", "a"]))
    assert (members, nodes.names, nodes.source) == ([[0, 1], [2, 3]], ["b", "a"], "hosts")
    assert notices == []


def test_ranks_of_a_host_need_not_be_neighbours() -> None:
    assert located(run_of(["a", "b", "a", "b"]))[0] == [[0, 2], [1, 3]]


def test_without_names_the_devices_tell() -> None:
    members, nodes, notices = located(run_of([None] * 4, [0, 1, 2, 3], seen=4))
    assert (members, nodes.names, nodes.source) == ([[0, 1, 2, 3]], ["node 0"], "devices")
    assert notices == ["nodes-from-devices"]


@pytest.mark.parametrize("seen", [2, 8])
def test_devices_that_start_anew_begin_a_node(seen: int) -> None:
    """A process may see more devices than the run uses."""
    assert located(run_of([None] * 4, [0, 1, 0, 1], seen=seen))[0] == [[0, 1], [2, 3]]


def test_ranks_without_a_trace_are_placed_by_the_devices_of_the_others() -> None:
    run = run_of([None, None], [1, 0], seen=4, ranks=[1, 4], world=8)
    assert located(run)[0] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_ranks_without_a_trace_get_the_host_of_their_neighbours() -> None:
    run = run_of(["a", "b"], [1, 0], seen=4, ranks=[1, 4], world=8)
    members, nodes, _ = located(run)
    assert (members, nodes.names, nodes.source) == (
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        ["a", "b"],
        "hosts",
    )


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        ([0, 0, 0, 0], 1),  # each process sees its own device only
        ([0, 0, 0, 0], 8),
        ([3, 2, 1, 0], 4),  # in no order
        ([0, 1, 0, 2], 8),
    ],
)
def test_devices_that_say_nothing(devices: list[int], seen: int) -> None:
    members, nodes, notices = located(run_of([None] * 4, devices, seen=seen))
    assert (members, nodes.source, notices) == ([], None, [])


def test_one_rank_says_nothing_about_the_others() -> None:
    assert located(run_of([None], [0], ranks=[0], world=8))[1].source is None


def test_a_name_that_several_containers_share() -> None:
    """Device 0 is used twice: the name cannot be one machine's, and the devices tell better."""
    members, nodes, notices = located(run_of(["box"] * 4, [0, 1, 0, 1], seen=2))
    assert (members, nodes.source) == ([[0, 1], [2, 3]], "devices")
    assert notices == ["host-shared", "nodes-from-devices"]


def test_a_shared_name_without_order_leaves_nodes_unknown() -> None:
    members, _, notices = located(run_of(["box"] * 4, [0, 0, 1, 1], seen=2))
    assert (members, notices) == ([], ["host-shared"])


def test_more_ranks_than_any_machine_has_devices() -> None:
    few = located(run_of(["box"] * 16, [0] * 16, seen=1))
    many = located(run_of(["box"] * 17, [0] * 17, seen=1))
    assert (len(few[0]), few[2]) == (1, [])
    assert (many[0], many[2]) == ([], ["host-shared"])


def test_hosts_that_change_elsewhere_than_the_devices() -> None:
    """Names win where they are possible: two machines of two, the first one's devices 0 and 1."""
    run = run_of(["a", "a", "b", "b"], [0, 1, 2, 3], seen=4)
    assert located(run)[0] == [[0, 1], [2, 3]]


def test_the_option_wins() -> None:
    members, nodes, notices = located(run_of([None] * 4, [0, 1, 2, 3]), per_node=2)
    assert (members, nodes.names, nodes.source) == (
        [[0, 1], [2, 3]],
        ["node 0", "node 1"],
        "option",
    )
    assert notices == []


def test_the_option_keeps_the_hosts_names() -> None:
    assert located(run_of(["b", "b", "a", None]), per_node=2)[1].names == ["b", "a"]
    assert located(run_of(["box"] * 4), per_node=2)[1].names == ["node 0", "node 1"]


def test_an_option_against_the_hosts_is_said() -> None:
    assert located(run_of(["a", "b", "c", "c"]), per_node=2)[2] == ["nodes-disagree"]


def test_a_run_on_cpus_has_no_devices_to_contradict_a_name() -> None:
    traces = [
        Trace(rank=rank, world=2, keys={"host_name": "a", "deviceProperties": []}).gloo(
            "allreduce_", 100, 50, [[8]], annotated="all_reduce"
        )
        for rank in range(2)
    ]
    assert located(assemble([trace.reduce() for trace in traces]))[0] == [[0, 1]]


def test_nodes_of_some_ranks() -> None:
    nodes = Nodes(["a", "b"], {0: 0, 1: 0, 2: 1}, "hosts")
    assert nodes.of([2, 0, 1]) == [0, 1]
    assert nodes.of([0, 1]) == [0]
    assert nodes.of([0, 3]) is None
    assert nodes.of(None) is None

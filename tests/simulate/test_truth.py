"""The truth agrees with the events, and with itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.simulate import Layout, Link, Machine, Model, Options, simulate
from tracelens.simulate.partition import covered
from tracelens.simulate.run import whole_run, write
from tracelens.simulate.truth import text, truth
from tracelens.theory.pipeline import bubble_share

if TYPE_CHECKING:
    from pathlib import Path

MODEL = Model(layers=4, hidden=512, vocabulary=1024, sequence=256)
MIXED = Options(
    Layout(dp=2, tp=2, pp=2), MODEL, Machine(skew_ns=10**6, drift_ppm=50, slow={3: 1.2}),
    micro_batches=4, strategy="distributed-optimizer", steps=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return truth(whole_run(MIXED), MIXED)


def test_a_run_is_the_same_again() -> None:
    assert whole_run(MIXED) == whole_run(MIXED)


def test_another_seed_gives_other_times() -> None:
    first, second = (whole_run(replace(MIXED, seed=seed)).ranks[0] for seed in (0, 1))
    assert len(first.device_events) == len(second.device_events)
    assert {e.end for e in first.device_events} != {e.end for e in second.device_events}
    assert first.clock != second.clock


def test_partitions_sum_to_their_windows(document: dict[str, Any]) -> None:
    for rank in document["ranks"]:
        assert [step["step"] for step in rank["steps"]] == [5, 6]
        for step in rank["steps"]:
            parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
            assert sum(step[name] for name in parts) == step["window_ns"]


def test_members_of_an_instance_end_together_after_the_last_arrival(
    document: dict[str, Any],
) -> None:
    for instance in document["instances"]:
        if instance["op"] == "message":
            continue
        ends = [member["end_ns"] for member in instance["members"]]
        assert max(ends) - min(ends) <= MIXED.machine.end_spread_ns
        assert min(member["wait_ns"] for member in instance["members"]) == 0
        for member in instance["members"]:
            assert member["start_ns"] + member["wait_ns"] == instance["last_arrival_ns"]
            assert member["transfer_ns"] > 0
        group = next(g for g in document["groups"] if g["name"] == instance["group"])
        assert [member["rank"] for member in instance["members"]] == group["ranks"]


def test_a_message_has_two_ends(document: dict[str, Any]) -> None:
    messages = [one for one in document["instances"] if one["op"] == "message"]
    # 4 chains of two stages, 2 steps of 4 micro-batches, both ways.
    assert len(messages) == 4 * 2 * 4 * 2
    assert all(sorted(m["op"] for m in one["members"]) == ["recv", "send"] for one in messages)


def test_clocks_and_slow_ranks_are_named(document: dict[str, Any]) -> None:
    assert [rank["slow"] for rank in document["ranks"]] == [1, 1, 1, 1.2, 1, 1, 1, 1]
    clocks = [rank["clock"] for rank in document["ranks"]]
    assert len({clock["offset_ns"] for clock in clocks}) == 8
    assert all(abs(clock["offset_ns"]) <= 10**6 for clock in clocks)
    assert all(abs(clock["drift_ppm"]) <= 50 for clock in clocks)


def test_the_file_is_json_with_an_instance_a_line(document: dict[str, Any]) -> None:
    shown = text(document)
    read = json.loads(shown)
    assert read["instances"] == document["instances"]
    assert read["schema"] == "tracelens-truth/1"
    assert sum(line.startswith("  {") for line in shown.splitlines()) >= len(read["instances"])


@pytest.mark.parametrize(
    ("schedule", "virtual_stages"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)],
)
def test_bubbles_approach_the_closed_forms_as_all_else_becomes_free(
    schedule: str, virtual_stages: int
) -> None:
    """Equal stages, free messages, instant hosts: what is left is the schedule's own bubble."""
    machine = Machine(
        intra=Link(0, 1e9), launch_latency_ns=0, host_ns=1, end_spread_ns=0, jitter=0.0, tflops=1.0
    )
    # Attention and a head of next to nothing: the stages are equal.
    model = Model(layers=8, hidden=1024, vocabulary=8, sequence=64)
    options = Options(
        Layout(pp=4), model, machine, schedule=schedule, virtual_stages=virtual_stages,
        micro_batches=8, steps=1,
    )  # fmt: skip
    found = truth(whole_run(options), options)["pipeline"]["bubble"]
    expected = bubble_share(4, 8, virtual_stages)
    if schedule == "zb-h1":  # (p-1)(F + I - W) where a backward is I + W = 2F, nearly
        expected = 3 * 1 / (3 * 1 + 8 * 3)
    assert found["overall"] == pytest.approx(expected, abs=0.006)
    for share in found["by_rank"].values():
        assert share == pytest.approx(expected, abs=0.012)


def test_edges_are_cut_at_different_events() -> None:
    options = Options(Layout(dp=4), MODEL, drop_edges=20, steps=2)
    whole, seen = whole_run(options), simulate(options)
    steps = [[one.name for one in rank.ranges if one.kind == "step"] for rank in seen.ranks]
    assert steps == [["ProfilerStep#5", "ProfilerStep#6"]] * 4
    lost = [
        len(full.device_events) - len(cut.device_events)
        for full, cut in zip(whole.ranks, seen.ranks, strict=True)
    ]
    assert min(lost) > 0
    assert len(set(lost)) > 1
    unlaunched = 0
    for rank in seen.ranks:
        launched = {one.correlation for one in rank.launches}
        carried = [i for e in rank.device_events for i in e.communications]
        assert sorted(carried) == list(range(len(rank.communications)))
        assert all(e.correlation in launched for e in rank.device_events if e.communications)
        unlaunched += sum(e.correlation not in launched for e in rank.device_events)
    assert unlaunched > 0


def test_write(tmp_path: Path) -> None:
    files = write(MIXED, tmp_path / "run")
    assert len(files) == 9
    assert files[-1].name == "truth.json"
    assert json.loads(files[-1].read_text())["options"]["layout"] == "dp=2,tp=2,pp=2"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_covered_counts_every_nanosecond_once(pairs: list[tuple[int, int]]) -> None:
    intervals = [(min(pair), max(pair)) for pair in pairs]
    instants = {at for start, end in intervals for at in range(start, end)}
    assert covered(intervals) == len(instants)

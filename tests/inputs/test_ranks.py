"""Ranks that are missing, doubled, cut or of different runs; devices and cycles of one rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import RING, Trace
from command import run
from standard_run import (
    BYTES,
    add_step,
    codes,
    holds,
    is_standard,
    rank,
    rank_of,
    said,
    write_ranks,
)

import tracelens

if TYPE_CHECKING:
    from pathlib import Path


def strict(folder: Path) -> int:
    return run("analyze", ".", "-o", "r.json", "-f", "--strict", cwd=folder).code


def cut(trace: Trace, share: float = 0.7) -> bytes:
    data = trace.bytes()
    return data[: int(len(data) * share)]


# which ranks there are ---------------------------------------------------------------------------


def test_missing_ranks_are_named_and_nothing_is_made_up_for_them(tmp_path: Path) -> None:
    for number in (0, 3, 4, 7):
        rank(number, world=8).write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_missing == [1, 2, 5, 6]
    assert "no trace for 4 of 8 ranks (1-2, 5-6)" in said(result, "missing-ranks")
    assert [one.rank for one in result.ranks] == [0, 3, 4, 7]
    for one in result.ranks:
        holds(one.devices[0].mean_step)
    (row,) = result.collectives
    assert set(row.by_rank) == {0, 3, 4, 7}
    assert row.wire_bytes == 2 * 2 * BYTES * 7 // 8, "the group still has eight members"
    assert strict(tmp_path) == 4


def test_a_rank_in_two_files_of_different_processes(tmp_path: Path) -> None:
    """The first by name counts; the other one is shown and is in no mean."""
    write_ranks(tmp_path)
    add_step(rank(1, pid=9999), 12, 2000).kernel("gemm", 2950, 40).write(tmp_path / "s_rank1.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_duplicated == [1]
    assert [(one.rank, one.in_means) for one in result.ranks] == [(0, True), (1, True), (1, False)]
    message = said(result, "duplicate-rank")
    assert "rank 1 is in 2 files" in message
    assert "(rank1.json, s_rank1.json)" in message
    assert "only rank1.json is in the means" in message
    for one in result.ranks[:2]:
        holds(one.devices[0].mean_step)
    (row,) = result.collectives
    assert row.calls == 2
    assert strict(tmp_path) == 4


def test_the_same_process_at_the_same_time_is_no_cycle(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    rank(1, at=500).write(tmp_path / "later_rank1.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_duplicated == [1]


def test_a_copy_of_a_file_is_a_duplicate_and_no_second_rank(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    (tmp_path / "copy of rank1.json").write_bytes((tmp_path / "rank1.json").read_bytes())
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_duplicated == [1]
    assert result.run.ranks_missing == []
    (row,) = result.collectives
    assert row.calls == 2


def test_worlds_that_conflict(tmp_path: Path) -> None:
    for number in range(3):
        rank(number, world=4).write(tmp_path / f"rank{number}.json")
    rank(3, world=2).write(tmp_path / "rank3.json")
    result = tracelens.analyze(tmp_path)
    message = said(result, "world-size-conflict")
    assert "(2 in 1 file, 4 in 3 files); 4 is used" in message
    assert (result.run.world_size, result.run.ranks_missing) == (4, [])
    for one in result.ranks:
        holds(one.devices[0].mean_step)
    assert strict(tmp_path) == 4


def test_two_files_without_a_rank_are_two_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "run"  # pytest names its own after the test
    folder.mkdir()
    for number, name in enumerate("ab"):
        rank(None, pid=4000 + number).write(folder / f"{name}.json")
    result = tracelens.analyze(folder)
    assert [one.rank for one in result.ranks] == [0, 1]
    unknown = [n for n in result.notices if n.code == "rank-unknown"]
    assert [(n.file, n.level) for n in unknown] == [("a.json", "warning"), ("b.json", "warning")]
    for one in result.ranks:
        holds(one.devices[0].mean_step)


def test_a_file_without_a_rank_takes_a_free_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    rank(0, 3).write(folder / "rank0.json")
    rank(2, 3).write(folder / "rank2.json")
    rank(None, 3, pid=4001).write(folder / "trace.json")
    result = tracelens.analyze(folder)
    assert rank_of(result, 1).files == ["trace.json"]
    assert "it is shown as rank 1" in said(result, "rank-unknown")


# partial ranks -----------------------------------------------------------------------------------


def test_a_cut_rank_stays_out_of_the_means_of_whole_ones(tmp_path: Path) -> None:
    write_ranks(tmp_path, world=3)
    (tmp_path / "rank2.json").write_bytes(cut(rank(2, 3)))
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_partial == [2]
    assert [one.in_means for one in result.ranks] == [True, True, False]
    first, last = rank_of(result, 2).devices[0].steps
    assert (first.complete, last.complete) == (True, False)
    holds(first.partition)
    assert "rank2.json: the file ends early" in said(result, "truncated-file")
    (row,) = result.collectives
    assert set(row.by_rank) == {0, 1}
    assert strict(tmp_path) == 4


def test_if_all_are_cut_their_whole_steps_count(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"rank{number}.json").write_bytes(cut(rank(number), 0.85))
    result = tracelens.analyze(tmp_path)
    assert result.run.ranks_partial == [0, 1]
    for one in result.ranks:
        assert one.in_means
        assert [step.complete for step in one.devices[0].steps] == [True, False]
        holds(one.devices[0].mean_step)


# devices and cycles ------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 8])
def test_several_gpus_in_one_process_are_never_added_up(devices: int, tmp_path: Path) -> None:
    trace = Trace(world=1)
    for step in (0, 1):
        trace.step(10 + step, 1000 * step, 1000)
        for device in range(devices):
            at = 1000 * step
            trace.kernel("gemm", at + 100, 300, device=device)
            trace.kernel("gelu", at + 400, 200, device=device)
            trace.kernel(RING, at + 500, 300, 20, device=device)
            trace.kernel("norm", at + 700, 200, device=device)
    trace.write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    (one,) = result.ranks
    assert [device.device for device in one.devices] == list(range(devices))
    for line in one.devices:
        for part in line.steps:
            holds(part.partition)
    assert f"one process drives {devices} devices" in said(result, "several-devices")


@pytest.mark.parametrize("cycles", [2, 5])
@pytest.mark.parametrize("named", [True, False])
def test_cycles_of_a_rank_are_one_rank(cycles: int, named: bool, tmp_path: Path) -> None:
    for number in (0, 1):
        for cycle in range(cycles):
            made = Trace(rank=number, pid=4000 + number, base_ns=10**18 + cycle * 10**9)
            add_step(add_step(made, 10 * cycle, 0), 10 * cycle + 1, 1000)
            name = f"rank{number}.{cycle}" if named else f"host_{4000 + number}.{cycle}000000000000"
            made.write(tmp_path / f"{name}.pt.trace.json")
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [0, 1]
    assert codes(result) & {"duplicate-rank", "missing-ranks", "different-times"} == set()
    for one in result.ranks:
        (device,) = one.devices
        assert len(device.steps) == 2 * cycles
        for step in device.steps:
            holds(step.partition)
        assert device.total.window_ns == cycles * 1_800_000, "the time between them is in no sum"
    (row,) = result.collectives
    assert (row.calls, row.bytes_per_step.message) == (2 * cycles, 2 * BYTES)


def test_a_rank_that_lacks_a_cycle(tmp_path: Path) -> None:
    for number, cycles in ((0, (0, 1)), (1, (1,))):
        for cycle in cycles:
            made = Trace(rank=number, pid=4000 + number, base_ns=10**18 + cycle * 10**9)
            add_step(add_step(made, 10 * cycle, 0), 10 * cycle + 1, 1000)
            made.write(tmp_path / f"rank{number}.{cycle}.json")
    result = tracelens.analyze(tmp_path)
    assert "steps-differ" in codes(result)
    assert [len(one.devices[0].steps) for one in result.ranks] == [4, 2]
    (row,) = result.collectives
    assert sum(row.matched_calls.values()) == 2, "the second cycles, though rank 1 has no other"
    assert row.wait_ns == 0


# CUDA graphs and gloo ----------------------------------------------------------------------------


def test_collectives_inside_cuda_graphs(tmp_path: Path) -> None:
    """Their time counts; their size is unknown, and never 0."""
    for number in (0, 1):
        made = Trace(rank=number, pid=4000 + number)
        for step in (0, 1):
            at = 1000 * step
            made.step(10 + step, at, 1000)
            kernels = [("gemm", at + 100, 300), ("gelu", at + 400, 200), ("norm", at + 700, 200)]
            made.graph(at + 80, [*kernels, (RING, at + 500, 300)])
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        for part in one.devices[0].steps:
            holds(part.partition)
        assert one.devices[0].total.launches_without_record == 0
    (row,) = result.collectives
    assert (row.op, row.calls, row.calls_without_bytes) == ("all_reduce", 2, 2)
    assert (row.message_bytes, row.bytes_per_step.message) == (None, None)
    assert "4 communication kernels inside CUDA graphs" in said(result, "cuda-graphs")
    assert "the size of 4 of 4 collective calls" in said(result, "bytes-unknown")


def test_a_gloo_run(tmp_path: Path) -> None:
    for number in (0, 1):
        made = Trace(rank=number, pid=4000 + number, keys={"record_shapes": 1})
        for step in (0, 1):
            at = 1000 * step
            made.step(10 + step, at, 1000).operator("aten::mm", at + 100, 370)
            made.operator("aten::add", at + 500, 330)
            made.gloo(
                "allreduce_",
                at + 600,
                300,
                [[[1 << 20]]],
                annotated="all_reduce",
                enqueued=at + 480,
            )
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    assert result.run.device_kind == "cpu"
    for one in result.ranks:
        for part in one.devices[0].steps:
            holds(part.partition, exposed_comm_ns=70_000, idle_ns=230_000)
    (row,) = result.collectives
    assert (row.op, row.dtype, row.calls) == ("all_reduce", "float32", 2)
    assert row.bytes_per_step.message == 2 * 4 * (1 << 20)
    assert "cpu-run" in codes(result)


def test_all_of_it_survives_json(tmp_path: Path) -> None:
    """No kind of oddity leaves a value that JSON cannot hold."""
    write_ranks(tmp_path)
    rank(1, pid=9999).write(tmp_path / "s_rank1.json")
    (tmp_path / "rank5.json").write_bytes(cut(rank(5, 8)))
    text = tracelens.analyze(tmp_path).to_json()
    json.loads(text, parse_constant=pytest.fail)


def test_whole_ranks_beside_every_oddity(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    (tmp_path / "rank0.json.tmp").write_bytes(b"{")
    (tmp_path / "config.json").write_text("{}")
    is_standard(tracelens.analyze(tmp_path))

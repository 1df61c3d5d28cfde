"""Broken and odd inputs as a user passes them: a folder in, ranks, steps and notices out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import tracelens
from tracelens.model.result import Analysis, Partition, RankResult

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared

KEYS = {
    "compute_us": "compute_ns",
    "comm_us": "comm_ns",
    "overlapped_comm_us": "overlapped_comm_ns",
    "exposed_comm_us": "exposed_comm_ns",
    "busy_us": "busy_ns",
}
PER_RANK = (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 15)


def expected(folder: Path) -> dict[str, Any]:
    block = re.search(r"```json\n(.*?)```", (folder / "expected.md").read_text(), re.DOTALL)
    assert block is not None
    values: dict[str, Any] = json.loads(block[1])
    return values


def case(cases: Path, number: int) -> Path:
    [folder] = cases.glob(f"{number:02d}-*")
    return folder


def analysed(cases: Path, number: int) -> tuple[Analysis, dict[str, Any]]:
    folder = case(cases, number)
    return tracelens.analyze(folder / "input"), expected(folder)


def rank_of(result: Analysis, rank: int) -> RankResult:
    [found] = [r for r in result.ranks if r.rank == rank]
    return found


def assert_values(part: Partition | None, values: dict[str, Any]) -> None:
    assert part is not None
    for key, field in KEYS.items():
        if key in values:
            assert getattr(part, field) / 1000 == pytest.approx(values[key], abs=0.001), key


def notice_of(result: Analysis, code: str) -> str:
    [found] = [n for n in result.notices if n.code == code]
    return f"{found.file or ''} {found.message}"


@pytest.mark.parametrize("number", PER_RANK)
def test_totals_of_every_rank(cases_folder: Path, number: int) -> None:
    result, values = analysed(cases_folder, number)
    assert sorted(r.rank for r in result.ranks) == sorted(int(r) for r in values["per_rank"])
    for rank, numbers in values["per_rank"].items():
        assert_values(rank_of(result, int(rank)).devices[0].total, numbers)


def test_a_cut_rank_keeps_its_whole_step_and_stays_out_of_means(cases_folder: Path) -> None:
    result, values = analysed(cases_folder, 4)
    cut = rank_of(result, 0)
    assert cut.partial
    assert not cut.in_means
    assert result.run.ranks_partial == [0]
    [ten, eleven] = cut.devices[0].steps
    assert (ten.complete, eleven.complete) == (True, False)
    assert_values(ten.partition, values["step_10_rank0"])
    assert_values(cut.devices[0].mean_step, values["step_10_rank0"])
    assert "ends early" in notice_of(result, "truncated-file")
    assert "lower bounds" in notice_of(result, "truncated-file")
    assert result.stragglers == []


def test_files_map_to_ranks_by_what_they_say_inside(cases_folder: Path) -> None:
    result, values = analysed(cases_folder, 6)
    assert result.run.world_size == values["world_size"]
    assert result.run.ranks_present == values["ranks"]
    assert result.run.ranks_missing == []
    for rank, numbers in values["per_rank"].items():
        assert rank_of(result, int(rank)).files == [numbers["file"]]


def test_cycles_of_a_rank_are_joined_without_the_time_between(cases_folder: Path) -> None:
    result, values = analysed(cases_folder, 7)
    assert [r.rank for r in result.ranks] == values["ranks"]
    assert len(result.source.files) == values["files"]
    assert sorted(f.cycle for f in result.source.files if f.cycle is not None) == [0, 0, 1, 1]
    assert result.run.ranks_duplicated == []
    for rank in result.ranks:
        device = rank.devices[0]
        assert [s.step for s in device.steps] == values["steps_per_rank"]
        assert_values(device.total, values["per_rank_totals"])
        assert_values(device.mean_step, values["per_step_mean"])
        inside = sum(s.partition.idle_ns for s in device.steps) / 1000
        assert inside == values["idle_inside_steps_us_per_rank"]
        assert all(s.period_ns == 1_000_000 for s in device.steps)


def test_two_devices_of_one_process_are_two_timelines(cases_folder: Path) -> None:
    result, values = analysed(cases_folder, 12)
    [rank] = result.ranks
    assert [str(d.device) for d in rank.devices] == list(values["per_device"])
    for device in rank.devices:
        assert_values(device.total, values["per_device"][str(device.device)])
    assert "says no rank" in notice_of(result, "rank-unknown")


def test_duplicates_gaps_and_conflicts_are_named(cases_folder: Path) -> None:
    result, values = analysed(cases_folder, 13)
    assert result.run.ranks_present == values["ranks_found"]
    assert result.run.ranks_missing == values["missing_if_world_4"]
    assert result.run.ranks_duplicated == [1]
    computed = {
        (r.rank, r.files[0].rsplit(".", 4)[0]): r.devices[0].total.compute_ns / 1000
        for r in result.ranks
    }
    assert computed == {
        (0, "gpu-a1_4012"): 300.0,
        (1, "gpu-a1_4013"): 400.0,
        (1, "gpu-b7_5013"): 450.0,
        (3, "gpu-b7_5014"): 500.0,
    }
    duplicate = notice_of(result, "duplicate-rank")
    assert all(name in duplicate for name in values["duplicated"]["1"])
    assert "(2)" in notice_of(result, "missing-ranks")
    conflict = notice_of(result, "world-size-conflict")
    assert "4 in 3 files" in conflict
    assert "8 in 1 files" in conflict


def test_unknown_bytes_are_counted_and_never_zero(cases_folder: Path) -> None:
    result, values = analysed(cases_folder, 14)
    total = result.ranks[0].devices[0].total
    times = {key.replace("-", "_"): us * 1000 for key, us in values["time_us"].items()}
    times["unknown"] = times.pop("unknown communication")
    assert total.comm_by_op_ns == {op: ns for op, ns in times.items() if ns}
    unknown = sum(c.calls_without_bytes for c in result.collectives)
    assert unknown == values["collectives_with_unknown_bytes"]
    nothing_known = [c for c in result.collectives if c.calls == c.calls_without_bytes]
    assert nothing_known
    assert all(c.message_bytes is None for c in nothing_known)
    assert result.volumes.verdict == "unknown"


@pytest.mark.parametrize("number", range(1, 16))
def test_every_case_renders_in_every_format(cases_folder: Path, number: int) -> None:
    from tracelens.registry import reports
    from tracelens.reporting.terminal import summary

    result = tracelens.analyze(case(cases_folder, number) / "input")
    assert Analysis.from_json(result.to_json()) == result
    for report in reports():
        report.render(result).decode("utf-8")
    shown = summary(result)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown)
    assert "nan" not in shown.lower().split()

"""Small broken inputs: what `expected.md` says of each rank, at the level of parse and reduce."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tracelens.model.trace import NONE, RankTrace
from tracelens.operations import OPERATIONS
from tracelens.reduction import RankReduction, reduce_rank
from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Notice, Partition

pytestmark = pytest.mark.shared

WITH_RANKS = (1, 2, 3, 4, 5, 8, 9, 10, 11, 15)


def folder(cases: Path, number: int) -> Path:
    (found,) = cases.glob(f"{number:02}-*")
    return found


@cache
def expected(cases: Path, number: int) -> dict[str, Any]:
    text = (folder(cases, number) / "expected.md").read_text(encoding="utf-8")
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    values: dict[str, Any] = json.loads(found[1])
    return values


@cache
def parsed(cases: Path, number: int) -> dict[int | None, RankTrace]:
    traces = {}
    for path in sorted((folder(cases, number) / "input").iterdir()):
        (trace,) = KinetoParser().parse(path)
        trace.validate()
        traces[trace.info.rank] = trace
    return traces


def reduced(cases: Path, number: int, rank: int | None = 0) -> RankReduction:
    return reduce_rank(parsed(cases, number)[rank])


def notices(cases: Path, number: int, rank: int | None = 0) -> dict[str, Notice]:
    return {notice.code: notice for notice in parsed(cases, number)[rank].info.notices}


def ns(us: float) -> int:
    return round(us * 1000)


def assert_times(part: Partition, values: dict[str, Any]) -> None:
    """Hold every `*_us` value that a partition has; exact, the cases' times are whole ns."""
    names = {
        "compute_us",
        "comm_us",
        "overlapped_comm_us",
        "exposed_comm_us",
        "busy_us",
    } & values.keys()
    assert {"compute_us", "comm_us", "exposed_comm_us", "busy_us"} <= names
    for name in names:
        assert getattr(part, name.replace("_us", "_ns")) == ns(values[name]), name


@pytest.mark.parametrize("number", WITH_RANKS)
def test_times_of_each_rank(cases_folder: Path, number: int) -> None:
    ranks = expected(cases_folder, number)["per_rank"]
    traces = parsed(cases_folder, number)
    assert set(traces) == {int(rank) for rank in ranks}
    for rank, values in ranks.items():
        (device,) = reduced(cases_folder, number, int(rank)).devices
        assert_times(device.total, values)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 10, 15])
@pytest.mark.parametrize("rank", [0, 1])
def test_standard_steps(cases_folder: Path, number: int, rank: int) -> None:
    (device,) = reduced(cases_folder, number, rank).devices
    assert [step.step for step in device.steps] == [10, 11]
    for step in device.steps:
        part = step.partition
        assert step.complete
        assert (part.window_ns, part.idle_ns) == (1_000_000, 200_000)
        assert (part.compute_ns, part.comm_ns, part.exposed_comm_ns) == (700_000, 300_000, 100_000)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 8, 10, 15])
def test_the_clean_rank_has_nothing_to_say(cases_folder: Path, number: int) -> None:
    found = notices(cases_folder, number, 1)
    assert set(found) == ({"trailing-bytes"} if number == 5 else set())


def test_01_damaged_host_events(cases_folder: Path) -> None:
    damage = notices(cases_folder, 1)["damaged-events"]
    assert damage.count == expected(cases_folder, 1)["damaged_events_rank0"] == 4
    assert damage.file is not None
    assert re.search(r"first at byte [\d,]+:", damage.message)
    assert "no device event is lost" in damage.message
    trace = parsed(cases_folder, 1)[0]
    assert trace.info.damaged_device_events == 0
    (path,) = (folder(cases_folder, 1) / "input").glob("*4012*")
    place = int(damage.message.split("byte ")[1].split(":")[0].replace(",", ""))
    assert path.read_bytes()[place : place + 1] == b"{"


def test_01_all_operators_are_kept(cases_folder: Path) -> None:
    damaged, clean = parsed(cases_folder, 1)[0], parsed(cases_folder, 1)[1]
    assert damaged.info.events == clean.info.events + 4


def test_02_copies(cases_folder: Path) -> None:
    values = expected(cases_folder, 2)["per_rank"]["0"]
    events = parsed(cases_folder, 2)[0].device_events
    copies = events[events["kind"] == "copy"]
    assert len(copies) == values["memcpy_count"]
    assert copies["copy_bytes"].sum() == values["memcpy_bytes"]
    assert (copies["end"] - copies["start"]).sum() == ns(values["memcpy_us"])


def test_03_kernels_stay_apart(cases_folder: Path) -> None:
    kernels = reduced(cases_folder, 3).kernels
    times = kernels.groupby("name")["total_ns"].sum()
    compute = {str(name): time for name, time in times.items() if not str(name).startswith("nccl")}
    assert len(compute) == 3
    for pattern, time in (
        ("acme_.*_norm_bwd", 400),
        ("acme_fused.*gelu.*fwd", 400),
        ("acme_gemm_bf16_tn_128x256", 600),
    ):
        (name,) = (name for name in compute if re.fullmatch(pattern, name, re.DOTALL))
        assert compute[name] == ns(time)
        name.encode()  # writable as UTF-8


def test_04_cut_file(cases_folder: Path) -> None:
    values = expected(cases_folder, 4)
    reduction = reduced(cases_folder, 4)
    assert reduction.info.truncated
    assert "sums of rank 0 are lower bounds" in notices(cases_folder, 4)["truncated-file"].message
    (device,) = reduction.devices
    whole = {step.step: step for step in device.steps}
    assert [number for number, step in whole.items() if step.complete] == values[
        "complete_steps_rank0"
    ]
    assert [number for number, step in whole.items() if not step.complete] == values[
        "incomplete_steps_rank0"
    ]
    assert_times(whole[10].partition, values["step_10_rank0"])
    assert whole[11].partition.launches_without_record == 3
    assert not reduced(cases_folder, 4, 1).info.truncated


def test_05_members_and_trailing_bytes(cases_folder: Path) -> None:
    assert notices(cases_folder, 5) == {}
    assert notices(cases_folder, 5, 1)["trailing-bytes"].count in (272, 372)
    assert not any(trace.info.truncated for trace in parsed(cases_folder, 5).values())


def test_06_rank_from_inside_the_file(cases_folder: Path) -> None:
    values = expected(cases_folder, 6)
    traces = parsed(cases_folder, 6)
    assert sorted(rank for rank in traces if rank is not None) == values["ranks"]
    for rank, row in values["per_rank"].items():
        trace = traces[int(rank)]
        assert trace.info.path.endswith(row["file"])
        assert trace.info.world_size == values["world_size"]
        (device,) = reduced(cases_folder, 6, int(rank)).devices
        assert device.total.compute_ns == ns(row["compute_us"])
        assert device.total.busy_ns == ns(row["busy_us"])


def test_06_inspect_agrees(cases_folder: Path) -> None:
    for trace in parsed(cases_folder, 6).values():
        path = next((folder(cases_folder, 6) / "input").glob(trace.info.path.rpartition("/")[2]))
        facts = KinetoParser().inspect(path)
        assert (facts.rank, facts.world_size) == (trace.info.rank, 4)


@pytest.mark.parametrize("rank", [0, 1])
def test_08_annotations_are_no_kernels(cases_folder: Path, rank: int) -> None:
    values = expected(cases_folder, 8)
    row = values["per_rank"][str(rank)]
    reduction = reduced(cases_folder, 8, rank)
    assert reduction.devices[0].total.kernels == row["kernels"]
    assert [OPERATIONS[code] for code in reduction.operations["op"]] == ["all_reduce"] * 2
    assert reduction.operations["time_ns"].tolist() == [300_000, 300_000]
    elements = reduction.operations["elements"].sum()
    assert 2 * elements == values["all_reduce_bytes_per_rank"]


def test_09_nanoseconds(cases_folder: Path) -> None:
    values = expected(cases_folder, 9)
    kernels = reduced(cases_folder, 9).kernels
    tiny = kernels[kernels["name"] == "acme_tiny_add"]
    assert tiny["count"].sum() == values["kernel_count"]["acme_tiny_add"]
    assert tiny["total_ns"].sum() == 50 * ns(values["mean_us"]["acme_tiny_add"])


def test_10_untimed_events(cases_folder: Path) -> None:
    count = expected(cases_folder, 10)["untimed_or_invalid_gpu_events_rank0"]
    reduction = reduced(cases_folder, 10)
    (device,) = reduction.devices
    assert device.untimed == count
    notice = notices(cases_folder, 10)["untimed-events"]
    assert notice.count == count
    for text in ("2 without times", "1 with a negative duration", "1 without a duration"):
        assert text in notice.message
    assert device.total.window_ns == 1_800_000  # 1100 to 2900
    assert sum(step.partition.window_ns for step in device.steps) == ns(2000.0)
    assert reduction.lost == 0


def test_11_overlapping_kernels(cases_folder: Path) -> None:
    values = expected(cases_folder, 11)
    reduction = reduced(cases_folder, 11)
    part = reduction.devices[0].total
    assert part.kernels == 4
    assert reduction.kernels["total_ns"].sum() == ns(values["kernel_time_sum_us"])
    assert part.overlap_pct == pytest.approx(values["per_rank"]["0"]["overlap_pct"], abs=0.001)
    assert part.busy_ns <= part.window_ns
    assert "acme_pdl_secondary" in set(reduction.kernels["name"])
    (step,) = reduction.devices[0].steps
    assert step.partition.window_ns == ns(values["step_us"])
    share = 100 * step.partition.busy_ns / step.partition.window_ns
    assert share == pytest.approx(values["utilisation_pct_of_step"])


def test_12_two_devices(cases_folder: Path) -> None:
    reduction = reduced(cases_folder, 12, None)
    rows = expected(cases_folder, 12)["per_device"]
    assert [str(device.device) for device in reduction.devices] == sorted(rows)
    for device in reduction.devices:
        assert_times(device.total, rows[str(device.device)])
    assert reduction.info.rank is None


def test_14_names_are_the_weakest_evidence(cases_folder: Path) -> None:
    values = expected(cases_folder, 14)
    reduction = reduced(cases_folder, 14)
    part = reduction.devices[0].total
    assert part.comm_ns == ns(values["comm_us"])
    assert part.comm_by_op_ns == {
        "all_gather": 150_000,
        "all_to_all": 80_000,
        "reduce_scatter": 60_000,
        "unknown": 30_000,
    }
    rows = reduction.operations
    known = rows[rows["message_bytes"] != NONE]
    sums = known.groupby("op")["message_bytes"].sum()
    by_name = {OPERATIONS[code]: sums[code] for code in sums.index.to_list()}
    assert by_name == {"all_gather": 4_194_304, "all_to_all": 524_288, "reduce_scatter": 4_194_304}
    assert len(rows) - len(known) == values["collectives_with_unknown_bytes"]


def test_15_names_stay_as_they_are(cases_folder: Path) -> None:
    values = expected(cases_folder, 15)["kernel_time_us"]
    times = reduced(cases_folder, 15).kernels.groupby("name")["total_ns"].sum()
    for word, key in (("<script>", "<script> name"), ("<img", "<img> name"), ("|", "pipe name")):
        (time,) = (time for name, time in times.items() if word in str(name))
        assert time == ns(values[key])

"""Real traces: the known values of traces/README.md, exact to the nanosecond.

Sources of the values are independent of TraceLens: the README's own script, `raw_trace`, and the
parameter counts of the models.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import raw_trace

from tracelens.model.trace import NONE
from tracelens.operations import OPERATIONS
from tracelens.reduction import reduce_rank
from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from tracelens.model.result import Partition
    from tracelens.reduced import RankReduction

pytestmark = pytest.mark.shared

SINGLE = {
    "resnet50": "kineto/ddp-resnet50-2xa100/rank0.json.gz",
    "resnet18": "kineto/ddp-resnet18-8xmi300/rank0.json.gz",
    "a2a": "kineto/ddp-a2a-2xv100/rank1.json.gz",
    "resolution": "kineto/ns-resolution-v100/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "moe": "kineto/ep2-moe-b200/rank0.json.gz",
    "gloo": "kineto/gloo-cpu/rank-34-of-300.json.gz",
    "2020": "kineto/old-schemas/2020-12_bare-array_cats-Operator-Kernel.json.gz",
    "2021": "kineto/old-schemas/2021-01_schemaVersion1_no-deviceProperties.json.gz",
    "mi250": "kineto/old-schemas/amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "no info": "kineto/old-schemas/"
    "distributed_info_unavailable__distributed_info_not_found.json.gz",
}
NANOGPT = [f"kineto/zero2-nanogpt-8xh100/rank{rank}-chrome-trace.json.gz" for rank in range(8)]
MEGATRON = [f"kineto/tp8-megatron-8xa100/megatron_kineto_{rank}.json.gz" for rank in range(8)]
ALL = [*SINGLE.values(), *NANOGPT, *MEGATRON]
ON_DEVICES = [name for name in ALL if name not in (SINGLE["gloo"], SINGLE["no info"])]


@functools.cache
def reduced(path: Path) -> RankReduction:
    (trace,) = KinetoParser().parse(path)
    trace.validate()
    return reduce_rank(trace)


def total(reduction: RankReduction) -> Partition:
    (device,) = reduction.devices
    return device.total


def operations(reduction: RankReduction) -> pd.DataFrame:
    """Return the operations with their names instead of codes."""
    return reduction.operations.assign(op=[OPERATIONS[code] for code in reduction.operations["op"]])


@pytest.mark.parametrize("name", ON_DEVICES)
def test_no_device_time_is_lost(traces_folder: Path, name: str) -> None:
    """Every part of the partition against unions swept over the raw JSON in decimals."""
    path = traces_folder / name
    expected = raw_trace.devices(raw_trace.load(path))
    reduction = reduced(path)
    assert [device.device for device in reduction.devices] == sorted(expected)
    for device in reduction.devices:
        parts = raw_trace.partition(expected[device.device])
        assert {key: getattr(device.total, key) for key in parts} == parts
        whole = (
            device.total.compute_ns + device.total.exposed_comm_ns + device.total.exposed_copy_ns
        )
        assert whole == device.total.busy_ns


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "moe", "mi250"])
def test_no_kernel_is_lost(traces_folder: Path, name: str) -> None:
    path = traces_folder / SINGLE[name]
    (trace,) = KinetoParser().parse(path)
    events = trace.device_events
    times: Counter[str] = Counter()
    for kernel, length in zip(
        events["name"].astype(object), events["end"] - events["start"], strict=True
    ):
        times[kernel] += int(length)
    assert times == raw_trace.kernel_times(raw_trace.load(path))


@pytest.mark.parametrize("name", ALL)
def test_every_step_closes(traces_folder: Path, name: str) -> None:
    for device in reduced(traces_folder / name).devices:
        for part in [device.total, *(step.partition for step in device.steps)]:
            parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_copy_ns, part.idle_ns)
            assert sum(parts) == part.window_ns
            assert sum(part.exposed_by_op_ns.values()) == part.exposed_comm_ns


# compute, comm, exposed comm, copy, exposed copy, busy, idle, window: ns; None: not in the table
PARTITIONS: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "resnet50": (115655847, 46876493, 39559468, 2653498, 2284699, 157500014, 503050991, 660551005),
    "resnet18": (25739303, 71516523, 55625224, 2974246, 2637529, 84002056, 2565652, 86567708),
    "a2a": (548148000, 251341000, 73298000, 156797000, 96497000, 717943000, 27296000, 745239000),
    "resolution": (468153602, 0, 0, 4300839, 4300839, 472454441, 7574738, 480029179),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_of_the_table(traces_folder: Path, name: str) -> None:
    part = total(reduced(traces_folder / SINGLE[name]))
    got = (part.compute_ns, part.comm_ns, part.exposed_comm_ns, part.copy_ns, part.exposed_copy_ns)
    assert (*got, part.busy_ns, part.idle_ns, part.window_ns) == PARTITIONS[name]


def per_step(rows: pd.DataFrame, value: str) -> dict[tuple[int, str, str], int]:
    """Sum a column per (step, operation, dtype)."""
    sums = rows.groupby(["step", "op", "dtype"])[value].sum()
    keys = [(int(step), str(op), str(dtype)) for step, op, dtype in sums.index.to_list()]
    return dict(zip(keys, sums.astype(int).to_list(), strict=True))


class TestResnet50:
    """DDP, torch 2.4, two A100."""

    def test_all_reduced_elements_are_the_parameters(self, traces_folder: Path) -> None:
        reduction = reduced(traces_folder / SINGLE["resnet50"])
        sums = per_step(operations(reduction), "elements")
        for step in range(3):
            assert sums[step, "all_reduce", "float32"] == 25_557_032
            assert sums[step, "broadcast", "float32"] == 53_120
            assert sums[step, "broadcast", "int64"] == 53
        assert len(sums) == 9

    def test_bytes_and_buckets(self, traces_folder: Path) -> None:
        rows = operations(reduced(traces_folder / SINGLE["resnet50"]))
        reduces = rows[rows["op"] == "all_reduce"]
        assert reduces.groupby("step").size().tolist() == [5, 5, 5]
        assert reduces.groupby("step")["message_bytes"].sum().tolist() == [204_456_256] * 3
        assert reduces.groupby("step")["wire_bytes"].sum().tolist() == [102_228_128] * 3

    def test_facts(self, traces_folder: Path) -> None:
        reduction = reduced(traces_folder / SINGLE["resnet50"])
        assert [step.step for step in reduction.devices[0].steps] == [4, 5, 6]
        assert all(step.complete for step in reduction.devices[0].steps)
        assert (reduction.info.rank, reduction.info.world_size) == (0, 2)
        assert (reduction.lost, reduction.without_device_time) == (0, 0)


class TestResnet18:
    """RCCL: every kernel is called Generic; five were launched before the window."""

    def test_all_reduced_elements_are_the_parameters(self, traces_folder: Path) -> None:
        rows = operations(reduced(traces_folder / SINGLE["resnet18"]))
        reduces = rows[rows["op"] == "all_reduce"]
        assert reduces.groupby("step")["elements"].sum().tolist() == [11_689_512] * 3
        assert reduces["dtype"].unique().tolist() == ["bfloat16"]
        assert len(reduces) == 6

    def test_kernels_without_metadata_are_an_own_class(self, traces_folder: Path) -> None:
        reduction = reduced(traces_folder / SINGLE["resnet18"])
        rows = operations(reduction)
        unknown = rows[rows["op"] == "unknown"]
        assert len(unknown) == 5
        assert unknown["step"].unique().tolist() == [-1]
        assert (unknown["message_bytes"] == NONE).all()
        by_op = total(reduction).comm_by_op_ns
        assert by_op["all_reduce"] == pytest.approx(47_137_000, abs=1000)
        assert by_op["unknown"] == pytest.approx(24_316_000, abs=1000)

    def test_facts(self, traces_folder: Path) -> None:
        info = reduced(traces_folder / SINGLE["resnet18"]).info
        assert (info.device_kind, info.rank, info.world_size) == ("rocm", 0, 8)


def test_a_double_would_lose_nanoseconds_of_epoch_times(traces_folder: Path) -> None:
    """3.715404 ms of memcpy; 3.70125 for a reader that goes through float64."""
    (trace,) = KinetoParser().parse(traces_folder / SINGLE["resolution"])
    copies = trace.device_events[trace.device_events["kind"] == "copy"]
    spans = list(zip(copies["start"].tolist(), copies["end"].tolist(), strict=True))
    assert raw_trace.length(spans) == 3_715_404


class TestNanogpt:
    """A sharded optimizer on eight H100: gradients reduce-scattered, parameters gathered."""

    EVEN = {"float32": 75_497_472, "bfloat16": 1_248}  # noqa: RUF012
    ODD = {"float32": 75_497_536, "bfloat16": 193_168_608}  # noqa: RUF012

    @pytest.mark.parametrize("name", NANOGPT)
    def test_what_is_scattered_is_gathered(self, traces_folder: Path, name: str) -> None:
        sums = per_step(operations(reduced(traces_folder / name)), "elements")
        expected: dict[tuple[int, str, str], int] = {}
        for step in range(4):
            for dtype, elements in (self.ODD if step % 2 else self.EVEN).items():
                expected |= {(step, op, dtype): elements for op in ("reduce_scatter", "all_gather")}
        assert {key: value for key, value in sums.items() if key[0] >= 0} == expected

    @pytest.mark.parametrize("name", NANOGPT)
    def test_kernels_launched_before_the_window(self, traces_folder: Path, name: str) -> None:
        rows = operations(reduced(traces_folder / name))
        before = rows[rows["step"] < 0]
        assert 20 <= len(before) <= 28
        assert set(before["source"]) == {"name"}
        assert (before["message_bytes"] == NONE).all()
        assert (rows[rows["step"] >= 0]["source"] == "args").all()

    def test_rank_1_communicates_least(self, traces_folder: Path) -> None:
        times = [round(total(reduced(traces_folder / name)).comm_ns / 1e6, 1) for name in NANOGPT]
        assert times[1] == 23.1
        assert all(48 <= time <= 59.1 for rank, time in enumerate(times) if rank != 1)

    def test_facts(self, traces_folder: Path) -> None:
        for rank, name in enumerate(NANOGPT):
            info = reduced(traces_folder / name).info
            assert (info.rank, info.world_size, info.device_kind) == (rank, 8, "cuda")
            assert not info.notices


class TestMegatron:
    """Tensor parallelism over eight A100, forward only; sizes only in Input Dims."""

    @pytest.mark.parametrize("name", MEGATRON)
    def test_84_all_reduces(self, traces_folder: Path, name: str) -> None:
        rows = operations(reduced(traces_folder / name))
        assert set(rows["op"]) == {"all_reduce"}
        sizes = Counter(zip(rows["dtype"], rows["elements"], strict=True))
        # 2 per layer x 40 layers + 1 embedding, and three of the cross entropy
        assert sizes == {("float16", 2048 * 4 * 4096): 81, ("float32", 4 * 2048): 3}
        assert set(rows["step"]) == {0}

    def test_ranks_0_and_6_wait_least(self, traces_folder: Path) -> None:
        times = [round(total(reduced(traces_folder / name)).comm_ns / 1e6) for name in MEGATRON]
        assert (times[0], times[6]) == (241, 264)
        assert all(413 <= time <= 495 for rank, time in enumerate(times) if rank not in (0, 6))


class TestMixtureOfExperts:
    """Expert parallelism over two B200: ten iterations in one step."""

    def test_bytes(self, traces_folder: Path) -> None:
        rows = operations(reduced(traces_folder / SINGLE["moe"]))
        inside = rows[rows["step"] == 0]
        assert set(inside["op"]) == {"all_to_all"}
        assert Counter(inside["dtype"]) == {"bfloat16": 20, "int64": 10}
        tokens = inside[inside["dtype"] == "bfloat16"]
        assert tokens["message_bytes"].sum() == 2_348_810_240

    def test_waits_are_never_counted(self, traces_folder: Path) -> None:
        path = traces_folder / SINGLE["moe"]
        names = [
            event["args"].get("Collective name")
            for event in raw_trace.load(path)
            if event["name"] == "record_param_comms"
        ]
        assert names.count("wait") >= 30  # the file is full of them
        assert reduced(path).without_device_time == 0


class TestGlooOnCpu:
    def test_each_all_reduce_is_one(self, traces_folder: Path) -> None:
        reduction = reduced(traces_folder / SINGLE["gloo"])
        rows = operations(reduction)
        assert rows.groupby("step").size().tolist() == [2] * 5
        assert rows.groupby("step")["elements"].sum().tolist() == [321_271 + 2_082_411] * 5
        assert (reduction.info.rank, reduction.info.device_kind) == (34, "cpu")

    def test_time_is_that_of_the_ranges(self, traces_folder: Path) -> None:
        path = traces_folder / SINGLE["gloo"]
        spans = [
            (raw_trace.nanoseconds(event["ts"]), raw_trace.nanoseconds(event["ts"] + event["dur"]))
            for event in raw_trace.load(path)
            if event["name"] == "gloo:all_reduce"
        ]
        assert total(reduced(path)).comm_ns == raw_trace.length(spans)


@pytest.mark.parametrize("name", ["2020", "2021"])
def test_old_steps_are_operators(traces_folder: Path, name: str) -> None:
    reduction = reduced(traces_folder / SINGLE[name])
    assert [step.step for step in reduction.devices[0].steps] == [5, 6, 7, 8, 9, 10]
    assert reduction.info.rank is None


@pytest.mark.parametrize(
    ("name", "kind"), [("mi250", "rocm"), ("no info", "unknown"), ("2020", "cuda")]
)
def test_old_schemas_load(traces_folder: Path, name: str, kind: str) -> None:
    """The one without info ran NCCL's all-to-all on A100s, recorded without its device events."""
    reduction = reduced(traces_folder / SINGLE[name])
    assert reduction.info.device_kind == kind
    assert not reduction.info.truncated


def test_a2a_has_no_metadata_but_the_annotations_names(traces_folder: Path) -> None:
    rows: Any = operations(reduced(traces_folder / SINGLE["a2a"]))
    assert {"all_to_all", "all_reduce"} <= set(rows["op"])
    assert "args" not in set(rows["source"])

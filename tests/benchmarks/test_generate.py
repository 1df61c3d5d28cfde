"""The generated benchmark file is a sound trace with known totals."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tracelens
from benchmarks.generate import BYTES_EACH, LAYER_ELEMENTS, ROOT_ELEMENTS, Plan, write
from tracelens.reduction import reduce_rank

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from tracelens.model.trace import RankTrace
    from tracelens.reduced import RankReduction

PLAN = Plan(events=5_000, steps=2)


def _read(folder: Path, plan: Plan = PLAN) -> RankTrace:
    path = folder / f"rank{plan.rank}.json"
    write(path, plan)
    (trace,) = tracelens.load(path)
    return trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> RankTrace:
    return _read(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def reduced(trace: RankTrace) -> RankReduction:
    return reduce_rank(trace)


def _collectives(trace: RankTrace) -> pd.DataFrame:
    """Return the device events of collectives."""
    events = trace.device_events
    return events[events["stream"] == 20]


class TestFile:
    def test_is_a_valid_trace_without_a_single_notice(self, trace: RankTrace) -> None:
        trace.validate()
        assert trace.info.notices == ()
        assert not trace.info.truncated
        assert (trace.info.rank, trace.info.world_size) == (0, 8)

    @pytest.mark.parametrize(
        ("events", "steps"), [(5_000, 2), (20_000, 5)], ids=["small", "larger"]
    )
    def test_has_as_many_events_as_asked_for(self, tmp_path: Path, events: int, steps: int) -> None:
        trace = _read(tmp_path, Plan(events=events, steps=steps))
        assert abs(trace.info.events - events) <= 10 * steps

    def test_is_the_same_for_the_same_seed_and_another_for_another(self, tmp_path: Path) -> None:
        texts = []
        for seed in (1, 1, 2):
            write(tmp_path / "a.json", Plan(events=2_000, steps=1, seed=seed))
            texts.append((tmp_path / "a.json").read_bytes())
        assert texts[0] == texts[1] != texts[2]

    def test_is_the_same_compressed(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", PLAN)
        write(tmp_path / "a.json.gz", PLAN)
        plain = (tmp_path / "a.json").read_bytes()
        packed = gzip.decompress((tmp_path / "a.json.gz").read_bytes())
        assert packed.replace(b"a.json.gz", b"a.json") == plain

    def test_python_frames_change_nothing_but_the_kernels_there_is_room_for(
        self, tmp_path: Path
    ) -> None:
        plan = Plan(events=5_000, steps=2, python=True)
        trace = _read(tmp_path, plan)
        compute = trace.device_events["kind"].eq("kernel").sum() - len(_collectives(trace))
        assert abs(trace.info.events - 5_000) <= 12 * plan.steps
        assert compute == plan.kernels * plan.steps


class TestTotals:
    def test_every_step_has_the_planned_kernels(
        self, trace: RankTrace, reduced: RankReduction
    ) -> None:
        kernels = reduced.kernels.groupby(["step", "class"])["count"].sum()
        for step in range(PLAN.steps):
            assert kernels[step, 0] == PLAN.kernels
            assert kernels[step, 1] == PLAN.collectives
            assert kernels[step, 2] == 2  # a copy and a memset

    def test_every_step_moves_the_planned_bytes(self, reduced: RankReduction) -> None:
        by_step = reduced.operations.groupby("step")["message_bytes"].sum()
        assert by_step.to_dict() == dict.fromkeys(range(PLAN.steps), PLAN.message_bytes)

    def test_the_plan_counts_gathers_twice_and_reductions_once_a_layer(self) -> None:
        layers = PLAN.layers * LAYER_ELEMENTS
        assert PLAN.message_bytes == BYTES_EACH * (3 * layers + 2 * ROOT_ELEMENTS)
        assert PLAN.collectives == 3 * PLAN.layers + 2

    def test_every_kernel_knows_its_launch(self, reduced: RankReduction) -> None:
        assert reduced.lost == 0
        assert reduced.without_device_time == 0
        assert [device.before_first_step for device in reduced.devices] == [0]

    def test_communication_partly_hides_behind_compute(self, reduced: RankReduction) -> None:
        total = reduced.devices[0].total
        assert 0 < total.overlapped_comm_ns < total.comm_ns
        assert total.idle_ns > 0


class TestRanks:
    def test_collectives_end_together_and_begin_apart(self, tmp_path: Path) -> None:
        first, second = (_collectives(_read(tmp_path, PLAN.of_rank(rank))) for rank in (0, 1))
        assert np.array_equal(first["end"], second["end"])
        assert not np.array_equal(first["start"], second["start"])

    def test_is_read_as_fsdp2(self, tmp_path: Path) -> None:
        for rank in range(2):
            write(tmp_path / f"rank{rank}.json", Plan(events=5_000, steps=2, rank=rank, world=2))
        result = tracelens.analyze(tmp_path)
        parameters = PLAN.layers * LAYER_ELEMENTS + ROOT_ELEMENTS
        assert result.parallelism.parameters.count == parameters
        assert (result.parallelism.framework, result.parallelism.strategy) == ("fsdp2", "zero3")

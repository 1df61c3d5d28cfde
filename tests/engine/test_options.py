"""Facts the user gives win over what the trace suggests."""

from __future__ import annotations

import pytest
from samples import SAMPLES, analysis

import tracelens
from tracelens.engine import Options
from tracelens.errors import InputError
from tracelens.reduction import Selection
from tracelens.strategy.inference import Given


def test_given_parameters_check_the_total() -> None:
    given = Options(given=Given(parameters=2 * 863_360))
    result = tracelens.analyze(SAMPLES / "ddp", given)
    assert result.parallelism.parameters.count == 2 * 863_360
    assert result.parallelism.parameters.confidence == "exact"
    assert result.parallelism.parameters.source == "option"
    assert result.volumes.verdict == "unexplained"
    assert result.volumes.per_step.multiple_of_parameters == 1.0
    assert result.volumes.unexplained_bytes == -2 * 863_360 * 4


def test_given_stage_decides_between_zero_1_and_2() -> None:
    result = tracelens.analyze(SAMPLES / "deepspeed-zero1", Options(given=Given(zero_stage=1)))
    assert result.parallelism.strategy == "zero1"
    assert result.parallelism.source == "option"


def test_given_layout_overrides_sizes() -> None:
    result = tracelens.analyze(SAMPLES / "ddp", Options(given=Given(dims={"dp": 2, "tp": 2})))
    assert result.parallelism.dims["tp"] == 2
    assert result.volumes.verdict == "unknown"


def test_given_dtype_sets_bytes_of_predictions() -> None:
    result = tracelens.analyze(SAMPLES / "ddp", Options(given=Given(dtype="bfloat16")))
    assert result.volumes.predictions[0].message_bytes == 2 * 863_360 * 2
    [said] = [one.message for one in result.notices if one.code == "dtype-contradicted"]
    assert "--dtype says bfloat16, but gradients and parameters travel in elements of 4" in said
    as_recorded = tracelens.analyze(SAMPLES / "ddp", Options(given=Given(dtype="float32")))
    assert "dtype-contradicted" not in {one.code for one in as_recorded.notices}


def test_selected_steps_only() -> None:
    result = tracelens.analyze(SAMPLES / "ddp", Options(selection=Selection(7, 8)))
    assert result.run.steps == [7, 8]
    assert result.volumes.per_step.message_elements == 2 * 863_360
    [reduced] = [c for c in result.collectives if c.kind == "parameters"]
    assert reduced.calls_per_step == 5


def test_selected_ranks_only() -> None:
    result = tracelens.analyze(SAMPLES / "ddp", Options(ranks=frozenset({1, 3})))
    assert result.run.ranks_present == [1, 3]
    assert result.run.ranks_missing == []
    [selected] = [n for n in result.notices if n.code == "selected-ranks"]
    assert "only ranks 1, 3" in selected.message


def test_ranks_that_are_not_there() -> None:
    with pytest.raises(InputError, match=r"none of the ranks \[9\] is there \(found: \[0, 1, 2, 3"):
        tracelens.analyze(SAMPLES / "ddp", Options(ranks=frozenset({9})))


def test_parallel_processes_give_the_same_result() -> None:
    parallel = tracelens.analyze(SAMPLES / "ddp", Options(workers=2))
    assert parallel.to_json() == analysis("ddp").to_json()


def test_load_returns_pandas_tables_in_order_of_rank() -> None:
    traces = tracelens.load(SAMPLES / "fsdp2")
    assert [trace.info.rank for trace in traces] == [0, 1, 2, 3]
    for trace in traces:
        trace.validate()
    assert len(traces[0].communications)
    assert list(traces[0].marks["name"][:0]) == []


def test_result_tables_are_frames() -> None:
    tables = analysis("fsdp2").tables
    assert len(tables.steps) == 4 * 3
    assert set(tables.ranks["rank"]) == {0, 1, 2, 3}

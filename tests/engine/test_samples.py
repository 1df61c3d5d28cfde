"""Every recorded run shows the volumes its definition asks for, to the element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from samples import EXPECTED, analysis

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Prediction

WITH_THEORY = sorted(name for name, run in EXPECTED.items() if run["message_multiple"])
STRATEGIES = {
    "ddp": ("ddp", "ddp"),
    "ddp-accumulate-no-sync": ("ddp", "ddp"),
    "ddp-accumulate-sync": ("ddp", "ddp"),
    "zero-redundancy-optimizer": ("zero1", "zero-redundancy-optimizer"),
    # Without accumulation nothing in the traffic tells stage 1 from stage 2.
    "deepspeed-zero1": ("zero1-or-2", "deepspeed"),
    "deepspeed-zero2": ("zero1-or-2", "deepspeed"),
    "deepspeed-zero2-accumulate": ("zero2", "deepspeed"),
    "deepspeed-zero3": ("zero3", "deepspeed"),
    "deepspeed-zero3-no-reuse": ("zero3", "deepspeed"),
    "fsdp1": ("zero3", "fsdp1"),
    "fsdp2": ("zero3", "fsdp2"),
    "fsdp2-no-reshard": ("fsdp-grad-op", "fsdp2"),
    "hsdp-2x2": ("hsdp", "fsdp2"),
    "simulated-zero3-dp8": ("zero3", "fsdp2"),
    "simulated-nsight-zero3-dp4": ("zero3", "fsdp2"),
}
FRAMEWORK_PREDICTIONS = {
    "ddp": "DDP",
    "ddp-accumulate-no-sync": "DDP",
    "ddp-accumulate-sync": "DDP, every one of 2 micro-batches synchronised",
    "zero-redundancy-optimizer": "ZeroRedundancyOptimizer over DDP",
    "deepspeed-zero1": "DeepSpeed ZeRO-1/2",
    "deepspeed-zero2": "DeepSpeed ZeRO-1/2",
    "deepspeed-zero2-accumulate": "DeepSpeed ZeRO-2, 2 micro-batches",
    "deepspeed-zero3": "DeepSpeed ZeRO-3, defaults",
    "deepspeed-zero3-no-reuse": "DeepSpeed ZeRO-3, nothing kept",
    "fsdp1": "FSDP1, resharded after forward (root kept)",
    "fsdp2": "FSDP2, resharded after forward (root kept)",
    "fsdp2-no-reshard": "FSDP2, kept after forward",
    "hsdp-2x2": "HSDP 2 x 2: FSDP2, resharded after forward (root kept)",
    "simulated-zero3-dp8": "FSDP2, resharded after forward (root kept)",
    "simulated-nsight-zero3-dp4": "FSDP2, resharded after forward (root kept)",
}
PAPER_MULTIPLES = {
    "ddp": 2.0,
    "zero1": 2.0,
    "zero1-or-2": 2.0,
    "zero2": 2.0,
    "fsdp-grad-op": 2.0,
    "zero3": 3.0,
    "hsdp": 3.0,
}


def test_every_recorded_run_is_covered() -> None:
    without = {"tp2", "3d-pp2-dp2-tp2", "simulated-3d-pp2-dp2-tp2"}
    without.add("simulated-nsight-3d-pp2-dp2-tp2")
    without |= {name for name in EXPECTED if name.startswith("pipeline-")}
    assert set(WITH_THEORY) == set(STRATEGIES) == set(EXPECTED) - without


def matched(result: Analysis) -> Prediction:
    [found] = [p for p in result.volumes.predictions if p.matches]
    return found


@pytest.mark.parametrize("name", WITH_THEORY)
def test_observed_elements_per_step_are_those_of_the_definition(name: str) -> None:
    expected = EXPECTED[name]
    per_step = analysis(name).volumes.per_step
    exact = expected["message_multiple"] * expected["parameters"]
    assert per_step.message_elements == pytest.approx(exact, abs=1e-3)
    assert (per_step.message_elements or 0.5).is_integer()
    assert per_step.coverage == 1.0


@pytest.mark.parametrize("name", WITH_THEORY)
def test_strategy_framework_and_parameters_are_inferred(name: str) -> None:
    layout = analysis(name).parallelism
    assert (layout.strategy, layout.framework) == STRATEGIES[name]
    assert layout.parameters.count == EXPECTED[name]["parameters"]
    assert layout.parameters.source == "inferred"
    assert layout.dims["dp"] == EXPECTED[name]["world_size"]
    assert layout.evidence


@pytest.mark.parametrize("name", WITH_THEORY)
def test_the_right_framework_prediction_matches_within_two_per_mille(name: str) -> None:
    prediction = matched(analysis(name))
    assert prediction.kind == "framework"
    assert prediction.name == FRAMEWORK_PREDICTIONS[name]
    assert prediction.observed_over_predicted == pytest.approx(1.0, abs=0.002)
    assert prediction.message_multiple == pytest.approx(EXPECTED[name]["message_multiple"])


@pytest.mark.parametrize("name", WITH_THEORY)
def test_a_difference_from_the_paper_is_explained_in_one_sentence(name: str) -> None:
    result = analysis(name)
    multiple = EXPECTED[name]["message_multiple"]
    paper = result.volumes.predictions[0]
    assert paper.kind == "paper"
    assert paper.message_multiple == PAPER_MULTIPLES[result.parallelism.strategy or ""]
    assert paper.observed_over_predicted == pytest.approx(multiple / paper.message_multiple)
    if abs(multiple - paper.message_multiple) < 1e-9:
        assert result.volumes.verdict == "as expected"
    else:
        assert result.volumes.verdict == "explained"
        assert result.volumes.explanation
        assert "\n" not in result.volumes.explanation
    assert result.volumes.unexplained_bytes == 0


# The simulated ranks begin and end their recordings at different calls.
@pytest.mark.parametrize("name", [n for n in WITH_THEORY if "simulated" not in EXPECTED[n]])
def test_every_step_of_every_rank_moves_the_same(name: str) -> None:
    result = analysis(name)
    for collective in result.collectives:
        shares = {(v.calls, v.message_bytes, v.wire_bytes) for v in collective.by_rank.values()}
        assert len(shares) == 1


@pytest.mark.parametrize("name", WITH_THEORY)
def test_terms_add_up_to_the_prediction_and_the_observation(name: str) -> None:
    volumes = analysis(name).volumes
    prediction = matched(analysis(name))
    assert sum(t.predicted_bytes or 0 for t in volumes.terms) == prediction.message_bytes
    assert sum(t.observed_bytes or 0 for t in volumes.terms) == volumes.per_step.message_bytes


def test_hsdp_is_fsdp_plus_two_psi_over_the_shard_size() -> None:
    hsdp = analysis("hsdp-2x2").volumes.per_step.message_elements
    fsdp = analysis("fsdp2").volumes.per_step.message_elements
    assert hsdp is not None
    assert fsdp is not None
    assert hsdp - fsdp == EXPECTED["fsdp2"]["parameters"]


def test_bytes_follow_the_dtype_that_travels() -> None:
    bf16 = analysis("deepspeed-zero2").volumes.per_step
    fp32 = analysis("ddp").volumes.per_step
    assert bf16.message_bytes == 3 * 863_360 * 2
    assert fp32.message_bytes == 2 * 863_360 * 4
    # A ring of 4: each rank sends 3/4 of every buffer, twice for an all-reduce.
    assert fp32.wire_bytes == 2 * 863_360 * 4 * 3 // 4


def test_small_collectives_are_listed_as_other() -> None:
    result = analysis("fsdp2")
    [norm] = [c for c in result.collectives if c.op == "all_reduce"]
    assert norm.kind == "other"
    # One norm for each of 15 parameter tensors and one loss, counted twice as all-reduces.
    assert norm.message_elements_per_step == 2 * (15 + 1)


@pytest.mark.parametrize(
    ("name", "strategy", "dims"),
    [
        ("tp2", "tp", {"dp": 1, "tp": 2, "pp": 1}),
        ("pipeline-gpipe", "pp", {"dp": 1, "tp": 1, "pp": 4}),
        ("pipeline-1f1b", "pp", {"dp": 1, "tp": 1, "pp": 4}),
        ("3d-pp2-dp2-tp2", "3d", {"dp": 2, "tp": 2, "pp": 2}),
    ],
)
def test_model_parallel_runs_are_named_and_not_held_against_data_parallel_theory(
    name: str, strategy: str, dims: dict[str, int]
) -> None:
    result = analysis(name)
    assert result.parallelism.strategy == strategy
    assert dims.items() <= result.parallelism.dims.items()
    assert result.volumes.predictions == []
    assert result.volumes.verdict == "unknown"
    assert result.volumes.per_step.multiple_of_parameters is None
    assert result.volumes.explanation


def test_groups_of_the_3d_run_are_the_mesh() -> None:
    groups = {(g.role, tuple(g.ranks or ())) for g in analysis("3d-pp2-dp2-tp2").groups}
    mesh = {
        **{("pp", (r, r + 4)): None for r in range(4)},
        **{("dp", (r, r + 2)): None for r in (0, 1, 4, 5)},
        **{("tp", (r, r + 1)): None for r in (0, 2, 4, 6)},
    }
    assert groups == set(mesh)


def test_3d_stages_gather_and_reduce_what_the_recording_says() -> None:
    result = analysis("3d-pp2-dp2-tp2")
    reduced = {
        rank: next(
            c.message_elements_per_step
            for c in result.collectives
            if c.op == "reduce_scatter" and rank in c.by_rank
        )
        for rank in range(8)
    }
    # TP-local parameters: 185,600 in stage 0, 288,640 in stage 1.
    assert reduced == {rank: 185_600 if rank < 4 else 288_640 for rank in range(8)}


def test_pipeline_messages_are_counted_per_stage() -> None:
    result = analysis("pipeline-1f1b")
    sends = {
        rank: volume.calls
        for c in result.collectives
        if c.op == "send"
        for rank, volume in c.by_rank.items()
    }
    # 3 steps x 8 micro-batches; interior stages send activations on and gradients back.
    assert sends == {0: 24, 1: 48, 2: 48, 3: 24}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_partitions_close_exactly(name: str) -> None:
    for rank in analysis(name).ranks:
        for device in rank.devices:
            assert device.mean_step is not None
            for part in [device.total, device.mean_step, *(s.partition for s in device.steps)]:
                parts = part.compute_ns + part.exposed_comm_ns + part.exposed_copy_ns
                assert parts == part.busy_ns
                assert parts + part.idle_ns == part.window_ns
                assert sum(part.exposed_by_op_ns.values()) == part.exposed_comm_ns
                assert part.overlapped_comm_ns + part.exposed_comm_ns == part.comm_ns


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_steps_are_those_recorded(name: str) -> None:
    result = analysis(name)
    assert result.run.steps == EXPECTED[name]["steps"]
    assert result.run.ranks_present == list(range(EXPECTED[name]["world_size"]))
    simulated = EXPECTED[name].get("simulated", False)
    assert result.run.device_kind == ("cuda" if simulated else "cpu")
    codes = {notice.code for notice in result.notices}
    assert {"simulated", "cpu-run"} & codes == {"simulated" if simulated else "cpu-run"}


def test_sleeping_stages_compute_what_they_slept() -> None:
    """A stage sleeps 8 x (40 + 80) ms a step inside operators, so compute is a little more."""
    for rank in analysis("pipeline-1f1b").ranks:
        mean = rank.devices[0].mean_step
        assert mean is not None
        assert 960e6 <= mean.compute_ns <= 1000e6

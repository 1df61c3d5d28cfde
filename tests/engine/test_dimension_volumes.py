"""Bytes of mixed runs: what is predicted is what was simulated, and what deviates is shown."""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from samples import SAMPLES

import tracelens
from tracelens import dimension_volumes
from tracelens.engine import Options as Wanted
from tracelens.model.result import DimensionVolume, StepBytes
from tracelens.reporting.volumes import volumes_section
from tracelens.simulate import Layout, Options, kineto
from tracelens.simulate.attention import Attention
from tracelens.simulate.experts import Experts
from tracelens.simulate.program import _Rank
from tracelens.simulate.run import whole_run
from tracelens.simulate.strategies.megatron import Megatron
from tracelens.simulate.transformer import Transformer
from tracelens.simulate.truth import truth
from tracelens.strategy.inference import Given
from tracelens.theory.transformer import describe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.model.result import Analysis, VolumeVerdict

DENSE = "layers=4,hidden=512,vocabulary=2048,sequence=512,batch=1,heads=4"
DEEP = DENSE.replace("layers=4", "layers=8")
TIED = f"{DENSE},tied=yes,positions=no"
EXPERTS = f"{DENSE},experts=8,top_k=2,feed_forward=1024"
FEW_KEYS = f"{DENSE},kv_heads=2"
SMALL_BYTES = 1024
_DIMENSION = {
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EMBEDDING_GROUP": "embedding",
}


class Ran:
    """A simulated run on disk, and what is true of it."""

    def __init__(self, folder: Path, model: str = DENSE, **options: Any) -> None:
        sizes = {n: options.pop(n) for n in ("dp", "tp", "pp", "ep", "cp") if n in options}
        self.model, self.folder = model, folder
        chosen = Options(Layout(**sizes), describe(model).model, steps=1, **options)
        recording = whole_run(chosen)
        kineto.write(recording, folder, torch=chosen.torch)
        self.world = chosen.layout.world
        self.volumes = truth(recording, chosen)["volumes"]

    def true_bytes(self, *, loss: bool = True) -> dict[str, float]:
        """Return message bytes per step and mean rank by dimension, without small calls.

        Args:
            loss: Whether to count tensor-parallel calls of one number a token.
        """
        found: dict[str, float] = defaultdict(float)
        for one in self.volumes:
            factor = 2 if one["op"] == "all_reduce" else 1
            each = one["message_bytes"] / factor / one["calls"]
            dimension = _DIMENSION.get(one["group"])
            of_the_loss = dimension == "tp" and one["dtype"] == "Float"
            if dimension is not None and each > SMALL_BYTES and (loss or not of_the_loss):
                found[dimension] += one["message_bytes"] / self.world
        return {name: total for name, total in found.items() if total}

    def analysed(self, *, stated: str | None = None, params: int | None = None) -> Analysis:
        model = None if stated is None else describe(stated)
        return tracelens.analyze(
            self.folder, Wanted(given=Given(parameters=params, model=model), workers=1)
        )

    def rows(self, **given: Any) -> dict[str, DimensionVolume]:
        return {row.dimension: row for row in self.analysed(**given).volumes.dimensions}

    @property
    def described(self) -> str:
        return f"{self.model},dtype=bf16"


RUNS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 4},
    "tp, sequence parallel": {"tp": 4, "sequence_parallel": True},
    "pp, gpipe": {"pp": 4, "schedule": "gpipe", "micro_batches": 4},
    "pp, 1f1b": {"pp": 4, "micro_batches": 8},
    "pp, zero bubble": {"pp": 4, "schedule": "zb-h1", "micro_batches": 8},
    "pp, interleaved": {
        "pp": 4, "schedule": "interleaved", "virtual_stages": 2, "micro_batches": 4, "model": DEEP,
    },
    "pp, tied": {"pp": 2, "dp": 2, "micro_batches": 2, "model": TIED},
    "3d": {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2},
    "3d, sharded optimizer": {
        "dp": 2, "tp": 2, "pp": 2, "micro_batches": 2, "sequence_parallel": True,
        "strategy": "distributed-optimizer",
    },
    "3d, tied": {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2, "model": TIED},
    "fsdp and tp": {"dp": 2, "tp": 2, "strategy": "zero3"},
    "experts": {"dp": 4, "ep": 2, "model": EXPERTS},
    "experts without replicas": {"dp": 4, "ep": 4, "model": EXPERTS},
    "experts and tp": {
        "dp": 4, "ep": 2, "tp": 2, "sequence_parallel": True, "model": EXPERTS,
    },
    "experts and pp": {"dp": 2, "ep": 2, "pp": 2, "micro_batches": 4, "model": EXPERTS},
    "ring": {"cp": 4, "model": FEW_KEYS},
    "ring, tp and dp": {"dp": 2, "cp": 2, "tp": 2},
    "gathered context and pp": {
        "cp": 2, "pp": 2, "micro_batches": 4, "context": "all-gather", "model": FEW_KEYS,
    },
    "everything": {
        "dp": 2, "tp": 2, "pp": 2, "cp": 2, "micro_batches": 2, "sequence_parallel": True,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Return what simulates a run of the table, each once."""

    @functools.cache
    def run(name: str) -> Ran:
        return Ran(tmp_path_factory.mktemp("run"), **RUNS[name])

    return run


def computed(formula: str) -> int:
    """Compute a formula as a reader would: the mean of the stages' sums of products."""
    of_stage: list[int] = []
    for part in re.split(r"; (?=stages? )", formula):
        stages = re.match(r"stages? ([\d, -]+): ", part)
        bounds = [
            list(map(int, one.split("-"))) for one in (stages[1] if stages else "0").split(",")
        ]
        sums = [
            int(item) * sum(math.prod(map(_number, _NUMBER.findall(t))) for t in terms.split("; "))
            for terms, item in re.findall(r"\((.*?)\) x (\d) B(?= \+ |$)", part)
        ]
        of_stage += [sum(sums)] * sum(low_high[-1] - low_high[0] + 1 for low_high in bounds)
    return round(sum(of_stage) / len(of_stage))


_NUMBER = re.compile(r"\d[\d,]*")


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("name", RUNS)
def test_described_models_are_predicted_to_the_byte(name: str, runs: Callable[[str], Ran]) -> None:
    """With the model's sizes every dimension is predicted; only padding of shards differs."""
    ran = runs(name)
    analysis = ran.analysed(stated=ran.described)
    rows = {row.dimension: row for row in analysis.volumes.dimensions}
    assert {n: row.observed.message for n, row in rows.items()} == ran.true_bytes()
    for row in rows.values():
        padded = row.dimension == "dp" and RUNS[name].get("strategy") is not None
        assert row.predicted.message == pytest.approx(
            row.observed.message, rel=1e-3 if padded else 0, abs=0
        )
        assert row.verdict in ("as expected", "explained")
        if row.dimension in ("tp", "ep", "cp", "pp"):
            assert computed(row.formula or "") == row.predicted.message
    assert analysis.volumes.verdict in ("as expected", "explained")
    assert analysis.volumes.unexplained_bytes == 0


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("3d")])
def test_traces_alone_settle_tensor_and_pipeline_parallelism(
    name: str, runs: Callable[[str], Ran]
) -> None:
    """Each is the other's witness for the size; kernels of attention count the layers."""
    ran = runs(name)
    true, rows = ran.true_bytes(loss=False), ran.rows()
    for dimension in ("tp", "pp"):
        assert rows[dimension].predicted.message == true[dimension]
        assert rows[dimension].observed.message == true[dimension]
        assert rows[dimension].verdict == "as expected"
    assert rows["dp"].verdict == "unknown"
    assert rows["dp"].predicted.message is None
    assert "give --params" in (rows["dp"].explanation or "")


@pytest.mark.parametrize("name", ["tp", "pp, 1f1b", "experts", "ring", "fsdp and tp"])
def test_what_only_the_traffic_itself_shows_is_unknown(
    name: str, runs: Callable[[str], Ran]
) -> None:
    ran = runs(name)
    analysis = ran.analysed()
    assert analysis.volumes.dimensions
    for row in analysis.volumes.dimensions:
        assert (row.verdict, row.predicted.message, row.observed_over_predicted) == (
            "unknown", None, None,
        )  # fmt: skip
        assert (row.explanation or "").startswith("needs ")
    assert analysis.volumes.verdict == "unknown"
    assert analysis.volumes.unexplained_bytes is None


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ({"dp": 2, "pp": 2, "micro_batches": 2}, DENSE),
        ({"dp": 2, "pp": 2, "micro_batches": 2}, TIED),
        ({"dp": 2, "cp": 2}, DENSE),
    ],
)
def test_parameters_alone_predict_gradients_without_tp(
    options: dict[str, Any], model: str, tmp_path: Path
) -> None:
    """Stages differ, their mean does not; a tied embedding is on two of them."""
    ran = Ran(tmp_path, model, **options)
    row = ran.rows(params=describe(model).model.parameters)["dp"]
    assert row.observed.message == row.predicted.message == ran.true_bytes()["dp"]
    assert row.verdict == "as expected"


def test_parameters_alone_leave_open_what_tp_does_not_split(tmp_path: Path) -> None:
    """Positions are nearly 2 % of a toy model: more than the 1 % that pass, less than 10."""
    ran = Ran(tmp_path, dp=2, tp=2)
    row = ran.rows(params=describe(DENSE).model.parameters)["dp"]
    assert row.observed_over_predicted == pytest.approx(1.018, abs=1e-3)
    assert row.verdict == "unknown"
    wide = "layers=2,hidden=512,vocabulary=32000,sequence=512"
    ran = Ran(tmp_path / "wide", wide, dp=2, tp=2)
    row = ran.rows(params=describe(wide).model.parameters)["dp"]
    assert row.observed_over_predicted == pytest.approx(1.0068, abs=1e-3)
    assert row.verdict == "as expected"


def test_experts_that_no_group_shows_are_not_taken_for_dense_layers(tmp_path: Path) -> None:
    """Without expert parallelism the experts' tokens still travel, k times as large."""
    ran = Ran(tmp_path, EXPERTS, tp=2, pp=2, micro_batches=2, sequence_parallel=True)
    row = ran.rows()["tp"]
    assert row.predicted.message is None
    assert "give --model with experts" in (row.explanation or "")
    row = ran.rows(stated=ran.described)["tp"]
    assert row.observed.message == row.predicted.message == ran.true_bytes()["tp"]


def test_the_recorded_type_of_gradients_wins(tmp_path: Path) -> None:
    """Megatron reduces in fp32 whatever activations are: --dtype is about those here."""
    ran = Ran(tmp_path, dp=2, tp=2)
    given = Given(model=describe(ran.model), dtype="bfloat16")
    analysis = tracelens.analyze(tmp_path, Wanted(given=given, workers=1))
    assert analysis.volumes.verdict == "as expected"


# planted deviations ------------------------------------------------------------------------------


def deviating(ran: Ran, **given: Any) -> dict[str, float | None]:
    """Return the dimensions that deviate, and by which factor."""
    analysis = ran.analysed(**given)
    rows = [row for row in analysis.volumes.dimensions if row.verdict == "unexplained"]
    assert analysis.volumes.verdict == ("unexplained" if rows else "as expected")
    assert analysis.summary.status == "warn"
    return {row.dimension: row.observed_over_predicted for row in rows}


def test_twice_the_all_to_alls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Experts._all_to_all

    def twice(self: Experts) -> None:
        once(self)
        once(self)

    monkeypatch.setattr(Experts, "_all_to_all", twice)
    ran = Ran(tmp_path, EXPERTS, dp=4, ep=2)
    assert deviating(ran, stated=ran.described) == {"ep": 2.0}


def test_gradients_that_are_not_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank reduces t times its shard: all of the stage."""
    own = Megatron._buffers

    def whole(self: Megatron, units: Any) -> Any:
        tp = self.setting.options.layout.tp
        return [
            buffer._replace(buckets=[b._replace(elements=tp * b.elements) for b in buffer.buckets])
            for buffer in own(self, units)
        ]

    monkeypatch.setattr(Megatron, "_buffers", whole)
    ran = Ran(tmp_path, dp=2, tp=2, pp=2, micro_batches=2)
    assert deviating(ran, stated=ran.described) == {"dp": 2.0}
    [(dimension, factor)] = deviating_of(ran.rows(params=describe(DENSE).model.parameters)).items()
    assert dimension == "dp"
    assert factor == pytest.approx(2.0, rel=0.02)


def deviating_of(rows: dict[str, DimensionVolume]) -> dict[str, float | None]:
    return {
        name: row.observed_over_predicted
        for name, row in rows.items()
        if row.verdict == "unexplained"
    }


def test_messages_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model says which dimension is wrong; without it, that the two do not agree."""
    exchange = _Rank._exchange

    def wide(self: _Rank, batch: Any) -> None:
        kept, model = self.options, replace(self.options.model, dtype="Float")
        self.options = replace(kept, model=model)
        exchange(self, batch)
        self.options = kept

    monkeypatch.setattr(_Rank, "_exchange", wide)
    ran = Ran(tmp_path, tp=2, pp=2, micro_batches=4)
    assert deviating(ran, stated=ran.described) == {"pp": 2.0}
    assert deviating_of(ran.rows()) == {"tp": 0.5, "pp": 2.0}


def test_a_sum_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three all-reduces forward a layer instead of two: attention kernels are the witness."""
    attend = Attention.forward

    def again(self: Attention, unit: Any) -> None:
        attend(self, unit)
        self.tensor.reduce()

    monkeypatch.setattr(Attention, "forward", again)
    ran = Ran(tmp_path, tp=2, pp=2, micro_batches=4)
    # Per rank 8 passes of 4 all-reduces and 4 at its end of the model.
    expected = pytest.approx((8 * 5 + 4) / (8 * 4 + 4), rel=1e-3)
    assert deviating(ran, stated=ran.described) == {"tp": expected}
    assert deviating_of(ran.rows()) == {"tp": expected}


def test_a_ring_that_turns_too_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Attention._exchange

    def twice(self: Attention, what: Any, unit: Any, turn: int) -> int:
        exchange(self, what, unit, 100 + turn)
        return exchange(self, what, unit, turn)

    monkeypatch.setattr(Attention, "_exchange", twice)
    ran = Ran(tmp_path, FEW_KEYS, cp=2)
    assert deviating(ran, stated=ran.described) == {"cp": 2.0}


def test_twice_the_messages_between_stages(tmp_path: Path) -> None:
    """A model of half the width: both dimensions move twice what it should."""
    ran = Ran(tmp_path, tp=2, pp=2, micro_batches=4)
    half = ran.described.replace("hidden=512", "hidden=256")
    found = deviating(ran, stated=half)
    assert found["pp"] == 2.0
    assert found["tp"] == pytest.approx(2.0, rel=0.01)


# recomputation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("whole", "said"), [(True, "whole layers"), (False, "attention only")])
def test_recomputed_layers_are_told_from_recomputed_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, whole: bool
) -> None:
    backward = Transformer._layer_backward

    def again(self: Transformer, unit: Any, **parts: bool) -> None:
        if whole:
            self._layer(unit)
        else:
            self.attention.forward(unit)
        backward(self, unit, **parts)

    monkeypatch.setattr(Transformer, "_layer_backward", again)
    ran = Ran(tmp_path, tp=2, pp=2, micro_batches=4, sequence_parallel=True)
    for rows in (ran.rows(), ran.rows(stated=ran.described)):
        assert rows["tp"].observed_over_predicted == 1.0
        assert said in (rows["tp"].explanation or "")
        assert {row.verdict for row in rows.values()} == {"as expected"}


def test_a_vocabulary_that_is_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTensor plans need not split embedding and head; the row says that these did not."""
    embed, head, head_backward = (
        getattr(Transformer, name) for name in ("_embed", "_head", "_head_backward")
    )

    def without_group(method: Any) -> Any:
        def run(self: Transformer, *args: Any, **named: Any) -> None:
            kept, self.tensor.group = self.tensor.group, None
            method(self, *args, **named)
            self.tensor.group = kept

        return run

    for method in (embed, head, head_backward):
        monkeypatch.setattr(Transformer, method.__name__, without_group(method))
    ran = Ran(tmp_path, tp=2, pp=2, micro_batches=4)
    row = ran.rows()["tp"]
    assert row.observed_over_predicted == 1.0
    assert "does not split" in (row.explanation or "")


# what is not known -------------------------------------------------------------------------------


def test_of_some_ranks_only_theirs_is_predicted(tmp_path: Path) -> None:
    """The first stage has the embedding, and neither head nor loss."""
    ran = Ran(tmp_path, tp=2, pp=2, micro_batches=4)
    given = Given(model=describe(ran.described))
    analysis = tracelens.analyze(tmp_path, Wanted(ranks=frozenset({0, 1}), given=given))
    rows = {row.dimension: row for row in analysis.volumes.dimensions}
    assert rows["tp"].observed.message == rows["tp"].predicted.message == 2 * 2 * 36 * 512 * 512


@pytest.mark.parametrize(
    ("ratio", "verdict", "expected"),
    [
        (0.5, "unexplained", "unknown"),
        (2.0, "unexplained", "unexplained"),
        (1.0, "as expected", "as expected"),
    ],
)
def test_what_is_missing_may_be_on_groups_of_unknown_purpose(
    ratio: float, verdict: VolumeVerdict, expected: VolumeVerdict
) -> None:
    none = StepBytes(None, None)
    row = DimensionVolume("tp", 1.0, none, none, ratio, verdict, None, "why")
    found = dimension_volumes.undecided(row)
    assert found.verdict == expected
    assert ("unknown purpose" in (found.explanation or "")) == (verdict != expected)


def test_a_pure_data_parallel_run_has_no_dimensions() -> None:
    analysis = tracelens.analyze(SAMPLES / "ddp", Wanted(given=Given(model=describe("gpt2"))))
    assert analysis.volumes.dimensions == []
    assert analysis.volumes.verdict == "as expected"


@pytest.mark.parametrize("sample", ["simulated-3d-pp2-dp2-tp2", "simulated-nsight-3d-pp2-dp2-tp2"])
def test_samples_of_both_formats(sample: str) -> None:
    analysis = tracelens.analyze(SAMPLES / sample)
    verdicts = {row.dimension: row.verdict for row in analysis.volumes.dimensions}
    assert verdicts == {"dp": "unknown", "tp": "as expected", "pp": "as expected"}


def test_recorded_runs_claim_nothing_they_cannot_know() -> None:
    """No kernels on a CPU, so nobody counts the layers; the size of messages is still checked."""
    analysis = tracelens.analyze(SAMPLES / "3d-pp2-dp2-tp2")
    found = {row.dimension: row.verdict for row in analysis.volumes.dimensions}
    assert found == {"dp": "unknown", "tp": "unknown", "pp": "as expected"}
    [alone] = tracelens.analyze(SAMPLES / "tp2").volumes.dimensions
    assert (alone.dimension, alone.verdict) == ("tp", "unknown")


@pytest.mark.parametrize("text", ["llama-2-7b", "hidden=1,layers=2", "gpt2,batch=4"])
def test_what_a_description_states(text: str) -> None:
    found = describe(text)
    assert found.says("hidden", "layers")
    assert found.says("batch") == ("batch" in text)
    assert found.says("vocabulary") == ("hidden" not in text)
    assert not found.says("sequence")


def test_a_run_of_one_model_dimension_shows_its_bytes() -> None:
    result = tracelens.analyze(SAMPLES / "tp2")
    section = volumes_section(result)
    assert section.lead == "– Unknown: tp undecided."
    assert section.blocks[0].table is not None
    assert section.blocks[0].table.rows[0][2].text == "10.5"
    [ratio] = [m for m in result.summary.metrics if m.name == "volume_ratio"]
    assert ratio.detail == "no dimension is predicted: see the section on bytes"

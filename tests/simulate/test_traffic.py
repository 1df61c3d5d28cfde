"""What a step sends is what docs/theory.md says, to the element."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tracelens.simulate import Layout, Model, Options
from tracelens.simulate.program import units_of
from tracelens.simulate.run import whole_run
from tracelens.simulate.truth import truth

MODEL = Model(layers=4, hidden=512, vocabulary=1024, sequence=256)
BSH = MODEL.batch * MODEL.sequence * MODEL.hidden


def volumes(**options: Any) -> list[dict[str, Any]]:
    """Return what the ranks send in a step, without norms and flags."""
    names = ("dp", "tp", "pp", "ep", "cp")
    layout = Layout(**{name: options.pop(name) for name in names if name in options})
    chosen = Options(layout, options.pop("model", MODEL), steps=1, **options)
    listed: list[dict[str, Any]] = truth(whole_run(chosen), chosen)["volumes"]
    return [one for one in listed if one["elements"] > 64]


def sent(listed: list[dict[str, Any]], group: str, rank: int = 0) -> Counter[tuple[str, str]]:
    """Return calls of a rank on groups whose description begins so, by operation and part."""
    found: Counter[tuple[str, str]] = Counter()
    for one in listed:
        if one["rank"] == rank and one["group"].startswith(group):
            found[one["op"], one["part"]] += one["calls"]
    return found


def elements(listed: list[dict[str, Any]], op: str, part: str, rank: int = 0) -> int:
    return sum(
        one["elements"]
        for one in listed
        if (one["rank"], one["op"], one["part"]) == (rank, op, part)
    )


# data parallelism --------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_ddp_reduces_every_gradient_once(micro_batches: int) -> None:
    listed = volumes(dp=4, micro_batches=micro_batches)
    assert elements(listed, "all_reduce", "gradients") == MODEL.parameters
    assert {one["dtype"] for one in listed} == {"BFloat16"}


def test_ddp_fills_its_buckets_as_torch_does() -> None:
    """The first one is full with 1 MiB, the others with 25; a parameter is never cut.

    The head fills the first one, each layer three (second and first MLP weight, attention), and
    what is left goes with the embedding.
    """
    wide = replace(MODEL, hidden=2048)
    [one] = [v for v in volumes(dp=2, model=wide) if v["rank"] == 0]
    assert one["calls"] == 1 + 3 * wide.layers + 1
    assert one["elements"] == wide.parameters


@pytest.mark.parametrize(("strategy", "reductions"), [("zero1", 1), ("zero2", 3)])
def test_deepspeed_all_reduces_and_gathers(strategy: str, reductions: int) -> None:
    listed = volumes(dp=4, micro_batches=3, strategy=strategy)
    assert elements(listed, "all_reduce", "gradients") == reductions * MODEL.parameters
    assert elements(listed, "all_gather", "parameters") == MODEL.parameters  # divides by 2N


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_distributed_optimizer_sends_two_halves(micro_batches: int) -> None:
    listed = volumes(dp=4, micro_batches=micro_batches, strategy="distributed-optimizer")
    assert elements(listed, "reduce_scatter", "gradients") == MODEL.parameters
    assert elements(listed, "all_gather", "parameters") == MODEL.parameters
    dtypes = {one["op"]: one["dtype"] for one in listed}
    assert dtypes == {"reduce_scatter": "Float", "all_gather": "BFloat16"}


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_fsdp_gathers_twice_but_the_root(micro_batches: int) -> None:
    listed = volumes(dp=4, micro_batches=micro_batches, strategy="zero3")
    root = sum(p.elements for u in MODEL.units() for p in u.parameters if u.kind != "layer")
    gathered = 2 * MODEL.parameters - root
    assert elements(listed, "all_gather", "parameters") == micro_batches * gathered
    assert elements(listed, "reduce_scatter", "gradients") == micro_batches * MODEL.parameters


def test_fsdp_pads_rows() -> None:
    odd = replace(MODEL, vocabulary=1021)
    padded = odd.parameters + 2 * 3 * odd.hidden  # 1021 rows become 1024, twice
    listed = volumes(dp=4, model=odd, strategy="zero3")
    assert elements(listed, "reduce_scatter", "gradients") == padded


# model parallelism -------------------------------------------------------------------------------


def test_tensor_parallelism_reduces_four_times_a_layer() -> None:
    listed = volumes(tp=2, micro_batches=3)
    calls = sent([v for v in listed if v["dtype"] == "BFloat16"], "TENSOR_")
    # The embedding sums its parts forward, the head its input's gradient backward.
    assert calls == {
        ("all_reduce", "forward"): 3 * (2 * MODEL.layers + 1),
        ("all_reduce", "backward"): 3 * (2 * MODEL.layers + 1),
    }
    each = {v["elements"] // v["calls"] for v in listed if v["dtype"] == "BFloat16"}
    assert each == {BSH}
    loss = [v for v in listed if v["dtype"] == "Float" and v["rank"] == 0]
    assert [(v["calls"], v["elements"]) for v in loss] == [(9, 9 * MODEL.sequence)]


def test_sequence_parallelism_gathers_six_times_and_scatters_four_times_a_layer() -> None:
    listed = volumes(tp=2, sequence_parallel=True)
    layers = MODEL.layers
    # The embedding scatters forward and gathers backward; the head gathers its input forward and
    # for its weights' gradient, and scatters its input's gradient.
    calls = sent([v for v in listed if v["dtype"] == "BFloat16"], "TENSOR_")
    assert calls == {
        ("all_gather", "forward"): 2 * layers + 1,
        ("reduce_scatter", "forward"): 2 * layers + 1,
        ("all_gather", "backward"): 4 * layers + 2,
        ("reduce_scatter", "backward"): 2 * layers + 1,
    }


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_splitting_backward_changes_no_traffic(sequence_parallel: bool) -> None:
    together, apart = (
        volumes(tp=2, pp=2, schedule=schedule, micro_batches=4, sequence_parallel=sequence_parallel)
        for schedule in ("1f1b", "zb-h1")
    )

    def totals(listed: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        for one in listed:
            part = "backward" if one["part"] == "weight" else one["part"]
            found[one["rank"], one["group"], one["op"], one["dtype"], part] += one["elements"]
        return found

    assert totals(together) == totals(apart)


def test_a_ring_passes_keys_and_values_on_twice_as_many_backward() -> None:
    listed = volumes(cp=4)
    kv = 2 * MODEL.sequence // 4 * MODEL.kv_width
    assert sent(listed, "CONTEXT_")["send", "forward"] == 3 * MODEL.layers
    assert elements(listed, "send", "forward") == 3 * MODEL.layers * kv
    assert elements(listed, "send", "backward") == 2 * 3 * MODEL.layers * kv


def test_gathered_context() -> None:
    listed = volumes(cp=4, context="all-gather")
    kv = 2 * MODEL.sequence * MODEL.kv_width
    assert elements(listed, "all_gather", "forward") == MODEL.layers * kv
    assert elements(listed, "all_gather", "backward") == MODEL.layers * kv
    assert elements(listed, "reduce_scatter", "backward") == MODEL.layers * kv


@pytest.mark.parametrize("tp", [1, 2])
def test_experts_dispatch_and_combine(tp: int) -> None:
    """4 T k h a layer (docs/theory.md); with sequence parallelism T is the rank's share."""
    model = replace(MODEL, experts=8, top_k=2)
    listed = volumes(dp=4, ep=4, tp=tp, model=model, sequence_parallel=tp > 1)
    one = MODEL.sequence // tp * model.top_k * MODEL.hidden
    assert elements(listed, "all_to_all", "forward") == 2 * MODEL.layers * one
    assert elements(listed, "all_to_all", "backward") == 2 * MODEL.layers * one


def test_experts_reduce_their_gradients_on_their_own_groups() -> None:
    model = replace(MODEL, experts=8, feed_forward=512)
    options = Options(Layout(dp=4, ep=2), model)
    [units] = units_of(options, 0)
    held: Counter[bool] = Counter()
    for unit in units:
        for parameter in unit.parameters:
            held[parameter.expert] += parameter.elements
    listed = volumes(dp=4, ep=2, model=model)
    by_group = {v["group"]: v["elements"] for v in listed if v["part"] == "gradients"}
    assert by_group == {
        "DATA_PARALLEL_GROUP": held[False], "EXPERT_DATA_PARALLEL_GROUP": held[True],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "ends", "interior"),
    [("gpipe", 1, 8, 16), ("1f1b", 1, 8, 16), ("zb-h1", 1, 8, 16), ("interleaved", 2, 24, 32)],
)
def test_messages_of_a_pipeline(
    schedule: str, virtual_stages: int, ends: int, interior: int
) -> None:
    """docs/theory.md, "Pipelines": 4 stages, 8 micro-batches."""
    model = replace(MODEL, layers=8)
    listed = volumes(
        pp=4, schedule=schedule, virtual_stages=virtual_stages, micro_batches=8, model=model
    )
    calls = [sent(listed, "PIPELINE_", rank)["send", "pipeline"] for rank in range(4)]
    assert calls == [ends, interior, interior, ends if virtual_stages == 1 else 24]
    assert {v["elements"] // v["calls"] for v in listed if v["part"] == "pipeline"} == {BSH}


@pytest.mark.parametrize(("tp", "cp", "split"), [(2, 1, 2), (1, 2, 2), (2, 2, 4)])
def test_messages_are_split_as_the_residual_is(tp: int, cp: int, split: int) -> None:
    listed = volumes(pp=2, tp=tp, cp=cp, sequence_parallel=tp > 1, micro_batches=2)
    each = {v["elements"] // v["calls"] for v in listed if v["part"] == "pipeline"}
    assert each == {BSH // split}


def test_a_tied_embedding_is_summed_over_first_and_last_stage() -> None:
    tied = replace(MODEL, tied=True)
    listed = volumes(pp=4, tp=2, model=tied, micro_batches=4)
    summed = {v["rank"]: v["elements"] for v in listed if v["group"] == "EMBEDDING_GROUP"}
    assert summed == dict.fromkeys((0, 1, 6, 7), MODEL.vocabulary * MODEL.hidden // 2)


def test_all_ranks_of_a_place_in_the_model_send_the_same() -> None:
    listed = volumes(
        dp=2, tp=2, pp=2, strategy="distributed-optimizer", micro_batches=2, sequence_parallel=True
    )
    by_rank: dict[int, list[tuple[Any, ...]]] = {}
    for one in listed:
        entry = tuple(one[name] for name in ("group", "op", "dtype", "part", "calls", "elements"))
        by_rank.setdefault(one["rank"], []).append(entry)
    for stage in (range(4), range(4, 8)):
        assert len({tuple(by_rank[rank]) for rank in stage}) == 1

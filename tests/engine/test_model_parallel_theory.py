"""Formulas of tensor, pipeline, expert and context parallelism against worked numbers."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tracelens.simulate import Layout, Options
from tracelens.simulate.messages import plan
from tracelens.simulate.program import units_of
from tracelens.simulate.schedules import Action
from tracelens.theory import context, expert, pipeline_messages, shards, tensor, zero
from tracelens.theory.scheme import Scheme, Term
from tracelens.theory.transformer import Model, parse

GPT_3 = parse("gpt-3")
UNIT = 2048 * 12288
SIZE, STAGES, LAYERS = 8, 16, 6
STAGE_0 = 6 * 12 * 12288**2 // 8 + 51_200 * 12288 // 8
"""Weight matrices of six layers and the embedding, of one of eight ranks."""


def gigabytes(*terms: Term, gradient: int = 2) -> tuple[float, float]:
    scheme = Scheme("", "framework", terms, "")
    return scheme.message_bytes(gradient, 2) / 1e9, scheme.wire_bytes(gradient, 2) / 1e9


# GPT-3 on TP 8 x PP 16, one sequence a micro-batch, 1,536 a step ---------------------------------


@pytest.mark.parametrize(
    ("micro_batches", "plain", "sequence"), [(1536, 3247, 4059), (192, 406, 507), (24, 50.7, 63.4)]
)
def test_tensor_parallel_wire_of_gpt_3(micro_batches: int, plain: float, sequence: float) -> None:
    passes = LAYERS * micro_batches
    assert gigabytes(*tensor.layers(UNIT, SIZE, passes))[1] == pytest.approx(plain, rel=2e-3)
    split = tensor.layers(UNIT, SIZE, passes, sequence_parallel=True)
    assert gigabytes(*split)[1] == pytest.approx(sequence, rel=2e-3)


@pytest.mark.parametrize(
    ("micro_batches", "whole", "split"), [(1536, 154.6, 19.3), (192, 19.3, 2.42), (24, 2.42, 0.30)]
)
def test_pipeline_messages_of_gpt_3(micro_batches: int, whole: float, split: float) -> None:
    """An interior stage sends an activation on and a gradient back."""
    count = pipeline_messages.sends(5, STAGES, micro_batches)
    assert count == 2 * micro_batches
    for unit, expected in ((UNIT, whole), (UNIT // SIZE, split)):
        message, wire = gigabytes(pipeline_messages.messages(unit, count))
        assert message == wire == pytest.approx(expected, rel=0.01)


def test_one_message_of_gpt_3() -> None:
    """50.3 MB a boundary, direction and micro-batch; both ways 100.7, or 12.6 when split by 8."""
    both = pipeline_messages.sends(5, STAGES, 1)
    assert gigabytes(pipeline_messages.messages(UNIT, both))[0] == pytest.approx(0.1007, rel=1e-3)
    split = pipeline_messages.messages(UNIT // SIZE, both)
    assert gigabytes(split)[0] == pytest.approx(0.0126, rel=2e-3)


@pytest.mark.parametrize(("size", "reduced", "gathered"), [(8, 5.03, 2.52), (64, 5.66, 2.83)])
def test_gradients_of_a_stage_of_gpt_3(size: int, reduced: float, gathered: float) -> None:
    """fp32 gradients are reduce-scattered, bf16 parameters gathered, of this rank's shard only."""
    assert pytest.approx(1.438e9, rel=1e-3) == STAGE_0
    scatter, gather = zero.distributed_optimizer(STAGE_0, size).terms
    assert gigabytes(scatter, gradient=4)[1] == pytest.approx(reduced, abs=0.006)
    assert gigabytes(gather)[1] == pytest.approx(gathered, abs=0.006)


def test_the_first_stage_of_gpt_3_holds_its_positions_too() -> None:
    found = shards.held(GPT_3, 0, STAGES, SIZE)
    assert found is not None
    assert found.dense == pytest.approx(1.463e9, rel=1e-3)


# tensor parallelism ------------------------------------------------------------------------------


def counts(terms: tuple[Term, ...]) -> dict[str, float]:
    return {term.op: term.elements for term in terms}


def test_a_layer_without_and_with_sequence_parallelism() -> None:
    """8·b·s·h against 10: what the input costs that is gathered again for the weight gradient."""
    plain, split = tensor.layers(1, 4, 1), tensor.layers(1, 4, 1, sequence_parallel=True)
    assert counts(plain) == {"all_reduce": 4}
    assert counts(split) == {"all_gather": 6, "reduce_scatter": 4}
    assert tensor.total(split) / tensor.total(plain) == 1.25


def test_forward_only_is_half_of_it() -> None:
    assert counts(tensor.layers(1, 4, 1, backward=False)) == {"all_reduce": 2}
    split = tensor.layers(1, 4, 1, sequence_parallel=True, backward=False)
    assert counts(split) == {"all_gather": 2, "reduce_scatter": 2}


def test_the_ends_of_the_model() -> None:
    assert counts(tensor.embedding(1, 4, 3)) == {"all_reduce": 3}
    assert counts(tensor.head(1, 4, 3)) == {"all_reduce": 3}
    assert counts(tensor.head(1, 4, 3, backward=False)) == {}
    split = {"sequence_parallel": True}
    assert counts(tensor.embedding(1, 4, 3, **split)) == {"reduce_scatter": 3, "all_gather": 3}
    assert counts(tensor.head(1, 4, 3, **split)) == {"all_gather": 6, "reduce_scatter": 3}


def test_the_loss_travels_in_fp32() -> None:
    [term] = tensor.loss(100, 4, 2)
    assert term.elements == 600
    assert Scheme("", "framework", (term,), "").message_bytes(2, 2) == 2 * 600 * 4


def test_experts_gather_what_they_were_sent() -> None:
    """Attention's three gathers and two sums, and two of k times the tokens for the experts."""
    found = tensor.expert_layers(10, 4, 1, 2)
    totals: Counter[str] = Counter()
    for term in found:
        totals[term.op] += int(term.elements)
    assert totals == {"all_gather": 3 * 10 + 2 * 20, "reduce_scatter": 2 * 10 + 2 * 20}


# pipelines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("virtual", "folded", "end", "interior"),
    [(1, False, 8, 16), (2, False, 24, 32), (2, True, 16, 32)],
)
def test_sends_of_real_schedules(virtual: int, end: int, interior: int, *, folded: bool) -> None:
    """Counted on real runs: p = 4, m = 8; GPipe and 1F1B, interleaved, ZB-V and DualPipeV."""
    found = [pipeline_messages.sends(s, 4, 8, virtual, folded=folded) for s in range(4)]
    assert found == [end, interior, interior, end]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_sends_are_those_of_a_played_schedule(schedule: str) -> None:
    virtual = 3 if schedule == "interleaved" else 1
    for stages, rounds in itertools.product((3, 4), (1, 2)):
        for stage in range(stages):
            played = plan(schedule, stage, stages, stages * rounds, virtual)
            sent = sum(
                message.op == "send"
                for batch in played
                if not isinstance(batch, Action)
                for message in batch
            )
            assert sent == pipeline_messages.sends(stage, stages, stages * rounds, virtual)


def test_forward_only_sends_no_gradient() -> None:
    assert [pipeline_messages.sends(s, 3, 2, backward=False) for s in range(3)] == [2, 2, 0]


def test_a_tied_embedding_is_reduced_over_both_ends() -> None:
    term = pipeline_messages.tied_embedding(51_200, 12288, 8)
    assert term.message_elements == 2 * 51_200 * 12288 / 8


# experts and context -----------------------------------------------------------------------------


def test_tokens_go_to_their_experts_and_back_twice() -> None:
    """Mixtral's sizes, one sequence of 4,096: 4·T·k·h of bf16 is 268 MB a layer."""
    term = expert.all_to_all(4096 * 4096, 2, 8, 1)
    message, wire = gigabytes(term)
    assert message == pytest.approx(0.2684, rel=1e-3)
    assert wire == pytest.approx(message * 7 / 8)
    assert expert.all_to_all(10, 2, 8, 3, backward=False).elements == 2 * 3 * 2 * 10


def test_in_capacity_mode_every_buffer_travels_whole() -> None:
    assert expert.slots(100, 8, 2, 1.0) == 200
    assert expert.slots(100, 8, 2, 1.25) == 8 * 32


def test_a_ring_passes_on_keys_and_values() -> None:
    [term] = context.ring(10, 4, 2)
    assert term.elements == 2 * (3 * 10 + 2 * 3 * 10)
    [forward] = context.ring(10, 4, 2, backward=False)
    assert forward.elements == 2 * 3 * 10


def test_gathered_keys_and_values() -> None:
    assert counts(context.gathered(10, 4, 1)) == {"all_gather": 80, "reduce_scatter": 40}
    assert counts(context.gathered(10, 4, 1, backward=False)) == {"all_gather": 40}


def test_ulysses_sends_queries_and_outputs_too() -> None:
    """2·b(s/c)(2h + 2h_kv): with as many key heads as heads four tensors forward, four back."""
    [term] = context.all_to_all(10, 20, 4, 1)
    assert term.elements == 8 * 10


# shards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama-2-7b", "llama-2-70b", "mixtral-8x7b"])
def test_one_rank_that_is_alone_holds_everything(name: str) -> None:
    found = shards.held(parse(name), 0, 1)
    assert found is not None
    assert found.dense + found.experts == parse(name).parameters


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("tp", "pp", "ep"), [(2, 1, 1), (1, 4, 1), (2, 2, 1), (2, 2, 2)])
def test_a_rank_holds_what_the_simulation_gives_it(
    tp: int, pp: int, ep: int, *, tied: bool
) -> None:
    model = Model(tied=tied, experts=4 if ep > 1 else 0)
    layout = Layout(tp=tp, pp=pp, ep=ep, dp=ep)
    options = Options(layout, model, sequence_parallel=tp > 1)
    for stage in range(pp):
        units = [unit for chunk in units_of(options, stage) for unit in chunk]
        found = shards.held(model, stage, pp, tp, ep)
        assert found is not None
        assert found.experts == sum(p.elements for u in units for p in u.parameters if p.expert)
        assert found.dense == sum(p.elements for u in units for p in u.parameters if not p.expert)


def test_layers_that_do_not_divide_are_not_guessed() -> None:
    assert shards.held(Model(layers=5), 0, 2) is None
    assert shards.held(Model(experts=3), 0, 1, ep=2) is None

"""Parameters of known models, to the last one."""

from __future__ import annotations

import math

import pytest

from tracelens.errors import OptionError
from tracelens.simulate import Layout, Model, Options
from tracelens.simulate.program import units_of
from tracelens.theory.transformer import PRESETS, Parameter, parse


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("mixtral-8x7b", 46_702_792_704),
        # 124,439,808 with the 50,257 tokens of the paper; 50,304 is what they are padded to.
        ("gpt2", 124_439_808 + 47 * 768),
        ("gpt2-xl", 1_557_611_200 + 47 * 1600),
    ],
)
def test_known_models(name: str, parameters: int) -> None:
    assert PRESETS[name].parameters == parameters


def test_gpt_3() -> None:
    assert PRESETS["gpt-3"].parameters == pytest.approx(174.6e9, rel=1e-3)


@pytest.mark.parametrize("virtual_stages", [1, 2])
@pytest.mark.parametrize("model", [Model(layers=8), Model(layers=8, tied=True, gated=True)])
def test_stages_hold_the_whole_model(model: Model, virtual_stages: int) -> None:
    options = Options(
        Layout(pp=4), model, micro_batches=4, virtual_stages=virtual_stages,
        schedule="interleaved" if virtual_stages > 1 else "1f1b",
    )  # fmt: skip
    held = sum(
        parameter.elements
        for stage in range(4)
        for units in units_of(options, stage)
        for unit in units
        for parameter in unit.parameters
    )
    copy = model.vocabulary * model.hidden if model.tied else 0  # on the last stage
    assert held == model.parameters + copy


def test_tensor_parallel_shares_hold_norms_and_row_biases_whole() -> None:
    model = Model(layers=1, hidden=256, vocabulary=512, sequence=64)
    whole, half = (
        sum(p.elements for u in units_of(Options(Layout(tp=tp), model), 0)[0] for p in u.parameters)
        for tp in (1, 2)
    )
    h = model.hidden
    kept_whole = 3 * 2 * h + 2 * h + model.sequence * h  # norms, biases of two layers, positions
    assert 2 * half == whole + kept_whole


def test_experts_are_shared_out() -> None:
    model = Model(layers=1, experts=8, feed_forward=512)
    options = Options(Layout(dp=4, ep=4), model)
    [units] = units_of(options, 0)
    expert = [p for unit in units for p in unit.parameters if p.expert]
    assert len({p.name.partition(".linear")[0] for p in expert}) == 2


def test_padding_is_that_of_the_first_dimension() -> None:
    assert Parameter("weight", 10, 7).padded(4) == 12 * 7
    assert Parameter("bias", 3).padded(256) == 256
    assert Parameter("weight", 8, 5, "columns").on_one_of(5) == Parameter("weight", 8, 1, "columns")


def test_parse() -> None:
    assert parse("layers=8,hidden=2048") == Model(layers=8, hidden=2048)
    assert parse("llama-2-7b,layers=2").layers == 2
    assert parse("llama-2-7b,layers=2").feed_forward == 11008
    assert parse("tiny,gated=yes,dtype=fp32") == Model(gated=True, dtype="Float")
    assert parse("tiny,kv-heads=2") == Model(kv_heads=2)
    assert math.isclose(parse("tiny").parameters, Model().parameters)


@pytest.mark.parametrize(
    "text", ["gpt-5", "layers=0", "layers=x", "depth=3", "tiny,dtype=int4", "gated=maybe", ""]
)
def test_what_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": Layout(pp=3)}, "layers"),
        ({"layout": Layout(tp=3)}, "heads"),
        ({"layout": Layout(pp=2), "strategy": "zero3"}, "pipeline"),
        ({"layout": Layout(dp=4, ep=4)}, "experts"),
        ({"layout": Layout(pp=2), "schedule": "interleaved", "virtual_stages": 2}, "3 stages"),
        ({"strategy": "zero3"}, "dp above 1"),
        ({"strategy": "zero4"}, "no strategy"),
        ({"layout": Layout(dp=2), "steps": 0}, "at least 1"),
        ({"context": "ulysses"}, "context"),
        ({"torch": "1.13"}, "torch"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options(**options)  # type: ignore[arg-type]

"""Formulas against worked numbers (message and wire bytes per rank and step, decimal GB)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracelens.theory import ddp, fsdp, zero

if TYPE_CHECKING:
    from tracelens.theory.scheme import Scheme

LLAMA_7B = 6_738_415_616
LLAMA_7B_ROOT = 262_148_096


def gigabytes(scheme: Scheme, gradient: int = 2, parameter: int = 2) -> tuple[float, float]:
    message = scheme.message_bytes(gradient, parameter) / 1e9
    return message, scheme.wire_bytes(gradient, parameter) / 1e9


@pytest.mark.parametrize(("size", "wire"), [(8, 7.00), (256, 7.97)])
def test_a_billion_fp32_parameters_under_ddp(size: int, wire: float) -> None:
    assert gigabytes(ddp.paper(10**9, size), 4, 4) == pytest.approx((8.00, wire), abs=0.005)


@pytest.mark.parametrize(
    ("scheme", "gradient", "message", "wire"),
    [
        (ddp.torch_ddp(LLAMA_7B, 8, 1), 2, 26.95, 23.58),
        (ddp.torch_ddp(LLAMA_7B, 8, 1), 4, 53.91, 47.17),
        (zero.paper_1_2(LLAMA_7B, 8), 2, 26.95, 23.58),
        (zero.deepspeed_1_2(LLAMA_7B, 8), 2, 40.43, 35.38),
        (zero.deepspeed_1_2(LLAMA_7B, 8, 4), 2, 121.29, 106.13),
        (zero.paper_3(LLAMA_7B, 8), 2, 40.43, 35.38),
        (zero.paper_3(LLAMA_7B, 8, 4), 2, 161.72, 141.51),
        (fsdp.full_shard(LLAMA_7B, 8, LLAMA_7B_ROOT), 2, 39.91, 34.92),
        (fsdp.full_shard(LLAMA_7B, 8, LLAMA_7B_ROOT), 4, 53.38, 46.71),
        (fsdp.grad_op(LLAMA_7B, 8), 2, 26.95, 23.58),
        (zero.deepspeed_3(LLAMA_7B, 8), 2, 39.43, 34.50),
    ],
)
def test_llama_7b_on_8_ranks(scheme: Scheme, gradient: int, message: float, wire: float) -> None:
    assert gigabytes(scheme, gradient) == pytest.approx((message, wire), abs=0.006)


@pytest.mark.parametrize(
    ("scheme", "wire"),
    [
        (ddp.paper(LLAMA_7B, 256), 26.85),
        (zero.deepspeed_1_2(LLAMA_7B, 256), 40.27),
        (zero.paper_3(LLAMA_7B, 256), 40.27),
        (fsdp.full_shard(LLAMA_7B, 256, LLAMA_7B_ROOT), 39.75),
    ],
)
def test_llama_7b_on_256_ranks(scheme: Scheme, wire: float) -> None:
    assert gigabytes(scheme)[1] == pytest.approx(wire, abs=0.006)


def test_hybrid_sharding_of_llama_7b() -> None:
    inner = fsdp.full_shard(LLAMA_7B, 8, LLAMA_7B_ROOT)
    message, wire = gigabytes(fsdp.replicated(inner, LLAMA_7B, 8, 32))
    assert (message, wire) == pytest.approx((43.28, 38.18), abs=0.006)
    between = wire - gigabytes(inner)[1]
    assert between == pytest.approx(3.26, abs=0.006)


def test_llama_70b_published_counts() -> None:
    """2.958 elements a parameter: the last block and the root are not gathered again."""
    block, root, blocks = 855_654_400, 2_101_354_496, 80
    parameters = blocks * block + root
    assert parameters == 70_553_706_496
    scheme = fsdp.full_shard(parameters, 8, root + block)
    assert scheme.terms[0].elements == 138_150_404_096
    assert scheme.message_elements / parameters == pytest.approx(2.958, abs=0.001)


@pytest.mark.parametrize(
    ("scheme", "multiple"),
    [
        (ddp.torch_ddp(1000, 4, 1), 2.0),
        (ddp.torch_ddp(1000, 4, 2), 4.0),
        (zero.zero_redundancy_optimizer(1000, 4), 3.0),
        (zero.deepspeed_1_2(1000, 4), 3.0),
        (zero.deepspeed_1_2(1000, 4, 2), 5.0),
        (zero.deepspeed_1_2_by_owner(1000, 4), 2.0),
        (zero.distributed_optimizer(1000, 4), 2.0),
        (zero.deepspeed_3(1000, 4), 2.0),
        (zero.deepspeed_3_no_reuse(1000, 4), 3.0),
        (zero.deepspeed_3_no_reuse(1000, 4, 2), 6.0),
        (fsdp.full_shard(1000, 4, 76), 2.924),
        (fsdp.full_shard(1000, 4, 76, 2, 2), 5.848),
        (fsdp.full_shard(1000, 4, 76, 2, 1), 4.848),
        (fsdp.full_shard(1000, 4, 0), 3.0),
        (fsdp.grad_op(1000, 4), 2.0),
        (fsdp.grad_op(1000, 4, 2, 2), 4.0),
        (fsdp.grad_op(1000, 4, 2, 1), 3.0),
        (fsdp.reshard_to(1000, 4, 2), 3.0),
        (fsdp.replicated(fsdp.full_shard(1000, 2, 76), 1000, 2, 2), 3.924),
    ],
)
def test_multiples_measured_on_real_runs(scheme: Scheme, multiple: float) -> None:
    assert scheme.message_elements / 1000 == pytest.approx(multiple)


def test_resharding_to_fewer_ranks_sends_less_over_the_wire() -> None:
    full = fsdp.full_shard(1000, 8, 0).wire_bytes(1, 1)
    assert full == 3 * 1000 * 7 / 8
    assert fsdp.reshard_to(1000, 8, 2).wire_bytes(1, 1) == round(1000 * (7 / 8 + 1 / 2 + 7 / 8))

"""Message and wire bytes: nccl-tests' factors and worked numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.operations import OPERATIONS
from tracelens.theory.collectives import full_elements, message_factor, wire_factor

GB = 1e9
LLAMA = 6_738_415_616  # parameters of Llama-2-7B
LLAMA_ROOT = 262_148_096  # of which FSDP2's root unit keeps these gathered


def message(*terms: tuple[str, float]) -> float:
    return sum(message_factor(operation) * size for operation, size in terms) / GB


def wire(ranks: int, *terms: tuple[str, float]) -> float:
    factors = [(wire_factor(operation, ranks), size) for operation, size in terms]
    return sum(factor * size for factor, size in factors if factor is not None) / GB


BF16 = 2 * LLAMA
FP32 = 4 * LLAMA
WORKED: dict[str, tuple[list[tuple[str, float]], float, float, float]] = {
    "1e9 parameters, fp32, DDP": ([("all_reduce", 4e9)], 8.00, 7.00, 7.97),
    "Llama-2-7B DDP bf16": ([("all_reduce", BF16)], 26.95, 23.58, 26.85),
    "DDP fp32 gradients": ([("all_reduce", FP32)], 53.91, 47.17, 53.70),
    "ZeRO-2 paper": ([("reduce_scatter", BF16), ("all_gather", BF16)], 26.95, 23.58, 26.85),
    "ZeRO-2 DeepSpeed": ([("all_reduce", BF16), ("all_gather", BF16)], 40.43, 35.38, 40.27),
    "ZeRO-2 DeepSpeed, 4 micro-batches": (
        [("all_reduce", 4 * BF16), ("all_gather", BF16)], 121.29, 106.13, 120.82),
    "ZeRO-3 paper": ([("all_gather", 2 * BF16), ("reduce_scatter", BF16)], 40.43, 35.38, 40.27),
    "FSDP2": (
        [("all_gather", 2 * BF16 - 2 * LLAMA_ROOT), ("reduce_scatter", BF16)], 39.91, 34.92, 39.75),
    "FSDP2, fp32 reduction": (
        [("all_gather", 2 * BF16 - 2 * LLAMA_ROOT), ("reduce_scatter", FP32)], 53.38, 46.71, 53.17),
}  # fmt: skip


@pytest.mark.parametrize("case", WORKED)
def test_worked_table(case: str) -> None:
    terms, in_messages, over_8, over_256 = WORKED[case]
    assert message(*terms) == pytest.approx(in_messages, abs=0.005)
    assert wire(8, *terms) == pytest.approx(over_8, abs=0.005)
    assert wire(256, *terms) == pytest.approx(over_256, abs=0.005)


def test_hsdp_of_the_worked_table() -> None:
    gathers = [("all_gather", 2 * BF16 - 2 * LLAMA_ROOT), ("reduce_scatter", BF16)]
    across = [("all_reduce", BF16 / 8)]
    assert message(*gathers, *across) == pytest.approx(43.28, abs=0.005)
    assert wire(32, *across) == pytest.approx(3.26, abs=0.005)
    assert wire(8, *gathers) + wire(32, *across) == pytest.approx(38.18, abs=0.005)


@pytest.mark.parametrize(
    ("operation", "messages", "wire_of_4"),
    [("all_reduce", 2, 1.5), ("reduce_scatter", 1, 0.75), ("all_gather", 1, 0.75),
     ("all_to_all", 1, 0.75), ("gather", 1, 0.75), ("scatter", 1, 0.75), ("broadcast", 1, 1),
     ("reduce", 1, 1), ("send", 1, 1), ("recv", 0, 0), ("barrier", 0, 0)],
)  # fmt: skip
def test_factors(operation: str, messages: int, wire_of_4: float) -> None:
    assert message_factor(operation) == messages
    assert wire_factor(operation, 4) == wire_of_4


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_unknown_group_size(operation: str) -> None:
    needs_size = operation not in ("send", "recv", "broadcast", "reduce", "barrier")
    assert (wire_factor(operation, None) is None) == needs_size


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    st.integers(2, 5000),
)
def test_wire_tends_to_message(operation: str, ranks: int) -> None:
    factor = wire_factor(operation, ranks)
    assert factor is not None
    assert factor == pytest.approx(message_factor(operation) * (ranks - 1) / ranks)


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]))
def test_a_group_of_one_moves_nothing(operation: str) -> None:
    assert wire_factor(operation, 1) == 0


@pytest.mark.parametrize(
    ("operation", "in_elems", "out_elems", "full"),
    [
        ("all_reduce", 8, 8, 8),
        ("all_gather", 2, 8, 8),
        ("all_gather", 2, None, 8),
        ("gather", 2, None, 8),
        ("reduce_scatter", 8, 2, 8),
        ("reduce_scatter", None, 2, 8),
        ("scatter", None, 2, 8),
        ("all_to_all", 8, 6, 8),
        ("send", 5, None, 5),
        ("recv", None, 5, 5),
        ("broadcast", 5, 5, 5),
        ("all_gather", 0, 0, 0),
        ("all_gather", None, None, None),
        ("unknown", None, None, None),
    ],
)
def test_full_buffer(
    operation: str, in_elems: int | None, out_elems: int | None, full: int | None
) -> None:
    assert full_elements(operation, in_elems, out_elems, 4) == full


def test_full_buffer_without_a_group_size() -> None:
    assert full_elements("all_gather", 2, None, None) is None
    assert full_elements("all_gather", 2, 8, None) == 8

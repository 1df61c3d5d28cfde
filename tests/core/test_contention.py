"""Kernels beside a collective against equal kernels alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from builders import Trace
from hypothesis import given
from strategies import spans

from tracelens.attribution import Timeline, unions
from tracelens.communication import COMMUNICATION, COMPUTE
from tracelens.contention import COLUMNS, _apart, compare, is_gemm, merge
from tracelens.model.trace import DEVICE_EVENTS, frame


class Call(NamedTuple):
    name: str
    start: int
    length: int
    grid: str = "[4, 1, 1]"
    stream: int = 7


def compared(
    calls: list[Call], comm: list[tuple[int, int]], counted: list[bool] | None = None
) -> dict[str, tuple[int, float, int, float]]:
    """Return per name: calls alone, their median, calls beside communication, their median."""
    every = [*calls, *(Call("nccl", start, end - start, stream=20) for start, end in comm)]
    order = sorted(range(len(every)), key=lambda i: every[i].start)
    ordered = [every[i] for i in order]
    start = np.array([c.start for c in ordered], np.int64)
    end = start + np.array([c.length for c in ordered], np.int64)
    classes = [COMMUNICATION if c.name == "nccl" else COMPUTE for c in ordered]
    timeline = Timeline(
        start,
        end,
        np.array(classes, np.int8),
        np.array([0 if c.name == "nccl" else -1 for c in ordered], np.int8),
        np.ones(len(ordered), bool),
    )
    events = frame(
        DEVICE_EVENTS,
        {
            "name": pd.Categorical([c.name for c in ordered]),
            "grid": pd.Categorical([c.grid for c in ordered]),
            "stream": [c.stream for c in ordered],
        },
    )
    keep = np.ones(len(ordered), bool)
    if counted is not None:
        keep = np.array([counted[i] if i < len(counted) else True for i in order])
    rows = compare(timeline, unions(timeline), events, keep)
    return {
        str(r["name"]): (r["alone"], r["alone_ns"], r["beside"], r["beside_ns"])
        for r in rows.to_dict("records")
    }


def layers(lengths: list[int], *, name: str = "gemm", grid: str = "[4, 1, 1]") -> list[Call]:
    """Return equal layers of five kernels, 1000 ns apart; the middle one is looked at."""
    found = []
    for layer, length in enumerate(lengths):
        for place, part in enumerate(("norm", "load", name, "store", "add")):
            start = 1000 * layer + 150 * place
            found.append(Call(part, start, length if part == name else 10, grid))
    return found


def beside(*which: int) -> list[tuple[int, int]]:
    """Return communication over the whole of some layers."""
    return [(1000 * layer - 20, 1000 * layer + 900) for layer in which]


def test_equal_calls_are_compared_by_their_medians() -> None:
    calls = layers([100, 110, 90, 130, 140, 120, 110])
    got = compared(calls, beside(3, 4, 5))
    assert got["gemm"] == (4, 105.0, 3, 130.0)


def test_calls_half_beside_count_in_neither() -> None:
    calls = layers([100] * 8)
    half = (7300 + 50, 7600)
    assert compared(calls, [*beside(4, 5, 6), half])["gemm"][:3:2] == (4, 3)


def test_few_calls_say_nothing() -> None:
    calls = layers([100] * 6)
    assert "gemm" not in compared(calls, beside(4, 5))
    assert "gemm" in compared(calls, beside(3, 4, 5))


def test_work_differs_with_the_grid() -> None:
    small, large = layers([100] * 3), layers([200] * 3, grid="[8, 1, 1]")
    moved = [call._replace(start=call.start + 3000) for call in large]
    assert compared([*small, *moved], beside(3, 4, 5)) == {}


def test_work_differs_with_the_kernels_around() -> None:
    """Two matrix multiplications of one name and grid, whose inner sizes no trace shows."""
    first = layers([100] * 3)
    second = [
        call._replace(start=call.start + 3000, name="act" if call.name == "norm" else call.name)
        for call in layers([200] * 3)
    ]
    assert "gemm" not in compared([*first, *second], beside(3, 4, 5))


def test_neighbours_are_those_of_the_stream() -> None:
    calls = layers([100] * 6)
    other = [Call("memo", 1000 * i + 280, 5, stream=9) for i in (0, 2, 3)]
    assert compared([*calls, *other], beside(3, 4, 5))["gemm"][0] == 3


def test_calls_that_share_the_device_with_other_compute_are_left_out() -> None:
    calls = layers([100] * 7)
    crowd = Call("memo", 340, 20, stream=9)  # inside the first layer's call
    assert compared(calls, beside(3, 4, 5))["gemm"][0] == 4
    assert compared([*calls, crowd], beside(3, 4, 5))["gemm"][0] == 3


def test_calls_outside_the_steps_do_not_count() -> None:
    calls = layers([100] * 7)
    outside = [call.start < 1000 for call in calls]
    got = compared(calls, beside(4, 5, 6), [not out for out in outside])
    assert got["gemm"][0] == 3


@given(spans())
def test_apart_is_the_brute_force_answer(calls: tuple[np.ndarray, np.ndarray]) -> None:
    lasting = calls[1] > calls[0]
    order = np.argsort(calls[0][lasting], kind="stable")
    start, end = calls[0][lasting][order], calls[1][lasting][order]
    for i, alone in enumerate(_apart(start, end)):
        others = [j for j in range(len(start)) if j != i]
        overlaps = any(max(start[i], start[j]) < min(end[i], end[j]) for j in others)
        assert alone != overlaps


def test_nothing_to_compare() -> None:
    assert compared([], []) == {}
    assert compared(layers([100] * 4), []) == {}
    assert merge([], 1) is None
    assert merge([pd.DataFrame(columns=list(COLUMNS))], 1) is None


def part(*rows: tuple[str, int, float, int, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_devices_and_works_are_weighted_by_calls_beside() -> None:
    merged = merge(
        [part(("gemm", 10, 100.0, 30, 120.0)), part(("gemm", 10, 200.0, 10, 300.0))], steps=4
    )
    assert merged is not None
    [kernel] = merged.kernels
    assert (kernel.alone, kernel.beside, kernel.alone_ns, kernel.beside_ns) == (20, 40, 125, 165)
    assert merged.slowdown == pytest.approx((30 * 120 + 10 * 300) / (30 * 100 + 10 * 200))
    assert merged.lost_per_step_ns == (30 * 20 + 10 * 100) / 4


def test_only_matrix_multiplications_count_as_such() -> None:
    merged = merge([part(("sm90_gemm", 3, 100.0, 3, 150.0), ("norm", 3, 100.0, 3, 300.0))], 1)
    assert merged is not None
    assert merged.gemm_slowdown == pytest.approx(1.5)
    assert merged.gemm_lost_per_step_ns == 150
    assert merged.slowdown == pytest.approx(2.25)
    assert [kernel.name for kernel in merged.kernels] == ["norm", "sm90_gemm"]
    alone = merge([part(("norm", 3, 100.0, 3, 300.0))], 0)
    assert alone is not None
    assert (alone.gemm_slowdown, alone.gemm_lost_per_step_ns, alone.lost_per_step_ns) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>", True),
        ("nvjet_tst_192x192_64x3_2x1_v_bx_coopB_NNN", True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN", True),
        ("void at::native::vectorized_elementwise_kernel<4>", False),
        ("triton_poi_fused_add_mul_sigmoid_0", False),
    ],
)
def test_names_of_matrix_multiplications(name: str, is_one: bool) -> None:
    assert is_gemm(name) == is_one


def test_reduction_compares_within_its_steps() -> None:
    trace = Trace(rank=0, world=2).step(1, 0, 20_000)
    for layer in range(8):
        at = 1000 + 1000 * layer
        for place, name in enumerate(("norm", "load", "gemm", "store", "add")):
            slow = 120 if layer >= 4 else 100
            trace.kernel(name, at + 150 * place, slow if name == "gemm" else 10)
        if layer >= 4:
            trace.all_reduce(at - 20, 900)
    [row] = [r for r in trace.reduce().contention.to_dict("records") if r["name"] == "gemm"]
    assert (row["alone"], row["alone_ns"], row["beside"], row["beside_ns"]) == (
        4,
        100_000,
        4,
        120_000,
    )

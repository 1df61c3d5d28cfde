"""Latency and bandwidth from message sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.latency import Fit, fit

MB = 1_000_000


def calls(sizes: list[int], alpha_us: float, beta_gbps: float) -> tuple[np.ndarray, np.ndarray]:
    size = np.array(sizes, float)
    return size, 1000 * alpha_us + size / beta_gbps


@given(st.floats(0, 200), st.floats(1, 900))
def test_a_straight_line_is_found(alpha: float, beta: float) -> None:
    found = fit(*calls([1024, MB, 8 * MB, 64 * MB], alpha, beta))
    if found is None:  # rounding may put a latency of nothing below zero
        assert alpha < 0.01
        return
    assert found.alpha_us == pytest.approx(alpha, rel=1e-6, abs=0.01)
    assert found.beta_gbps == pytest.approx(beta, rel=1e-6)


def test_one_disturbed_size_does_not_bend_the_line() -> None:
    size, time = calls([1024, MB, 2 * MB, 8 * MB, 16 * MB, 64 * MB], 20, 300)
    time[3] *= 10
    found = fit(size, time)
    assert found is not None
    assert found.beta_gbps == pytest.approx(300, rel=0.05)


def test_the_median_of_equal_sizes_counts() -> None:
    size, time = calls([1024] * 5 + [MB] * 5 + [64 * MB] * 5, 20, 300)
    time[[0, 5, 10]] = 10**9
    assert fit(size, time) == pytest.approx(Fit(20, 300), rel=1e-6)


@pytest.mark.parametrize(
    "sizes", [[MB, 64 * MB], [MB] * 9, [8 * MB, 9 * MB, 10 * MB], [], [0, 0, 0]]
)
def test_sizes_that_say_nothing_about_latency(sizes: list[int]) -> None:
    assert fit(*calls(sizes, 20, 300)) is None


def test_times_that_do_not_grow_with_size() -> None:
    size = np.array([1024.0, MB, 64 * MB])
    assert fit(size, np.array([900.0, 500.0, 100.0])) is None


def test_a_latency_below_nothing_is_no_fit() -> None:
    size = np.array([1024.0, MB, 64 * MB])
    assert fit(size, np.array([0.0, 10.0, 900_000.0])) is None

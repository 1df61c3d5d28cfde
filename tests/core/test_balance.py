"""Numbers of ranks from differences within groups, beside a dense least-squares solution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.balance import balance

cells = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(-1000, 1000), st.integers(0, 5)),
    min_size=1,
    max_size=16,
    unique_by=lambda cell: cell[:2],
)


@given(cells)
def test_it_is_the_least_squares_solution(drawn: list[tuple[int, int, int, int]]) -> None:
    rank, group = (np.array([cell[i] for cell in drawn], np.intp) for i in (0, 1))
    value, weight = (np.array([cell[i] for cell in drawn], float) for i in (2, 3))
    found = balance(value, weight, rank, group, 6)
    matrix = np.zeros((len(drawn), 6 + 4))
    matrix[np.arange(len(drawn)), rank] = 1
    matrix[np.arange(len(drawn)), 6 + group] = -1
    root = np.sqrt(weight)
    expected = np.linalg.lstsq(matrix * root[:, None], value * root, rcond=None)[0]
    # Levels and sets are free: what is determined is how far each cell is from its measurement.
    left = _left(found, value, weight, rank, group)
    assert left == pytest.approx(
        _left(expected[:6], value, weight, rank, group), rel=1e-6, abs=1e-6
    )


def _left(number: np.ndarray, value: np.ndarray, weight: np.ndarray, rank: np.ndarray,
          group: np.ndarray) -> float:  # fmt: skip
    """Return the sum of squares that a solution leaves, each group at its best level."""
    total = 0.0
    for one in np.unique(group):
        mine = (group == one) & (weight > 0)
        if mine.any():
            miss = number[rank[mine]] - value[mine]
            miss -= np.average(miss, weights=weight[mine])
            total += float((weight[mine] * miss**2).sum())
    return total


def test_a_chain() -> None:
    """Rank 0 meets 1, and 1 meets 2: the differences add up."""
    rank, group = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    found = balance(np.array([0.0, 5, 3, 7]), np.ones(4), rank, group, 4)
    assert found[1] - found[0] == pytest.approx(5)
    assert found[2] - found[1] == pytest.approx(4)
    assert found[3] == 0


def test_no_weight_at_all() -> None:
    rank, group = np.array([0, 1]), np.array([0, 0])
    assert balance(np.array([0.0, 5]), np.zeros(2), rank, group, 2).tolist() == [0, 0]

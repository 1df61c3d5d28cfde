"""Numbers that explain differences measured within overlapping groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens.samples import Floats, Places

_CLOSE = 1e-24  # of the squared length that was to be explained


def balance(
    value: Floats, weight: Floats, cell_rank: Places, cell_group: Places, ranks: int
) -> Floats:
    """Find one number per rank that explains what is measured within the groups best.

    A cell, a rank in a group, measures the rank's number against an unknown level of the group.
    Least squares over all cells, by conjugate gradients: ranks that share no group are tied through
    others, and no matrix is built. Only differences within a set of linked ranks mean anything.

    Args:
        value: What each cell measures.
        weight: How much it counts; 0 for not at all.
        cell_rank: The rank of each cell.
        cell_group: The group of each cell.
        ranks: How many ranks there are.
    """
    level = np.bincount(cell_group, weight)
    share = np.divide(weight, level[cell_group], out=np.zeros(len(weight)), where=weight > 0)

    def against_level(numbers: Floats) -> Floats:
        mean = np.bincount(cell_group, share * numbers)
        apart = np.bincount(cell_rank, weight * (numbers - mean[cell_group]), ranks)
        return np.asarray(apart, np.float64)

    diagonal = np.bincount(cell_rank, weight * (1 - share), ranks)
    scale = np.divide(1.0, diagonal, out=np.zeros(ranks), where=diagonal > 0)
    solution, left = np.zeros(ranks), against_level(value)
    step = scale * left
    size = whole = float(left @ step)
    for _ in range(2 * ranks):
        if size <= _CLOSE * whole:
            break
        moved = against_level(step[cell_rank])
        length = size / float(step @ moved)
        solution, left = solution + length * step, left - length * moved
        before, size = size, float(left @ (scale * left))
        step = scale * left + (size / before) * step
    return solution

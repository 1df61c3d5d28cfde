"""Quantiles of many samples, beside one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.samples import Samples

values = st.lists(st.tuples(st.integers(0, 5), st.integers(-1000, 1000)), min_size=1, max_size=40)


@given(values)
def test_medians(drawn: list[tuple[int, int]]) -> None:
    sample = np.array([which for which, _ in drawn])
    value = np.array([number for _, number in drawn], float)
    found = Samples(value, sample)
    assert found.count.tolist() == np.bincount(sample).tolist()
    for which in range(len(found.count)):
        own = value[sample == which]
        assert found.median[which] == (np.median(own) if len(own) else 0)
        if len(own):
            low, high = (np.percentile(own, [25, 75], method=m) for m in ("lower", "higher"))
            whole = (low[1] + high[1] - low[0] - high[0]) / 2
            assert found.spread[which] == whole


def test_more_samples_than_have_values() -> None:
    found = Samples(np.array([3.0]), np.array([1]), 4)
    assert found.median.tolist() == [0, 3, 0, 0]


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 3), (0.95, 4.5), (1, 5)])
def test_quantiles(share: float, value: float) -> None:
    assert Samples(np.arange(1.0, 6.0), np.zeros(5, np.intp)).quantile(share)[0] == value

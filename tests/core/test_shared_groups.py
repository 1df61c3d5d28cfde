"""Groups of the same ranks are one; the operation tells what a call on it is for."""

from __future__ import annotations

import pandas as pd
import pytest

from tracelens.operations import CODE
from tracelens.shared_groups import gradients


def gradients_of(role: str, *ops: str) -> list[str]:
    frame = pd.DataFrame({"op": [CODE[op] for op in ops], "group": [7] * len(ops)})
    found = gradients(frame, {7: role})
    return [op for op, is_gradient in zip(ops, found, strict=True) if is_gradient]


@pytest.mark.parametrize("role", ["cp", "ep", "pp"])
def test_sums_are_of_gradients(role: str) -> None:
    """No activation is summed over context or expert-parallel ranks, or over stages."""
    assert gradients_of(role, "all_reduce", "send", "recv", "all_to_all") == ["all_reduce"]


@pytest.mark.parametrize("role", ["tp", "dp", "unknown"])
def test_other_groups_are_left_alone(role: str) -> None:
    assert gradients_of(role, "all_reduce", "reduce_scatter", "all_gather") == []


@pytest.mark.parametrize(("role", "exchange"), [("ep", "all_to_all"), ("cp", "send")])
def test_gathers_beside_exchanges_are_of_parameters(role: str, exchange: str) -> None:
    assert gradients_of(role, "all_gather", exchange, "reduce_scatter") == [
        "all_gather",
        "reduce_scatter",
    ]


def test_gathers_alone_may_be_of_keys_and_values() -> None:
    assert gradients_of("cp", "all_gather", "reduce_scatter") == []

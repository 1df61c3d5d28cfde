"""The verdict: what one sentence says of a step must be true to the letter."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import analysis_builder
import pytest

from tracelens.verdict import summarise

if TYPE_CHECKING:
    from tracelens.model.result import Summary


def summary(exposed_by_op_ns: dict[str, int]) -> Summary:
    base = analysis_builder.fsdp2()
    ranks = []
    for rank in base.ranks:
        device = rank.devices[0]
        assert device.mean_step is not None
        mean = dataclasses.replace(device.mean_step, exposed_by_op_ns=exposed_by_op_ns)
        ranks.append(
            dataclasses.replace(rank, devices=[dataclasses.replace(device, mean_step=mean)])
        )
    parameters = base.parallelism.parameters
    return summarise(base.run, ranks, base.volumes, parameters, base.collectives, None)


@pytest.mark.parametrize(
    ("exposed_by_op_ns", "said"),
    [
        ({"all_reduce": 51, "all_gather": 49}, "communication, most of it all-reduce"),
        ({"all_reduce": 50, "all_gather": 50}, "communication, the largest part all-reduce"),
        (
            {"all_gather": 30, "all_reduce": 41, "send": 29},
            "communication, the largest part all-reduce",
        ),
    ],
)
def test_most_is_more_than_half(exposed_by_op_ns: dict[str, int], said: str) -> None:
    assert said in summary(exposed_by_op_ns).verdict

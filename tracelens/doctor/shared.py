"""Checks that read the same whatever recorded the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.doctor import finders
from tracelens.doctor.check import Check

if TYPE_CHECKING:
    from tracelens.reduced import RankReduction

ONE_PROCESS: Check[RankReduction] = Check(
    "one-process",
    "remark",
    ("Collectives", "Stability"),
    "the run has a single process",
    "there is nothing to compare across ranks",
    "nothing if that is what you meant",
    finders.one_process,
)

SEVERAL_DEVICES: Check[RankReduction] = Check(
    "several-devices",
    "remark",
    ("Trust",),
    "one process drives {count} devices",
    "no number: each device is shown on its own",
    "nothing; one process per device is usual in training",
    finders.several_devices,
)

EARLY_CALLS: Check[RankReduction] = Check(
    "early-calls",
    "remark",
    ("Volume",),
    "{count} of {total} collective calls were launched before recording began",
    "no number per step: they are in none",
    "nothing; it is usual where the device lags behind the host",
    finders.launched_before,
)

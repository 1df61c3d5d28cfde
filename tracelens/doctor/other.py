"""What a trace of any other format can lack: the formats of parser plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.doctor import finders
from tracelens.doctor.check import Check

if TYPE_CHECKING:
    from tracelens.reduced import RankReduction

CHECKS: tuple[Check[RankReduction], ...] = (
    Check(
        "no-steps",
        "missing",
        ("Step", "Volume", "Stability"),
        "no step is marked",
        "there are no times and bytes per step, no comparison with theory and no findings",
        "record a range per step, such as `step 12`; or name the ranges that are your steps with "
        "--step-pattern",
        finders.no_steps,
    ),
    Check(
        "no-collectives",
        "missing",
        ("Collectives", "Volume", "Layout", "Stability"),
        "no collective was recorded",
        "these sections stay empty",
        "nothing if the run has one process",
        finders.no_operations,
    ),
    Check(
        "no-sizes",
        "missing",
        ("Volume", "Collectives"),
        "the size of {count} of {total} collective calls was not recorded",
        "their bytes, the comparison with theory and their bandwidth are unknown",
        "record the arguments of collectives",
        finders.without_size,
    ),
    Check(
        "truncated",
        "poorer",
        ("Trust", "Step"),
        "the file ends early",
        "sums are lower bounds, and the rank is left out of means if others are whole",
        "let the recorder finish before the process ends, or copy the file again",
        finders.ends_early,
    ),
    Check(
        "lost-device-records",
        "poorer",
        ("Step", "Volume"),
        "{count} launches have no device record",
        "sums are lower bounds, and the steps that launched them are left out of means",
        "record fewer steps",
        finders.lost_launches,
    ),
    Check(
        "known-by-name",
        "poorer",
        ("Volume", "Collectives"),
        "{count} of {total} communication calls are known by the name of their kernel only",
        "their sizes and groups are unknown",
        "record the arguments of collectives",
        finders.known_by_name,
    ),
    Check(
        "no-groups",
        "poorer",
        ("Stability", "Collectives"),
        "{count} of {total} collective calls do not say on which ranks they ran",
        "they cannot be matched across ranks: waiting and transfer stay unknown",
        "record the process groups",
        finders.without_group,
    ),
    Check(
        "no-rank",
        "poorer",
        ("Trust", "Stability"),
        "no rank is said, neither in the file nor in its name",
        "which file is which rank is arbitrary, and missing ranks go unnoticed",
        "put it into the file's name, as in rank0",
        finders.unnamed_rank,
    ),
)

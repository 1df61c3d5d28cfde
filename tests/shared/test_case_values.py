"""Every value of every case's json block: each is looked up, and an unknown key is a failure.

`FOUND` says where a key's value stands in the result; a `*` of a key is an argument. Keys are the
cases' own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from case_folders import NAMES, Outcome, case, outcome

import tracelens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracelens.model.result import KernelResult, Partition

pytestmark = pytest.mark.shared

TIMES = r"(compute|comm|overlapped_comm|exposed_comm|busy)_us"
Path = tuple[str, ...]


def same(values: Sequence[Any]) -> Any:
    """Return what several ranks have in common, which must be all."""
    first, *others = values
    assert all(other == first for other in others), values
    return first


def time(part: Partition | None, name: str) -> float:
    assert part is not None
    return float(getattr(part, f"{name}_ns")) / 1000


def total(found: Outcome, rank: int | str) -> Partition:
    (device,) = found.rank(rank).devices
    return device.total


def totals(found: Outcome) -> list[Partition]:
    return [device.total for rank in found.analysis.ranks for device in rank.devices]


def step(found: Outcome, rank: int | str, number: int | str) -> Partition:
    (device,) = found.rank(rank).devices
    (one,) = (one for one in device.steps if one.step == int(number))
    return one.partition


def of_steps(found: Outcome, rank: int | str, *, complete: bool | None = None) -> list[int]:
    (device,) = found.rank(rank).devices
    return [one.step for one in device.steps if complete in (None, one.complete)]


def every_rank(found: Outcome, value: Callable[[Outcome, int], Any]) -> Any:
    return same([value(found, rank.rank) for rank in found.analysis.ranks])


def sum_of_steps(found: Outcome, rank: int, name: str) -> float:
    return sum(time(step(found, rank, number), name) for number in of_steps(found, rank))


def compute_kernels(found: Outcome) -> list[KernelResult]:
    kernels = found.rank(0).top_kernels
    return [kernel for kernel in kernels if kernel.kernel_class == "compute"]


def kernel(found: Outcome, holds: Callable[[str], object]) -> KernelResult:
    (one,) = (kernel for kernel in compute_kernels(found) if holds(kernel.name))
    return one


def number_in(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match[1].replace(",", ""))


def lost_device_events(found: Outcome) -> int:
    said = found.notice("damaged-events").message
    if "no device event skipped" in said:
        return 0
    return number_in(said, r"([\d,]+) device events? lost")


def calls(found: Outcome, rank: int | str, op: str) -> float:
    rows = [row for row in found.analysis.collectives if row.op == op.replace("-", "_")]
    return sum(row.by_rank[int(rank)].calls for row in rows if int(rank) in row.by_rank)


def message_bytes(found: Outcome, op: str, known: str | None = None, of: str | None = None) -> int:
    rows = [row for row in found.analysis.collectives if row.op == op.replace("-", "_")]
    if known is not None and of is not None:
        assert sum(row.calls for row in rows) == int(of)
        assert sum(row.calls - row.calls_without_bytes for row in rows) == int(known)
    return sum(row.message_bytes or 0 for row in rows)


def all_reduced(found: Outcome, rank: int) -> float:
    """Return the size of a rank's tensors: a message of an all-reduce is twice that."""
    rows = [row for row in found.analysis.collectives if row.op == "all_reduce"]
    return sum(row.by_rank[rank].message_bytes or 0 for row in rows) / 2


def compute_of_file(found: Outcome, rank: str, name: str | None) -> float:
    (one,) = (
        one
        for one in found.analysis.ranks
        if one.rank == int(rank) and all(file.startswith(name or "") for file in one.files)
    )
    (device,) = one.devices
    return time(device.total, "compute")


def files_of(found: Outcome, rank: str) -> list[str]:
    """Return host and process of each set of files of a rank; the notice names them all."""
    named = found.notice("duplicate-rank").message
    sets = [one.files for one in found.analysis.ranks if one.rank == int(rank)]
    assert all(file in named for files in sets for file in files)
    return [same([file.partition(".")[0] for file in files]) for files in sets]


def time_of(found: Outcome, op: str) -> float:
    op = {"unknown communication": "unknown", "send/recv": "send_recv"}.get(op, op)
    times = total(found, 0).comm_by_op_ns
    if op == "send_recv":
        return sum(times.get(name, 0) for name in ("send", "recv", "send_recv")) / 1000
    return times.get(op.replace("-", "_"), 0) / 1000


HOSTILE = {"<script>": "<script", "<img>": "<img", "pipe": "|"}
FOUND: dict[str, Callable[..., Any]] = {
    # ranks and files
    "ranks|ranks_found": lambda o: o.analysis.run.ranks_present,
    "files": lambda o: sum(file.status == "complete" for file in o.analysis.source.files),
    "world_size": lambda o: o.analysis.run.world_size,
    r"missing_if_world_4": lambda o: o.analysis.run.ranks_missing,
    r"duplicated/(\d+)": files_of,
    r"world_size_conflict/(\d+)": lambda o, size: number_in(
        o.notice("world-size-conflict").message, rf"\b{size} in (\d+) files?\b"
    ),
    r"per_rank/(\d+)/file": lambda o, rank: same(o.rank(rank).files),
    r"per_rank/(\d+)/partial": lambda o, rank: o.rank(rank).partial,
    # times
    rf"per_rank/(\d+)/{TIMES}": lambda o, rank, name: time(total(o, rank), name),
    rf"per_device/(\d+)/{TIMES}": lambda o, device, name: same(
        [time(d.total, name) for d in o.rank(0).devices if d.device == int(device)]
    ),
    rf"per_rank_totals/{TIMES}": lambda o, name: same([time(part, name) for part in totals(o)]),
    rf"per_step_mean/{TIMES}": lambda o, name: same(
        [time(device.mean_step, name) for rank in o.analysis.ranks for device in rank.devices]
    ),
    rf"step_(\d+)_rank(\d+)/{TIMES}": lambda o, number, rank, name: time(
        step(o, rank, number), name
    ),
    "comm_us": lambda o: time(total(o, 0), "comm"),
    r"compute_us/(\d+)(?: \((.+)\))?": compute_of_file,
    r"per_rank/(\d+)/overlap_pct": lambda o, rank: total(o, rank).overlap_pct,
    # steps
    "steps|steps_per_rank": lambda o: every_rank(o, of_steps),
    r"complete_steps_rank(\d+)": lambda o, rank: of_steps(o, rank, complete=True),
    r"incomplete_steps_rank(\d+)": lambda o, rank: of_steps(o, rank, complete=False),
    "span_us": lambda o: every_rank(o, lambda o, rank: sum_of_steps(o, rank, "window")),
    "idle_inside_steps_us_per_rank": lambda o: every_rank(
        o, lambda o, rank: sum_of_steps(o, rank, "idle")
    ),
    "step_us": lambda o: time(o.rank(0).devices[0].mean_step, "window"),
    "utilisation_pct_of_step": lambda o: (
        100 * sum_of_steps(o, 0, "busy") / sum_of_steps(o, 0, "window")
    ),
    # kernels and copies
    r"per_rank/(\d+)/kernels": lambda o, rank: total(o, rank).kernels,
    r"per_rank/(\d+)/memcpy_us": lambda o, rank: time(total(o, rank), "copy"),
    r"per_rank/(\d+)/memcpy_count": lambda o, rank: total(o, rank).copies,
    r"per_rank/(\d+)/memcpy_bytes": lambda o, rank: total(o, rank).copied_bytes,
    r"kernel_time_us/name matching (.+)": lambda o, pattern: (
        kernel(o, re.compile(pattern).search).total_ns / 1000
    ),
    r"kernel_time_us/(<script>|<img>|pipe) name": lambda o, kind: (
        kernel(o, lambda name: HOSTILE[kind] in name).total_ns / 1000
    ),
    r"kernel_time_us/(\w+)": lambda o, name: kernel(o, name.__eq__).total_ns / 1000,
    r"kernel_time_sum_us": lambda o: sum(one.total_ns for one in o.rank(0).top_kernels) / 1000,
    r"mean_us/(.+)": lambda o, name: kernel(o, name.__eq__).mean_ns / 1000,
    r"kernel_count/(.+)": lambda o, name: kernel(o, name.__eq__).count,
    # collectives
    r"per_rank/(\d+)/collectives/(.+)": calls,
    "all_reduce_bytes_per_rank": lambda o: every_rank(o, all_reduced),
    r"time_us/(.+)": time_of,
    r"message_bytes/(\S+)(?: \((\d+) of (\d+) known\))?": message_bytes,
    "collectives_with_unknown_bytes": lambda o: sum(
        row.calls_without_bytes for row in o.analysis.collectives
    ),
    # what was odd
    r"damaged_events_rank(\d+)": lambda o, rank: same(
        [one.count for one in o.notices("damaged-events") if one.rank == int(rank)]
    ),
    "damaged_gpu_events": lost_device_events,
    r"trailing_bytes_rank(\d+)": lambda o, rank: same(
        [one.count for one in o.notices("trailing-bytes") if one.rank == int(rank)]
    ),
    r"untimed_or_invalid_gpu_events_rank(\d+)": lambda o, rank: sum(
        device.untimed_events for device in o.rank(rank).devices
    ),
    "forbidden_in_html_as_markup": lambda o: [
        text for text in o.case.values["forbidden_in_html_as_markup"] if text not in o.page
    ],
}

# How many there are of what the block has a key each for: none is left out, none comes beside.
COUNTED: dict[str, Callable[[Outcome], int]] = {
    "per_rank": lambda o: len(o.analysis.ranks),
    "per_device": lambda o: len(o.rank(0).devices),
    "duplicated": lambda o: len(o.analysis.run.ranks_duplicated),
    "compute_us": lambda o: len(o.analysis.ranks),
    "kernel_time_us": lambda o: len(compute_kernels(o)),
    "message_bytes": lambda o: len(
        {row.op for row in o.analysis.collectives if row.message_bytes is not None}
    ),
}


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield all that is no object, with the keys that lead there."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from leaves(inner, (*path, key))


def found_at(result: Outcome, path: Path) -> Any:
    """Look a value up in the result.

    Raises:
        KeyError: If nothing says where it stands.
    """
    text = "/".join(path)
    rules = [(match, rule) for key, rule in FOUND.items() if (match := re.fullmatch(key, text))]
    if len(rules) != 1:
        raise KeyError(f"{result.case.name}: {text} matches {len(rules)} rules")
    ((match, rule),) = rules
    return rule(result, *match.groups())


@pytest.mark.parametrize("name", NAMES)
def test_every_value(name: str) -> None:
    result = outcome(name)
    for path, value in leaves(case(name).values):
        found = found_at(result, path)
        where = "/".join(path)
        if isinstance(value, float):
            assert found == pytest.approx(value, abs=0.0005), where
        else:
            assert found == value, where


@pytest.mark.parametrize("name", NAMES)
def test_nothing_beside_them(name: str) -> None:
    result = outcome(name)
    for key in case(name).values.keys() & COUNTED.keys():
        assert COUNTED[key](result) == len(case(name).values[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_python_gives_what_the_command_writes(name: str) -> None:
    assert tracelens.analyze(case(name).input) == outcome(name).analysis


@pytest.mark.parametrize("key", ["ranks_lost", "per_rank/0/new_us", "kernels", ""])
@pytest.mark.usefixtures("cases_folder")
def test_a_key_nobody_looks_up_is_a_failure(key: str) -> None:
    with pytest.raises(KeyError, match="matches 0 rules"):
        found_at(outcome(NAMES[0]), tuple(key.split("/")))

"""What files lack together, what is said once for many ranks, and other formats."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from builders import EPOCH_US, Group, Trace

import tracelens
from tracelens.doctor import other, whole_run
from tracelens.doctor.check import LEVELS, SECTIONS, Found, Lack
from tracelens.doctor.examination import examine
from tracelens.doctor.finders import when
from tracelens.reduction import reduce_rank
from tracelens.reporting.document import document
from tracelens.run import Run, assemble

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.reduced import RankReduction

STEP = 1000


def trace(rank: int = 0, first: int = 10, count: int = 3, **options: Any) -> Trace:
    options.setdefault("world", 2)
    group = options.pop("group", None)
    keys = {"record_shapes": 1, "host_name": options.pop("host", f"node{rank}")}
    built = Trace(rank=rank, keys={key: value for key, value in keys.items() if value}, **options)
    built.event("cuda_sync", "Event Sync", 130, 5)
    for number in range(first, first + count):
        at = STEP * number
        built.step(number, at, STEP).mark("Optimizer.step#SGD.step", at + 800, 100)
        built.kernel("gemm", at + 100, 300).all_reduce(at + 500, 200, seq=number, group=group)
    return built


def reduced(built: Trace, path: str, **info: Any) -> RankReduction:
    return reduce_rank(built.parse().with_info(path=path, **info))


def run_of(*traces: Trace, **info: Any) -> Run:
    return assemble([reduced(t, f"file{i}.json", **info) for i, t in enumerate(traces)])


def names(lacks: list[Lack]) -> list[str]:
    return [lack.check for lack in lacks]


def the(name: str, lacks: list[Lack]) -> Lack:
    (found,) = [lack for lack in lacks if lack.check == name]
    return found


# over all ranks ----------------------------------------------------------------------------------


def test_all_ranks_of_a_run_lack_nothing() -> None:
    assert examine(run_of(trace(0), trace(1))) == []


def test_one_rank_alone() -> None:
    lack = the("lone-ranks", examine(run_of(trace(1))))
    assert lack.what == "too few ranks: only rank 1 of 2 is here"
    assert lack.level == "poorer"
    assert "Stability" in lack.sections


def test_ranks_of_different_groups_are_alone_together() -> None:
    first, second = Group((0, 1), "1", "mesh_dp"), Group((2, 3), "2", "mesh_dp")
    run = run_of(trace(0, world=4, group=first), trace(2, world=4, group=second))
    assert names(examine(run)) == ["lone-ranks"]
    said = the("lone-ranks", examine(run)).what
    assert said.endswith("only ranks 0, 2 of 4 are here, and no process group has two of them")


def test_a_partial_rank_is_here_all_the_same() -> None:
    run = assemble([reduced(trace(0), "a", truncated=True), reduced(trace(1), "b")])
    assert names(examine(run)) == ["truncated"]


def test_some_ranks_are_missing() -> None:
    lack = the("missing-ranks", examine(run_of(*(trace(r, world=8) for r in (0, 1, 5)))))
    assert lack.what == "there is no file of 5 of 8 ranks: 2-4, 6-7"


def test_ranks_with_other_steps() -> None:
    assert names(examine(run_of(trace(0), trace(1, first=11)))) == ["different-steps"]


def test_ranks_of_unknown_machines() -> None:
    assert names(examine(run_of(trace(0, host=None), trace(1, host=None)))) == ["no-nodes"]
    assert "no-nodes" not in names(examine(run_of(trace(0, host=None))))


def test_a_single_step() -> None:
    assert names(examine(run_of(trace(0, count=1), trace(1, count=1)))) == ["one-step"]
    second = [trace(rank, first=20, count=1) for rank in (0, 1)]
    assert examine(run_of(trace(0, count=1), trace(1, count=1), *second)) == []


def test_the_same_rank_twice() -> None:
    other_process = trace(1, pid=77)
    lacks = examine(run_of(trace(0), trace(1), other_process))
    assert names(lacks) == ["duplicate-rank"]
    assert "file1.json, file2.json" in lacks[0].what


def test_two_runs_in_one_folder() -> None:
    later = (EPOCH_US + 3600 * 10**6) * 1000
    lacks = examine(run_of(trace(0), trace(1, world=4, base_ns=later)))
    assert names(lacks)[:2] == ["different-times", "world-size-conflict"]
    assert "60 minutes apart" in lacks[0].what


def test_a_run_of_one_process_is_not_alone() -> None:
    assert "lone-ranks" not in names(examine(run_of(trace(0, world=1))))


def test_checks_over_all_ranks_stand_in_order_of_importance() -> None:
    places = [LEVELS.index(check.level) for check in whole_run.CHECKS]
    assert places == sorted(places)
    assert all(set(check.sections) <= set(SECTIONS) for check in whole_run.CHECKS)


# said once ---------------------------------------------------------------------------------------


def test_ranks_that_lack_the_same_are_one_line_with_the_sum() -> None:
    traces = [trace(rank, world=4) for rank in range(4)]
    for rank in (0, 1, 3):
        for _ in range(rank + 1):
            traces[rank].event("python_function", "f", 10_000, 5)
    lack = the("python-stacks", examine(run_of(*traces)))
    assert lack.ranks == (0, 1, 3)
    assert lack.files == ("file0.json", "file1.json", "file3.json")
    assert lack.what.startswith("7 of ")


def test_ranks_that_lack_different_things_are_two_lines() -> None:
    run = run_of(trace(0, first=1), trace(1, first=2))
    said = [lack.what for lack in examine(run) if lack.check == "set-up-steps"]
    assert said == [
        "the recording begins with step 1 of the process",
        "the recording begins with step 2 of the process",
    ]


def test_cycles_of_a_rank_are_one_rank() -> None:
    cycles = [trace(0, first=20).raw("{}"), trace(0, first=10)]
    for cycle in cycles:
        cycle.event("python_function", "f", 10_000, 5)
    lack = the("python-stacks", examine(run_of(*cycles, trace(1))))
    assert lack.ranks == (0,)
    assert len(lack.files) == 2


def test_what_is_worst_comes_first() -> None:
    bad = trace(0, first=1, count=1).event("python_function", "f", 1_000, 5)
    levels = [lack.level for lack in examine(run_of(bad, trace(1, world=4)))]
    assert levels == sorted(levels, key=LEVELS.index)
    assert {"missing", "poorer"} <= set(levels)


@pytest.mark.parametrize("lacks", [True, False])
def test_a_find_is_there_or_not(lacks: bool) -> None:
    assert when(lacks, "x") == (Found(detail="x") if lacks else None)


# other formats -----------------------------------------------------------------------------------


def without_sizes() -> RankReduction:
    parsed = trace().parse().with_info(format="csv")
    table = parsed.communications.assign(in_elems=-(2**63), out_elems=-(2**63))
    return reduce_rank(dataclasses.replace(parsed, communications=table))


def without_groups() -> RankReduction:
    parsed = trace().parse().with_info(format="csv", process_groups=(), world_size=8)
    table = parsed.communications.assign(group_ranks="", group_size=2)
    return reduce_rank(dataclasses.replace(parsed, communications=table))


PLUGIN: dict[str, Callable[[], RankReduction]] = {
    "no-steps": lambda: reduced(Trace().all_reduce(500, 200, seq=1), "a", format="csv"),
    "no-collectives": lambda: reduced(Trace().step(10, 0, 9).kernel("k", 1, 2), "a", format="csv"),
    "no-sizes": without_sizes,
    "truncated": lambda: reduced(trace(), "a", format="csv", truncated=True),
    "lost-device-records": lambda: reduced(
        trace().call("cudaLaunchKernel", 12_000, correlation=9), "a", format="csv"
    ),
    "known-by-name": lambda: reduced(
        trace().kernel("ncclDevKernel_SendRecv", 12_750, 9), "a", format="csv"
    ),
    "no-groups": without_groups,
    "no-rank": lambda: reduced(trace(), "a", format="csv", rank=None, rank_source=None),
}


@pytest.mark.parametrize("name", [check.name for check in other.CHECKS])
def test_checks_of_other_formats(name: str) -> None:
    table = {check.name: check for check in other.CHECKS}
    assert table[name].find(PLUGIN[name]()) is not None
    assert table[name].find(reduced(trace(), "a", format="csv")) is None
    assert name in names(examine(assemble([PLUGIN[name]()])))


def test_a_csv_is_given_no_advice_on_torch() -> None:
    lacks = examine(assemble([reduced(trace(count=0), "a", format="csv")]))
    assert "no-steps" in names(lacks)
    assert not any("prof.step" in lack.remedy for lack in lacks)


def test_sections_are_those_of_the_report(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(rank).write(tmp_path / f"rank{rank}.json")
    shown = document(tracelens.analyze(tmp_path)).sections
    assert tuple(section.nav for section in shown) == SECTIONS

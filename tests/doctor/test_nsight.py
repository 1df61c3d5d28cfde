"""Nsight Systems: each check strikes on an export that lacks its thing, and on nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from command import run
from recordings import Run

from tracelens.doctor.check import LEVELS, SECTIONS
from tracelens.doctor.nsight import CHECKS
from tracelens.engine import Options, examine
from tracelens.reduction import Selection
from tracelens.simulate import nsight
from tracelens.simulate.recording import Group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.doctor.check import Check, Lack
    from tracelens.simulate.recording import Recording

OPTIMIZER = "Optimizer.step#AdamW.step"
STEPS = (10, 11, 12)


def recording(
    *,
    size: int = 2,
    groups: tuple[Group, ...] = (),
    messages: bool = False,
    collectives: bool = True,
    optimizer: Callable[[int], bool] = lambda number: True,
) -> Recording:
    """Three steps of compute, communication in every group, and the optimizer."""
    built = Run(size, groups)
    for number in STEPS:
        with built.step(number):
            built.compute()
            for group in range(1 + len(groups)) if collectives else ():
                built.collective("all_reduce", 1 << 20, group)
            if messages:
                built.message(0, 1)
            if optimizer(number):
                with built.range(OPTIMIZER):
                    built.compute(20_003)
            else:
                built.compute(20_003)
    return built.recording()


def export(folder: Path, of: Recording, *statements: str, **options: Any) -> Path:
    """Write one export a rank, then change each by SQL."""
    per_node = options.pop("per_node", False)
    options.setdefault("links", True)
    written = nsight.write(of, folder, per_node=per_node, options=nsight.Options(**options))
    for path in written:
        with closing(sqlite3.connect(path)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()
    return folder


def lacks_of(folder: Path, pattern: str | None = None) -> list[Lack]:
    return examine(folder, Options(selection=Selection(step_pattern=pattern)))[1]


def test_a_whole_export_lacks_nothing(tmp_path: Path) -> None:
    assert lacks_of(export(tmp_path / "ranks", recording())) == []
    assert lacks_of(export(tmp_path / "node", recording(), per_node=True)) == []


@pytest.mark.parametrize("per_node", [1, 2])
def test_counters_of_links_and_cards(per_node: int, tmp_path: Path) -> None:
    """Links matter between ranks of a machine, network cards between machines."""
    run = Run(2, per_node=per_node)
    for number in STEPS:
        with run.step(number):
            run.compute().collective("all_reduce", 1 << 20)
            with run.range(OPTIMIZER):
                run.compute(20_003)
    folder = export(tmp_path / "export", run.recording(), links=False)
    missing = "no-link-samples" if per_node == 2 else "no-network-counters"
    assert [(lack.check, lack.level) for lack in lacks_of(folder)] == [(missing, "remark")]


# one export a check ------------------------------------------------------------------------------

_ONE_STEP_EARLY = 'start < (SELECT min(start) FROM NVTX_EVENTS WHERE text = "tracelens.step 11")'
_LAST_KERNELS = "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start DESC LIMIT 2)"
_NCCL = "(SELECT id FROM StringIds WHERE value LIKE 'ncclDevKernel_%')"
_LAST_NCCL = (
    f"(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE shortName IN {_NCCL} OR "
    f"demangledName IN {_NCCL} ORDER BY start DESC LIMIT 1)"
)
_GRAPHS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT start, start + 900 AS end, deviceId, "
    "contextId, streamId, correlationId, globalPid, 5 AS graphId, 6 AS graphExecId "
    "FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId IN (SELECT correlationId FROM "
    "CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start LIMIT 1)"
)


def no_marks(folder: Path) -> Path:
    return export(folder, recording(), "DELETE FROM NVTX_EVENTS WHERE text LIKE 'tracelens.step%'")


_LAST_PROCESS = "(SELECT max(globalTid) / 16777216 * 16777216 FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no-device-events": (
        lambda folder: export(
            folder,
            recording(),
            *(
                f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE globalPid = {_LAST_PROCESS}"
                for table in ("MEMCPY", "KERNEL")
            ),
            per_node=True,
        ),
        "no GPU event of a process was recorded, though it launched some",
    ),
    "opaque-graphs": (
        lambda folder: export(folder, recording(), _GRAPHS),
        "2 launches of CUDA graphs were recorded without their contents",
    ),
    "no-calls": (
        lambda folder: export(folder, recording(), "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"),
        "no call of the CUDA API was recorded",
    ),
    "payloads-not-exported": (
        lambda folder: export(folder, recording(), blobs=False),
        "sizes and communicators of 6 NCCL calls were recorded, but not exported",
    ),
    "nccl-trace-unread": (
        lambda folder: export(
            folder,
            recording(),
            "UPDATE NVTX_EVENTS SET binaryData = NULL, textId = NULL, text = 'AllReduce' "
            "WHERE textId IN (SELECT id FROM StringIds WHERE value = 'ncclAllReduce')",
            "DELETE FROM NVTX_PAYLOAD_SCHEMA_ENTRIES",
        ),
        "the details of 6 calls of NCCL's advanced tracing are not in the export, or unknown",
    ),
    "payloads-unread": (
        lambda folder: export(
            folder, recording(), "UPDATE NVTX_EVENTS SET binaryData = substr(binaryData, 1, 40)"
        ),
        "the payloads of 6 NCCL calls are damaged, or of an unknown form",
    ),
    "no-nccl-ranges": (
        lambda folder: export(folder, recording(), nccl="2.7"),
        "6 communication calls were recorded, and not one range of NCCL",
    ),
    "no-steps": (no_marks, "no step is marked"),
    "no-collectives": (
        lambda folder: export(folder, recording(collectives=False)),
        "no collective was recorded",
    ),
    "no-sizes": (
        lambda folder: export(folder, recording(), nccl="2.14"),
        "the size of 6 of 6 collective calls was not recorded",
    ),
    "nameless-kernels": (
        lambda folder: export(
            folder, recording(), "DELETE FROM StringIds WHERE value LIKE 'nvjet%'"
        ),
        "the names of 12 kernels are not in the export",
    ),
    "lost-device-records": (
        lambda folder: export(
            folder,
            recording(),
            f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId IN {_LAST_KERNELS} "
            f"AND correlationId NOT IN {_LAST_NCCL}",
        ),
        "launches have no device record",
    ),
    "reported-losses": (
        lambda folder: export(
            folder,
            recording(),
            "CREATE TABLE DIAGNOSTIC_EVENT AS SELECT 'CUPTI dropped 7 records.' AS text",
            "INSERT INTO DIAGNOSTIC_EVENT VALUES ('Not all NVTX events might have been collected')",
        ),
        "nsys itself reports that it lost device events, NVTX ranges",
    ),
    "untimed": (
        lambda folder: export(
            folder,
            recording(),
            f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start WHERE correlationId IN "
            f"{_LAST_KERNELS} AND correlationId NOT IN {_LAST_NCCL}",
        ),
        "device events have no usable time",
    ),
    "known-by-name": (
        lambda folder: export(
            folder,
            recording(),
            "UPDATE StringIds SET value = 'void deep_ep::intranode::dispatch<8>(int4*)' "
            "WHERE value LIKE 'nvjet%'",
        ),
        "12 of 18 communication calls are known by the name of their kernel only",
    ),
    "no-launch": (
        lambda folder: export(
            folder,
            recording(),
            f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN {_LAST_NCCL}",
        ),
        "2 of 8 collective calls inside steps have no launch record",
    ),
    "no-communicators": (
        lambda folder: export(
            folder, recording(groups=(Group("1", "mesh_tp", (0, 1)),)), nccl="2.22", mark=False
        ),
        "12 of 12 NCCL calls do not name their communicator",
    ),
    "no-members": (
        lambda folder: export(folder, recording(), setup=False, mark=False, per_node=True),
        "the members of the communicators of 6 of 6 NCCL calls are not known",
    ),
    "no-peers": (
        lambda folder: export(
            folder,
            recording(messages=True, groups=(Group("1", "mesh_pp", (0, 1)),)),
            nccl="2.22",
            mark=False,
        ),
        "6 of 6 sends and receives do not say with whom",
    ),
    "no-optimizer-range": (
        lambda folder: export(folder, recording(messages=True, optimizer=lambda number: False)),
        "the optimizer step of a pipeline has no range",
    ),
    "step-without-optimizer": (
        lambda folder: export(folder, recording(optimizer=lambda number: number != 11)),
        "2 of 6 steps hold no optimizer step",
    ),
    "idle-without-cause": (
        lambda folder: export(
            folder,
            recording(),
            "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN (SELECT correlationId "
            f"FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE NOT shortName IN {_NCCL} "
            "ORDER BY start LIMIT 1 OFFSET 2)",
        ),
        "% of the idle time ends with an event whose launch was not recorded",
    ),
    "no-rank": (
        lambda folder: export(folder, recording(), mark=False, per_node=True),
        "nothing says which process is which rank",
    ),
    "unread-tables": (
        lambda folder: export(
            folder,
            recording(),
            "CREATE TABLE OSRT_API AS SELECT 1 AS start",
            "CREATE TABLE SCHED_EVENTS AS SELECT 1 AS start",
            "CREATE TABLE COMPOSITE_EVENTS (start)",
        ),
        "no section reads the recorded calls of the operating system, thread switches",
    ),
    "early-calls": (
        lambda folder: export(
            folder,
            recording(),
            f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {_ONE_STEP_EARLY}",
            f"DELETE FROM NVTX_EVENTS WHERE {_ONE_STEP_EARLY} AND eventType = 59",
        ),
        "collective calls were launched before recording began",
    ),
    "no-device-names": (
        lambda folder: export(folder, recording(), "DELETE FROM TARGET_INFO_GPU"),
        "the GPUs are not described",
    ),
    "several-devices": (
        lambda folder: export(
            folder,
            recording(),
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 7 WHERE correlationId IN "
            "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start LIMIT 1)",
        ),
        "one process drives",
    ),
    "one-process": (
        lambda folder: export(folder, recording(size=1, collectives=False)),
        "the run has a single process",
    ),
}


# What cannot be taken away alone.
IMPLIED = {
    "no-device-events": {"no-members"},
    "no-members": {"no-rank", "no-world-size"},
    "no-peers": {"no-communicators"},
}


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_a_check_finds_what_it_is_for_and_nothing_else(name: str, tmp_path: Path) -> None:
    build, said = BROKEN[name]
    found = {lack.check: lack for lack in lacks_of(build(tmp_path / "export"))}
    assert set(found) == {name} | IMPLIED.get(name, set())
    assert said in found[name].what


def test_a_table_that_is_there_and_empty_is_not_recorded(tmp_path: Path) -> None:
    """`nsys export --lazy=false` makes every table."""
    assert lacks_of(export(tmp_path / "x", recording(), "CREATE TABLE OSRT_API (start)")) == []


def test_a_step_pattern_names_the_steps(tmp_path: Path) -> None:
    folder = export(
        tmp_path / "export",
        recording(),
        "UPDATE NVTX_EVENTS SET text = replace(text, 'tracelens.step', 'my loop')",
    )
    assert [lack.check for lack in lacks_of(folder)] == ["no-steps"]
    assert lacks_of(folder, r"my loop (\d+)") == []


def test_checks_stand_in_order_of_importance() -> None:
    places = [LEVELS.index(check.level) for check in CHECKS]
    assert places == sorted(places)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_says_whom_it_concerns(check: Check[Any]) -> None:
    assert set(check.sections) <= set(SECTIONS)
    assert "prof" not in check.remedy.replace("nsys profile", "").replace("cudaProfiler", "")


def test_the_command_that_exports_again_is_never_broken(tmp_path: Path) -> None:
    export(tmp_path / "export", recording(), blobs=False)
    lines = run("doctor", "export", cwd=tmp_path, COLUMNS="50").out.splitlines()
    (command,) = [line.strip() for line in lines if "nsys export" in line]
    assert command == (
        "nsys export -t sqlite --include-blobs=true --include-json=true -f true X.nsys-rep"
    )


def test_an_export_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    export(
        tmp_path / "export",
        recording(),
        *(
            f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}"
            for table in ("KERNEL", "RUNTIME", "SYNCHRONIZATION")
        ),
    )
    result = run("doctor", "export", cwd=tmp_path)
    assert result.code == 1
    assert "record with `nsys profile -t cuda,nvtx`" in result.err

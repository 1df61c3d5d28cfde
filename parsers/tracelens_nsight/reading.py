"""Read an export: one `RankTrace` for each process that used a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import UnreadableTrace
from tracelens.model.trace import COUNTERS, NONE, RankInfo, RankTrace
from tracelens.notices import notice
from tracelens_nsight import (
    batches,
    calls,
    communications,
    device,
    diagnostics,
    facts,
    frames,
    links,
    network,
    payloads,
    ranges,
)
from tracelens_nsight.export import Export
from tracelens_nsight.identifiers import pid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd

    from tracelens.intervals import Ints
    from tracelens.model.result import Notice
    from tracelens_nsight.calls import Calls
    from tracelens_nsight.communications import Said
    from tracelens_nsight.device import DeviceRows
    from tracelens_nsight.facts import Facts
    from tracelens_nsight.tables import Tables

_UNREAD = {"OSRT_API": "os_call", "COMPOSITE_EVENTS": "sample", "SCHED_EVENTS": "switch"}
_HINTS = {"steps": "push an NVTX range `step N` around each optimizer step"}
_ABSENT = "NCCL's payloads are not in the export"
_UNKNOWN = "NCCL's payloads are not in the export, or could not be read"


def read(
    tables: Tables,
    path: Path,
    form: str,
    size: int,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[RankTrace]:
    """Yield the trace of each process, in order of its devices.

    Raises:
        UnreadableTrace: If the export holds nothing of a GPU.
    """
    try:
        found = facts.read(tables)
        members = processes(tables, path)
        export = Export(tables, alone=len(members) == 1)
        for place, process in enumerate(members):
            local_rank = place if len(members) > 1 else None
            yield _trace(export, path, form, found, process, local_rank)
            if on_bytes is not None:
                on_bytes(size * (place + 1) // len(members) - size * place // len(members))
    finally:
        tables.close()


def processes(tables: Tables, path: Path) -> list[int]:
    """Return the processes that gave a GPU work, in order of their devices.

    One whose device events are all lost is among them: it is a rank of which no time is known.

    Raises:
        UnreadableTrace: If there is none, or if the export does not say whose the work is.
    """
    if not sum(tables.count(table) for table in device.TABLES):
        raise UnreadableTrace(
            f"{path}: no work of a GPU in it: record with `nsys profile -t cuda,nvtx`",
            slug="unreadable-file",
        )
    # Exports of 2019 name no process on device events: then all are those of the only one.
    members, callers = set(device.processes(tables)), set(calls.processes(tables))
    launched = set(calls.launching_processes(tables)) if callers - members else set()
    members = members | launched or callers
    if len(members) == 1:
        return list(members)
    if not members or not device.name_processes(tables):
        raise UnreadableTrace(
            f"{path}: an export of {len(members)} processes that does not say whose its kernels "
            "are: export it again with a newer nsys",
            slug="unreadable-file",
        )
    used = device.ordinals(tables)
    return sorted(members, key=lambda one: (_first_gpu(tables, one, used.get(one, set())), one))


def _first_gpu(tables: Tables, process: int, used: set[int]) -> int:
    """Return the first GPU of those a process works on; its ordinal, where none is described."""
    gpus = facts.devices_of(tables, process)
    used = used or (set(gpus) if len(gpus) == 1 else set())
    return min((gpus[one][0] if one in gpus else one for one in used), default=1 << 30)


def _trace(
    export: Export, path: Path, form: str, found: Facts, process: int, local_rank: int | None
) -> RankTrace:
    made = calls.read(export, process)
    said = ranges.read(export, process)
    rows = device.settle(device.read(export, process), _last(made.end, said.end))
    launch = calls.launching(made, rows.correlation)
    decoded = payloads.decode(export.tables, said, process)
    carried = batches.attach(said, decoded.fields["communicator"], made, rows, launch)
    talk = communications.write(said, decoded, carried, rows)
    _mark_left_out(made, rows)
    trace = RankTrace(
        info=_info(export, path, form, found, process, local_rank, rows, talk, said.unread),
        device_events=frames.device_events(rows, made, launch, pid_of(process)),
        communications=talk.table,
        marks=frames.marks(said),
        host_calls=frames.host_calls(made, said),
        counters=_counters(export.tables, process, local_rank, rows),
    )
    events = len(rows) + len(made) + len(said)
    recorded = {
        "kernel": len(rows),
        "call": len(made),
        "mark": len(trace.marks),
        "nccl": talk.calls,
        "link": int(links.are_there(export.tables)),
        "network": int(export.tables.holds(network.SAMPLES)),
        **{kind: 1 for table, kind in _UNREAD.items() if export.tables.holds(table)},
    }
    return _shifted(trace.with_info(events=events, recorded=recorded), found.clock.shift)


def _last(*ends: Ints) -> int:
    return max((int(end.max()) for end in ends if len(end)), default=NONE)


def _counters(
    tables: Tables, process: int, local_rank: int | None, rows: DeviceRows
) -> pd.DataFrame:
    """Return what hardware counted: the process's devices, and in one process the machine."""
    own = [] if local_rank else [network.counters(tables)]
    return frames.joined(COUNTERS, [*own, links.counters(tables, _ordinals(tables, process, rows))])


def _ordinals(tables: Tables, process: int, rows: DeviceRows) -> dict[int, int]:
    """Return the CUDA ordinal of each GPU that a process works on."""
    used = set(np.unique(rows.device).tolist())
    found = facts.devices_of(tables, process).items()
    return {gpu: ordinal for ordinal, (gpu, _) in found if ordinal in used}


def _info(
    export: Export,
    path: Path,
    form: str,
    found: Facts,
    process: int,
    local_rank: int | None,
    rows: DeviceRows,
    talk: Said,
    unread: int,
) -> RankInfo:
    pid = pid_of(process)
    mark = facts.mark_of(export, process)
    rank = facts.rank_of(export, found, path, process, mark, alone=local_rank is None)
    gpus = facts.devices_of(export.tables, process)
    described = payloads.are_described(export.tables)
    return RankInfo(
        path=str(path),
        format=form,
        rank=rank.rank,
        rank_source=rank.source,
        local_rank=local_rank,
        world_size=rank.world,
        base_ns=found.clock.base_ns,
        host=found.host,
        process=pid,
        backend="nccl" if talk.calls else None,
        device_kind="cuda",
        device_names={ordinal: name for ordinal, (_, name) in gpus.items() if name},
        process_groups=(*mark.groups, *talk.groups),
        nccl_version=payloads.nccl_version(export.tables),
        dtype=mark.dtype,
        reported_losses=diagnostics.losses(export.tables, process),
        damaged_device_events=rows.odd["nameless"],
        unknown_device_events=rows.odd["nameless"],
        simulated=found.simulated,
        untimed={(pid, ordinal): count for ordinal, count in rows.untimed.items()},
        notices=tuple(
            _notices(
                path.name,
                rank.rank,
                rows,
                talk,
                described=described,
                unassigned=not gpus and links.are_there(export.tables),
                unread=unread,
            )
        ),
        hints={**_HINTS, "bytes": _UNKNOWN if talk.unread else _ABSENT},
    )


def _notices(
    name: str,
    rank: int | None,
    rows: DeviceRows,
    talk: Said,
    *,
    described: bool,
    unassigned: bool,
    unread: int,
) -> Iterator[Notice]:
    if talk.unread and not unread:
        yield notice("payloads-unread", file=name, rank=rank, count=talk.unread)
    elif talk.calls and not talk.sized and not unread and described:
        yield notice("payloads-not-exported", file=name, rank=rank, count=talk.calls)
    opaque = np.array([text == device.OPAQUE_GRAPH for text in rows.names])[rows.name]
    if opaque.any():
        busy = f"{int((rows.end - rows.start)[opaque].sum()) / 1e6:,.3f}"
        count = int(opaque.sum())
        yield notice("opaque-graphs", file=name, rank=rank, count=count, busy=busy)
    if unread:
        yield notice("nccl-trace-unread", file=name, rank=rank, count=unread)
    if unassigned:
        yield notice("link-samples-unassigned", file=name, rank=rank)
    yield from _left_out(name, rank, rows)


def _left_out(name: str, rank: int | None, rows: DeviceRows) -> Iterator[Notice]:
    if rows.untimed:
        count = sum(rows.untimed.values())
        timeless = count - rows.odd["impossible"]
        reasons = {"with an impossible duration": rows.odd["impossible"], "without times": timeless}
        text = ", ".join(f"{number} {reason}" for reason, number in reasons.items() if number)
        yield notice("untimed-events", file=name, rank=rank, count=count, reasons=text)
    if rows.odd["clipped"]:
        yield notice("clipped-durations", file=name, rank=rank, count=rows.odd["clipped"])
    if rows.odd["nameless"]:
        what = "kernels whose names are not in the export"
        yield notice(
            "unread-device-events", file=name, rank=rank, count=rows.odd["nameless"], names=what
        )


def _mark_left_out(made: Calls, rows: DeviceRows) -> None:
    """Keep launches of events that are left out from counting as lost: their record is there."""
    if rows.left_out:
        untimed = np.isin(made.correlation, rows.left_out)
        made.kind[untimed] = made.kinds.index("untimed")


def _shifted(trace: RankTrace, shift: int) -> RankTrace:
    """Take the session's start off the times of an export that added it (`--ts-normalize`)."""
    if not shift:
        return trace
    tables = (trace.device_events, trace.communications, trace.marks, trace.host_calls)
    for table in (*tables, trace.counters):
        for name in {"start", "end", "launch", "launch_end"} & set(table.columns):
            values = table[name].to_numpy()
            table[name] = np.where(values == NONE, NONE, values - shift)
    return trace

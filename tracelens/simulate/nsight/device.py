"""Device work and the runtime calls behind it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens.simulate.nsight.ids import global_process, global_thread

if TYPE_CHECKING:
    from tracelens.simulate.nsight.tables import Database
    from tracelens.simulate.recording import DeviceEvent, Launch, RecordedRank

_VERSIONS = {  # CUPTI names a call with the release that made it what it is
    "cudaLaunchKernel": "_v7000",
    "cudaLaunchKernelExC": "_v11060",
    "cudaMemcpyAsync": "_v3020",
    "cudaMemsetAsync": "_v3020",
    "cudaStreamSynchronize": "_v3020",
    "cudaDeviceSynchronize": "_v3020",
    "cudaEventRecord": "_v3020",
    "cudaEventSynchronize": "_v3020",
    "cudaEventQuery": "_v3020",
    "cudaStreamWaitEvent": "_v3020",
}
_WAITS = {
    "cudaEventSynchronize": 1,
    "cudaStreamWaitEvent": 2,
    "cudaStreamSynchronize": 3,
    "cudaDeviceSynchronize": 4,
}
_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}
_CONTEXT = 1
_PARAMETERS = re.compile(r"[<(].*")


def add(database: Database, rank: RecordedRank) -> None:
    """Add everything one process did on its device and in the runtime."""
    for launch in rank.launches:
        _add_call(database, rank, launch)
        if launch.name in _WAITS:
            _add_wait(database, rank, launch)
    for event in rank.device_events:
        place = {
            "start": event.start,
            "end": event.end,
            "deviceId": rank.device,
            "contextId": _CONTEXT,
            "greenContextId": 0,
            "streamId": event.stream,
            "correlationId": event.correlation,
            "globalPid": global_process(rank.process),
        }
        if event.kind == "kernel":
            _add_kernel(database, event, place)
        elif event.kind == "copy":
            _add_copy(database, event, place)
        else:
            values = {"bytes": event.copy_bytes or 0, "memKind": MEMORY_KINDS["Device"]}
            database.add("CUPTI_ACTIVITY_KIND_MEMSET", **place, **values)


def _add_call(database: Database, rank: RecordedRank, launch: Launch) -> None:
    driver = launch.name.startswith("cu") and not launch.name.startswith("cuda")
    database.add(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=launch.start,
        end=launch.end,
        eventClass=1 if driver else 0,
        globalTid=global_thread(rank, launch.thread),
        correlationId=launch.correlation,
        nameId=database.string(launch.name + _VERSIONS.get(launch.name, "")),
    )


def _add_wait(database: Database, rank: RecordedRank, launch: Launch) -> None:
    database.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=launch.start,
        end=launch.end,
        deviceId=rank.device,
        contextId=_CONTEXT,
        streamId=7,
        correlationId=launch.correlation,
        globalPid=global_process(rank.process),
        syncType=_WAITS[launch.name],
    )


def _add_kernel(database: Database, event: DeviceEvent, place: dict[str, int]) -> None:
    short = _PARAMETERS.sub("", event.name).rpartition(" ")[2].rpartition("::")[2]
    blocks, threads = (24, 544) if event.communications else (132, 384)
    database.add(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        **place,
        demangledName=database.string(event.name),
        shortName=database.string(short or event.name),
        mangledName=database.string(f"_Z{len(short)}{short}"),
        launchType=1,
        cacheConfig=1,
        registersPerThread=96,
        gridX=blocks,
        gridY=1,
        gridZ=1,
        blockX=threads,
        blockY=1,
        blockZ=1,
        gridId=event.correlation,
        sharedMemoryExecuted=32768,
        sharedMemoryLimitConfig=0,
        graphId=0,
        clusterX=0,
        clusterY=0,
        clusterZ=0,
        clusterSchedulingPolicy=1,
        maxPotentialClusterSize=0,
        maxActiveClusters=0,
        tensorSizeMinusOneElements="[]",
    )


def _add_copy(database: Database, event: DeviceEvent, place: dict[str, int]) -> None:
    match = _COPY.match(event.name)
    kind, source, target = match.groups() if match else (None, None, None)
    database.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **place,
        bytes=event.copy_bytes or 0,
        copyKind=COPY_KINDS.get(kind or "", 0),
        srcKind=MEMORY_KINDS.get(source or ""),
        dstKind=MEMORY_KINDS.get(target or ""),
        copyCount=1,
    )

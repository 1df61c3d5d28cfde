"""What an export says about the machine, the session, the capture and itself."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from tracelens.simulate.nsight.device import COPY_KINDS, MEMORY_KINDS
from tracelens.simulate.nsight.ids import VM, global_process, global_thread
from tracelens.simulate.nsight.tables import PRODUCTS
from tracelens.simulate.recording import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.simulate.nsight.tables import Database
    from tracelens.simulate.recording import RecordedRank, Recording

_BOOTED_NS = 1_000_000_000_000  # how long the machine ran when the session began
_HOSTNAME, _DRIVER = 619, 611  # nameEnum
_DEFAULT_STREAM = 7


def add(
    database: Database, ranks: Sequence[RecordedRank], recording: Recording, session_ns: int
) -> None:
    """Add the facts of one file: its ranks are on one host."""
    _add_session(database, ranks, session_ns)
    _add_host(database, ranks, recording)
    for rank in ranks:
        _add_process(database, rank)
    _add_enums(database)


def _add_session(database: Database, ranks: Sequence[RecordedRank], session_ns: int) -> None:
    moment = datetime.datetime.fromtimestamp(session_ns // 10**9, datetime.UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    database.add(
        "TARGET_INFO_SESSION_START_TIME",
        utcEpochNs=session_ns,
        utcTime=text,
        localTime=text,
        systemClockNs=_BOOTED_NS,
    )
    ends = [event.end for rank in ranks for event in rank.device_events]
    ends += [launch.end for rank in ranks for launch in rank.launches]
    duration = max(ends, default=0)
    # Start and stop count on the system's clock: they are no offset of the events.
    database.add(
        "ANALYSIS_DETAILS",
        globalVid=VM,
        duration=duration,
        startTime=_BOOTED_NS,
        stopTime=_BOOTED_NS + duration,
    )


def _add_host(database: Database, ranks: Sequence[RecordedRank], recording: Recording) -> None:
    host = ranks[0].host
    state = "Local (CLI)"
    facts = (("Hostname", _HOSTNAME, host), ("CudaDriverVersion", _DRIVER, "13000"))
    for name, number, value in facts:
        database.add(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=VM,
            devStateName=state,
            name=name,
            nameEnum=number,
            value=value,
        )
    for device in sorted({rank.device for rank in ranks}):
        database.add(
            "TARGET_INFO_GPU",
            vmId=VM,
            id=device,
            name=recording.device_name,
            busLocation=f"0000:{device:02x}:00.0",
            isDiscrete=1,
            totalMemory=85_028_372_480,
            smCount=132,
            pwGpuId=device,
            uuid=_uuid(host, device),
            cuDevice=device,
            computeMajor=9,
            computeMinor=0,
        )


def _uuid(host: str, device: int) -> str:
    return f"GPU-{host}-{device}"


def _add_process(database: Database, rank: RecordedRank) -> None:
    process = global_process(rank.process)
    database.add("PROCESSES", globalPid=process, pid=rank.process, name="python3")
    threads = {launch.thread for launch in rank.launches} | {one.thread for one in rank.ranges}
    threads |= {one.thread for one in rank.communications}
    for thread in sorted(threads | {MAIN}):
        name = f"pt_autograd_{thread - 1}" if thread != MAIN else "python3"
        _add_thread(database, rank, thread, name)
    database.add(
        "TARGET_INFO_CUDA_DEVICE",
        gpuId=rank.device,
        cudaId=rank.device,
        pid=rank.process,
        uuid=_uuid(rank.host, rank.device),
    )
    owner = {"hwId": 0, "vmId": 1, "processId": rank.process, "contextId": 1}
    database.add(
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        nullStreamId=_DEFAULT_STREAM,
        **owner,
        deviceId=rank.device,
        parentContextId=0,
        isGreenContext=0,
    )
    for stream in sorted({event.stream for event in rank.device_events}):
        flag = 3 if stream == _DEFAULT_STREAM else 2
        database.add("TARGET_INFO_CUDA_STREAM", streamId=stream, **owner, flag=flag)


def _add_thread(database: Database, rank: RecordedRank, thread: int, name: str) -> None:
    database.add(
        "ThreadNames",
        nameId=database.string(name),
        priority=20,
        globalTid=global_thread(rank, thread),
    )


def _add_enums(database: Database) -> None:
    events = {33: "NvtxCategory", 34: "NvtxMark", 39: "NvtxThread", 59: "NvtxPushPopRange",
              60: "NvtxStartEndRange", 75: "NvtxDomainCreate", 76: "NvtxDomainDestroy"}  # fmt: skip
    waits = ("UNKNOWN", "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT", "STREAM_SYNCHRONIZE",
             "CONTEXT_SYNCHRONIZE")  # fmt: skip
    for number, name in events.items():
        database.add("ENUM_NSYS_EVENT_TYPE", id=number, name=name, label=name)
    for name, number in COPY_KINDS.items():
        symbol = f"CUDA_MEMCPY_KIND_{name.upper()}"
        database.add("ENUM_CUDA_MEMCPY_OPER", id=number, name=symbol, label=name)
    for name, number in MEMORY_KINDS.items():
        symbol = f"CUDA_MEMOPR_MEMORY_KIND_{name.upper()}"
        database.add("ENUM_CUDA_MEM_KIND", id=number, name=symbol, label=name)
    for number, name in enumerate(waits):
        symbol = f"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_{name}"
        database.add("ENUM_CUPTI_SYNC_TYPE", id=number, name=symbol, label=name)


def add_export(
    database: Database, recording: Recording, *, blobs: bool, texts: bool, wall: str
) -> None:
    """Add how the file was made; a key that nsys does not know says by whom."""
    major, minor, micro = database.schema.split(".")
    product = PRODUCTS[database.schema]
    facts = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": product,
        "EXPORT_SCHEMA_VERSION": database.schema,
        "EXPORT_SCHEMA_VERSION_MAJOR": major,
        "EXPORT_SCHEMA_VERSION_MINOR": minor,
        "EXPORT_SCHEMA_VERSION_MICRO": micro,
        "EXPORT_PLATFORM": "linux-desktop",
        "EXPORT_ARCH": "x64",
        "EXPORT_TIME_UTC": wall,
        "EXPORT_PARAM_TIME_NORMALIZE": "false",
        "EXPORT_PARAM_TIME_SHIFT": "0",
    }
    if database.has("TARGET_INFO_CUDA_DEVICE", "uuid"):  # these came with 3.24.14 too
        facts["EXPORT_PARAM_INCLUDE_JSON"] = str(texts).lower()
        facts["EXPORT_PARAM_INCLUDE_BLOBS"] = str(blobs).lower()
    facts["SYNTHETIC"] = f"true: written by tracelens, seed {recording.seed}"
    for name, value in facts.items():
        database.add("META_DATA_EXPORT", name=name, value=value)
        database.add("EXPORT_META_DATA", name=name, value=value)


def add_capture(database: Database, host: str, environment: Iterable[tuple[str, str]]) -> None:
    """Add how the capture was made, and the environment of the process nsys started."""
    facts = [
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("DEVICE_DISPLAY_NAME", host),
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
        ("PROCESS_0:COMMAND", "python"),
        ("PROCESS_0:ARGUMENT_0", "train.py"),
        *(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in environment),
    ]
    for name, value in facts:
        database.add("META_DATA_CAPTURE", name=name, value=value)

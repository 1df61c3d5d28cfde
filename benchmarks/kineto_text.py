"""The text of a Kineto file, byte for byte as torch has laid it out since 2.4."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = 8  # of the host
_BASE_NS = 1_759_300_074_000_000_000


def event(
    category: str, name: str, process: int, thread: int, start: int, length: int, args: str
) -> str:
    """Write an event with a duration; times in ns."""
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, '
        f'"tid": {thread},\n    "ts": {_us(start)}, "dur": {_us(length)},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


def flow(phase: str, number: int, process: int, thread: int, at: int) -> str:
    """Write one end of the arrow from a launch to what it launched."""
    binding = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {process}, "tid": {thread}, '
        f'"ts": {_us(at)},\n    "cat": "ac2g", "name": "ac2g"{binding}\n  }}'
    )


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def header(rank: int, world: int) -> str:
    """Write everything before the events."""
    devices = ",\n".join(_device_properties(number) for number in range(DEVICES))
    group = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cuda:nccl",
        "pg_size": world,
        "ranks": list(range(world)),
    }
    info = {
        "backend": "nccl",
        "rank": rank,
        "world_size": world,
        "pg_count": 1,
        "pg_config": [group],
        "nccl_version": "2.28.9",
    }
    return (
        f'\n  {{\n    "schemaVersion": 1,\n    "deviceProperties": [\n{devices}\n    ],\n'
        '      "cupti_version": 24,\n      "cuda_runtime_version": 12060,\n'
        '      "cuda_driver_version": 12080,\n'
        f'      "distributedInfo": {json.dumps(info)},\n      "record_shapes": 1,\n'
        f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {_BASE_NS},\n  "traceEvents": [\n'
    )


def _device_properties(number: int) -> str:
    return (
        f'    {{\n      "id": {number}, "name": "NVIDIA H100 80GB HBM3", '
        '"totalGlobalMem": 85028372480,\n      "computeMajor": 9, "computeMinor": 0,\n      '
        '"maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,\n      '
        '"regsPerBlock": 65536, "warpSize": 32,\n      "sharedMemPerBlock": 49152, "numSms": 132\n'
        '    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, '
        '"sharedMemPerMultiprocessor": 233472\n    }'
    )


def metadata(host: int, device: int, at: int) -> Iterator[str]:
    """Write the names of processes and the mark that end the list of events."""
    names = [
        ("process_name", host, '"name": "python"'),
        ("process_labels", host, '"labels": "CPU"'),
        ("process_name", device, '"name": "python"'),
        ("process_labels", device, f'"labels": "GPU {device}"'),
    ]
    for name, process, args in names:
        yield (
            f'  {{\n    "name": "{name}", "ph": "M", "ts": {_us(at)}, "pid": {process}, '
            f'"tid": 0,\n    "args": {{\n      {args}\n    }}\n  }}'
        )
    yield (
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n    '
        f'"pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {_us(at)}\n  }}'
    )


def footer(name: str) -> str:
    """Write everything after the events."""
    return f'\n  ],\n  "traceName": "{name}"\n}}\n'

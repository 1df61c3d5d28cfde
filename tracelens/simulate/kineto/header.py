"""The root's other keys: devices, process groups, versions, and that the run is simulated."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from tracelens.simulate.kineto.text import BASE_NS

if TYPE_CHECKING:
    from tracelens.simulate.recording import RecordedRank, Recording

_NCCL_VERSIONS = {"2.4": "2.20.5", "2.12": "2.29.7"}
_PROPERTIES = {
    "totalGlobalMem": 85028372480, "computeMajor": 9, "computeMinor": 0,
    "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132,
    "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
    "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip


def around_events(
    rank: RecordedRank, recording: Recording, name: str, torch: str
) -> tuple[str, str]:
    """Return the text before and after the events."""
    before: dict[str, object] = {"schemaVersion": 1, "deviceProperties": _devices(rank, recording)}
    if torch != "2.4":
        before["trace_id"] = _trace_id(rank, recording)
    before["distributedInfo"] = _distributed(rank, recording, torch)
    before["simulated"] = {
        "by": "tracelens", "seed": recording.seed, "options": recording.options
    }  # fmt: skip
    times: dict[str, object] = {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    after: dict[str, object] = {"traceName": name}
    if torch == "2.4":
        after |= times
    else:
        before |= {"cuda_driver_version": 13000, "cuda_runtime_version": 13000} | times
    return (
        "{\n" + _lines(before) + ',\n  "traceEvents": [\n',
        "\n  ],\n" + _lines(after) + "\n}\n",
    )


def _lines(keys: dict[str, object]) -> str:
    return ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in keys.items())


def _devices(rank: RecordedRank, recording: Recording) -> list[dict[str, object]]:
    """Return all devices of the host, as Kineto lists them, not only the one used."""
    visible = max(other.device for other in recording.ranks if other.host == rank.host) + 1
    return [{"id": i, "name": recording.device_name, **_PROPERTIES} for i in range(visible)]


def _distributed(rank: RecordedRank, recording: Recording, torch: str) -> dict[str, object]:
    return {
        "backend": "nccl",
        "rank": rank.rank,
        "world_size": world_size(recording),
        "pg_count": len(recording.groups),
        "pg_config": [
            {
                "pg_name": group.name,
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in recording.groups
            if rank.rank in group.ranks
        ],
        "nccl_version": _NCCL_VERSIONS[torch],
    }


def world_size(recording: Recording) -> int:
    """Return the number of ranks of the run, recorded or not: group "0" has them all."""
    return max(len(group.ranks) for group in recording.groups)


def _trace_id(rank: RecordedRank, recording: Recording) -> str:
    facts = f"{recording.seed}:{rank.rank}:{rank.host}:{rank.process}".encode()
    return hashlib.blake2b(facts, digest_size=16).hexdigest().upper()

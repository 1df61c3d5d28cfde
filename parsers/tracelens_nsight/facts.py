"""Facts of an export apart from its events: clock, host, GPUs, ranks.

Exports hold the whole environment, the command line and what the program printed. Only what is
listed here is ever read: numbers of ranks by the names of their variables, the host's name, GPU
names.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.digits import as_integer
from tracelens.file_names import rank_in_name
from tracelens.model.facts import believed
from tracelens.model.trace import NONE, ProcessGroup
from tracelens_nsight.identifiers import pid_of
from tracelens_nsight.ranges import EVENTS, MARK
from tracelens_nsight.tables import Like, OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracelens_nsight.export import Export
    from tracelens_nsight.tables import Condition, Tables

RANK_KEYS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
WORLD_KEYS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_VARIABLE = re.compile(r'^([A-Z_]+)="?(\d{1,9})"?$')
_BEGINNING = '{"tracelens":'
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_START = "TARGET_INFO_SESSION_START_TIME"


@dataclass(frozen=True, slots=True)
class Clock:
    """What to add to the times of an export: `base_ns` is kept apart, `shift` is taken off."""

    base_ns: int
    shift: int


@dataclass(frozen=True, slots=True)
class Rank:
    """What is known about the rank of a process."""

    rank: int | None = None
    source: str | None = None
    world: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """What a program says about itself by a mark of ours (docs/nsight.md)."""

    rank: int | None = None
    world: int | None = None
    groups: tuple[ProcessGroup, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a whole export."""

    clock: Clock
    simulated: bool
    host: str | None
    environment: dict[str, int] = field(default_factory=dict)


def read(tables: Tables) -> Facts:
    """Read the facts of an export."""
    meta = _meta(tables)
    starts = tables.read(_START, ["utcEpochNs"]).integers["utcEpochNs"]
    start = int(starts[0]) if len(starts) and starts[0] != NONE else 0
    normalised = meta.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() == "true"
    return Facts(
        Clock(start, start if normalised else 0),
        "SYNTHETIC" in meta,
        _host(tables),
        _environment(tables),
    )


def _meta(tables: Tables) -> dict[str, str]:
    wanted = Like("name", ("EXPORT_PARAM_TIME_NORMALIZE", "SYNTHETIC"))
    found: dict[str, str] = {}
    for table in _META:
        rows = tables.read(table, texts=["name", "value"], where=[wanted])
        names, values = (rows.texts[column].texts() for column in ("name", "value"))
        found |= dict(zip(names, values, strict=True))
    return found


def _host(tables: Tables) -> str | None:
    rows = tables.read(
        "TARGET_INFO_SYSTEM_ENV", texts=["name", "value"], where=[Like("name", ("Hostname",))]
    )
    return next((value for value in rows.texts["value"].texts() if value), None)


def _environment(tables: Tables) -> dict[str, int]:
    """Return the allowed variables of the environment that are numbers."""
    allowed = (*RANK_KEYS, *WORLD_KEYS)
    wanted = Like("value", tuple(f"{key}=" for key in allowed))
    rows = tables.read("META_DATA_CAPTURE", texts=["value"], where=[wanted])
    found = {}
    for text in rows.texts["value"].texts():
        match = _VARIABLE.match(text)
        if match and match[1] in allowed:
            value = believed(as_integer(match[2]))
            if value is not None:
                found[match[1]] = value
    return found


# devices -----------------------------------------------------------------------------------------


def devices_of(tables: Tables, process: int) -> dict[int, tuple[int, str]]:
    """Return per CUDA ordinal of a process the GPU's id and name; missing in containers."""
    gpus = tables.read("TARGET_INFO_GPU", ["id", "cuDevice"], ["name"])
    ids, names = gpus.integers["id"].tolist(), gpus.texts["name"].texts()
    named = dict(zip(ids, names, strict=True))
    cuda = tables.read("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"]).integers
    mine = cuda["pid"] == pid_of(process)
    ordinals = zip(cuda["cudaId"][mine].tolist(), cuda["gpuId"][mine].tolist(), strict=True)
    found = {ordinal: (gpu, named.get(gpu, "")) for ordinal, gpu in ordinals}
    if found or len(cuda["pid"]):
        return found
    # Before 2023 there is no table per process: ordinals are the GPUs' own.
    own = zip(gpus.integers["cuDevice"].tolist(), ids, names, strict=True)
    return {ordinal: (gpu, name) for ordinal, gpu, name in own if ordinal != NONE}


# ranks -------------------------------------------------------------------------------------------


def mark_of(export: Export, process: int) -> Mark:
    """Return what the process's mark says; nothing if it has none."""
    for text in _texts_of_marks(export, process):
        try:
            return _mark(json.loads(text))
        except (ValueError, RecursionError):
            continue
    return Mark()


def _texts_of_marks(export: Export, process: int) -> Iterator[str]:
    """Yield what may be a mark of ours: own texts, then registered ones."""
    marks: list[Condition] = [OneOf("eventType", (MARK,))]
    ours: list[Condition] = [*marks, Like("text", (_BEGINNING,))]
    own = export.of(process, EVENTS, "globalTid", ["start"], ["text"], where=ours)
    yield from own.texts["text"].names
    ids = export.of(process, EVENTS, "globalTid", ["textId"], where=marks).integers["textId"]
    registered = export.strings.of(np.unique(ids))
    yield from (text for text in registered if text.startswith(_BEGINNING))


def _mark(said: dict[str, Any]) -> Mark:
    groups = said.get("groups")
    listed = [_group(one) for one in groups] if isinstance(groups, list) else []
    return Mark(
        _number(said.get("rank")),
        _number(said.get("world")),
        tuple(one for one in listed if one is not None),
        dtype if isinstance(dtype := said.get("dtype"), str) else None,
    )


def _group(said: Any) -> ProcessGroup | None:
    if not isinstance(said, dict) or not isinstance(said.get("ranks"), list):
        return None
    ranks = [_number(rank) for rank in said["ranks"]]
    if None in ranks:
        return None
    whole = tuple(rank for rank in ranks if rank is not None)
    description = said.get("description")
    text = description if isinstance(description, str) else None
    return ProcessGroup(str(said.get("name", "")), text, len(whole), whole, "nccl")


def _number(value: object) -> int | None:
    return believed(value) if isinstance(value, int) and not isinstance(value, bool) else None


def rank_of(
    export: Export, facts: Facts, path: Path, process: int, mark: Mark, *, alone: bool
) -> Rank:
    """Return the rank of a process from the strongest source that names it.

    Args:
        export: The export.
        facts: Its facts.
        path: Its file.
        process: The process.
        mark: What the process says itself.
        alone: Whether it is the only one with GPU work: a variable or a file name is about one.
    """
    environment = facts.environment if alone else {}
    world = mark.world or _first(environment, WORLD_KEYS)
    if mark.rank is not None:
        return Rank(mark.rank, "mark", world)
    by_mpi = _mpi_rank(export, process)
    if by_mpi is not None:
        return Rank(by_mpi, "MPI_RANKS", world)
    by_environment = _first(environment, RANK_KEYS)
    if by_environment is not None:
        return Rank(by_environment, "environment", world)
    by_name = rank_in_name(path) if alone else None
    return Rank(by_name, "file name" if by_name is not None else None, world)


def _first(environment: dict[str, int], keys: Sequence[str]) -> int | None:
    return next((environment[key] for key in keys if key in environment), None)


def _mpi_rank(export: Export, process: int) -> int | None:
    found = export.of(process, "MPI_RANKS", "globalTid", ["rank"]).integers["rank"]
    ranks = set(found.tolist()) - {NONE}
    return believed(ranks.pop()) if len(ranks) == 1 else None

"""Read the root's other keys: rank, world size, process groups, devices, versions.

They stand before or after the events, as objects or as JSON texts, and other objects may hold a
`"rank"` too: only `distributedInfo` counts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracelens import sidecar
from tracelens.file_names import rank_in_name
from tracelens.model.facts import ProcessGroup, believed
from tracelens.names import printable

if TYPE_CHECKING:
    from pathlib import Path

# torch.profiler.tensorboard_trace_handler: host, process, time.
_FILE_HOST = re.compile(r"^(.+)_(\d+)\.\d{10,}\.pt\.trace\.json", re.IGNORECASE)
_DECODER = json.JSONDecoder(strict=False)
# torch.profiler writes its settings that are on, with the value 1 (torch/profiler/profiler.py).
_SETTINGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
# Keys of the root that no other tool writes (libkineto's output_json.cpp, torch/profiler).
OF_PROFILER = (*_SETTINGS, "distributedInfo", "deviceProperties", "baseTimeNanoseconds",
               "pytorch_version", "torch_version", "schemaVersion", "traceName")  # fmt: skip
_KEYS = (*OF_PROFILER, "host_name", "hostname", "simulated")


@dataclass(frozen=True)
class Header:
    """What the root says about the run."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    nccl_version: str | None = None
    base_ns: int = 0
    host: str | None = None
    framework_version: str | None = None
    shapes_recorded: bool | None = None
    settings: tuple[str, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    devices: dict[int, str] = field(default_factory=dict)
    amd: bool = False
    simulated: bool = False


def read(header: bytes, footer: bytes) -> Header:
    """Build a `Header` from the text before and after the events; damage costs single keys."""
    values = _root_values(header.decode("utf-8", "replace"), footer.decode("utf-8", "replace"))
    info = _object(values.get("distributedInfo"))
    devices, amd = _devices(values.get("deviceProperties"))
    shapes = _integer(values.get("record_shapes"))
    return Header(
        rank=believed(_integer(info.get("rank"))),
        world_size=believed(_integer(info.get("world_size"))) or None,  # none has 0 ranks
        backend=_text(info.get("backend")),
        nccl_version=_text(info.get("nccl_version")),
        base_ns=_integer(values.get("baseTimeNanoseconds")) or 0,
        host=_text(values.get("host_name")) or _text(values.get("hostname")),
        framework_version=_text(values.get("pytorch_version"))
        or _text(values.get("torch_version")),
        shapes_recorded=None if shapes is None else bool(shapes),
        settings=tuple(name for name in _SETTINGS if _integer(values.get(name))),
        groups=_groups(info.get("pg_config")),
        devices=devices,
        amd=amd,
        simulated=bool(values.get("simulated")),
    )


def _root_values(header: str, footer: str) -> dict[str, Any]:
    text = _join(header, footer)
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _single_keys(header, footer)
    return value if isinstance(value, dict) else {}


def _join(header: str, footer: str) -> str:
    head = header.strip().lstrip("\ufeff").rstrip(",").rstrip() or "{"
    tail = footer.strip().lstrip(",").strip() or "}"
    comma = "" if head == "{" or tail == "}" else ","
    return head + comma + tail


def _single_keys(header: str, footer: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in _KEYS:
        for part in (footer, header):
            if match := re.search(rf'"{key}"\s*:\s*', part):
                try:
                    found[key] = _DECODER.raw_decode(part, match.end())[0]
                except (ValueError, RecursionError):
                    continue
    return found


def _object(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return int(value) if isinstance(value, bool) else None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if 0 <= number < 1 << 62 else None


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, (str, int, float)) and str(value) else None


def _devices(value: object) -> tuple[dict[int, str], bool]:
    names: dict[int, str] = {}
    amd = False
    for position, item in enumerate(_list(value)):
        if isinstance(item, dict):
            number = _integer(item.get("id"))
            names[position if number is None else number] = _text(item.get("name")) or "unknown"
            # Only HIP builds print warp size 64; their device names say AMD or nothing at all.
            amd = amd or item.get("warpSize") == 64 or "AMD" in str(item.get("name"))
    return names, amd


def _groups(value: object) -> tuple[ProcessGroup, ...]:
    return tuple(_group(item) for item in _list(value) if isinstance(item, dict))


def _group(item: dict[str, Any]) -> ProcessGroup:
    ranks = [believed(_integer(rank)) for rank in _list(item.get("ranks"))]
    whole = [rank for rank in ranks if rank is not None]
    complete = whole if whole and len(whole) == len(ranks) else None
    return ProcessGroup(
        name=str(item.get("pg_name", "")),
        description=_text(item.get("pg_desc")) or _text(item.get("uid")),
        size=believed(_integer(item.get("pg_size"))) or (len(whole) if complete else None),
        ranks=tuple(complete) if complete else None,
        backend=_text(item.get("backend_config")),
    )


def with_sidecar(facts: Header, path: Path) -> Header:
    """Fill in from the file beside a trace what the trace does not say."""
    beside = sidecar.read(path)
    return replace(
        facts,
        world_size=facts.world_size if facts.world_size is not None else beside.world_size,
        host=facts.host if facts.host is not None else beside.host,
    )


def ranks_said(facts: Header, path: Path) -> dict[str, int]:
    """Return the rank of a file by who says it: inside, beside it, its name; the first counts."""
    said = {
        "distributedInfo": facts.rank,
        "sidecar": sidecar.read(path).rank,
        "file name": rank_in_name(path),
    }
    return {source: rank for source, rank in said.items() if rank is not None}


def rank_of(facts: Header, path: Path) -> tuple[int | None, str | None]:
    """Return a file's rank and where it was found."""
    source, rank = next(iter(ranks_said(facts, path).items()), (None, None))
    return rank, source


def others_said(facts: Header, path: Path) -> str | None:
    """Say who names another rank than the one that counts; a folder's name may mean anything."""
    said = ranks_said(facts, path)
    counts = next(iter(said.values()), None)
    if rank_in_name(path.relative_to(path.parent)) is None:
        said.pop("file name", None)
    others = (f"the {source} says {rank}" for source, rank in said.items() if rank != counts)
    return " and ".join(others) or None


def host_of(facts: Header, path: Path, process: int) -> str | None:
    """Return the host a file was written on: as it says inside, else in its name.

    A name is believed if it holds the traced process's number too: `rank_0.1719….pt.trace.json`
    looks the same, and is no host.
    """
    match = _FILE_HOST.match(path.name)
    if facts.host is not None or match is None:
        return facts.host
    return printable(match[1]) if int(match[2]) == process else None

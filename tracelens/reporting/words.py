"""The words and symbols every report uses for the same thing."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.model.result import GroupResult, Level, Status

SYMBOLS: dict[Status, str] = {"ok": "✓", "warn": "▲", "fail": "✗", "unknown": "–"}
WORDS: dict[Status, str] = {"ok": "PASS", "warn": "WARN", "fail": "FAIL", "unknown": "UNKNOWN"}
HEADLINES: dict[Status, str] = {
    "ok": "nothing stands out",
    "warn": "worth a look",
    "fail": "needs attention",
    "unknown": "too little data to judge",
}
LEVELS: dict[Level, Status] = {"info": "unknown", "warning": "warn", "error": "fail"}

# The exclusive classes of a step, in the order in which bars stack them.
CLASSES: dict[str, str] = {
    "compute": "Compute",
    "exposed": "Exposed communication",
    "copies": "Memory copies",
    "bubble": "Pipeline bubble",
    "idle": "Other idle",
}

_OPS = {
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "recv": "receive",
    "send_recv": "send and receive",
    "unknown": "unclassified communication",
}

_STRATEGIES = {
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero1-or-2": "ZeRO-1 or ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp-grad-op": "FSDP SHARD_GRAD_OP",
    "hsdp": "HSDP",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "ep": "expert parallel",
    "cp": "context parallel",
    "2d": "2D parallel",
    "3d": "3D parallel",
    "4d": "4D parallel",
    "5d": "5D parallel",
    "none": "no parallelism",
}

_FRAMEWORKS = {
    "ddp": "PyTorch DDP",
    "fsdp1": "FSDP1",
    "fsdp2": "FSDP2",
    "deepspeed": "DeepSpeed",
    "sharded-optimizer": "sharded optimizer",
    "zero-redundancy-optimizer": "ZeroRedundancyOptimizer",
}

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "interleaved 1F1B",
    "looped-bfs": "looped BFS",
    "zb-h1": "ZB-H1",
    "interleaved-zb": "interleaved zero-bubble",
    "zbv": "ZB-V",
    "dualpipev": "DualPipeV",
}

_PASSES = {"backward_input": "input gradients", "backward_weight": "weight gradients"}

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("Compute", "time in which at least one kernel that is not communication ran"),
    ("Exposed communication", "communication that no compute ran beside: it costs step time"),
    ("Overlapped communication", "communication hidden behind compute: it costs no step time"),
    ("Wait", "exposed time of a collective before its last member arrived"),
    ("Pipeline bubble", "waiting that the pipeline schedule causes, after communication"),
    ("Memory copies", "copies and fills that neither compute nor communication ran beside"),
    ("Other idle", "nothing ran on the device"),
    ("Ψ", "the number of parameters of the model"),
    ("Message bytes", "ZeRO's convention: all-reduce 2S, every other collective S"),
    ("Wire bytes", "what a ring makes each rank send, as nccl-tests counts bus bytes"),
    ("Algorithm bandwidth", "S over the transfer time, in decimal GB/s"),
    ("Bus bandwidth", "algorithm bandwidth times nccl-tests' factor for the collective"),
    ("Median rank", "the rank whose mean step is nearest to the median of every class"),
)


def op(name: str | None) -> str:
    """Name a collective as people say it."""
    if name is None:
        return "none"
    return _OPS.get(name, name)


def strategy(name: str | None) -> str:
    """Name a parallel strategy."""
    return "unknown strategy" if name is None else _STRATEGIES.get(name, name)


def framework(name: str | None) -> str:
    """Name a training framework."""
    return "unknown framework" if name is None else _FRAMEWORKS.get(name.lower(), name)


def schedule(name: str | None) -> str:
    """Name a pipeline schedule."""
    return "an unknown schedule" if name is None else _SCHEDULES.get(name, name)


def kind_of_pass(kind: str) -> str:
    """Name what a stage does for a micro-batch."""
    return _PASSES.get(kind, kind)


def group(result: GroupResult | None) -> str:
    """Name a process group by its role and size, such as dp (8 ranks)."""
    if result is None:
        return "unknown group"
    name = result.role
    if result.role == "unknown":
        name = result.description or next(iter(result.names), None) or f"group {result.id}"
    if result.size is None:
        return name
    return f"{name} ({plural(result.size, 'rank')})"


def collective(op_name: str, result: GroupResult | None) -> str:
    """Name a collective on its group, such as all-gather · dp (8 ranks)."""
    return f"{op(op_name)} · {group(result)}"


_DIMENSIONS = {
    "dp": "dp, data parallel",
    "replicate": "replicate, copies of all shards",
    "shard": "shard, parts of one copy",
    "tp": "tp, tensor parallel",
    "pp": "pp, pipeline parallel",
    "ep": "ep, expert parallel",
    "cp": "cp, context parallel",
    "embedding": "embedding, tied over first and last stage",
    "other": "other or unknown",
}


def dimension(name: str) -> str:
    """Name a parallel dimension in short and in full."""
    return _DIMENSIONS.get(name, name)


def dims(sizes: Mapping[str, int]) -> str:
    """Write a parallel layout, leaving out the dimensions of size one: dp 8 × tp 2."""
    parts = [f"{name} {size}" for name, size in sizes.items() if size != 1]
    return " × ".join(parts)


def plural(number: int, noun: str, many: str | None = None) -> str:
    """Write a count with its noun: 1 rank, 8 ranks, 2 copies."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def ranks_read(read: int, world: int | None) -> str:
    """Say how many ranks were read, of how many; more than the traces say is none of these."""
    if world is None or read > world:
        return f"{plural(read, 'rank')} read"
    return f"{read:,} of {plural(world, 'rank')} read"


def upper_first(text: str) -> str:
    """Begin a sentence, leaving the rest as it is."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Make a sentence of a clause: a capital first, a full stop last."""
    clause = upper_first(text.strip())
    return clause if not clause or clause[-1] in ".!?:…" else f"{clause}."


# Format and surrogate characters can hide or reorder a name; control characters drive terminals.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Write control, bidirectional and broken characters as escapes, so that names stay honest."""
    if text.isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE:
        return character.encode("unicode_escape").decode()
    return character

"""The vocabulary of collective operations, and what names say about them.

A kernel's name is the weakest evidence: NCCL maps every all-gather algorithm to one name, RCCL all
collectives to `ncclDevKernel_Generic`, and NCCL 2.12 named everything SendRecv (NCCL issues 714 and
739). So names are only asked after arguments, records and annotations.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ALL_REDUCE = "all_reduce"
REDUCE_SCATTER = "reduce_scatter"
ALL_GATHER = "all_gather"
ALL_TO_ALL = "all_to_all"
BROADCAST = "broadcast"
REDUCE = "reduce"
GATHER = "gather"
SCATTER = "scatter"
SEND = "send"
RECV = "recv"
SEND_RECV = "send_recv"
"""A kernel that sends and receives: batched p2p, or an all-to-all known by kernel name only."""
BARRIER = "barrier"
UNKNOWN = "unknown"

OPERATIONS = (
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    SEND,
    RECV,
    SEND_RECV,
    BARRIER,
    UNKNOWN,
)
CODE = {name: code for code, name in enumerate(OPERATIONS)}
MESSAGES = [CODE[name] for name in (SEND, RECV)]
"""Codes of messages: point to point, with one rank at each end."""
POINT_TO_POINT = [*MESSAGES, CODE[SEND_RECV]]
"""Codes of all that is no collective, kernels of batched messages included."""
POINT_TO_POINT_NAMES = frozenset(OPERATIONS[code] for code in POINT_TO_POINT)

# Order matters: "all_gather" contains "gather", "reduce_scatter" contains both its words.
_WORDS = (
    ("barrier", BARRIER),
    ("allreduce", ALL_REDUCE),
    ("reducescatter", REDUCE_SCATTER),
    ("allgather", ALL_GATHER),
    ("alltoall", ALL_TO_ALL),
    ("broadcast", BROADCAST),
    ("sendrecv", SEND_RECV),
    ("gather", GATHER),
    ("scatter", SCATTER),
    ("reduce", REDUCE),
    ("send", SEND),
    ("recv", RECV),
    ("receive", RECV),
)

NOT_OPERATIONS = frozenset({"wait", "init", "barrier", "end_coalescing", "start_coalescing"})
"""Pseudo collectives of record_param_comms: they move nothing."""

LAUNCH_NOTHING = NOT_OPERATIONS - {"barrier"}  # a barrier launches an all-reduce of one element


def canonical(name: str) -> str | None:
    """Map a recorded collective name (`_allgather_base`, `nccl:all_to_all`) to its operation."""
    squeezed = re.sub(r"[^a-z]", "", name.lower())
    return next((operation for word, operation in _WORDS if word in squeezed), None)


def named(operation: str) -> str:
    """Return an operation as prose writes it: all-gather."""
    return operation.replace("_", "-")


class Rule(NamedTuple):
    """A user's rule: kernels whose name matches are this operation."""

    pattern: re.Pattern[str]
    operation: str


class _Family(NamedTuple):
    pattern: re.Pattern[str]
    operation: str | None  # None: read it from the pattern's group, else from the whole name


_FAMILIES = (
    _Family(re.compile(r"nccl(?:Dev)?Kernel_?Generic|nccl\w*_Generic"), UNKNOWN),
    _Family(re.compile(r"^(?:void )?(?:nccl|rccl)(?:Sym|Dev|Symk|Kernel|[A-Z])", re.I), None),
    _Family(re.compile(r"\boneRankReduce\b"), ALL_REDUCE),
    # notify_dispatch and get_dispatch_layout move counts, not tokens: they must not be all-to-alls.
    _Family(re.compile(r"\bdeep_ep::(?:\w+::)*\w*(?:notify|barrier|layout|pp_send_recv)"), UNKNOWN),
    _Family(re.compile(r"\bdeep_ep::(?:\w+::)*\w*(?:dispatch|combine)"), ALL_TO_ALL),
    _Family(re.compile(r"^(?:void )?\w*nvshmem\w*|^(?:void )?allToAllV\w*", re.I), None),
    _Family(re.compile(r"\bmultimem_(?:one_shot_)?(?:all_)?reduce\w*kernel"), ALL_REDUCE),
    _Family(re.compile(r"\bmultimem_all_gather\w*kernel"), ALL_GATHER),
    _Family(re.compile(r"\b(?:one|two)_shot_all_reduce\w*kernel"), ALL_REDUCE),
    _Family(re.compile(r"(?:^|[ :])reduce_scatter_kernel<"), REDUCE_SCATTER),
    _Family(re.compile(r"(?:^|[ :])barrier_kernel\(unsigned int\*\*"), BARRIER),
    _Family(re.compile(r"(?:^|[ :])(?:put|wait)_signal_kernel\(unsigned int\*\*"), UNKNOWN),
    _Family(re.compile(r"\bcross_device_reduce_[12]stage"), ALL_REDUCE),
    _Family(re.compile(r"\bk?userbuffers_\w+"), None),
    _Family(re.compile(r"\bmscclKernel_|\bmscclpp::"), None),
    # oneCCL on Intel GPUs; SYCL names a kernel by its class, mangled or not (strings of libccl.so).
    _Family(re.compile(r"(?<![a-z_])(oneccl_[a-z_]+)|(?:\bccl::v1::|N3ccl2v1\d+)([a-z_]+)"), None),
    # HCCL's interface (HcclAllReduce) and its operators on Ascend (hcom_allReduce__363_0_1).
    _Family(re.compile(r"^(?:void )?(?:Hccl[A-Z]|hcom_[a-z])"), None),
    _Family(re.compile(r"^(?:void )?(?:hccl|ucc)[_:]\w*", re.I), None),
)


def of_kernel_name(name: str) -> str | None:
    """Return the operation a kernel's name suggests; None if it is no communication kernel."""
    for family in _FAMILIES:
        if match := family.pattern.search(name):
            if family.operation is not None:
                return family.operation
            said = next(filter(None, match.groups()), name.partition("(")[0])
            return canonical(said) or UNKNOWN
    return None


_REDUCED_TYPE = re.compile(
    r"^(?:void )?nccl\w*(?:sum|prod|min|max|avg|sumpostdiv)_(\w+?)"
    r"(?:_RING|_TREE|_NVLS|_COLLNET|_PAT|\(|<|$)",
    re.IGNORECASE,
)
_NCCL_TYPES = {
    "i8": "int8", "u8": "uint8", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "int8_t": "int8", "uint8_t": "uint8",
    "int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64",
    "half": "float16", "float": "float32", "double": "float64", "__nv_bfloat16": "bfloat16",
}  # fmt: skip


def dtype_of_kernel_name(name: str) -> str:
    """Return the type an NCCL kernel reduces, as its name says; "" if it says none.

    The reduction in the name may be another one, the type is right for reductions
    (src/device/generate.py of NCCL: kernels are specialised by it).
    """
    match = _REDUCED_TYPE.search(name)
    return _NCCL_TYPES.get(match[1].lower(), "") if match else ""

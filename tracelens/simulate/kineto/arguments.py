"""What `record_param_comms` says about a collective, and what Kineto copies to its kernel.

Names and order of the arguments are those of real files of torch 2.4 and 2.12; their meaning is in
torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tracelens.simulate.host_events import MESSAGES, peer_in_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.simulate.recording import Communication, Group

COLLECTIVE_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}
_LONGEST_LIST = 30  # torch/csrc/profiler/util.h: kTruncatLength


def of_record(
    communication: Communication,
    group: Group,
    rank: int,
    torch: str,
    out_splits: Sequence[int] | None = None,
) -> dict[str, object]:
    """Return the arguments of the `record_param_comms` of one rank."""
    start, stride = _strided(group.ranks)
    args = _shared(communication, group, torch, out_splits)
    args |= {"Global rank start": start, "Global rank stride": stride}
    if torch != "2.4":
        args["Rank"] = _group_rank(communication, group, rank)
        args |= _numbered(communication, group, torch)
        args["Is asynchronized op"] = 1
    return args


def on_kernel(
    communication: Communication,
    group: Group,
    torch: str,
    out_splits: Sequence[int] | None = None,
) -> dict[str, object]:
    """Return what Kineto copies to the kernel that was launched inside the record."""
    return _shared(communication, group, torch, out_splits) | _numbered(communication, group, torch)


def _shared(
    communication: Communication, group: Group, torch: str, out_splits: Sequence[int] | None
) -> dict[str, object]:
    uneven = communication.in_splits is not None
    args: dict[str, object] = {
        "Collective name": COLLECTIVE_NAMES[communication.op] + "v" * uneven,
        "In msg nelems": communication.in_elems,
        "Out msg nelems": communication.out_elems,
        "Group size": len(group.ranks),
        "dtype": communication.dtype,
        "In split size": cut(communication.in_splits or ()),
        "Out split size": cut(out_splits or ()),
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": _ranks(group.ranks),
    }
    if torch != "2.4" and communication.op in MESSAGES:
        end = "Dst Rank" if communication.op == "send" else "Src Rank"
        args[end] = communication.peer
    return args


def _numbered(communication: Communication, group: Group, torch: str) -> dict[str, object]:
    if torch == "2.4":
        return {}
    return {"Seq": communication.seq, "Comms Id": _comms_id(communication, group)}


def _comms_id(communication: Communication, group: Group) -> str:
    """Return a number that is the same on every member and for no other collective.

    torch hashes the same facts with a function of its own.
    """
    start, stride = _strided(group.ranks)
    message = communication.op in MESSAGES
    facts = (group.name, communication.seq, message, start, stride, len(group.ranks))
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return str(int.from_bytes(digest, "little"))


def _group_rank(communication: Communication, group: Group, rank: int) -> int:
    """Return "Rank": the own one in the group, but the peer's or the root's where there is one."""
    if communication.op in MESSAGES:
        return peer_in_group(communication, group)
    return 0 if communication.op == "broadcast" else group.ranks.index(rank)


def _strided(ranks: Sequence[int]) -> tuple[int, int]:
    """Return a group's first rank and stride; -1 if it has none (ProcessGroupNCCL.cpp)."""
    if len(ranks) == 1:
        return ranks[0], 0
    stride = ranks[1] - ranks[0]
    regular = tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1, stride))
    return ranks[0], stride if regular else -1


def _ranks(ranks: Sequence[int]) -> str:
    """Return the rank list as torch rebuilds it from start and stride: empty without a stride."""
    return "[]" if _strided(ranks)[1] < 0 else cut(ranks)


def cut(numbers: Sequence[int]) -> str:
    """Print a list as torch does: at most 30 numbers."""
    shown = ", ".join(map(str, numbers[:_LONGEST_LIST]))
    return f"[{shown}{', ...' if len(numbers) > _LONGEST_LIST else ''}]"

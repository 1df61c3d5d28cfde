"""Count the passes through layers by attention kernels: one forward and one backward a layer.

Communication tells how many layers ran only if one believes what it is to be held against. Kernels
of attention are other evidence. Names: FlashAttention 2 and 3, cuDNN's fused attention, the kernels
of torch's memory-efficient attention, and Megatron's fused softmax, each launched once a layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.run import RankRun

_FORWARD = re.compile(
    r"flash_fprop|flash_fwd_kernel|FlashAttnFwdSm\d|fmha_cutlassF|masked_softmax_warp_forward"
)
_BACKWARD = re.compile(
    r"flash_bprop|flash_bwd_(?:dq_dk_dv|kernel)|FlashAttnBwdSm\d|fmha_cutlassB|masked_softmax_warp_backward"
)


@dataclass(frozen=True, slots=True)
class AttentionPasses:
    """How often attention runs in a step of one rank."""

    forward: int
    backward: int


def count(rank: RankRun) -> AttentionPasses | None:
    """Count a rank's attention kernels in its complete steps.

    Returns:
        None if there is none, or if steps differ, so that no number holds for a step.
    """
    totals = {"forward": 0, "backward": 0}
    keys = {key for key in rank.step_keys() if rank.complete(*key)}
    for number, cycle in enumerate(rank.cycles):
        rows = cycle.kernels[["name", "step", "count"]]
        for name, step, times in rows.itertuples(index=False):
            if (number, int(step)) in keys:
                totals["forward"] += int(times) if _FORWARD.search(str(name)) else 0
                totals["backward"] += int(times) if _BACKWARD.search(str(name)) else 0
    if not keys or not any(totals.values()) or any(t % len(keys) for t in totals.values()):
        return None
    return AttentionPasses(**{way: total // len(keys) for way, total in totals.items()})

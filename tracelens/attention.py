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
    import pandas as pd

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
    keys = {key for key in rank.step_keys() if rank.complete(*key)}
    forward = backward = 0
    for number, cycle in enumerate(rank.cycles):
        steps = [step for at, step in keys if at == number]
        rows = cycle.kernels[cycle.kernels["step"].isin(steps)]
        forward += _calls(rows, _FORWARD)
        backward += _calls(rows, _BACKWARD)
    if not forward + backward or forward % len(keys) or backward % len(keys):
        return None
    return AttentionPasses(forward // len(keys), backward // len(keys))


def _calls(kernels: pd.DataFrame, pattern: re.Pattern[str]) -> int:
    names = [name for name in kernels["name"].unique() if pattern.search(str(name))]
    return int(kernels["count"][kernels["name"].isin(names)].sum())

"""Tell apart what groups of the same ranks are for: they are one group in the table.

With one data-parallel rank, gradients are reduced over the context-parallel ranks; where every
data-parallel rank has its own experts, over the expert-parallel ones; and the ends of a pipeline of
two stages, which reduce a tied embedding, are the pipeline. The operation tells: context and expert
parallelism sum nothing up, and stages send messages only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CODE,
    MESSAGES,
    REDUCE_SCATTER,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

_SHARDED = [CODE[ALL_GATHER], CODE[REDUCE_SCATTER]]
_EXCHANGES = [*MESSAGES, CODE[ALL_TO_ALL]]


def gradients(frame: pd.DataFrame, role: Mapping[int, str]) -> NDArray[np.bool_]:
    """Tell which operations are of gradients and parameters though their group is cp, ep or pp.

    Args:
        frame: The operations.
        role: What each group is for.
    """
    op, group = (frame[name].to_numpy(np.int64) for name in ("op", "group"))
    found = np.zeros(len(frame), bool)
    for index, purpose in role.items():
        if purpose not in ("cp", "ep", "pp"):
            continue
        mine = group == index
        found |= mine & (op == CODE[ALL_REDUCE])
        # Keys and values may be gathered too, if nothing else brings them round.
        if purpose != "pp" and np.isin(op[mine], _EXCHANGES).any():
            found |= mine & np.isin(op, _SHARDED)
    return found

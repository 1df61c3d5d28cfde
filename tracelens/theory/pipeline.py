"""Pipeline bubbles in closed form (Narayanan et al. 2021, section 2.2)."""

from __future__ import annotations


def bubble_share(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Return the bubble of GPipe and 1F1B as a share of the whole: (p-1) / (v·m + p-1).

    Equal stages and free messages are assumed. Interleaving divides the bubble by its `v` virtual
    stages a rank.

    Args:
        stages: p.
        micro_batches: m.
        virtual_stages: v.
    """
    return (stages - 1) / (virtual_stages * micro_batches + stages - 1)

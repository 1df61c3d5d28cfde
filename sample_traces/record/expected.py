"""What a run must show, from the definition of its strategy and never from its trace."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from profiling import recorded_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME = "expected.json"


@dataclass(frozen=True)
class Elements:
    """Elements of gradients and parameters that one rank communicates in an optimizer step.

    Each counts full buffers: an all-gather its output, a reduce-scatter its input.
    """

    all_reduce: int = 0
    all_gather: int = 0
    reduce_scatter: int = 0
    broadcast: int = 0

    @property
    def message(self) -> int:
        """Return the elements in the ZeRO paper's convention: an all-reduce counts twice."""
        return 2 * self.all_reduce + self.all_gather + self.reduce_scatter + self.broadcast


def write_expected(
    *,
    framework: str,
    strategy: str,
    parameters: int,
    elements: Elements | None = None,
    dtype: str = "float32",
    gradient_accumulation: int = 1,
    steps: list[int] | None = None,
    facts: Mapping[str, object] | None = None,
) -> None:
    """Write and print, on rank 0, what the trace must show; `elements` None: no such traffic."""
    if dist.get_rank() != 0:
        return
    expected: dict[str, object] = {
        "framework": framework,
        "strategy": strategy,
        "world_size": dist.get_world_size(),
        "parameters": parameters,
        "dtype": dtype,
        "gradient_accumulation": gradient_accumulation,
        "steps": steps or recorded_steps(gradient_accumulation),
        "message_multiple": elements.message / parameters if elements else None,
        "elements_per_rank_and_step": asdict(elements) if elements else None,
        **(facts or {}),
        "torch": torch.__version__,
    }
    Path(FILE_NAME).write_text(json.dumps(expected))
    print(f"{parameters:,} parameters, message multiple {expected['message_multiple']}")

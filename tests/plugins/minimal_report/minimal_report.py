"""Write the verdict and the step times as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.model.result import Analysis


class TextReport:
    """Writes `.txt` files."""

    name = "text"
    suffixes = (".txt",)

    def render(self, analysis: Analysis) -> bytes:
        """Return the whole file."""
        lines = [analysis.summary.verdict]
        for rank in analysis.ranks:
            for device in rank.devices:
                for step in device.steps:
                    milliseconds = step.partition.window_ns / 1e6
                    lines.append(f"rank {rank.rank} step {step.step}: {milliseconds:.3f} ms")
        return "\n".join([*lines, ""]).encode()

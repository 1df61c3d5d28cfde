"""Read profiler traces of distributed training: where time goes, whether bytes match theory.

import tracelens

analysis = tracelens.analyze("traces/")
analysis.tables.steps            # pandas
traces = tracelens.load("traces/")
traces[0].device_events          # pandas
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.engine import Options, analyze, load
    from tracelens.model.result import Analysis
    from tracelens.model.trace import RankTrace

__all__ = ["Analysis", "Options", "RankTrace", "__version__", "analyze", "load"]

_HOMES = {
    "Analysis": "tracelens.model.result",
    "Options": "tracelens.engine",
    "RankTrace": "tracelens.model.trace",
    "analyze": "tracelens.engine",
    "load": "tracelens.engine",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `tracelens --help` must not pay for pandas."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tracelens' has no attribute {name!r}")

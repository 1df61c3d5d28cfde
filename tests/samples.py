"""The recorded sample runs, and what their recording scripts say they must show."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracelens

if TYPE_CHECKING:
    from tracelens.model.result import Analysis

SAMPLES = Path(__file__).parent.parent / "sample_traces"
EXPECTED: dict[str, Any] = json.loads((SAMPLES / "expected.json").read_text())


@functools.cache
def analysis(name: str) -> Analysis:
    """Analyse a sample once for all tests."""
    return tracelens.analyze(SAMPLES / name)

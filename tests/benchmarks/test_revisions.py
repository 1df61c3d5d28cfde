"""The comparison of two revisions imports what it says it imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from samples import SAMPLES

from benchmarks.revisions import ROOT, cpu_seconds

if TYPE_CHECKING:
    from pathlib import Path

TRACE = min((SAMPLES / "fsdp2").glob("*.json.gz"))


def test_loads_with_the_sources_named() -> None:
    assert cpu_seconds(ROOT, TRACE) > 0


def test_refuses_sources_that_were_not_imported(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="imported"):
        cpu_seconds(tmp_path, TRACE)

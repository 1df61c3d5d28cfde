"""Run the real command in a process of its own: streams, exit code, working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path, cwd: Path, **environment: str) -> Result:
    """Run `tracelens` with arguments in a folder."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRACELENS_")}
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", *map(str, arguments)],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Result(done.returncode, done.stdout, done.stderr)

"""Run the real command in a process of its own: streams, exit code, working folder."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tracelens.cli import main

INSTALLED = (str(Path(sys.executable).with_name("tracelens")),)
"""What pip made of the entry point, beside the Python that runs the tests."""


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
        [*INSTALLED, *map(str, arguments)],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def run_here(*arguments: str | Path, cwd: Path) -> Result:
    """Run the same in this process: a tenth of the time, most of which goes into imports."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*map(str, arguments)])
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())

"""Record the sample runs again: `record_all.py [run ...]`, every run if none is named."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RECORD = Path(__file__).resolve().parent
SAMPLES = RECORD.parent
EXPECTED = SAMPLES / "expected.json"
TORCHRUN = Path(sys.executable).parent / "torchrun"


@dataclass(frozen=True)
class Run:
    """A script under torchrun."""

    script: str
    options: tuple[str, ...] = ()
    processes: int = 4

    @property
    def arguments(self) -> list[str]:
        """Return torchrun's arguments, the script without its folder."""
        return ["--standalone", f"--nproc-per-node={self.processes}", self.script, *self.options]


TWO_MICRO_BATCHES = ("--micro-batches", "2")

RUNS = {
    "ddp": Run("ddp.py"),
    "ddp-accumulate-no-sync": Run("ddp.py", (*TWO_MICRO_BATCHES, "--no-sync")),
    "ddp-accumulate-sync": Run("ddp.py", TWO_MICRO_BATCHES),
    "zero-redundancy-optimizer": Run("zero_redundancy.py"),
    "deepspeed-zero1": Run("deepspeed_zero.py", ("--stage", "1")),
    "deepspeed-zero2": Run("deepspeed_zero.py", ("--stage", "2")),
    "deepspeed-zero2-accumulate": Run("deepspeed_zero.py", ("--stage", "2", *TWO_MICRO_BATCHES)),
    "deepspeed-zero3": Run("deepspeed_zero.py", ("--stage", "3")),
    "deepspeed-zero3-no-reuse": Run("deepspeed_zero.py", ("--stage", "3", "--no-reuse")),
    "fsdp2": Run("fsdp2.py"),
    "fsdp2-no-reshard": Run("fsdp2.py", ("--no-reshard",)),
    "fsdp1": Run("fsdp1.py"),
    "hsdp-2x2": Run("fsdp2.py", ("--replicas", "2")),
    "tp2": Run("tensor_parallel.py", processes=2),
    "pipeline-gpipe": Run("pipeline.py", ("--schedule", "GPipe")),
    "pipeline-1f1b": Run("pipeline.py", ("--schedule", "1F1B")),
    "pipeline-interleaved": Run("pipeline.py", ("--schedule", "Interleaved1F1B")),
    "pipeline-zbv": Run("pipeline.py", ("--schedule", "ZBVZeroBubble"), processes=3),
    "pipeline-dualpipev": Run("pipeline.py", ("--schedule", "DualPipeV"), processes=2),
    "3d-pp2-dp2-tp2": Run("three_d.py", processes=8),
}


def launch(run: Run, folder: Path) -> None:
    """Run the script in `folder`, where it leaves its traces and its expectation."""
    arguments = [str(RECORD / part) if part == run.script else part for part in run.arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    subprocess.run([str(TORCHRUN), *arguments], cwd=folder, env=environment, check=True)


def scrub(trace: bytes) -> bytes:
    """Replace the host's name, and refuse a trace that tells more of where it was recorded."""
    scrubbed = re.sub(rb'"host_name": "[^"]*"', b'"host_name": "host"', trace, count=1)
    private = {f'"{socket.gethostname()}"', f"{Path.home()}/", f"{SAMPLES.parent}/", "/tmp/"}  # noqa: S108 - looked for, not written to
    found = [text for text in private if text.encode() in scrubbed]
    if found:
        raise SystemExit(f"the trace names {', '.join(found)}")
    return scrubbed


def compress(trace: Path) -> bytes:
    """Return the gzip of a scrubbed trace, the same bytes for the same content."""
    return gzip.compress(scrub(trace.read_bytes()), compresslevel=9, mtime=0)


def update_expected(name: str, run: Run, expected: dict[str, object]) -> None:
    """Put what the run must show into `expected.json`, in the order of `RUNS`."""
    known = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    known[name] = {"command": " ".join(["torchrun", *run.arguments]), **expected}
    ordered = {run_name: known[run_name] for run_name in RUNS if run_name in known}
    EXPECTED.write_text(json.dumps(ordered, indent=2) + "\n")


def record(name: str) -> None:
    """Record one run and replace its folder, once all is well."""
    run, target = RUNS[name], SAMPLES / name
    with tempfile.TemporaryDirectory() as folder:
        launch(run, Path(folder))
        names = [f"rank{rank}.pt.trace.json" for rank in range(run.processes)]
        traces = {trace: compress(Path(folder) / trace) for trace in names}
        expected = json.loads((Path(folder) / EXPECTED.name).read_text())
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for trace_name, content in traces.items():
        (target / f"{trace_name}.gz").write_bytes(content)
    update_expected(name, run, expected)


def main() -> None:
    """Record the runs named on the command line."""
    parser = argparse.ArgumentParser(description="Record the sample runs again.")
    parser.add_argument("runs", nargs="*", metavar="run", help=f"one of {', '.join(RUNS)}")
    names: list[str] = parser.parse_args().runs or list(RUNS)
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(RUNS)}")
    for name in names:
        print(f"Recording {name}", flush=True)
        record(name)


if __name__ == "__main__":
    main()

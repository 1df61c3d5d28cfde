"""Compare what reading a trace costs now with what it cost at another revision, taking turns.

Runs next to each other meet the same machine; a loop over one revision and then the other does not.

    python -m benchmarks.revisions fd91772                     # the generated 507 MB file
    python -m benchmarks.revisions fd91772 trace.json --repeat 5
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from statistics import median

from benchmarks.generate import write
from benchmarks.measure import BIG, WORK

ROOT = Path(__file__).parent.parent
_LOAD = """
import sys, time, tracelens
tracelens.load(sys.argv[1])
print(time.process_time(), tracelens.__file__)
"""


def checked_out(revision: str) -> Path:
    """Return a folder with the sources of a revision."""
    folder = WORK / "revisions" / revision
    if not folder.exists():
        packed = subprocess.run(
            ["git", "archive", revision, "tracelens", "parsers", "reports"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def cpu_seconds(sources: Path, path: Path) -> float:
    """Load a trace in a fresh process that imports these sources; return its CPU seconds."""
    places = (sources, sources / "parsers", sources / "reports")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    # pip compiles what it installs: without the bytecode, the tree with more lines loses by them
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    said = subprocess.run(
        [sys.executable, "-c", _LOAD, str(path)],
        env=environment,
        cwd=path.parent,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seconds, _, imported = said.strip().partition(" ")
    if not Path(imported).is_relative_to(sources):
        raise SystemExit(f"imported {imported}, not {sources}")
    return float(seconds)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", help="what to compare with")
    parser.add_argument("paths", type=Path, nargs="*", help="default: a generated file")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    before = checked_out(asked.revision)
    if not asked.paths:
        asked.paths = [WORK / "big.json"]
        if not asked.paths[0].exists():
            write(asked.paths[0], BIG)
    print("| file | before, CPU s | now, CPU s | ratio of medians |\n|---|---:|---:|---:|")
    for path in asked.paths:
        for sources in (before, ROOT):
            cpu_seconds(sources, path.resolve())  # writes the bytecode
        turns = [
            (cpu_seconds(before, path.resolve()), cpu_seconds(ROOT, path.resolve()))
            for _ in range(asked.repeat)
        ]
        then, now = (median(column) for column in zip(*turns, strict=True))
        print(f"| {path.name} | {then:.2f} | {now:.2f} | {now / then:.3f} |", flush=True)
        print(" ".join(f"{a:.2f}/{b:.2f}" for a, b in turns), file=sys.stderr)


if __name__ == "__main__":
    main()

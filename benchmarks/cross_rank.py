"""Measure what the cross-rank passes cost: 64 ranks of 5 MB each, and the clocks of 1,024 ranks.

A simulated run (dp 4 x tp 4 x pp 4) is written once, then analysed in fresh processes. The kernel's
accounting gives the CPU seconds of a process and its workers; each pass is timed where it is
called, so that a pass holds the time of those it calls.

    python benchmarks/cross_rank.py
    python benchmarks/cross_rank.py folder-of-ranks --workers 1 --repeat 5
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import WORK

MANY = WORK / "64-ranks"
SIMULATED = (
    *("--layout", "dp=4,tp=4,pp=4", "--model", "layers=16,hidden=1024", "--micro-batches", "8"),
    *("--strategy", "distributed-optimizer", "--sequence-parallel"),
    *("--skew", "2000", "--drift", "20", "--slow", "37:1.3"),
)
# Where each pass is looked up when it is called, and what it does.
PASSES = (
    ("analysis", "analyse", "cross-rank passes and result"),
    ("analysis.operations_table", "build", "one table of all operations"),
    ("analysis.waiting", "observe", "matching, clocks, waiting"),
    ("joining", "match", "of it matching"),
    ("joining", "align", "of it clocks"),
    ("analysis.exposed_wait", "exposed_wait", "exposed waiting by step"),
    ("analysis.dimensions", "sums", "the same by dimension"),
    ("analysis.stragglers", "blame", "blame"),
    ("analysis.collectives", "collective_results", "rows of collectives"),
    ("analysis.pipeline", "observe", "pipelines"),
    ("analysis.traffic", "observe", "traffic of a step"),
)
WHOLE, REPORT = "everything", "HTML report"


def simulate(folder: Path) -> None:
    """Write the run, as plain files: what is measured is not how they are compressed."""
    command = (sys.executable, "-m", "tracelens", "simulate", *SIMULATED, "-q", "-f", "-o")
    subprocess.run([*command, str(folder)], check=True)
    for packed in folder.glob("*.json.gz"):
        with gzip.open(packed) as source, packed.with_suffix("").open("wb") as target:
            shutil.copyfileobj(source, target)
        packed.unlink()


def cpu_seconds() -> float:
    """Return user and system time of this process and the children it waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def timed(spent: dict[str, float], module: Any, name: str, label: str) -> None:
    """Let a function add the time of its calls to `spent`."""
    inner = getattr(module, name)

    @functools.wraps(inner)
    def outer(*args: Any, **options: Any) -> Any:
        begin = cpu_seconds()
        try:
            return inner(*args, **options)
        finally:
            spent[label] = spent.get(label, 0.0) + cpu_seconds() - begin

    setattr(module, name, outer)


def analyse_here(path: Path, workers: int) -> None:
    """Analyse a folder in this process, and print what each pass took as JSON."""
    import tracelens
    from tracelens.registry import report_for

    spent: dict[str, float] = {}
    for place, name, label in PASSES:
        module = importlib.import_module(f"tracelens.{place.partition('.')[0]}")
        timed(spent, functools.reduce(getattr, place.split(".")[1:], module), name, label)
    result = tracelens.analyze(path, tracelens.Options(workers=workers))
    begin = cpu_seconds()
    report_for(".html").render(result)
    spent[REPORT] = cpu_seconds() - begin
    spent[WHOLE] = cpu_seconds()
    peaks = [
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    print(json.dumps({"spent": spent, "peaks": peaks}))


def compare(path: Path, workers: int, repeat: int) -> None:
    """Print one table: medians of several runs, maxima of memory."""
    command = [sys.executable, "-m", "benchmarks.cross_rank", str(path), "--here"]
    runs = [
        json.loads(subprocess.check_output([*command, "--workers", str(workers)]))
        for _ in range(repeat)
    ]
    labels = [WHOLE, *(label for _, _, label in PASSES), REPORT]
    cost = {label: median(run["spent"].get(label, 0.0) for run in runs) for label in labels}
    size = sum(file.stat().st_size for file in path.glob("*.json*")) / 1e6
    print(f"\n### {path.name}: {size:,.0f} MB, {workers} worker{'s' if workers > 1 else ''}\n")
    print("| | CPU s | % |\n|---|---:|---:|")
    for label in labels:
        print(f"| {label} | {cost[label]:.2f} | {100 * cost[label] / cost[WHOLE]:.1f} |")
    own, child = (max(run["peaks"][i] for run in runs) for i in (0, 1))
    print(f"\nPeak RSS: {own:,.0f} MB, of the largest worker {child:,.0f} MB.", flush=True)


def align_many(ranks: int = 1024, tp: int = 8, calls: int = 1000, shared: int = 20) -> None:
    """Align many ranks: groups of eight with a thousand calls each, and data parallelism."""
    import numpy as np
    import pandas as pd

    from tracelens.alignment import align
    from tracelens.operations import ALL_REDUCE, CODE

    random = np.random.default_rng(1)
    offset = random.integers(-300_000_000, 300_000_000, ranks)
    drift = random.uniform(-20e-6, 20e-6, ranks)
    groups = [(range(first, first + tp), calls) for first in range(0, ranks, tp)]
    groups += [(range(first, ranks, tp), shared) for first in range(tp)]
    parts, instances = [], 0
    for group, (members, count) in enumerate(groups):
        rank = np.tile(np.array(members), count)
        true = np.repeat(np.sort(random.uniform(0, 4e9, count)), len(members))
        end = true + np.abs(random.normal(0, 3000, len(rank)))
        end += offset[rank] + end * drift[rank]
        number = instances + np.repeat(np.arange(count), len(members))
        instances += count
        end_ns = np.rint(end).astype(np.int64) + 1_767_225_600 * 10**9
        columns = {"rank": rank, "group": group, "instance": number, "end_ns": end_ns}
        parts.append(pd.DataFrame(columns))
    frame = pd.concat(parts, ignore_index=True).assign(op=CODE[ALL_REDUCE])
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, cpu_seconds()
    clocks = align(frame, frame["instance"].to_numpy())
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    median_us, high_us = np.percentile(clocks.residual_ns, [50, 95]) / 1000
    print(f"\n### Clocks of {ranks:,} ranks, {instances:,} instances, {len(frame):,} calls\n")
    print(f"{cpu_seconds() - begin:.1f} CPU s and {more:.0f} MB above the table itself;", end=" ")
    print(f"ends agree within {median_us:.1f} us (median), {high_us:.1f} us (95 %).")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path, nargs="?", help="default: a simulated run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        analyse_here(asked.path, asked.workers)
        return
    WORK.mkdir(exist_ok=True)
    if asked.path is None and not MANY.exists():
        simulate(MANY)
    compare(asked.path or MANY, asked.workers, asked.repeat)
    if asked.path is None:
        align_many()


if __name__ == "__main__":
    main()

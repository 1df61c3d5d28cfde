"""Measure what reading big traces costs, beside HolisticTraceAnalysis on the same files.

Every run is a fresh process; the kernel's accounting of it and its children gives user and system
CPU seconds and the largest process's peak of resident memory. CPU seconds are what to compare:
wall time depends on who else uses the machine.

    python benchmarks/measure.py --with-hta
    python benchmarks/measure.py trace.json another.json.gz folder-of-ranks --repeat 5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.generate import Plan, write

WORK = Path(__file__).parent / "work"
HTA_PYTHON = WORK / "hta-venv" / "bin" / "python"
HTA_PACKAGES = ("holistictraceanalysis==0.5.0", "pandas<3")
BIG = Plan()
MANY = Plan(events=237_000, steps=5)

_LOAD = """
import sys, tracelens
tracelens.load(sys.argv[1])
"""

_ANALYZE = """
import json, sys
from tracelens import Options, analyze
result = analyze(sys.argv[1], Options(workers=int(sys.argv[2])))
totals = [rank.devices[0].total for rank in result.ranks]
print(json.dumps({
    "idle": sum(t.idle_ns for t in totals) / 1e3,
    "compute": sum(t.compute_ns for t in totals) / 1e3,
    "other": sum(t.exposed_comm_ns + t.exposed_copy_ns for t in totals) / 1e3,
    "overlap": sum(t.overlap_pct or 0 for t in totals) / len(totals),
}))
"""

# HTA leaves the last step out unless told otherwise.
_HTA = """
import json, logging, os, sys, warnings
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
os.environ["HTA_DISABLE_NS_ROUNDING"] = sys.argv[2]
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
path = Path(sys.argv[1]).resolve()
files = sorted(path.iterdir()) if path.is_dir() else [path]
named = {rank: str(file) for rank, file in enumerate(files)}
hta = TraceAnalysis(trace_files=named, trace_dir="", include_last_profiler_step=True)
temporal = hta.get_temporal_breakdown(visualize=False)
overlap = hta.get_comm_comp_overlap(visualize=False)
print(json.dumps({
    "idle": float(temporal["idle_time(us)"].sum()),
    "compute": float(temporal["compute_time(us)"].sum()),
    "other": float(temporal["non_compute_time(us)"].sum()),
    "overlap": float(overlap["comp_comm_overlap_pctg"].mean()),
}))
"""


class Cost(NamedTuple):
    """What one run took."""

    cpu: float
    wall: float
    memory_mb: float


class Contender(NamedTuple):
    """One way to read a trace; `{path}`, `{workers}` and `{out}` are filled in."""

    name: str
    command: tuple[str, ...]


_PYTHON = sys.executable
COMMAND = Contender(
    "`tracelens analyze` (HTML and JSON written)",
    (
        *(_PYTHON, "-m", "tracelens", "analyze", "{path}", "--workers", "{workers}"),
        *("-q", "-f", "-o", "{out}/report.html", "-o", "{out}/analysis.json"),
    ),
)
ANALYZE = Contender(
    "`tracelens.analyze`, no report", (_PYTHON, "-c", _ANALYZE, "{path}", "{workers}")
)
LOAD = Contender("`tracelens.load` alone", (_PYTHON, "-c", _LOAD, "{path}"))
INSPECT = Contender("`tracelens inspect`", (_PYTHON, "-m", "tracelens", "inspect", "{path}"))
HTA = Contender(
    "HTA 0.5.0: parse, breakdown, overlap", (str(HTA_PYTHON), "-c", _HTA, "{path}", "0")
)
# By default HTA cuts every event to whole microseconds; this option keeps the nanoseconds.
HTA_EXACT = Contender("HTA, not rounding", (str(HTA_PYTHON), "-c", _HTA, "{path}", "1"))


def run(contender: Contender, path: Path, workers: int) -> tuple[Cost, str]:
    """Run a contender once; return its cost and the last line it printed."""
    # Made for other machines, this variable slows numpy in one environment and not in the other.
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    with tempfile.TemporaryDirectory(dir=WORK) as out, tempfile.TemporaryFile() as said:
        values = {"path": path, "workers": workers, "out": out}
        command = [p.format(**values) if p.startswith("{") else p for p in contender.command]
        begin = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{contender.name} failed on {path}")
        said.seek(0)
        last = said.read().decode().rstrip().rpartition("\n")[2]
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024), last


def measure(contender: Contender, path: Path, workers: int, repeat: int) -> tuple[Cost, str]:
    """Run a contender several times: median of the times, maximum of the memory."""
    runs = [run(contender, path, workers) for _ in range(repeat)]
    costs = [cost for cost, _ in runs]
    cost = Cost(
        median(c.cpu for c in costs),
        median(c.wall for c in costs),
        max(c.memory_mb for c in costs),
    )
    return cost, runs[-1][1]


def compare(path: Path, contenders: list[Contender], workers: int, repeat: int) -> None:
    """Print one file's table, and how far the answers are apart."""
    files = list(path.iterdir()) if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files) / 1e6
    title = f"{path.name}: {size:,.0f} MB" + (f" in {len(files)} files" if path.is_dir() else "")
    print(f"\n### {title}, {workers} worker{'s' if workers > 1 else ''}\n")
    print("| | CPU s | wall s | peak RSS MB | HTA's CPU ÷ this |\n|---|---:|---:|---:|---:|")
    results = {c: measure(c, path, workers, repeat) for c in contenders}
    reference = results[HTA][0].cpu if HTA in results else None
    for contender, (cost, _) in results.items():
        ratio = f"{reference / cost.cpu:.1f}" if reference else ""
        name = contender.name
        print(f"| {name} | {cost.cpu:.2f} | {cost.wall:.2f} | {cost.memory_mb:,.0f} | {ratio} |")
    if HTA in results:
        exact = run(HTA_EXACT, path, workers)[1]
        _print_answers([results[ANALYZE][1], results[HTA][1], exact])


def _print_answers(said: list[str]) -> None:
    """Print what each found in the whole file, and how far HTA is from us in % of the time."""
    ours, rounded, exact = (json.loads(text) for text in said)
    total = ours["compute"] + ours["other"] + ours["idle"]
    print("\n| | TraceLens | HTA | | HTA, not rounding | |\n|---|---:|---:|---:|---:|---:|")
    labels = {"compute": "compute", "other": "exposed comm and copy", "idle": "idle"}
    for key, label in labels.items():
        theirs = " | ".join(
            f"{answer[key]:,.0f} | {100 * (answer[key] - ours[key]) / total:+.3f} %"
            for answer in (rounded, exact)
        )
        print(f"| {label}, µs | {ours[key]:,.3f} | {theirs} |")
    overlaps = " | ".join(f"{answer['overlap']:.2f} |" for answer in (rounded, exact))
    print(f"| communication overlapped, % | {ours['overlap']:.2f} | {overlaps} |", flush=True)


def make_files() -> list[Path]:
    """Generate the default inputs that are not there yet."""
    plain, packed, many = WORK / "big.json", WORK / "big.json.gz", WORK / "8-ranks"
    for path in (plain, packed):
        if not path.exists():
            write(path, BIG)
    for rank in range(MANY.world):
        path = many / f"rank{rank}.json"
        if not path.exists():
            write(path, MANY.of_rank(rank))
    return [plain, packed, many]


def install_hta() -> None:
    """Create HTA's own environment: it needs an older pandas."""
    if not HTA_PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(WORK / "hta-venv")], check=True)
        subprocess.run([str(HTA_PYTHON), "-m", "pip", "install", "-q", *HTA_PACKAGES], check=True)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", type=Path, nargs="*", help="default: generated files")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--with-hta", action="store_true", help="install HTA and run it too")
    asked = parser.parse_args()
    contenders = [COMMAND, ANALYZE, LOAD, INSPECT]
    WORK.mkdir(exist_ok=True)
    if asked.with_hta:
        install_hta()
        contenders.append(HTA)
    for path in asked.paths or make_files():
        compare(path, contenders, 2 if path.is_dir() else 1, asked.repeat)


if __name__ == "__main__":
    main()

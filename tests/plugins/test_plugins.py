"""Plugins of strangers, installed as theirs are, and the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

TRACE = """\
# kernels of rank 0 of 2
kind,name,launch,start,end,elements
step,ProfilerStep#1,0,0,10000000,0
kernel,gemm,100000,1000000,5000000,0
kernel,ncclDevKernel_AllReduce_Sum_f32_RING_LL,200000,4000000,9000000,1000000
copy,Memcpy HtoD (Pinned -> Device),300000,9000000,9500000,0
step,ProfilerStep#2,10000000,10000000,20000000,0
kernel,gemm,10100000,11000000,15000000,0
kernel,ncclDevKernel_AllReduce_Sum_f32_RING_LL,10200000,14000000,19000000,1000000
copy,Memcpy HtoD (Pinned -> Device),10300000,19000000,19500000,0
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the three plugins installed by pip, without network."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    names = ("minimal_parser", "minimal_report", "broken_report")
    sources = [str(HERE / name) for name in names]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(target)]
    subprocess.run([*command, *sources], check=True)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one trace in the format of the minimal parser."""
    (tmp_path / "rank0.csv").write_text(TRACE)
    return tmp_path


def tracelens(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "tracelens", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_formats_lists_plugins_and_their_errors(site: Path, folder: Path) -> None:
    result = tracelens(site, folder, "formats")
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert result.returncode == 0, result.stderr
    assert lines["csv"].endswith("minimal-parser 1.0")
    assert lines["text"].split()[1:] == [".txt", "minimal-report", "1.0"]
    assert "RuntimeError: made to fail" in lines["broken"]
    assert lines["broken"].endswith("broken-report 1.0")
    assert {"kineto", "html", "markdown"} <= set(lines)


def test_doctor_names_the_broken_plugin(site: Path, folder: Path) -> None:
    result = tracelens(site, folder, "doctor")
    assert result.returncode == 0, result.stderr
    assert "plugin broken is broken: RuntimeError: made to fail" in result.stdout


def test_inspect_uses_the_parser(site: Path, folder: Path) -> None:
    result = tracelens(site, folder, "inspect", "rank0.csv")
    assert result.returncode == 0, result.stderr
    assert "csv · rank 0 of 2 (first line)" in result.stdout


def test_a_file_of_the_parser_is_analysed(site: Path, folder: Path) -> None:
    result = tracelens(site, folder, "analyze", "*.csv", "--json", "-")
    assert result.returncode == 0, result.stderr
    analysis = json.loads(result.stdout)
    assert analysis["source"]["files"][0]["format"] == "csv"
    mean = analysis["ranks"][0]["devices"][0]["mean_step"]
    # From the first kernel of step 1 (1 ms) to that of step 2 (11 ms); step 2 ends at 20 + 1 ms.
    assert mean["window_ns"] == 10_000_000
    assert mean["compute_ns"] == 4_000_000
    assert mean["comm_ns"] == 5_000_000
    assert mean["exposed_comm_ns"] == 4_000_000
    assert mean["exposed_copy_ns"] == 500_000
    assert mean["idle_ns"] == 1_500_000
    assert mean["exposed_by_op_ns"] == {"all_reduce": 4_000_000}
    assert analysis["volumes"]["per_step"]["message_bytes"] == 8_000_000
    assert analysis["volumes"]["per_step"]["multiple_of_parameters"] == 2.0
    assert analysis["parallelism"]["strategy"] == "ddp"


def test_the_report_is_written(site: Path, folder: Path) -> None:
    result = tracelens(site, folder, "analyze", "rank0.csv", "-o", "report.txt")
    assert result.returncode == 0, result.stderr
    verdict, *steps = (folder / "report.txt").read_text().splitlines()
    assert "(40 %) are exposed communication" in verdict
    assert steps == ["rank 0 step 1: 10.000 ms", "rank 0 step 2: 10.000 ms"]


def test_a_file_that_is_broken_is_named(site: Path, folder: Path) -> None:
    (folder / "rank0.csv").write_text("# kernels of rank 0 of 2\nname,start\ngemm,1\n")
    result = tracelens(site, folder, "analyze", "rank0.csv")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: rank0.csv: nothing can be analysed")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("page", "module", "project"),
    [
        ("parsers/README.md", "minimal_parser/minimal_parser.py", "minimal_parser/pyproject.toml"),
        ("reports/README.md", "minimal_report/minimal_report.py", "minimal_report/pyproject.toml"),
    ],
)
def test_the_documentation_shows_these_plugins(page: str, module: str, project: str) -> None:
    text = (HERE.parents[1] / page).read_text()
    assert f"```python\n{(HERE / module).read_text()}```\n" in text
    assert f"```toml\n{(HERE / project).read_text()}```\n" in text

"""What the documentation shows runs, and shows what really comes out.

`TRACELENS_UPDATE_GOLD=1` writes the terminal output in README.md anew: read the diff.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracelens
from tracelens.reporting import words

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/README.md"))]
SAMPLES = ROOT / "sample_traces"
TERMINAL = re.compile(r"(```console\n\$ (tracelens analyze [^\n]+)\n)(.*?)(```)", re.DOTALL)
VERSION = re.compile(r"(?<=tracelens )\d+\.\d+\.\d+\S*")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRACELENS_")}
    return subprocess.run(
        [sys.executable, "-m", "tracelens", *arguments],
        cwd=folder,
        env={**environment, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder from where the samples are found as in a checkout."""
    (tmp_path / "sample_traces").symlink_to(SAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_terminal_output_in_the_readme_is_real(checkout: Path) -> None:
    text = README.read_text()
    shown = TERMINAL.search(text)
    assert shown is not None
    result = run(shlex.split(shown[2])[1:], checkout)
    assert result.returncode == 0, result.stderr
    assert (checkout / "report.html").stat().st_size > 10_000
    # The notes on stderr come in between; what a reader sees first is the answer.
    if os.environ.get("TRACELENS_UPDATE_GOLD"):
        README.write_text(text[: shown.start(3)] + result.stdout + text[shown.end(3) :])
        shown = TERMINAL.search(README.read_text())
        assert shown is not None
    assert VERSION.sub("VERSION", result.stdout) == VERSION.sub("VERSION", shown[3])


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_examples_run(page: str, checkout: Path) -> None:
    space: dict[str, object] = {}
    for block in blocks(ROOT / page, "python"):
        exec(compile(block, page, "exec"), space)
    analysis = space["analysis"]
    assert isinstance(analysis, tracelens.Analysis)
    assert analysis.run.world_size == 4
    assert len(analysis.tables.steps) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_shown_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, page, "exec")


@pytest.mark.parametrize("page", ["docs/cli.md", "reports/README.md", "README.md"])
def test_commands_shown_are_understood(page: str, checkout: Path) -> None:
    """Run every line that begins with tracelens, on a small sample in place of the reader's."""
    shutil.copytree(SAMPLES / "tp2", checkout / "traces")
    assert run(["analyze", "traces", "--json", "analysis.json", "-q"], checkout).returncode == 0
    for line in _commands(page):
        arguments = shlex.split(line.partition("|")[0], comments=True)[1:]
        if "report.txt" in arguments:  # needs the example plugin: tests/plugins runs these
            continue
        result = run([*arguments, *(["--force"] if "-o" in arguments else [])], checkout)
        assert result.returncode == 0, f"{line}\n{result.stderr}"


def _commands(page: str) -> list[str]:
    text = (ROOT / page).read_text()
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    names = "analyze|report|doctor|formats|simulate"
    line = re.compile(rf"^(?:\$ |\S*/)?(tracelens (?:{names}).*)$", re.MULTILINE)
    return [found.replace("path/to/your/traces", "traces") for found in line.findall(fenced)]


def test_make_report_analyses_the_sample_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "SAMPLE := sample_traces/fsdp2" in makefile
    assert "analyze $(SAMPLE) -o report.html" in makefile
    assert "report.html" in README.read_text()


def rows() -> list[list[str]]:
    """Return the cells of the README's table of strategies."""
    found = re.findall(r"^\| [^|]+ \| `[^|]+` \|.*$", README.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1].strip("`"))
def test_the_table_of_strategies_is_measured(row: list[str]) -> None:
    _, sample, recognised, measured, paper, verdict = row
    analysis = tracelens.analyze(SAMPLES / sample.strip("`"))
    assert words.strategy(analysis.parallelism.strategy) == recognised
    assert f"{analysis.volumes.per_step.multiple_of_parameters:.4g}Ψ" == measured
    predicted = next(p for p in analysis.volumes.predictions if p.kind == "paper")
    assert f"{predicted.message_multiple:.4g}Ψ" == paper
    assert analysis.volumes.verdict == verdict


def test_the_table_holds_every_sample_of_data_parallel_training() -> None:
    with_model_parallelism = {"tp2", "pipeline-gpipe", "pipeline-1f1b", "3d-pp2-dp2-tp2"}
    runs = {path.name for path in SAMPLES.iterdir() if any(path.glob("*.json.gz"))}
    recorded = {name for name in runs if not name.startswith("simulated-")}
    assert {row[1].strip("`") for row in rows()} == recorded - with_model_parallelism

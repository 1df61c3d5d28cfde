"""report, inspect, formats, schema and the group itself, through the real command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command import run
from samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path


def test_help_lists_every_command_and_imports_nothing_heavy(tmp_path: Path) -> None:
    for flag in ("-h", "--help"):
        shown = run(flag, cwd=tmp_path)
        assert shown.code == 0
        for name in ("analyze", "report", "inspect", "formats", "doctor", "simulate", "schema"):
            assert name in shown.out
    code = (
        "import sys, contextlib, io\n"
        "from tracelens.cli import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    cli.main(['--help'], standalone_mode=False)\n"
        "print([m for m in ('pandas', 'numpy', 'plotly', 'torch', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version(tmp_path: Path) -> None:
    import tracelens

    assert run("--version", cwd=tmp_path).out.strip().endswith(tracelens.__version__)


def test_a_saved_result_renders_to_the_same_bytes(tmp_path: Path) -> None:
    direct = ["-o", "direct.html", "-o", "direct.md", "-o", "saved.json"]
    assert run("analyze", SAMPLES / "fsdp2", *direct, cwd=tmp_path).code == 0
    rendered = run("report", "saved.json", "-o", "again.html", "-o", "again.md", cwd=tmp_path)
    assert rendered.code == 0
    for suffix in (".html", ".md"):
        first = (tmp_path / f"direct{suffix}").read_bytes()
        assert first == (tmp_path / f"again{suffix}").read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a TraceLens result"),
        ('{"schema": "tracelens/99"}', "schema tracelens/99"),
        ('{"schema": "tracelens/1", "tool": 5}', "damaged TraceLens result"),
    ],
)
def test_report_refuses_what_is_no_result(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    result = run("report", "x.json", "-o", "x.html", cwd=tmp_path)
    assert result.code == 1
    assert said in result.err
    assert not (tmp_path / "x.html").exists()


def test_inspect_lists_files_ranks_and_steps(tmp_path: Path) -> None:
    result = run("inspect", SAMPLES / "ddp", cwd=tmp_path)
    assert result.code == 0
    lines = result.out.splitlines()
    assert len(lines) == 5
    assert "rank 2 of 4 (distributedInfo) · steps 6-8" in lines[2]
    assert lines[-1] == "4 trace files, ranks 0-3 of 4"


def test_inspect_says_what_is_left_out_and_missing(tmp_path: Path) -> None:
    source = SAMPLES / "ddp" / "rank1.pt.trace.json.gz"
    (tmp_path / "a.json.gz").write_bytes(source.read_bytes()[:20_000])
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.json.tmp").write_text("{}")
    lines = run("inspect", ".", cwd=tmp_path).out.splitlines()
    assert "INCOMPLETE: the compressed data stops in the middle" in lines[0]
    assert "left out: JSON, but no profiler trace" in lines[1]
    assert "left out: a temporary file" in lines[2]
    assert "missing: 0, 2-3" in lines[3]


def test_formats_lists_plugins_with_versions(tmp_path: Path) -> None:
    result = run("formats", cwd=tmp_path)
    assert result.code == 0
    assert "kineto" in result.out
    assert "tracelens-distributed" in result.out
    assert ".html" in result.out
    assert "broken" not in result.out


def test_schema_is_json_schema(tmp_path: Path) -> None:
    import jsonschema

    document = json.loads(run("schema", cwd=tmp_path).out)
    jsonschema.Draft202012Validator.check_schema(document)
    assert "tracelens/1" in document["title"]


def test_control_characters_of_names_never_reach_the_terminal(tmp_path: Path) -> None:
    evil = "a\x1b[31mred\x1b]0;title\x07"
    (tmp_path / f"{evil}.json").write_text("{}")
    for command in ("inspect", "analyze"):
        result = run(command, ".", cwd=tmp_path)
        assert "\x1b" not in result.out + result.err
        assert "\x07" not in result.out + result.err


_SIGNED = "https://me:planted@host/r.html?X-Amz-Signature=planted"


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (["analyze", "nothing", "-o", "s3://bucket/r.html"], "s3://bucket/r.html"),
        (["analyze", "nothing", "--json", _SIGNED], "https://host/r.html"),
        (["report", "nothing.json", "-o", _SIGNED], "https://host/r.html"),
        (["simulate", "--layout", "dp=2", "-o", "s3://bucket/run"], "s3://bucket/run"),
    ],
)
def test_results_are_not_written_to_other_machines(
    tmp_path: Path, asked: list[str], shown: str
) -> None:
    result = run(*asked, cwd=tmp_path)
    assert result.code == 1
    first = f"Error: {shown}: results are written to local files only"
    assert result.err.splitlines()[0] == first
    assert "planted" not in result.out + result.err
    assert list(tmp_path.iterdir()) == [], "no folder called s3:"


def test_a_saved_result_is_not_read_from_other_machines(tmp_path: Path) -> None:
    saved = "https://me:planted@host/analysis.json?sig=planted"
    result = run("report", saved, "-o", "report.html", cwd=tmp_path)
    assert result.code == 1
    assert "Error: https://host/analysis.json: a saved result is read from a local" in result.err
    assert "planted" not in result.err

"""`tracelens analyze`, through the real command."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from command import run
from samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

DDP = SAMPLES / "ddp"


def test_without_output_it_writes_a_folder_and_prints_the_verdict(tmp_path: Path) -> None:
    result = run("analyze", DDP, cwd=tmp_path)
    assert result.code == 0
    assert "It moves 2Ψ per step (Ψ = 863,360" in result.out
    assert len(result.out.splitlines()) <= 20
    assert (tmp_path / "tracelens-report" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "tracelens-report" / "analysis.json").read_text())["schema"]
    assert "Wrote tracelens-report/report.html" in result.err


def test_the_default_folder_is_refreshed_if_tracelens_wrote_it(tmp_path: Path) -> None:
    assert run("analyze", DDP, cwd=tmp_path).code == 0
    assert run("analyze", SAMPLES / "tp2", cwd=tmp_path).code == 0
    saved = json.loads((tmp_path / "tracelens-report" / "analysis.json").read_text())
    assert saved["run"]["world_size"] == 2


def test_a_foreign_default_folder_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "tracelens-report"
    folder.mkdir()
    (folder / "report.html").write_text("mine")
    result = run("analyze", DDP, cwd=tmp_path)
    assert result.code == 1
    assert "was not written by TraceLens" in result.err
    assert (folder / "report.html").read_text() == "mine"


@pytest.mark.parametrize("name", ["out.html", "out.md", "out.json"])
def test_the_suffix_chooses_the_report(tmp_path: Path, name: str) -> None:
    result = run("analyze", DDP, "-o", name, cwd=tmp_path)
    assert result.code == 0
    assert (tmp_path / name).stat().st_size > 1_000
    assert f"Wrote {name}" in result.err
    assert not (tmp_path / "tracelens-report").exists()


def test_several_outputs_at_once(tmp_path: Path) -> None:
    result = run("analyze", DDP, "-o", "a.html", "-o", "b.md", "--json", "c.json", cwd=tmp_path)
    assert result.code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.html", "b.md", "c.json"}


def test_nothing_is_overwritten_without_force_and_nothing_is_read_first(tmp_path: Path) -> None:
    (tmp_path / "out.html").write_text("mine")
    result = run("analyze", tmp_path / "no-such-folder", "-o", "out.html", cwd=tmp_path)
    assert result.code == 1
    assert "out.html exists already" in result.err
    assert "add -f" in result.err
    assert (tmp_path / "out.html").read_text() == "mine"
    assert run("analyze", DDP, "-o", "out.html", "-f", cwd=tmp_path).code == 0
    assert (tmp_path / "out.html").read_text() != "mine"


def test_json_to_stdout_is_only_json(tmp_path: Path) -> None:
    result = run("analyze", DDP, "--json", "-", cwd=tmp_path)
    assert result.code == 0
    assert json.loads(result.out)["run"]["ranks_present"] == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == []


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    result = run("analyze", DDP, "-o", "x.md", "-q", cwd=tmp_path)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_information_is_printed_with_verbose_only(tmp_path: Path) -> None:
    assert "cpu-run" not in run("analyze", DDP, "-o", "x.md", cwd=tmp_path).err
    verbose = run("analyze", DDP, "-o", "y.md", "-v", cwd=tmp_path).err
    assert verbose.count("[cpu-run]") == 1


def test_missing_ranks_warn_and_fail_only_with_strict(tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for rank in (0, 2):
        name = f"rank{rank}.pt.trace.json.gz"
        (folder / name).write_bytes((DDP / name).read_bytes())
    loose = run("analyze", folder, "-o", "x.md", cwd=tmp_path)
    assert loose.code == 0
    assert "no trace for 2 of 4 ranks (1, 3)" in loose.err
    assert loose.err.count("[missing-ranks]") == 1
    assert run("analyze", folder, "-o", "y.md", "--strict", cwd=tmp_path).code == 4


def test_ranks_that_were_not_asked_for_are_not_missing(tmp_path: Path) -> None:
    result = run("analyze", DDP, "--ranks", "1,3", "-o", "x.json", "--strict", "-v", cwd=tmp_path)
    assert result.code == 0
    assert "only ranks 1, 3 were analysed" in result.err
    assert "missing-ranks" not in result.err


def test_a_layout_that_does_not_fit_the_world_is_said(tmp_path: Path) -> None:
    wrong = run("analyze", DDP, "--layout", "dp=4,tp=2", "-o", "x.md", cwd=tmp_path)
    assert "(dp 4, tp 2) makes 8 ranks, the traces say 4" in wrong.err
    right = run("analyze", DDP, "--layout", "dp=4", "-o", "y.md", cwd=tmp_path)
    assert "layout-mismatch" not in right.err
    assert "layout-contradicted" not in right.err
    partly = run("analyze", DDP, "--layout", "pp=4", "-o", "z.md", cwd=tmp_path)
    assert "(dp 4, pp 4) makes 16 ranks, the traces say 4" in partly.err
    other = run("analyze", DDP, "--layout", "dp=2,pp=2,tp=1,zero=3", "-o", "v.json", cwd=tmp_path)
    assert "layout-mismatch" not in other.err
    assert "--layout says dp 2, but the groups in the traces have 4 ranks" in other.err
    assert "--layout says ZeRO stage 3, which does not send this traffic" in other.err


def test_runs_given_together_keep_their_folders_in_names(tmp_path: Path) -> None:
    result = run("analyze", DDP, SAMPLES / "tp2", "-o", "x.md", cwd=tmp_path)
    assert result.code == 0
    assert f"{DDP}/rank0.pt.trace.json.gz" in result.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--steps", "ten", "no range of steps"),
        ("--steps", "8:2", "ends before it begins"),
        ("--ranks", "a-b", "no list of ranks"),
        ("--params", "many", "no number of parameters"),
        ("--params", "0", "no whole number"),
        ("--layout", "xp=3", "no part of a layout"),
        ("--layout", "dp=0", "at least 1"),
        ("--layout", "zero=7", "no ZeRO stage 7"),
        ("--dtype", "bf17", "no dtype"),
        ("--comm-kernel", "abc", "no rule"),
        ("--comm-kernel", "(=all_reduce", "no regular expression"),
        ("--step-pattern", "(", "no regular expression"),
        ("--workers", "0", "not in the range"),
    ],
)
def test_a_wrong_option_value_is_one_clear_line_and_exit_2(
    tmp_path: Path, option: str, value: str, said: str
) -> None:
    result = run("analyze", DDP, option, value, cwd=tmp_path)
    assert result.code == 2
    assert said in result.err
    assert option in result.err
    assert result.out == ""


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("Error")]


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("analyze", "empty", cwd=tmp_path)
    assert result.code == 1
    assert errors(result.err) == ["Error: empty: no trace file in it"]
    assert not (tmp_path / "tracelens-report").exists()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.json", b"", "an empty file"),
        ("a.json", b"{}", "no profiler trace"),
        ("a.json", b'{"nodes": [], "schema": "1.0.2"}', "execution trace"),
        ("a.json", b"hello", "no format an installed parser knows"),
        ("a.json", b'{"schemaVersion": 1}', "JSON, but no profiler trace"),
        ("a.json.gz", b"\x1f\x8b\x08\x00broken", "nothing comes out of it when it is unpacked"),
        ("a.json.gz", gzip.compress(b'{"schemaVersion": 1, "x": [', mtime=0)[:-12], "a.json.gz"),
    ],
)
def test_a_file_that_is_no_trace_is_one_clear_line(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    result = run("analyze", name, cwd=tmp_path)
    assert result.code == 1
    [line] = errors(result.err)
    assert said in line
    assert name in line


def test_a_bad_file_among_good_ones_is_named_once_and_the_rest_is_analysed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for path in DDP.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    cut = gzip.compress(b'{"schemaVersion": 1, "traceEvents": [')
    (folder / "rank3.pt.trace.json.gz").write_bytes(cut)
    (folder / "notes.json").write_text("{}")
    result = run("analyze", folder, "-o", "x.json", cwd=tmp_path)
    assert result.code == 0
    assert result.err.count("rank3.pt.trace.json.gz") == 1
    saved = json.loads((tmp_path / "x.json").read_text())
    assert saved["run"]["ranks_present"] == [0, 1, 2]
    status = {file["path"]: file["status"] for file in saved["source"]["files"]}
    assert status["notes.json"] == status["rank3.pt.trace.json.gz"] == "skipped"
    assert run("analyze", folder, "-o", "y.json", "--strict", cwd=tmp_path).code == 4


def test_every_option_has_an_environment_variable(tmp_path: Path) -> None:
    result = run("analyze", DDP, "--json", "-", cwd=tmp_path, TRACELENS_ANALYZE_PARAMS="1M")
    assert json.loads(result.out)["parallelism"]["parameters"]["count"] == 1_000_000


def test_options_are_kept_for_the_report(tmp_path: Path) -> None:
    options = ["--steps", "7:", "--ranks", "0,1-2", "--layout", "dp=4,zero=1", "--params", "2M"]
    result = run("analyze", DDP, *options, "--json", "-", cwd=tmp_path)
    assert json.loads(result.out)["source"]["options"] == {
        "--steps": "7:",
        "--ranks": "0-2",
        "--layout": "dp=4,zero=1",
        "--params": "2000000",
    }


def test_a_user_rule_makes_a_kernel_communication(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9, "ts": 1,
         "dur": 100},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 2,
         "dur": 1, "args": {"correlation": 5}},
        {"ph": "X", "cat": "kernel", "name": "acme_ring(float*)", "pid": 0, "tid": 7, "ts": 10,
         "dur": 20, "args": {"device": 0, "stream": 7, "correlation": 5}},
    ]  # fmt: skip
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    plain = json.loads(run("analyze", "rank0.json", "--json", "-", cwd=tmp_path).out)
    rule = ["--comm-kernel", "^acme_ring=all-reduce"]
    ruled = json.loads(run("analyze", "rank0.json", *rule, "--json", "-", cwd=tmp_path).out)
    assert plain["ranks"][0]["devices"][0]["total"]["compute_ns"] == 20_000
    total = ruled["ranks"][0]["devices"][0]["total"]
    assert (total["compute_ns"], total["exposed_by_op_ns"]) == (0, {"all_reduce": 20_000})


def test_ranks_of_different_runs_are_said(tmp_path: Path) -> None:
    moved = json.loads(gzip.decompress((DDP / "rank0.pt.trace.json.gz").read_bytes()))
    moved["baseTimeNanoseconds"] -= 3600 * 10**9
    (tmp_path / "rank0.json").write_text(json.dumps(moved))
    for rank in (1, 2, 3):
        name = f"rank{rank}.pt.trace.json.gz"
        (tmp_path / name).write_bytes((DDP / name).read_bytes())
    result = run("analyze", ".", "-o", "x.md", cwd=tmp_path)
    assert result.code == 0
    assert "recorded 60 minutes apart" in result.err
    assert "different-times" not in run("analyze", DDP, "-o", "y.md", cwd=tmp_path).err


def test_what_the_user_says_about_machines_and_links(tmp_path: Path) -> None:
    result = run(
        "analyze", SAMPLES / "tp2", "--gpus-per-node", "1", "--intra-bw", "450", "--inter-bw",
        "400Gb/s", "--json", "-", "-q", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 0, result.err
    saved = json.loads(result.out)
    assert [node["ranks"] for node in saved["topology"]["nodes"]] == [[0], [1]]
    assert saved["topology"]["nodes_source"] == "option"
    assert {one["link_peak_gbps"] for one in saved["collectives"]} == {50.0}
    assert "tp-across-nodes" in {one["id"] for one in saved["findings"]}
    assert saved["source"]["options"] == {
        "--gpus-per-node": "1",
        "--intra-bw": "450GB/s",
        "--inter-bw": "50GB/s",
    }


def test_what_the_user_says_about_the_model(tmp_path: Path) -> None:
    """Half the width: messages and sums are twice as large as they should be."""
    said = "layers=4,hidden=1024,sequence=4096,batch=1,dtype=bf16"
    sample = SAMPLES / "simulated-3d-pp2-dp2-tp2"
    options = ("-o", "x.html", "-o", "x.md", "--json", "x.json")
    result = run("analyze", sample, "--model", said, *options, cwd=tmp_path)
    assert result.code == 0, result.err
    assert "Bytes are not what theory says: tp 2 times, pp 2 times." in result.out
    saved = json.loads((tmp_path / "x.json").read_text())
    assert saved["source"]["options"] == {"--model": said}
    ratios = {
        one["dimension"]: one["observed_over_predicted"] for one in saved["volumes"]["dimensions"]
    }
    assert ratios == {"dp": None, "tp": pytest.approx(2.0, rel=1e-3), "pp": 2.0}
    for report in ("x.html", "x.md"):
        text = (tmp_path / report).read_text()
        assert "By dimension, per step and mean rank" in text
        assert "give --params, or --model with layers, hidden, vocabulary" in text


@pytest.mark.parametrize("text", ["llama-9", "hidden=0", "width=3", "dtype=int4"])
def test_what_is_no_model(tmp_path: Path, text: str) -> None:
    result = run("analyze", DDP, "--model", text, cwd=tmp_path)
    assert result.code == 2
    assert "write " in result.err


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_machines_hold_at_least_one_gpu(tmp_path: Path, value: str) -> None:
    result = run("analyze", DDP, "--gpus-per-node", value, cwd=tmp_path)
    assert result.code == 2
    assert "--gpus-per-node" in result.err

"""What a trace knows of the machine and the user beside its events stays there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command import run
from standard_run import rank

SECRET = "hf_abcdefSECRETghijkl"
ENVIRONMENT = {"HF_TOKEN": SECRET, "NCCL_SOCKET_IFNAME": SECRET, "PATH": f"/home/{SECRET}/bin"}
ARGS = {
    "Concrete Inputs": ["", SECRET, f"['{SECRET}']"],
    "Input Dims": [SECRET],
    "Input type": [SECRET],
    "Call stack": f"/home/{SECRET}/train.py(3): main",
    "Fwd thread id": SECRET,
    "env": ENVIRONMENT,
    "NCCL_DEBUG": SECRET,
    "url": f"s3://me:{SECRET}@bucket",
}
ROOT = {
    "env": ENVIRONMENT,
    "cmdline": f"python train.py --token {SECRET}",
    "argv": ["train.py", SECRET],
    "stdout": f"using token {SECRET}",
    "user": SECRET,
    "traceName": f"/home/{SECRET}/rank0.json",
    "with_stack": 1,
    "PT_PROFILER_JOB_NAME": SECRET,
    "trace_id": SECRET,
}


def other(category: str, phase: str = "X", **more: Any) -> dict[str, Any]:
    """Return an event that is read past, or of which only the time is kept."""
    event = {"ph": phase, "cat": category, "name": SECRET, "pid": 4000, "tid": 1, "ts": 120.0}
    return {**event, "dur": 5.0, "args": ARGS, **more}


def trace() -> dict[str, Any]:
    """Return a trace with the secret wherever real ones were seen to hold one."""
    root: dict[str, Any] = json.loads(rank(0, 2).text())
    for event in root["traceEvents"]:
        event["args"] = {**ARGS, **event.get("args", {})}
    root["traceEvents"] += [
        other("python_function", name=f"/home/{SECRET}/train.py(3): main"),
        other("cpu_op", name=f"aten::{SECRET}"),
        other("cpu_instant_event", "i"),
        other("Trace", name=f"PyTorch Profiler ({SECRET})"),
        other("", "M", name="process_labels", args={"labels": SECRET}),
        other("", "M", name="process_name", args={"name": f"python --token {SECRET}"}),
        other("ac2g", "s", id=1),
        other("cuda_runtime", name="cudaEventRecord"),
        other("overhead"),
    ]
    root["distributedInfo"] |= {"env": ENVIRONMENT, "master_addr": SECRET, "store": [SECRET]}
    for group in root["distributedInfo"].get("pg_config", []):
        group["options"] = SECRET
    for device in root.get("deviceProperties", []):
        device["uuid"] = SECRET
    return {**root, **ROOT}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return everything the commands write and print about such a file, whole and damaged."""
    tmp_path = tmp_path_factory.mktemp("run")
    text = json.dumps(trace())
    (tmp_path / "rank0.json").write_text(text)
    damaged = text.replace('"aten::', f'"unescaped "{SECRET}" aten::')
    (tmp_path / "rank1.json").write_text(damaged.replace('"rank": 0', '"rank": 1')[:-300])
    (tmp_path / "rank0.json.tracelens.json").write_text(
        json.dumps({"host": "node7", "env": SECRET})
    )
    (tmp_path / "other.json").write_text(json.dumps(ROOT))
    reports = [option for name in ("json", "html", "md") for option in ("-o", f"out.{name}")]
    done = run("analyze", ".", "-v", *reports, cwd=tmp_path)
    assert done.code == 0
    texts = {name: (tmp_path / f"out.{name}").read_text() for name in ("json", "html", "md")}
    texts["analyze"] = done.out + done.err
    for command in ("inspect", "doctor"):
        done = run(command, ".", cwd=tmp_path)
        texts[command] = done.out + done.err
    return texts


def test_no_output_holds_the_secret(outputs: dict[str, str]) -> None:
    assert not [name for name, text in outputs.items() if "SECRET" in text]
    assert not [name for name, text in outputs.items() if "HF_TOKEN" in text]


def test_outputs_hold_what_they_should(outputs: dict[str, str]) -> None:
    assert "node7" in outputs["json"]
    assert "gelu" in outputs["html"]
    assert json.loads(outputs["json"])["run"]["ranks_present"] == [0, 1]
    assert "damaged-events" in outputs["json"]

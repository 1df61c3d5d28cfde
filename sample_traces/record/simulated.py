"""Simulate the simulated samples again; they need no torch."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tracelens.cli import cli
from tracelens.theory.collectives import message_factor

SAMPLES = Path(__file__).resolve().parent.parent
EXPECTED = SAMPLES / "expected.json"

RUNS = {
    "simulated-3d-pp2-dp2-tp2": (
        "--layout dp=2,tp=2,pp=2 --model layers=4,hidden=4096,vocabulary=32000,sequence=2048 "
        "--strategy distributed-optimizer --sequence-parallel --micro-batches 8 --steps 2 "
        "--slow 6:1.15 --skew 2000 --drift 10 --drop-edges 20"
    ),
    "simulated-zero3-dp8": (
        "--layout dp=8 --model llama-2-7b,layers=8,vocabulary=16000,sequence=2048 "
        "--strategy zero3 --steps 3 --gpus-per-node 4 --inter-bw 150 "
        "--contention 1.1 --skew 2000 --drift 10 --drop-edges 20"
    ),
    "simulated-nsight-3d-pp2-dp2-tp2": (
        "--layout dp=2,tp=2,pp=2 --model layers=2,hidden=2048,vocabulary=16000,sequence=1024 "
        "--strategy distributed-optimizer --sequence-parallel --micro-batches 4 --steps 2 "
        "--skew 2000 --drift 10 --format nsight"
    ),
    "simulated-nsight-zero3-dp4": (
        "--layout dp=4 --model layers=4,hidden=2048,vocabulary=16000,sequence=1024 "
        "--strategy zero3 --steps 2 --skew 2000 --format nsight-per-rank"
    ),
}


def main(names: list[str]) -> None:
    """Simulate the named runs, or all."""
    expected = json.loads(EXPECTED.read_text())
    for name in names or RUNS:
        folder = SAMPLES / name
        shutil.rmtree(folder, ignore_errors=True)
        arguments = ["simulate", "-o", str(folder), *RUNS[name].split()]
        cli.main(arguments, standalone_mode=False)
        expected[name] = _expected(json.loads((folder / "truth.json").read_text()), RUNS[name])
    EXPECTED.write_text(json.dumps(expected, indent=2) + "\n")


def _expected(truth: dict[str, Any], options: str) -> dict[str, Any]:
    """Return what the run must show, in the words of the recorded ones."""
    asked = truth["options"]
    alone = not truth["pipeline"] and len(truth["ranks"]) == asked_dp(asked["layout"])
    return {
        "command": f"tracelens simulate {options}",
        "simulated": True,
        "strategy": asked["strategy"],
        "world_size": len(truth["ranks"]),
        "parameters": truth["parameters"],
        "dtype": asked["model"]["dtype"],
        "gradient_accumulation": asked["micro_batches"],
        "steps": [step["step"] for step in truth["ranks"][0]["steps"]],
        "message_multiple": _message_elements(truth) / truth["parameters"] if alone else None,
    }


def asked_dp(layout: str) -> int:
    """Return the data-parallel size of "dp=8,tp=2"."""
    return int(dict(part.split("=") for part in layout.split(",")).get("dp", 1))


def _message_elements(truth: dict[str, Any]) -> int:
    """Return rank 0's elements of gradients and parameters; an all-reduce counts twice."""
    return sum(
        message_factor(one["op"]) * one["elements"]
        for one in truth["volumes"]
        if one["rank"] == 0 and one["part"] in ("gradients", "parameters")
    )


if __name__ == "__main__":
    main(sys.argv[1:])

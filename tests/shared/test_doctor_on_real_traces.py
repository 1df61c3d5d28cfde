"""What real captures lack: every check that strikes on them, and none besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracelens.engine import examine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared

LACKING: dict[str, set[str]] = {
    "kineto/ddp-a2a-2xv100": {"lone-ranks"},
    "kineto/ddp-resnet18-8xmi300": {"lone-ranks", "python-stacks"},
    "kineto/ddp-resnet50-2xa100": {"lone-ranks"},
    "kineto/ep2-moe-b200": {"lone-ranks", "one-step", "set-up-steps"},
    "kineto/gloo-cpu": {"lone-ranks"},
    "kineto/ns-resolution-v100": set(),
    "kineto/tp8-megatron-8xa100": {"one-step"},
    "kineto/zero2-nanogpt-8xh100": set(),
    "nsight/a2a-2xh100-before-after/before.sqlite": {
        "payloads-not-exported", "no-steps", "no-world-size", "lost-device-records", "no-rank",
    },
    "nsight/a2a-2xh100-before-after/after.sqlite": {
        "payloads-not-exported", "no-steps", "no-world-size", "lost-device-records", "no-rank",
    },
    "nsight/cuda-graph-2025.5": {"opaque-graphs", "no-steps", "no-collectives", "no-rank"},
    "nsight/schema-2022": {"no-steps", "no-collectives", "no-rank"},
    "nsight_synthetic/dp4-zero2-per-rank": set(),
    "nsight_synthetic/tp2-pp2-dp2-1f1b": {"no-rank"},
}  # fmt: skip


@pytest.mark.parametrize("path", LACKING)
def test_what_a_real_capture_lacks(path: str, traces_folder: Path) -> None:
    _, lacks = examine(traces_folder / path)
    assert {lack.check for lack in lacks if lack.level != "remark"} == LACKING[path]


def test_files_of_other_gpus_and_years(traces_folder: Path) -> None:
    """Four runs in one folder: that is said first, and what single files lack names them."""
    run, lacks = examine(traces_folder / "kineto" / "old-schemas")
    assert lacks[0].check == "different-times"
    by_check = {lack.check: lack for lack in lacks}
    assert len(by_check["no-collectives"].files) == len(run.ranks) == 4
    assert "NVIDIA A100" in by_check["no-device-events"].what
    assert len(by_check["no-device-events"].files) == 1


def test_counts_of_a_real_capture(traces_folder: Path) -> None:
    kineto, nsight = traces_folder / "kineto", traces_folder / "nsight"
    stacks = examine(kineto / "ddp-resnet18-8xmi300")[1]
    assert any(k.what == "34,405 of 56,451 events are Python frames" for k in stacks)
    graphs = examine(nsight / "cuda-graph-2025.5")[1]
    assert graphs[0].what == "2 launches of CUDA graphs were recorded without their contents"

"""Small simulated runs of many layouts, to be written in every format."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens.simulate import Layout, Machine, Model, Options, simulate

if TYPE_CHECKING:
    from tracelens.simulate.recording import Recording

_MACHINE = Machine(skew_ns=3_000_000, drift_ppm=20.0, slow={1: 1.3})
_MODEL = Model(layers=4, hidden=256, vocabulary=1024, sequence=256)
_DEEP = replace(_MODEL, layers=8)
_EXPERTS = replace(_MODEL, layers=2, experts=4)
_ONE = Options(Layout(dp=2), _MODEL, _MACHINE, steps=2)

RUNS = {
    "ddp": replace(_ONE, layout=Layout(dp=4), bucket_elements=1 << 20),
    "zero-1": replace(_ONE, layout=Layout(dp=4), strategy="zero1", micro_batches=2),
    "zero-2": replace(_ONE, layout=Layout(dp=2), strategy="zero2", micro_batches=2),
    "zero-3": replace(_ONE, layout=Layout(dp=4), strategy="zero3", micro_batches=2),
    "tensor and sequence": replace(_ONE, layout=Layout(dp=2, tp=2), sequence_parallel=True),
    "1F1B": replace(_ONE, layout=Layout(dp=2, pp=2), micro_batches=4),
    "zero-bubble": replace(_ONE, layout=Layout(pp=4), schedule="zb-h1", micro_batches=4),
    "interleaved": replace(
        _ONE, layout=Layout(pp=4), model=_DEEP, schedule="interleaved", virtual_stages=2,
        micro_batches=4,
    ),
    "3D on two nodes": replace(
        _ONE, layout=Layout(dp=2, tp=2, pp=2), strategy="distributed-optimizer", micro_batches=4,
        machine=replace(_MACHINE, gpus_per_node=4),
    ),
    "experts": replace(_ONE, layout=Layout(dp=4, ep=2), model=_EXPERTS),
    "context": replace(_ONE, layout=Layout(dp=2, cp=2)),
    "1F1B with context": replace(_ONE, layout=Layout(pp=2, cp=2), micro_batches=4),
    "without edges": replace(_ONE, layout=Layout(tp=2, pp=2), micro_batches=4, drop_edges=6),
}  # fmt: skip
"""Options by name."""


@functools.cache
def recorded(name: str) -> Recording:
    """Return a simulated run; it is not to be changed."""
    return simulate(RUNS[name])

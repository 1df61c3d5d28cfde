"""A recording by hand with every kind of event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recordings import Run

from tracelens.simulate.recording import Clock, Group

if TYPE_CHECKING:
    from tracelens.simulate.recording import Recording

PIPELINE = Group("1", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 2))
OTHER_PIPELINE = Group("2", "PIPELINE_MODEL_PARALLEL_GROUP", (1, 3))
UNEVEN = Group("3", "mesh_odd", (0, 1, 3))
CLOCKS = {
    0: Clock(),
    1: Clock(-1_234_567, 17.3),
    2: Clock(987_654_321, -42.0),
    3: Clock(5, 0.001),
}


def everything() -> Recording:
    """Return a run of four ranks with every kind of event."""
    run = Run(4, [PIPELINE, OTHER_PIPELINE, UNEVEN], CLOCKS, per_node=2)
    for number in (5, 6):
        with run.step(number):
            run.copy().memset().compute()
            with run.range("## forward ##"):
                run.collective("all_gather", 4096).compute(20_007, ranks=[1, 3])
                run.exchange(0, 2).exchange(1, 3, 777)
                run.message(2, 0, 512, group=1)
            with run.backward():
                run.compute().collective("reduce_scatter", 4096, dtype="Float")
                run.collective("all_reduce", 3 * 977, group=3)
                run.exchange(0, 2, group=1)
                run.collective(
                    "all_to_all", splits=[[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 9], [4, 3, 2, 1]]
                )
            run.collective("broadcast", 64, dtype="Long").compute(3_001, name="adam")
    return run.recording()

"""What the files of a run lack together, most important first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens import nodes
from tracelens.doctor.check import Check, Found
from tracelens.doctor.finders import when
from tracelens.run import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.run import Run


def said(code: str) -> Callable[[Run], Found | None]:
    """Return a finder of a notice that putting the ranks together gave."""

    def find(run: Run) -> Found | None:
        return next((Found(detail=n.message) for n in run.notices if n.code == code), None)

    return find


def alone(run: Run) -> Found | None:
    """Find a run of which no group has two members here."""
    present = sorted({rank.rank for rank in run.ranks})
    groups = [g.ranks for r in run.ranks for c in r.cycles for g in c.groups if g.ranks]
    together = any(len(set(present).intersection(ranks)) > 1 for ranks in groups)
    if run.world_size == 1 or not groups or together:
        return None
    if run.world_size is None:
        return Found(detail="no process group has two members here")
    if len(present) == 1:
        return Found(detail=f"only rank {present[0]} of {run.world_size:,} is here")
    here = f"only ranks {ranges(present)} of {run.world_size:,} are here"
    return Found(detail=f"{here}, and no process group has two of them")


def incomplete(run: Run) -> Found | None:
    """Find ranks without a file, where others share a group."""
    if not run.missing or alone(run):
        return None
    return Found(len(run.missing), run.world_size or 0, ranges(run.missing))


def no_world_size(run: Run) -> Found | None:
    """Find exports of Nsight Systems that do not say how many ranks there are."""
    formats = {cycle.info.format for rank in run.ranks for cycle in rank.cycles}
    talks = any(len(cycle.operations) for rank in run.ranks for cycle in rank.cycles)
    return when(run.world_size is None and talks and all(f.startswith("nsight") for f in formats))


def no_network_counters(run: Run) -> Found | None:
    """Find exports of Nsight Systems of several machines whose network cards were not read."""
    located = nodes.locate(run)[0].of_rank
    machines = {located.get(rank.rank) for rank in run.ranks} - {None}
    return when(_lacks_counters(run, "network") and len(machines) > 1)


def no_link_samples(run: Run) -> Found | None:
    """Find exports of Nsight Systems of ranks on one machine whose links were not sampled."""
    found, _ = nodes.locate(run)
    present = {rank.rank for rank in run.ranks}
    machines = [node for rank, node in found.of_rank.items() if rank in present]
    return when(_lacks_counters(run, "link") and len(machines) > len(set(machines)))


def _lacks_counters(run: Run, kind: str) -> bool:
    """Tell whether ranks that nsys recorded communicate, and none has counters of a kind."""
    cycles = [cycle for rank in run.ranks for cycle in rank.cycles]
    talks = any(len(cycle.operations) for cycle in cycles)
    by_nsys = all(cycle.info.format.startswith("nsight") for cycle in cycles)
    return talks and by_nsys and not any(cycle.info.recorded.get(kind) for cycle in cycles)


def no_nodes(run: Run) -> Found | None:
    """Find ranks with devices of which nothing tells the machine."""
    present = {rank.rank for rank in run.ranks}
    kinds = {cycle.info.device_kind for rank in run.ranks for cycle in rank.cycles}
    found, _ = nodes.locate(run)
    return when(len(present) > 1 and kinds != {"cpu"} and found.source is None)


def one_step(run: Run) -> Found | None:
    """Find ranks of one step each, over all their cycles."""
    counts = {sum(len(cycle.recorded_steps) for cycle in rank.cycles) for rank in run.counted}
    return when(counts == {1})


def other_steps(run: Run) -> Found | None:
    """Find ranks that recorded different steps."""
    steps = {tuple(s for c in rank.cycles for s in c.recorded_steps) for rank in run.counted}
    return when(len(steps) > 1)


CHECKS: tuple[Check[Run], ...] = (
    Check(
        "different-times",
        "missing",
        ("Stability", "Trust"),
        "not one run: {detail}",
        "each rank's own times are right; means, waiting and the comparison with theory are not",
        "one run at a time",
        said("different-times"),
    ),
    Check(
        "world-size-conflict",
        "missing",
        ("Trust",),
        "not one run: {detail}",
        "which ranks are missing is a guess",
        "one run at a time",
        said("world-size-conflict"),
    ),
    Check(
        "duplicate-rank",
        "missing",
        ("Trust",),
        "a rank twice: {detail}",
        "what is compared across ranks may mix two runs",
        "one run at a time",
        said("duplicate-rank"),
    ),
    Check(
        "lone-ranks",
        "poorer",
        ("Stability", "Collectives"),
        "too few ranks: {detail}",
        "waiting and transfer cannot be told apart, so no straggler is named and bandwidth over "
        "transfer time is unknown; its own times and, with data parallelism, volumes are right",
        "run the profiler on every rank, over the same steps",
        alone,
    ),
    Check(
        "missing-ranks",
        "poorer",
        ("Stability", "Trust"),
        "there is no file of {count} of {total} ranks: {detail}",
        "in their groups waiting is a lower bound, and blame may fall on the wrong rank; means "
        "are over the ranks that are here",
        "run the profiler on every rank, over the same steps",
        incomplete,
    ),
    Check(
        "no-world-size",
        "poorer",
        ("Trust",),
        "nothing says how many ranks there are",
        "missing ranks go unnoticed",
        "let each process say its rank and the world size (docs/recording.md)",
        no_world_size,
    ),
    Check(
        "no-nodes",
        "poorer",
        ("Collectives",),
        "nothing says which ranks share a machine",
        "traffic inside a machine is not told from traffic between machines",
        "`tracelens analyze --gpus-per-node N`; torch 2.13 writes the host's name by itself",
        no_nodes,
    ),
    Check(
        "different-steps",
        "poorer",
        ("Stability",),
        "the ranks recorded different steps",
        "means are over each rank's own; steps compare where ranks share them",
        "the same schedule on all ranks",
        other_steps,
    ),
    Check(
        "one-step",
        "poorer",
        ("Stability",),
        "a single step was recorded",
        "nothing shows whether it is like the others",
        "record three to five steps",
        one_step,
    ),
    Check(
        "no-link-samples",
        "remark",
        ("Volume",),
        "how busy the links between GPUs were was not sampled",
        "whether a link idles while collectives run is not shown",
        "`nsys profile --gpu-metrics-devices=all`, where the driver lets users read counters",
        no_link_samples,
    ),
    Check(
        "no-network-counters",
        "remark",
        ("Volume",),
        "what the network cards of the machines sent was not counted",
        "what has to leave a machine has nothing to be held against",
        "`nsys profile --nic-metrics=true`",
        no_network_counters,
    ),
)

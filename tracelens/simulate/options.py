"""What to simulate, and which combinations make sense."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tracelens.errors import OptionError
from tracelens.simulate.layout import Layout
from tracelens.simulate.machine import Machine
from tracelens.simulate.schedules import actions
from tracelens.theory.transformer import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

STRATEGIES = {
    "ddp": "all-reduce of gradients: torch DDP, or Megatron's with other parallelism",
    "zero1": "DeepSpeed ZeRO-1: all-reduce once a step, all-gather of parameters",
    "zero2": "DeepSpeed ZeRO-2: all-reduce every micro-batch, all-gather of parameters",
    "distributed-optimizer": "Megatron: reduce-scatter of gradients, all-gather of parameters",
    "zero3": "FSDP2: parameters gathered forward and backward, gradients reduce-scattered",
}
CONTEXT = ("ring", "all-gather")


@dataclass(frozen=True, slots=True)
class Options:
    """A simulation.

    Attributes:
        layout: The parallel layout.
        model: The model.
        machine: The machine.
        strategy: A key of `STRATEGIES`.
        schedule: gpipe, 1f1b, interleaved or zb-h1; matters with pipeline stages.
        micro_batches: Micro-batches of a step and data-parallel rank.
        virtual_stages: Chunks of a rank in the interleaved schedule.
        sequence_parallel: Whether tensor parallelism splits the sequence outside of it.
        context: How context parallelism gets its keys and values: ring or all-gather.
        bucket_elements: Elements of a gradient bucket; None: the framework's default.
        steps: Steps to record.
        first_step: Number of the first one.
        drop_edges: Each rank's recording begins and ends up to so many device events outside of
            the steps, at random; 0: exactly with them.
        torch: Release whose streams and file schema to imitate: 2.4 or 2.12.
        seed: Of all jitter.
    """

    layout: Layout = field(default_factory=Layout)
    model: Model = field(default_factory=Model)
    machine: Machine = field(default_factory=Machine)
    strategy: str = "ddp"
    schedule: str = "1f1b"
    micro_batches: int = 1
    virtual_stages: int = 1
    sequence_parallel: bool = False
    context: str = "ring"
    bucket_elements: int | None = None
    steps: int = 3
    first_step: int = 5
    drop_edges: int = 0
    torch: str = "2.12"
    seed: int = 0

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise OptionError(problem)
        last = self.layout.pp - 1
        actions(self.schedule, last, self.layout.pp, self.micro_batches, self.virtual_stages)

    def _problems(self) -> Iterator[str]:
        yield from self._range_problems()
        yield from self._strategy_problems()
        yield from self._model_problems()
        ranks = {*self.machine.slow, *self.machine.slow_hosts}
        yield from (
            f"there is no rank {rank} to be slow: the layout has {self.layout.world}"
            for rank in sorted(ranks)
            if not 0 <= rank < self.layout.world
        )

    def _range_problems(self) -> Iterator[str]:
        if min(self.micro_batches, self.virtual_stages, self.steps) < 1:
            yield "micro-batches, virtual stages and steps are at least 1"
        if self.strategy not in STRATEGIES:
            yield f"there is no strategy {self.strategy!r}: one of {', '.join(STRATEGIES)}"
        if self.context not in CONTEXT:
            yield f"there is no context parallelism {self.context!r}: one of {', '.join(CONTEXT)}"
        if self.torch not in ("2.4", "2.12"):
            yield f"no recordings of torch {self.torch} are known: 2.4 or 2.12"

    def _strategy_problems(self) -> Iterator[str]:
        layout = self.layout
        if self.schedule == "interleaved" and layout.pp < 3:
            # With two stages both neighbours are one rank, and Megatron refuses this exchange too.
            yield "the interleaved schedule needs at least 3 stages"
        if self.strategy in ("zero2", "zero3") and layout.pp > 1:
            yield f"{self.strategy} and a pipeline do not go together: use distributed-optimizer"
        if self.strategy in ("zero1", "zero2", "zero3") and (layout.ep > 1 or layout.cp > 1):
            yield f"{self.strategy} is simulated with dp, tp and pp only"
        if self.strategy == "zero1" and not (layout.tp == layout.pp == 1):
            yield "zero1 is DeepSpeed's, simulated with dp only: use distributed-optimizer"
        if self.strategy == "zero2" and layout.tp > 1:
            yield "zero2 is DeepSpeed's, simulated with dp only"
        if self.strategy == "zero3" and layout.dp == 1:
            yield "zero3 needs dp above 1: there is nothing to shard over"
        if layout.ep > 1 and layout.tp > 1 and not self.sequence_parallel:
            yield "experts with tensor parallelism need sequence parallelism, as in Megatron"

    def _model_problems(self) -> Iterator[str]:
        layout, model = self.layout, self.model
        parts = layout.pp * self.virtual_stages
        split = {
            "layers": (model.layers, parts),
            "attention heads": (model.attention_heads, layout.tp),
            "width of keys and values": (model.kv_width, layout.tp),
            "width of the MLP": (model.mlp_width, layout.tp),
            "vocabulary": (model.vocabulary, layout.tp),
            "sequence": (model.sequence, layout.cp * (layout.tp if self.sequence_parallel else 1)),
        }
        for name, (value, by) in split.items():
            if value % by:
                yield f"the model's {name} ({value}) cannot be split by {by}"
        if layout.ep > 1 and (not model.experts or model.experts % layout.ep):
            yield f"ep={layout.ep} does not divide the model's experts ({model.experts})"

    def as_dict(self) -> dict[str, object]:
        """Return the options as JSON values."""
        values = asdict(self)
        for name in ("slow", "slow_hosts"):
            values["machine"][name] = {
                str(rank): factor for rank, factor in values["machine"][name].items()
            }
        return {**values, "layout": str(self.layout)}

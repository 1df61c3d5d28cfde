"""What a strategy may do at each point of a step, and the buckets they share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracelens.simulate.layout import ProcessGroups
    from tracelens.simulate.options import Options
    from tracelens.simulate.script import Script
    from tracelens.theory.transformer import Parameter, Unit


@dataclass(frozen=True, slots=True)
class Setting:
    """What a strategy knows of its rank.

    Attributes:
        script: Where to write.
        options: The simulation.
        groups: All process groups.
        chunks: The units of each model chunk, their parameters as this rank holds them.
    """

    script: Script
    options: Options
    groups: ProcessGroups
    chunks: Sequence[Sequence[Unit]]

    def group(self, kind: str) -> tuple[int, int] | None:
        """Return index and size of the rank's group of a kind, None if it is alone in it.

        Where data parallelism is all there is, its group is the world, as in torch and DeepSpeed.
        """
        native = self.options.layout.only_data_parallel
        if kind == "dp_cp" and native and self.options.strategy != "distributed-optimizer":
            kind = "world"
        index = self.groups.of(kind, self.script.rank)
        return None if index is None else (index, len(self.groups.ranks(kind, self.script.rank)))

    @property
    def parameters(self) -> int:
        """Parameters this rank holds."""
        return sum(p.elements for units in self.chunks for unit in units for p in unit.parameters)


class Strategy:
    """Does nothing: one replica. Subclasses send at these points.

    Attributes:
        owned: Parameters whose optimizer state this rank holds.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, self.script = setting, setting.script
        self.owned = setting.parameters

    def begin_step(self) -> None:
        """Prepare a step."""

    @contextmanager
    def forward_pass(self, chunk: int) -> Iterator[None]:  # noqa: ARG002 - for subclasses
        """Surround the forward pass of one micro-batch through a chunk."""
        yield

    def before_forward(self, unit: Unit) -> None:
        """Act before a unit's forward."""

    def after_forward(self, unit: Unit) -> None:
        """Act after a unit's forward."""

    def before_backward(self, unit: Unit) -> None:
        """Act before a unit's backward."""

    def after_backward(self, chunk: int, unit: Unit, *, last: bool) -> None:
        """Act when a unit's gradients are ready; `last` in the step's last micro-batch."""

    def end_backward(self, chunk: int, *, last: bool) -> None:
        """Act after a micro-batch's backward through a chunk."""

    def finish_gradients(self) -> None:
        """Act after all backward passes, before the gradients are used."""

    def reduce_norm(self) -> None:
        """Sum the norm of the gradients over the ranks that hold parts of them."""

    def after_optimizer(self) -> None:
        """Act after the optimizer."""


class Bucket(NamedTuple):
    """Gradients that are reduced together, once those of `unit` are ready, the last of them."""

    elements: int
    unit: str


def buckets(
    units: Sequence[Unit], limits: Iterable[int], *, experts: bool | None = None
) -> list[Bucket]:
    """Fill buckets in the order in which backward gives gradients.

    Args:
        units: A chunk's units in order of forward.
        limits: A bucket is closed by the parameter that brings it to its limit, in elements; the
            last limit goes on.
        experts: Take the experts' parameters only, or only the others; None: all.
    """
    found: list[Bucket] = []
    limit, following = 0, iter(limits)
    size, where = 0, ""
    for unit, parameter in _backward(units):
        if experts is not None and parameter.expert != experts:
            continue
        if size == 0:
            limit = next(following, limit)
        size, where = size + parameter.elements, unit.name
        if size >= limit:
            found.append(Bucket(size, where))
            size = 0
    return found + ([Bucket(size, where)] if size else [])


def _backward(units: Sequence[Unit]) -> Iterator[tuple[Unit, Parameter]]:
    for unit in reversed(units):
        for parameter in reversed(unit.parameters):
            yield unit, parameter

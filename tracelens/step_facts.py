"""What a step of a run with several parallel dimensions consists of, each fact with its source.

A prediction must not stand on the number it is held against. So every dimension asks here for what
others show: the size of an activation comes from the user's `--model`, or from the messages of
another dimension; how many layers ran from `--model`, or from attention kernels. Where nothing else
tells, a fact is missing, and so is the prediction.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tracelens import attention
from tracelens.dtypes import item_size
from tracelens.model.trace import NONE
from tracelens.operations import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, CODE, REDUCE_SCATTER, SEND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tracelens.model.result import Pipeline
    from tracelens.operations_table import OperationsTable
    from tracelens.run import Run
    from tracelens.strategy.inference import Given, Inference
    from tracelens.theory.transformer import Model
    from tracelens.traffic import Traffic

_COUNTED_BY_RANGES = ("ddp", "fsdp1", "fsdp2")
_FOLDED = ("zbv", "dualpipev")
_SIZES = ("hidden", "sequence", "batch")
_OPTIMIZER = r"Optimizer.*step"
PART_OF_UNIT = 16
"""Numbers a token (the loss) are at most 2/h of an activation; they are told apart by this."""
BY_MESSAGES = "m from the messages between stages"

Context = Literal["ring", "all-gather", "all-to-all"]


class MissingFactError(Exception):
    """What a prediction needs and nothing tells; the text completes "needs ..."."""


class Unit(NamedTuple):
    """One activation: its elements, the bytes of an element, and how that is known."""

    elements: int
    item: int
    source: str


class Times(NamedTuple):
    """How often something happens in a step, and how that is known."""

    number: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class StepFacts:
    """The facts of a run.

    Attributes:
        run: All ranks.
        table: Their operations.
        dimension: Of each operation, by name.
        dims: Size of each dimension.
        pipeline: The pipelines, if there are any.
        traffic: What data parallelism sends, and named ranges.
        inference: What was concluded of data parallelism.
        given: The user's options.
    """

    run: Run
    table: OperationsTable
    dimension: NDArray[np.object_]
    dims: Mapping[str, int]
    pipeline: Pipeline | None
    traffic: Traffic
    inference: Inference
    given: Given
    _sizes: dict[tuple[str, ...], dict[tuple[int, int], int]] = field(default_factory=dict)

    # the model ---------------------------------------------------------------------------------

    def model(self, what: str, *names: str) -> Model:
        """Return the model the user described, if that states some sizes.

        Raises:
            MissingFactError: With `what`, in words, if it does not.
        """
        described = self.given.model
        if described is None or not described.says(*names):
            raise MissingFactError(f"{what}: give --model with {', '.join(names)}")
        return described.model

    def states(self, *names: str) -> bool:
        """Tell whether the user's model states some sizes."""
        return self.given.model is not None and self.given.model.says(*names)

    @property
    def tokens(self) -> int | None:
        """Tokens of a micro-batch on one rank, if the user stated them."""
        if not self.states("sequence", "batch") or self.given.model is None:
            return None
        return self.given.model.model.batch * self.given.model.model.sequence // self.dims["cp"]

    # traffic -----------------------------------------------------------------------------------

    @functools.cached_property
    def large(self) -> NDArray[np.bool_]:
        """Tell which operations are of complete steps and no norms or flags."""
        frame = self.table.frame
        complete, small = (frame[name].to_numpy(bool) for name in ("complete", "small"))
        return np.asarray(complete & ~small, np.bool_)

    def calls(self, dimension: str, *ops: str) -> NDArray[np.bool_]:
        """Tell which operations are calls of a dimension."""
        op = self.table.frame["op"].to_numpy(np.int64)
        own = np.asarray(self.dimension == dimension, np.bool_)
        chosen = np.isin(op, [CODE[name] for name in ops]) if ops else True
        found: NDArray[np.bool_] = self.large & own & chosen
        return found

    @functools.cached_property
    def sequence_parallel(self) -> bool:
        """Whether tensor-parallel ranks reduce-scatter activations instead of all-reducing them."""
        return bool(self.calls("tp", REDUCE_SCATTER).any())

    @functools.cached_property
    def context(self) -> Context | None:
        """How context-parallel ranks get each other's keys and values."""
        kinds: tuple[tuple[str, Context], ...] = (
            (SEND, "ring"),
            (ALL_TO_ALL, "all-to-all"),
            (ALL_GATHER, "all-gather"),
        )
        return next((kind for op, kind in kinds if self.calls("cp", op).any()), None)

    def sizes(self, dimension: str, *ops: str) -> dict[tuple[int, int], int]:
        """Count calls by bytes and bytes of an element; `NONE` if untyped."""
        key = (dimension, *ops)
        if key not in self._sizes:
            calls = self.calls(dimension, *ops)
            frame = self.table.frame[calls & (self.table.frame["buffer_bytes"] != NONE)]
            pairs = frame[["buffer_bytes", "item_bytes"]].to_numpy(np.int64)
            found, count = np.unique(pairs, axis=0, return_counts=True)
            listed = zip(found.tolist(), count.tolist(), strict=True)
            self._sizes[key] = {(size, item): times for (size, item), times in listed}
        return self._sizes[key]

    def usual_size(self, dimension: str, *ops: str) -> tuple[int, int] | None:
        """Return bytes and bytes of an element of the most usual call."""
        sizes = self.sizes(dimension, *ops)
        return max(sizes, key=lambda size: (sizes[size], size), default=None)

    # the shape of a step -------------------------------------------------------------------------

    def stage(self, rank: int) -> int:
        """Return a rank's pipeline stage."""
        if self.dims["pp"] == 1:
            return 0
        if self.pipeline is None or rank not in self.pipeline.stage_of_rank:
            raise MissingFactError("the stages of the ranks")
        return self.pipeline.stage_of_rank[rank]

    @property
    def virtual(self) -> int:
        """Virtual stages of a rank."""
        return 1 if self.pipeline is None else self.pipeline.virtual_stages or 1

    @property
    def folded(self) -> bool:
        """Whether virtual stages go down and up again."""
        return self.pipeline is not None and self.pipeline.schedule in _FOLDED

    @functools.cached_property
    def attention(self) -> dict[int, attention.AttentionPasses]:
        """The attention passes of each rank; empty unless all ranks show them."""
        found = {rank.rank: attention.count(rank) for rank in self.run.counted}
        known = {rank: passes for rank, passes in found.items() if passes is not None}
        return known if len(known) == len(found) else {}

    @functools.cached_property
    def backward(self) -> bool:
        """Whether a step has a backward pass: an evaluation attends but has none."""
        passes = self.pipeline.timeline if self.pipeline is not None else []
        if (
            any(one.backward for one in self.attention.values())
            or any(one.kind != "forward" for one in passes)
            or self.traffic.marks_like(_OPTIMIZER)
        ):
            return True
        if not passes and not self.attention:
            raise MissingFactError("a sign of a backward pass (an optimizer's step, attention)")
        return False

    @functools.cached_property
    def reruns(self) -> int:
        """How often backward runs attention's forward again: 0, or 1 with recomputation.

        Raises:
            MissingFactError: If kernels do not tell, or only some layers are recomputed.
        """
        if not self.backward or not self.attention:
            return 0
        if not all(one.backward for one in self.attention.values()):
            raise MissingFactError("attention kernels of backward: only forward's are known")
        found = {(one.forward - one.backward) / one.backward for one in self.attention.values()}
        if found not in ({0.0}, {1.0}):
            raise MissingFactError("which layers recompute their activations: only some do")
        return int(found.pop())

    def _attended(self, rank: int) -> int | None:
        """Return how many layers a rank's attention went through; None if kernels cannot tell.

        A ring attends once a turn.
        """
        if rank not in self.attention or (self.dims["cp"] > 1 and self.context == "all-gather"):
            return None
        seen = self.attention[rank].forward // (1 + self.reruns)
        turns = self.dims["cp"] if self.context == "ring" else 1
        return None if seen % turns else seen // turns

    @functools.cached_property
    def micro_batches(self) -> Times:
        """The micro-batches of a step."""
        pipeline = self.pipeline if self.dims["pp"] > 1 else None
        counted = None if pipeline is None else pipeline.microbatches
        if pipeline is not None and counted is not None and pipeline.source == "ranges":
            return Times(counted, ("m from the schedule's ranges",))
        if (found := self._by_attention()) is not None:
            return Times(found, ("m from attention kernels",))
        if counted is not None:
            return Times(counted, (BY_MESSAGES,))
        k, framework = self.inference.micro_batches, self.inference.framework
        if pipeline is None and k is not None and framework in _COUNTED_BY_RANGES:
            return Times(k, ("m from the framework's ranges",))
        raise MissingFactError("the micro-batches of a step")

    def _by_attention(self) -> int | None:
        """Return the micro-batches that attention kernels and the stated layers give."""
        if not self.states("layers"):
            return None
        layers = self.layers
        found = {self._attended(rank.rank) for rank in self.run.counted}
        passes = found.pop() if len(found) == 1 else None
        return None if passes is None or passes % layers else passes // layers

    @property
    def layers(self) -> int:
        """Layers of a rank, if the user stated those of the model."""
        model = self.model("the layers of the model", "layers")
        parts = self.dims["pp"] * self.virtual
        if model.layers % parts:
            raise MissingFactError(f"how {model.layers} layers are dealt to {parts} stages")
        return model.layers // self.dims["pp"]

    @functools.cached_property
    def has_experts(self) -> bool:
        """Whether layers have experts: the user says so, or an expert-parallel group does.

        Raises:
            MissingFactError: If tensor-parallel activations of several sizes leave it open.
        """
        if self.dims["ep"] > 1:
            return True
        if self.given.model is not None and self.states("experts"):
            return self.given.model.model.experts > 0
        unit = self.unit("tp")
        sizes = {size for size, _ in self.sizes("tp", ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)}
        if len([size for size in sizes if size * PART_OF_UNIT >= unit.elements * unit.item]) > 1:
            raise MissingFactError(
                "whether layers have experts (activations of several sizes): "
                "give --model with experts"
            )
        return False

    def passes(self, rank: int) -> Times:
        """Return the layer passes of a rank: its layers times micro-batches."""
        if self.states("layers"):
            m = self.micro_batches
            return Times(self.layers * m.number, ("layers from --model", *m.sources))
        attended = self._attended(rank)
        if attended is None:
            raise MissingFactError(
                "the layers of the model (no attention kernels tell): give --model with layers"
            )
        return Times(attended, ("layer passes from attention kernels",))

    # activations ---------------------------------------------------------------------------------

    def unit(self, dimension: Literal["tp", "pp", "ep", "cp"]) -> Unit:
        """Return one whole activation, b·s·h/c, as anything but this dimension shows it."""
        if self.given.model is not None and self.states(*_SIZES) and self.tokens is not None:
            hidden = self.given.model.model.hidden
            return Unit(self.tokens * hidden, self.item(dimension), "b·s·h from --model")
        if dimension == "tp" and (seen := self.usual_size("pp", SEND)) is not None:
            split = self.dims["tp"] if self.sequence_parallel else 1
            return _unit(seen, split, "b·s·h from the messages between stages")
        activations = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
        if dimension == "pp" and (seen := self.usual_size("tp", *activations)) is not None:
            return _unit(seen, 1, "b·s·h from tensor-parallel activations")
        raise MissingFactError(
            "the size of an activation from elsewhere: give --model with hidden, sequence, batch"
        )

    def item(self, dimension: str) -> int:
        """Return the bytes of an element: as stated, else as recorded."""
        described = self.given.model
        if described is not None and described.says("dtype"):
            return item_size(described.model.dtype) or 0
        if self.given.dtype is not None:
            return item_size(self.given.dtype) or 0
        return self.recorded_item(dimension)

    def recorded_item(self, dimension: str) -> int:
        """Return the bytes of an element of the most usual call."""
        seen = self.usual_size(dimension)
        if seen is None or seen[1] == NONE:
            raise MissingFactError("the type that travels: give --dtype")
        return seen[1]


def _unit(seen: tuple[int, int], split: int, source: str) -> Unit:
    size, item = seen
    item = 1 if item == NONE or size % item else item
    return Unit(split * size // item, item, source)

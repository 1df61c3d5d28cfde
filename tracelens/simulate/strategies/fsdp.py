"""FSDP2: every layer is a unit, embedding and head are the root (torch/distributed/fsdp).

A unit's parameters are gathered before its forward and again before its backward; the root's stay
in between. While a unit computes, the next one's are gathered. Gathers and reductions have streams
of their own but share a communicator, which runs one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import kernels
from tracelens.simulate.instructions import COMPUTE_STREAM
from tracelens.simulate.script import item_bytes
from tracelens.simulate.strategies.base import Setting, Strategy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tracelens.theory.transformer import Unit

_REDUCED_IN = "Float"
"""`reduce_dtype`, as torchtitan sets it."""


class FSDP(Strategy):
    """Parameters travel in their dtype, each padded to a multiple of N rows."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        group = setting.group("dp_cp")
        assert group is not None, "checked by the options: more than one data-parallel rank"
        self.group, self.size = group
        (units,) = setting.chunks
        self.layers = [unit for unit in units if unit.kind == "layer"]
        self.elements = {unit.name: self._padded(unit) for unit in self.layers}
        self.elements[""] = sum(self._padded(unit) for unit in units if unit.kind != "layer")
        self.owned = sum(self.elements.values()) // self.size
        self.dtype = setting.options.model.dtype
        self.gathered: dict[str, int] = {}
        self.copied: int | None = None
        self.reduced: int | None = None

    def _padded(self, unit: Unit) -> int:
        return sum(parameter.padded(self.size) for parameter in unit.parameters)

    def begin_step(self) -> None:
        """Gather nothing before the optimizer has written the parameters."""
        self.copied = self.script.record()

    # gathers -------------------------------------------------------------------------------------

    def before_forward(self, unit: Unit) -> None:
        """Gather a unit when the host reaches it: it runs ahead, so this hides behind the last."""
        if unit.kind == "embedding":
            with self.script.range("annotation", "FSDP::root_pre_forward"):
                pass
            with self.script.range("annotation", "FSDP::pre_forward"):
                self._gather("")
                self._use("")
        elif unit.kind == "layer":
            with self.script.range("annotation", f"FSDP::pre_forward ({unit.name})"):
                self._gather(unit.name)
                self._use(unit.name)

    def after_forward(self, unit: Unit) -> None:
        """Free a layer's parameters: nothing is launched for that."""
        if unit.kind == "layer":
            with self.script.range("annotation", f"FSDP::post_forward ({unit.name})"):
                self.gathered.pop(unit.name, None)

    def before_backward(self, unit: Unit) -> None:
        """Gather a layer unless the one before already did, and the next one ahead."""
        if unit.kind != "layer":
            return
        with self.script.range("annotation", f"FSDP::pre_backward ({unit.name})"):
            self._gather(unit.name)
            self._use(unit.name)
            place = next(i for i, layer in enumerate(self.layers) if layer.name == unit.name)
            if place > 0:
                following = self.layers[place - 1].name
                with self.script.range("annotation", f"FSDP::backward_prefetch for {following}"):
                    self._gather(following)

    def _gather(self, name: str) -> None:
        if name in self.gathered:
            return
        stream = self.script.stream_of("all-gather")
        with self.script.working_for("parameters"), self._range("all_gather", name):
            if self.copied is not None:
                self.script.wait_for(self.copied, stream)  # its buffer was the last one's
            self.gathered[name] = self.script.collective(
                "all_gather", self.group, self.size, self.elements[name], self.dtype,
                stream=stream, after=None,
            )  # fmt: skip

    def _use(self, name: str) -> None:
        """Copy the gathered parameters to where the unit's kernels look for them."""
        with self.script.working_for("parameters"), self._range("all_gather_copy_out", name):
            self.script.wait_for(self.gathered[name])
            moved = 2 * self.elements[name] * item_bytes(self.dtype)
            self.script.kernel(kernels.COPY_OUT, moved=moved)
            self.copied = self.script.record()

    # reductions ----------------------------------------------------------------------------------

    def after_backward(self, chunk: int, unit: Unit, *, last: bool) -> None:  # noqa: ARG002
        """Reduce-scatter a layer's gradients beside the next layer's backward; the root's last."""
        if unit.kind == "layer":
            self._reduce(unit.name)
        elif unit.kind == "embedding":
            self._reduce("")

    def _reduce(self, name: str) -> None:
        self.gathered.pop(name, None)
        stream = self.script.stream_of("reduce-scatter")
        with self.script.working_for("gradients"), self._range("post_backward_reduce", name):
            moved = self.elements[name] * (item_bytes(self.dtype) + item_bytes(_REDUCED_IN))
            self.script.wait(stream, COMPUTE_STREAM)
            self.script.kernel(kernels.COPY_IN, moved=moved, stream=stream)
            self.reduced = self.script.collective(
                "reduce_scatter", self.group, self.size, self.elements[name], _REDUCED_IN,
                stream=stream, after=None,
            )  # fmt: skip

    def end_backward(self, chunk: int, *, last: bool) -> None:  # noqa: ARG002
        """Wait for the last reduction before the next micro-batch or the optimizer."""
        with self.script.range("annotation", "FSDP::root_post_backward_callback"):
            if self.reduced is not None:
                self.script.wait_for(self.reduced)

    def reduce_norm(self) -> None:
        """Sum the norm over the shards."""
        self.script.blocking_collective("all_reduce", self.group, self.size, 1, "Float")

    def _range(self, what: str, name: str) -> AbstractContextManager[None]:
        suffix = f" ({name})" if name else ""
        return self.script.range("annotation", f"FSDP::{what}{suffix}")

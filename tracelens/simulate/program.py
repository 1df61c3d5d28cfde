"""Write the script of each rank: the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate import kernels
from tracelens.simulate.instructions import Post
from tracelens.simulate.machine import Chance
from tracelens.simulate.messages import plan
from tracelens.simulate.schedules import Action
from tracelens.simulate.script import AUTOGRAD, Script
from tracelens.simulate.strategies import strategy
from tracelens.simulate.strategies.base import Setting
from tracelens.simulate.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.simulate.layout import ProcessGroups
    from tracelens.simulate.messages import Batch
    from tracelens.simulate.options import Options
    from tracelens.theory.transformer import Unit

_TOKEN_BYTES = 8
_ADAM_BYTES = 28
"""Read and written for a parameter: fp32 master, two moments, the gradient, the bf16 copy."""
_PARAMETERS_A_KERNEL = 50_000_000
_LOADER_NS = 100_000


def scripts(options: Options, groups: ProcessGroups) -> list[Script]:
    """Return every rank's script of all steps, those around the recorded ones included."""
    return [_Rank(rank, options, groups).script() for rank in range(options.layout.world)]


def units_of(options: Options, stage: int) -> list[list[Unit]]:
    """Return the units of each chunk of a stage, with the parameters one of its ranks holds."""
    model, layout = options.model, options.layout
    whole = model.units(model.experts // layout.ep)
    embedding, layers, head = whole[0], whole[1:-1], whole[-1]
    parts = layout.pp * options.virtual_stages
    each = len(layers) // parts
    chunks = []
    for chunk in range(options.virtual_stages):
        part = chunk * layout.pp + stage
        units = layers[part * each : (part + 1) * each]
        units = ([embedding] if part == 0 else []) + units + ([head] if part == parts - 1 else [])
        chunks.append([_local(unit, options) for unit in units])
    if model.tied and layout.pp > 1 and stage == layout.pp - 1:
        chunks[-1][-1] = _with_copy(chunks[-1][-1], _local(embedding, options))
    return chunks


def _local(unit: Unit, options: Options) -> Unit:
    tp = options.layout.tp
    return unit._replace(parameters=tuple(p.on_one_of(tp) for p in unit.parameters))


def _with_copy(head: Unit, embedding: Unit) -> Unit:
    """Give the head of a tied model its own copy of the embedding's weight."""
    return head._replace(parameters=(*head.parameters, embedding.parameters[0]))


class _Rank:
    """Writes one rank's script."""

    def __init__(self, rank: int, options: Options, groups: ProcessGroups) -> None:
        self.options, self.groups = options, groups
        self.place = options.layout.place(rank)
        chance = Chance(options.machine, options.seed, f"rank {rank}")
        self.out = Script(rank, options.machine, chance, options.torch)
        self.chunks = units_of(options, self.place.pp)
        self.strategy = strategy(Setting(self.out, options, groups, self.chunks))
        self.compute = Transformer(self.out, options, groups)
        self.order = plan(
            options.schedule, self.place.pp, options.layout.pp, options.micro_batches,
            options.virtual_stages,
        )  # fmt: skip
        self.arrived: dict[Action, int] = {}

    def script(self) -> Script:
        """Write the steps; with `drop_edges` one more at either end, for the windows to cut."""
        around = 1 if self.options.drop_edges else 0
        first = self.options.first_step - around
        for number in range(first, first + self.options.steps + 2 * around):
            self._step(number)
        return self.out

    def _step(self, number: int) -> None:
        with self.out.range("step", f"ProfilerStep#{number}"):
            with self.out.range("annotation", "enumerate(DataLoader)#_SingleProcess.__next__"):
                self.out.spend(_LOADER_NS)
            self._zero_gradients()
            self.strategy.begin_step()
            for entry in self.order:
                if isinstance(entry, Action):
                    self._act(entry)
                else:
                    self._exchange(entry)
            self.strategy.finish_gradients()
            self._optimize()
            self._read_loss()

    def _zero_gradients(self) -> None:
        name = "Optimizer.zero_grad#Adam.zero_grad"
        with self.out.range("annotation", name), self.out.working_for("optimizer"):
            self.out.kernel(kernels.FILL, moved=4 * self.strategy.setting.parameters)

    # passes --------------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        part = {"F": "forward", "W": "weight"}.get(action.kind, "backward")
        with self.out.working_for(part, action.micro_batch, action.chunk):
            if action in self.arrived:
                self.out.wait_for(self.arrived.pop(action))
            if action.kind == "F":
                self._forward(action)
            else:
                with self.out.on_thread(AUTOGRAD):
                    self._backward(action)

    def _forward(self, action: Action) -> None:
        units = self.chunks[action.chunk]
        if units[0].kind == "embedding" or units[-1].kind == "head":
            with self.out.working_for("data"):
                tokens = self.options.model.batch * self.options.model.sequence
                self.out.copy(kernels.TO_DEVICE, tokens * _TOKEN_BYTES // self.options.layout.cp)
        with self.strategy.forward_pass(action.chunk):
            for unit in units:
                self.strategy.before_forward(unit)
                self.compute.forward(unit)
                self.strategy.after_forward(unit)

    def _backward(self, action: Action) -> None:
        last = action.micro_batch == self.options.micro_batches - 1
        parts = {"input_too": action.kind != "W", "weight_too": action.kind != "I"}
        for unit in reversed(self.chunks[action.chunk]):
            self.strategy.before_backward(unit)
            self.compute.backward(unit, **parts)
            if action.kind != "I":
                self.strategy.after_backward(action.chunk, unit, last=last)
        if action.kind != "I":
            self.strategy.end_backward(action.chunk, last=last)

    # messages ------------------------------------------------------------------------------------

    def _exchange(self, batch: Batch) -> None:
        group = self.groups.of("pp", self.out.rank)
        assert group is not None, "a pipeline has stages"
        stages = self.groups.ranks("pp", self.out.rank)
        posts = [
            Post(message.op, stages[message.peer], self._message_elements, message.label)
            for message in batch
        ]
        first = batch[0].action
        with self.out.working_for("pipeline", first.micro_batch, first.chunk):
            event = self.out.exchange(group, self.options.model.dtype, posts)
        self.arrived.update({message.action: event for message in batch if message.op == "recv"})

    @property
    def _message_elements(self) -> int:
        return self.compute.tensor.own_tokens * self.options.model.hidden

    # the end of a step ---------------------------------------------------------------------------

    def _optimize(self) -> None:
        with self.out.working_for("optimizer"):
            self.out.kernel(kernels.NORM_OF_GRADIENTS, moved=4 * self.strategy.owned)
            self.strategy.reduce_norm()
            with self.out.range("annotation", "Optimizer.step#Adam.step"):
                for size in _pieces(self.strategy.owned):
                    self.out.kernel(kernels.ADAM, moved=_ADAM_BYTES * size)
                self.strategy.after_optimizer()

    def _read_loss(self) -> None:
        """Copy the loss to the host, which waits for it: `loss.item()`."""
        with self.out.working_for("data"), self.out.range("operator", "aten::item"):
            self.out.copy(kernels.TO_HOST, 4)
            self.out.synchronize()


def _pieces(parameters: int) -> Sequence[int]:
    """Split the parameters over the optimizer's kernels."""
    count = max(-(-parameters // _PARAMETERS_A_KERNEL), 1)
    return [parameters // count] * count

"""Write a Kineto file of a wanted size, laid out byte for byte as torch writes it since 2.4.

The run is a made-up FSDP2 training: each layer is gathered ahead of its forward and its backward
pass and reduced behind it on stream 20, while stream 7 computes; the root unit stays gathered. The
same seed gives the same file. Ranks share the timeline, except that collectives begin at different
times and end together, as they do in life.

    python benchmarks/generate.py benchmarks/work/big.json --events 2000000 --steps 20 --ranks 0/8
"""

from __future__ import annotations

import argparse
import gzip
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from benchmarks import kineto_text
from benchmarks.catalogue import BACKWARD, FORWARD, KERNELS, NCCL_LAUNCH, OPTIMIZER, Kernel, Op

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYER_ELEMENTS = 12 * 4096 * 4096  # a transformer layer of hidden size 4096
ROOT_ELEMENTS = 50304 * 4096  # the embedding
BYTES_EACH = 2  # bf16 travels
_BYTES_PER_NS = 330  # bus bandwidth of NVLink 4, about

_FIRST_NS = 6_322_354_283_496_861
_PROCESS, _MAIN, _AUTOGRAD = 76, 76, 140
_COMPUTE, _COMM = 7, 20

_OPS_PER_KERNEL = 6
_COLLECTIVE_EVENTS = 11
_STEP_EVENTS = 14


@dataclass(frozen=True)
class Plan:
    """What to write; the properties are the totals a right reader finds."""

    events: int = 2_000_000
    steps: int = 20
    rank: int = 0
    world: int = 8
    seed: int = 1
    python: bool = False

    def of_rank(self, rank: int) -> Plan:
        """Return the same plan for another rank."""
        return replace(self, rank=rank)

    @property
    def layers(self) -> int:
        """Layers of the model: fewer for a small file."""
        return min(32, max(2, self.events // self.steps // 600))

    @property
    def kernels(self) -> int:
        """Compute kernels of a step."""
        ours = self.events // self.steps - self.collectives * _COLLECTIVE_EVENTS - _STEP_EVENTS
        return max(ours // (_OPS_PER_KERNEL + 4 + 2 * self.python), 1)

    @property
    def collectives(self) -> int:
        """Collectives of a step: three a layer, two of the root."""
        return 3 * self.layers + 2

    @property
    def message_bytes(self) -> int:
        """Bytes of a step's collectives, each counted by its full tensor."""
        return (3 * self.layers * LAYER_ELEMENTS + 2 * ROOT_ELEMENTS) * BYTES_EACH


class Unit(NamedTuple):
    """What FSDP gathers at once: a layer, or the root."""

    name: str
    elements: int


_ROOT = Unit("", ROOT_ELEMENTS)


class Collective(NamedTuple):
    """How one kind of collective appears in a trace."""

    op: str
    recorded: str
    annotation: str
    around: str
    kernel: str
    gathers: bool


_ALL_GATHER = Collective(
    "c10d::_allgather_base_",
    "_allgather_base",
    "nccl:_all_gather_base",
    "FSDP::all_gather",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    gathers=True,
)
_REDUCE_SCATTER = Collective(
    "c10d::_reduce_scatter_base_",
    "_reduce_scatter_base",
    "nccl:_reduce_scatter_base",
    "FSDP::post_backward_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    gathers=False,
)


def write(path: Path, plan: Plan) -> None:
    """Write the file; a name that ends in .gz is compressed."""
    with _open(path) as file:
        file.write(kineto_text.header(plan.rank, plan.world))
        separator = ""
        # Kineto writes what the host did first, then what CUPTI saw; so the run is simulated twice.
        for host in (True, False):
            for chunk in Simulation(plan, host=host).chunks():
                file.write(separator + ",\n".join(chunk))
                separator = ",\n"
        names = kineto_text.metadata(_PROCESS, plan.rank % kineto_text.DEVICES, _FIRST_NS)
        file.write(separator + separator.join(names) + kineto_text.footer(path.name))


def _open(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        return gzip.open(path, "wt", compresslevel=4, encoding="utf-8")
    return path.open("w", encoding="utf-8")


class Simulation:
    """One pass over the run, which emits either the host's side or CUPTI's."""

    def __init__(self, plan: Plan, *, host: bool) -> None:
        self.plan, self.host = plan, host
        self.device = plan.rank % kineto_text.DEVICES
        self.random = random.Random(plan.seed)
        self.late = random.Random(f"{plan.seed} of rank {plan.rank}")
        self.now = _FIRST_NS + 100_000
        self.compute_free = self.comm_free = self.now
        self.external = self.correlation = self.index = 0
        self.out: list[str] = []

    def chunks(self) -> Iterator[list[str]]:
        """Yield the events in pieces small enough to keep in memory."""
        for step in range(self.plan.steps):
            yield from self._step(step)

    def _step(self, step: int) -> Iterator[list[str]]:
        begin, device_begin = self.now, max(self.compute_free, self.now)
        self._load_batch()
        self.compute_free = self._collective(_ALL_GATHER, _MAIN, _ROOT, self.now)
        yield from self._pass(FORWARD, _MAIN, range(self.plan.layers), slots=1)
        yield from self._pass(BACKWARD, _AUTOGRAD, range(self.plan.layers)[::-1], slots=2)
        self._collective(_REDUCE_SCATTER, _AUTOGRAD, _ROOT, self.compute_free)
        self._optimize()
        self._synchronize()
        name = f"ProfilerStep#{step + 3}"
        self._range(name, begin, self.now)
        self._device_range(name, _COMPUTE, device_begin, self.compute_free)
        yield self._flush()

    def _flush(self) -> list[str]:
        chunk, self.out = self.out, []
        return chunk

    def _pass(
        self, ops: list[list[Op]], thread: int, layers: range, slots: int
    ) -> Iterator[list[str]]:
        """Compute layer by layer while the next layer's parameters are on their way."""
        ready = self._collective(_ALL_GATHER, thread, _layer(layers[0]), self.now)
        for place, layer in enumerate(layers):
            self.compute_free = max(self.compute_free, ready)
            if place + 1 < len(layers):
                following = _layer(layers[place + 1])
                ready = self._collective(_ALL_GATHER, thread, following, self.now)
            slot = layer if slots == 1 else self.plan.layers + 2 * layer
            for _ in range(self._kernels_of(slot, slots)):
                self._operator(ops, thread)
            if slots == 2:
                self._collective(_REDUCE_SCATTER, thread, _layer(layer), self.compute_free)
            yield self._flush()

    def _kernels_of(self, slot: int, slots: int) -> int:
        """Spread the step's kernels over 3 slots a layer and one for the optimizer."""
        share = 3 * self.plan.layers + 1
        return self.plan.kernels * (slot + slots) // share - self.plan.kernels * slot // share

    def _optimize(self) -> None:
        self.compute_free = max(self.compute_free, self.comm_free)  # needs every gradient
        begin, device_begin = self.now, self.compute_free
        for _ in range(self._kernels_of(3 * self.plan.layers, 1)):
            self._operator(OPTIMIZER, _MAIN)
        self._range("Optimizer.step#AdamW.step", begin, self.now)
        self._device_range("Optimizer.step#AdamW.step", _COMPUTE, device_begin, self.compute_free)

    # one operator and its kernel --------------------------------------------------------------

    def _operator(self, choices: list[list[Op]], thread: int) -> None:
        chance = self.random.random()
        ops = choices[int(chance * len(choices))]
        kernel = KERNELS[int(chance * len(KERNELS))]
        span = 7_000 + int(self.random.random() * 9_000)
        launch = self.now + span * 3 // 4
        start = max(self.compute_free, launch + 4_200)
        length = int(kernel.length * (0.7 + 0.6 * self.random.random()))
        if self.host:
            self._operators(ops, thread, span)
        else:
            external = self.external + len(ops)
            self._launch("cudaLaunchKernel", 211, thread, external, launch, span // 8)
            self._kernel(kernel, external, start, length)
        self.external += len(ops)
        self.correlation += 1
        self.compute_free = start + length + 1_100
        self.now += span + 900

    def _operators(self, ops: list[Op], thread: int, span: int) -> None:
        for place, op in enumerate(ops):
            start, length = self.now + int(op.start * span), int(op.length * span)
            self._cpu_op(op.name, thread, start, length, self.external + place + 1, op.args)
        if self.plan.python:
            self._python("model.py(212): forward", thread, self.now - 300, span + 600)
            self._python("nn.Module: Linear_3", thread, self.now - 200, span + 400)

    # collectives ------------------------------------------------------------------------------

    def _collective(self, kind: Collective, thread: int, unit: Unit, after: int) -> int:
        """Launch a collective that cannot start before an instant; return when it ends."""
        span = 60_000 + int(self.random.random() * 30_000)
        launch = self.now + span // 2
        start = max(self.comm_free, launch + 6_000, after)
        ring = unit.elements * BYTES_EACH * (self.plan.world - 1) // self.plan.world
        end = start + 30_000 + int(ring / _BYTES_PER_NS * (1 + 0.1 * self.random.random()))
        external = self.external + 2
        args = self._collective_args(kind, unit)
        if self.host:
            self._collective_ranges(kind, thread, unit, span, args)
        else:
            start += int(self.late.random() * 25_000)
            self._launch("cudaLaunchKernelExC", 430, thread, external, launch, 8_000)
            self._nccl(kind, external, start, end - start, args)
            self._device_range(kind.annotation, _COMM, start - 1, end + 1)
            self._call("cudaEventRecord", 135, thread, external, launch + 9_000, 800, 1)
            self._call("cudaStreamWaitEvent", 147, thread, external, launch + 10_500, 700, 2)
        self.external += 2
        self.correlation += 3
        self.comm_free = end
        self.now += span
        return end

    def _collective_ranges(
        self, kind: Collective, thread: int, unit: Unit, span: int, args: str
    ) -> None:
        begin, end, plain = self.now, self.now + span, '"Record function id": 0'
        self._range(f"{kind.around}{unit.name}", begin, end, thread)
        self._cpu_op(kind.op, thread, begin + 2_000, span - 4_000, self.external + 1, plain)
        recorded = f"{plain}, {args}"
        self._cpu_op(
            "record_param_comms", thread, begin + 5_000, span - 9_000, self.external + 2, recorded
        )
        self._range(kind.annotation, begin + 8_000, end - 8_000, thread)

    def _collective_args(self, kind: Collective, unit: Unit) -> str:
        shard = unit.elements // self.plan.world
        sizes = (shard, unit.elements) if kind.gathers else (unit.elements, shard)
        ranks = list(range(self.plan.world))
        return (
            f'"Collective name": "{kind.recorded}", "In msg nelems": {sizes[0]}, '
            f'"Out msg nelems": {sizes[1]}, "Group size": {self.plan.world}, "dtype": "BFloat16", '
            '"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
            f'"Process Group Description": "default_pg", "Process Group Ranks": "{ranks}"'
        )

    # copies and waiting -----------------------------------------------------------------------

    def _load_batch(self) -> None:
        """Copy a batch to the device and clear a buffer there."""
        copy = max(self.compute_free, self.now + 12_000)
        if self.host:
            args = FORWARD[0][0].args
            self._cpu_op("aten::copy_", _MAIN, self.now, 20_000, self.external + 1, args)
        else:
            self._launch("cudaMemcpyAsync", 41, _MAIN, self.external + 1, self.now + 4_000, 9_000)
            self._copy("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", copy, 41_000, 2_097_152)
            self.correlation += 1
            self._launch("cudaMemsetAsync", 51, _MAIN, self.external + 1, self.now + 15_000, 3_000)
            self._copy("gpu_memset", "Memset (Device)", copy + 42_000, 1_900, 4_194_304)
            self.correlation -= 1
        self.external += 1
        self.correlation += 2
        self.compute_free = copy + 45_000
        self.now += 22_000

    def _synchronize(self) -> None:
        end = max(self.now + 5_000, self.compute_free + 7_000)
        if not self.host:
            self._call("cudaDeviceSynchronize", 165, _MAIN, 0, self.now, end - self.now)
        self.correlation += 1
        self.now = end + 30_000

    # single events ----------------------------------------------------------------------------

    def _cpu_op(
        self, name: str, thread: int, start: int, length: int, external: int, args: str
    ) -> None:
        self.index += 1
        whole = f'"External id": {external},{args}, "Ev Idx": {self.index}'
        self._host_event("cpu_op", name, thread, start, length, whole)

    def _range(self, name: str, start: int, end: int, thread: int = _MAIN) -> None:
        if self.host:
            self.index += 1
            args = f'"External id": 0,"Record function id": 0, "Ev Idx": {self.index}'
            self._host_event("user_annotation", name, thread, start, end - start, args)

    def _python(self, name: str, thread: int, start: int, length: int) -> None:
        self.index += 1
        args = f'"Python parent id": 1, "Python id": {self.index}, "Ev Idx": {self.index}'
        self._host_event("python_function", name, thread, start, length, args)

    def _host_event(
        self, category: str, name: str, thread: int, start: int, length: int, args: str
    ) -> None:
        self.out.append(kineto_text.event(category, name, _PROCESS, thread, start, length, args))

    def _device_range(self, name: str, stream: int, start: int, end: int) -> None:
        if not self.host:
            category, args = "gpu_user_annotation", '"External id": 0'
            self.out.append(
                kineto_text.event(category, name, self.device, stream, start, end - start, args)
            )

    def _launch(
        self, name: str, number: int, thread: int, external: int, start: int, length: int
    ) -> None:
        """Write a launching call and the arrow that begins there."""
        self._call(name, number, thread, external, start, length)
        self.out.append(kineto_text.flow("s", self.correlation + 1, _PROCESS, thread, start))

    def _call(
        self,
        name: str,
        number: int,
        thread: int,
        external: int,
        start: int,
        length: int,
        further: int = 0,
    ) -> None:
        args = (
            f'"External id": {external},      "cbid": {number}, '
            f'"correlation": {self.correlation + further + 1}'
        )
        self._host_event("cuda_runtime", name, thread, start, length, args)

    def _kernel(self, kernel: Kernel, external: int, start: int, length: int) -> None:
        self._device_event("kernel", kernel.name, _COMPUTE, start, length, external, kernel.args)

    def _nccl(self, kind: Collective, external: int, start: int, length: int, args: str) -> None:
        shape = f"{NCCL_LAUNCH}, {args}"
        self._device_event("kernel", kind.kernel, _COMM, start, length, external, shape)

    def _copy(self, category: str, name: str, start: int, length: int, size: int) -> None:
        args = f'"bytes": {size}, "memory bandwidth (GB/s)": {size / length:.6f}'
        self._device_event(category, name, _COMPUTE, start, length, self.external + 1, args)

    def _device_event(
        self,
        category: str,
        name: str,
        stream: int,
        start: int,
        length: int,
        external: int,
        args: str,
    ) -> None:
        number = self.correlation + 1
        queued = '"queued": 0, ' if category == "kernel" else ""
        whole = (
            f'"External id": {external},      {queued}"device": {self.device}, "context": 1,'
            f'      "stream": {stream}, "correlation": {number},      {args}'
        )
        self.out.append(
            kineto_text.event(category, name, self.device, stream, start, length, whole)
        )
        self.out.append(kineto_text.flow("f", number, self.device, stream, start))


def _layer(number: int) -> Unit:
    return Unit(f" (layers.{number})", LAYER_ELEMENTS)


def _rank(text: str) -> tuple[int, int]:
    rank, _, world = text.partition("/")
    return int(rank), int(world)


def main() -> None:
    """Write the file the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=_rank, default=(0, 8), metavar="RANK/WORLD")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", action="store_true", help="add python_function events")
    asked = parser.parse_args()
    rank, world = asked.ranks
    plan = Plan(asked.events, asked.steps, rank, world, asked.seed, asked.python)
    write(asked.out, plan)
    size = asked.out.stat().st_size / 1e6
    print(
        f"{asked.out}: {size:,.1f} MB; a step has {plan.kernels:,} compute kernels and "
        f"{plan.collectives} collectives of {plan.message_bytes:,} B"
    )


if __name__ == "__main__":
    main()

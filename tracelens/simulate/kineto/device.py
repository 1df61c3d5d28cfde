"""The device side of a file: kernels and copies, their launches, ranges on streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.simulate.host_events import OPERATOR
from tracelens.simulate.kineto import arguments, text
from tracelens.simulate.nesting import innermost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.simulate.host_events import HostEvent, Links, Splits
    from tracelens.simulate.recording import DeviceEvent, Launch, RecordedRank, Recording

_CATEGORIES = {"kernel": "kernel", "copy": "gpu_memcpy", "memset": "gpu_memset"}
_CALLBACKS = {  # CUPTI's numbers of the calls
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cuLaunchKernel": 307,
    "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaEventQuery": 138,
    "cudaStreamWaitEvent": 147,
}
_LARGE = {"registers per thread": 168, "shared memory": 213148, "blocks per SM": 1.0,
          "warps per SM": 12.0, "grid": [132, 1, 1], "block": [384, 1, 1],
          "est. achieved occupancy %": 19}  # fmt: skip
_NCCL = {"registers per thread": 96, "shared memory": 103808, "blocks per SM": 0.181818,
         "warps per SM": 3.090909, "grid": [24, 1, 1], "block": [544, 1, 1],
         "est. achieved occupancy %": 0}  # fmt: skip
# Kineto widens a range on a stream: by 1 ns since it counts in ns, before that by these.
_WIDER = {"2.4": (1000, 500), "2.12": (1, 1)}


def texts(
    rank: RecordedRank,
    recording: Recording,
    host: list[HostEvent],
    links: Links,
    splits: Splits,
    torch: str,
) -> Iterator[str]:
    """Yield runtime calls and what they launched, by correlation, then the ranges on streams."""
    operators = _around(rank, host, operators=True)
    device = {event.correlation: event for event in rank.device_events}
    calls = {launch.correlation: launch for launch in rank.launches}
    for correlation in sorted(device.keys() | calls.keys()):
        call, event = calls.get(correlation), device.get(correlation)
        external = None if call is None else operators.get((call.thread, call.start))
        if event is not None:
            own = _arguments(event, rank, recording, splits, torch)
            yield _device_event(event, rank, external, own, torch)
            yield text.flow("f", correlation, rank.device, event.stream, event.start)
        if call is not None:
            yield _call(call, rank, external, torch)
            phase = "s" if event is not None or "Launch" in call.name else "f"
            thread = rank.thread_id(call.thread)
            yield text.flow(phase, correlation, rank.process, thread, call.start)
    yield from _on_streams(rank, host, links, torch)


def _around(
    rank: RecordedRank, host: list[HostEvent], *, operators: bool
) -> dict[tuple[int, int], int]:
    """Return the innermost operator, or the innermost annotation, around each launch."""
    spans = [event.span for event in host if (event.kind == OPERATOR) == operators]
    return innermost(spans, ((launch.thread, launch.start) for launch in rank.launches))


def _arguments(
    event: DeviceEvent, rank: RecordedRank, recording: Recording, splits: Splits, torch: str
) -> dict[str, object]:
    """Return collective arguments; a batch is launched outside its records and gets none."""
    carried = [rank.communications[index] for index in event.communications]
    if not carried or carried[0].batch is not None:
        return {}
    group = recording.groups[carried[0].group]
    received = splits.received(carried[0], rank.rank)
    return arguments.on_kernel(carried[0], group, torch, received)


def _device_event(
    event: DeviceEvent,
    rank: RecordedRank,
    external: int | None,
    collective: dict[str, object],
    torch: str,
) -> str:
    place = {"device": rank.device, "context": 1, "stream": event.stream}
    args: dict[str, object] = {} if external is None else {"External id": external}
    if event.kind == "kernel":
        args |= {"queued": 0} | place | {"correlation": event.correlation}
        args |= _NCCL if event.communications else _LARGE
    else:
        moved, took = event.copy_bytes or 0, event.end - event.start
        args |= place | {"correlation": event.correlation, "bytes": moved}
        args["memory bandwidth (GB/s)"] = moved / took if took else 0
    if torch != "2.4":
        args |= {"graph id": 0, "graph node id": 0}
    return text.complete(
        _CATEGORIES[event.kind], event.name, rank.device, event.stream,
        event.start, event.end, args | collective,
    )  # fmt: skip


def _call(call: Launch, rank: RecordedRank, external: int | None, torch: str) -> str:
    args: dict[str, object] = {"cbid": _CALLBACKS.get(call.name, 0)}
    args["correlation"] = call.correlation
    if external is None and torch == "2.4":
        external = call.correlation  # what that release writes for calls outside operators
    if external is not None:
        args = {"External id": external} | args
    driver = call.name.startswith("cu") and not call.name.startswith("cuda")
    category = "cuda_driver" if driver else "cuda_runtime"
    thread = rank.thread_id(call.thread)
    return text.complete(category, call.name, rank.process, thread, call.start, call.end, args)


def _on_streams(
    rank: RecordedRank, host: list[HostEvent], links: Links, torch: str
) -> Iterator[str]:
    """Yield each annotation once more on every stream where something was launched from it."""
    annotations = _around(rank, host, operators=False)
    names = {event.number: event.name for event in host}
    extents: dict[tuple[int, int], tuple[int, int]] = {}
    for event in rank.device_events:
        call = links.launches.get(event.correlation)
        external = None if call is None else annotations.get((call.thread, call.start))
        if external is not None:
            start, end = extents.get((external, event.stream), (event.start, event.end))
            extents[external, event.stream] = min(start, event.start), max(end, event.end)
    before, after = _WIDER[torch]
    for (external, stream), (start, end) in extents.items():
        yield text.complete(
            "gpu_user_annotation", names[external], rank.device, stream,
            start - before, end + after, {"External id": external},
        )  # fmt: skip

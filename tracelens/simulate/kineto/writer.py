"""Put the file of each rank together and write it."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from tracelens.simulate import clocks, host_events
from tracelens.simulate.host_events import OPERATOR, RECORD, HostEvent, Links, Splits
from tracelens.simulate.kineto import arguments, device, header, text
from tracelens.simulate.recording import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.simulate.recording import RecordedRank, Recording

SCHEMAS = ("2.4", "2.12")
_BEGIN = clocks.EPOCH_NS - text.BASE_NS
_DEVICE_ROWS = {"2.4": (8, 16777216), "2.12": (16, 5000000)}  # how many GPUs, and where they sort
_SPANS_ROW = 536870912


def write(
    recording: Recording, folder: Path, *, torch: str = "2.12", compress: bool = True
) -> list[Path]:
    """Write a run, one file a rank, named as `tensorboard_trace_handler` names them.

    Args:
        recording: The run in true time; each file shows its rank's own clock.
        folder: Where to write; made if it is missing.
        torch: The release whose schema to write, one of `SCHEMAS`.
        compress: Whether to gzip.

    Raises:
        ValueError: If the release is none of these.
    """
    if torch not in SCHEMAS:
        raise ValueError(f"no Kineto schema of torch {torch}: known are {', '.join(SCHEMAS)}")
    folder.mkdir(parents=True, exist_ok=True)
    splits = Splits(recording)
    shown = clocks.read(recording, _BEGIN)
    return [_write_rank(rank, shown, splits, folder, torch, compress) for rank in shown.ranks]


def _write_rank(
    rank: RecordedRank,
    recording: Recording,
    splits: Splits,
    folder: Path,
    torch: str,
    compress: bool,
) -> Path:
    _, last = _extent(rank)
    name = f"{rank.host}_{rank.process}.{last + text.BASE_NS}.pt.trace.json"
    before, after = header.around_events(rank, recording, name, torch)
    data = (before + ",\n".join(_events(rank, recording, splits, torch)) + after).encode()
    path = folder / (name + ".gz" * compress)
    path.write_bytes(gzip.compress(data, 6, mtime=0) if compress else data)
    return path


def _extent(rank: RecordedRank) -> tuple[int, int]:
    lists = (rank.launches, rank.device_events, rank.communications, rank.ranges)
    events = [event for events in lists for event in events]
    if not events:
        return _BEGIN, _BEGIN
    return min(event.start for event in events), max(event.end for event in events)


def _events(rank: RecordedRank, recording: Recording, splits: Splits, torch: str) -> Iterator[str]:
    """Yield the events in the release's order: names first since 2.12, else last."""
    first, last = _extent(rank)
    links = Links.of(rank)
    host = host_events.events(rank, recording.groups, links, batches_closed=torch != "2.4")
    names = list(_names(rank, host, first, torch))
    if torch != "2.4":
        yield from names
    for event in sorted(host, key=lambda event: (event.thread, event.number)):
        yield _host_event(event, rank, recording, splits, torch)
    yield from device.texts(rank, recording, host, links, splits, torch)
    if torch == "2.4":
        yield from names
    yield from _span(first, last)


def _host_event(
    event: HostEvent, rank: RecordedRank, recording: Recording, splits: Splits, torch: str
) -> str:
    args: dict[str, object] = {"External id": event.number, "Record function id": 0}
    if event.name == RECORD and event.communication is not None:
        one = rank.communications[event.communication]
        received = splits.received(one, rank.rank)
        group = recording.groups[one.group]
        args |= arguments.of_record(one, group, rank.rank, torch, received)
    args["Ev Idx"] = event.number - 1
    category = "cpu_op" if event.kind == OPERATOR else "user_annotation"
    thread = rank.thread_id(event.thread)
    return text.complete(category, event.name, rank.process, thread, event.start, event.end, args)


def _names(rank: RecordedRank, host: list[HostEvent], at: int, torch: str) -> Iterator[str]:
    """Yield names and places of processes, threads and streams."""
    devices, place = _DEVICE_ROWS[torch]
    yield from _process(rank.process, "CPU", rank.process, at)
    for number in range(devices):
        yield from _process(number, f"GPU {number}", place + number, at)
    for stream in sorted({event.stream for event in rank.device_events}):
        yield from _thread(rank.device, stream, f"stream {stream} ", at)
    threads = {event.thread for event in host} | {launch.thread for launch in rank.launches}
    for thread in sorted(threads):
        kind = "python" if thread == MAIN else f"pt_autograd_{thread - 1}"
        number = rank.thread_id(thread)
        yield from _thread(rank.process, number, f"thread {number} ({kind})", at)


def _process(number: int, label: str, place: int, at: int) -> Iterator[str]:
    yield text.metadata("process_name", number, 0, at, {"name": "python"})
    yield text.metadata("process_labels", number, 0, at, {"labels": label})
    yield text.metadata("process_sort_index", number, 0, at, {"sort_index": place})


def _thread(process: int, number: int, name: str, at: int) -> Iterator[str]:
    yield text.metadata("thread_name", process, number, at, {"name": name})
    yield text.metadata("thread_sort_index", process, number, at, {"sort_index": number})


def _span(first: int, last: int) -> Iterator[str]:
    """Yield the events that say when the profiler ran."""
    name = "PyTorch Profiler"
    yield text.complete("Trace", f"{name} (0)", "Spans", name, first, last, {"Op count": 0})
    yield text.metadata("process_sort_index", "Spans", 0, first, {"sort_index": _SPANS_ROW})
    yield text.instant(f"Iteration Start: {name}", "Traces", f"Trace {name}", first)
    yield text.instant("Record Window End", "", "", last)

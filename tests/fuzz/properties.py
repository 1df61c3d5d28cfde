"""What must hold of every input, however it was damaged."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import signal
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import raw_trace
from fuzz.mutators import Row

import tracelens
from tracelens.cli import main
from tracelens.errors import TraceLensError
from tracelens.model.document import schema
from tracelens.model.result import Analysis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fuzz.mutators import Case, Known

    from tracelens.model.result import Breakdown, DeviceResult, Partition, RankResult
    from tracelens.model.trace import RankTrace

LONGEST = 20
"""Seconds of CPU an input may take."""

_CRASH = re.compile(r"the parser \S+ failed|TraceLens itself failed|Traceback")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def check(case: Case, *, command: bool = False) -> None:
    """Analyse an input and hold every property; through the real command, reports too."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        for file, data in case.files.items():
            (folder / file).write_bytes(data)
        with _time_limit():
            analysis = _by_command(folder) if command else _by_function(folder)
            traces = [] if analysis is None or not case.known else tracelens.load(folder)
        if analysis is not None:
            check_result(analysis)
        elif any(known.kept for known in case.known.values()):
            raise AssertionError("events are left, and yet there is no result")
        for file, known in case.known.items():
            if analysis is None:
                continue
            mine = [trace for trace in traces if Path(trace.info.path).name == file]
            _check_known(known, file, mine, analysis)


# running -----------------------------------------------------------------------------------------


def _by_function(folder: Path) -> Analysis | None:
    try:
        return tracelens.analyze(folder)
    except TraceLensError as error:
        _check_refusal(error)
        return None


def _check_refusal(error: TraceLensError) -> None:
    assert "\n" not in error.message, error.message
    assert not _CRASH.search(error.message), error.message
    assert error.slug


def _by_command(folder: Path) -> Analysis | None:
    """Run `tracelens analyze` with a report of every kind; return the JSON it wrote."""
    out, err = io.StringIO(), io.StringIO()
    targets = [folder.parent / f"report.{suffix}" for suffix in ("html", "md", "json")]
    outputs = [part for target in targets for part in ("-o", str(target))]
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _raising():
        try:
            main(["analyze", str(folder), *outputs, "-v"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    said = err.getvalue()
    assert not _CRASH.search(said), said
    assert not _CONTROL.search(out.getvalue() + said), "control characters on the terminal"
    if code == 0:
        assert all(target.stat().st_size > 500 for target in targets)
        return Analysis.from_json(targets[-1].read_text())
    assert code == 1
    assert len(said.splitlines()) <= 3, said
    assert not any(target.exists() for target in targets)
    return None


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Let the command raise what it would call its own failure."""
    os.environ["TRACELENS_TRACEBACK"] = "1"
    try:
        yield
    finally:
        del os.environ["TRACELENS_TRACEBACK"]


class Hang(Exception):  # noqa: N818 - reads as what it is
    """An input takes too long."""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Raise where the work is after so much CPU time, which a busy machine does not change."""

    def stop(*_: object) -> None:
        raise Hang(f"more than {LONGEST} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# of every result ---------------------------------------------------------------------------------


def check_result(analysis: Analysis) -> None:
    """Hold what is true of every result: sums close, the document is sound, nothing crashed."""
    text = analysis.to_json()
    document = json.loads(text, parse_constant=_refuse)
    _validator().validate(document)
    assert Analysis.from_json(text) == analysis
    for said in (*analysis.notices, *analysis.source.files):
        message = getattr(said, "message", None) or getattr(said, "reason", None) or ""
        assert not _CRASH.search(message), message
        assert "\n" not in message, message
    for rank in analysis.ranks:
        for device in rank.devices:
            _check_device(device)
    _check_claims(analysis)


@functools.cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} in the document")


def _check_device(device: DeviceResult) -> None:
    means = [] if device.mean_step is None else [device.mean_step]
    for part in (device.total, *means, *(step.partition for step in device.steps)):
        _check_partition(part)
    if device.breakdown is not None:
        assert device.mean_step is not None
        _check_breakdown(device.breakdown, device.mean_step)
    assert device.untimed_events >= 0
    assert all(step.complete for step in device.steps if step.in_mean)


def _check_partition(part: Partition) -> None:
    """Hold the identity of docs/attribution.md, exactly."""
    parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_copy_ns, part.idle_ns)
    assert sum(parts) == part.window_ns, part
    assert part.busy_ns == part.window_ns - part.idle_ns, part
    assert part.comm_ns == part.overlapped_comm_ns + part.exposed_comm_ns, part
    assert sum(part.exposed_by_op_ns.values()) == part.exposed_comm_ns, part
    counts = (part.comm_ns, part.overlapped_comm_ns, part.copy_ns, part.kernels, part.copies)
    by_op = (*part.exposed_by_op_ns.values(), *part.comm_by_op_ns.values())
    assert min(*parts, *counts, *by_op, part.launches_without_record) >= 0, part


def _check_breakdown(found: Breakdown, mean: Partition) -> None:
    transfer = found.transfer_by_op_ns or {}
    unsplit = found.exposed_unsplit_by_op_ns
    idle = (found.idle_host_ns or 0, found.idle_dependency_ns or 0, found.idle_unknown_ns)
    parts = (
        found.compute_ns, found.exposed_copy_ns, found.wait_ns or 0, found.bubble_ns or 0, *idle,
        *transfer.values(), *unsplit.values(),
    )  # fmt: skip
    assert sum(parts) == found.window_ns == mean.window_ns, found
    assert min(parts) >= 0, found
    for by_op, by_dimension in (
        (transfer, found.transfer_by_dimension_ns),
        (unsplit, found.exposed_unsplit_by_dimension_ns),
    ):
        if by_dimension is not None:
            assert sum(by_dimension.values()) == sum(by_op.values()), found


def _check_claims(analysis: Analysis) -> None:
    """Hold that nothing damaged is called complete."""
    for file in analysis.source.files:
        if file.status == "partial":
            of_file = [rank for rank in analysis.ranks if file.path in rank.files]
            assert any(rank.partial for rank in of_file), f"{file.path} is partial, and no rank"
    partial = {rank.rank for rank in analysis.ranks if rank.partial}
    assert partial == set(analysis.run.ranks_partial)
    if len(analysis.run.ranks_partial) < len(analysis.run.ranks_present):
        assert not any(rank.in_means for rank in analysis.ranks if rank.partial)


# of known damage ---------------------------------------------------------------------------------


def _check_known(known: Known, file: str, traces: list[RankTrace], analysis: Analysis) -> None:
    found = _rows(traces)
    clipped = any(said.code == "clipped-durations" for said in analysis.notices)
    missing = _without_ends(known.kept) - _without_ends(found) if clipped else known.kept - found
    assert not missing, f"{file}: undamaged device events are gone: {missing}"
    ranks = [rank for rank in analysis.ranks if file in rank.files]
    if not clipped:
        lost = known.visible - (found - known.kept)
        _check_told(lost, file, traces, ranks, analysis)
    _check_device_time(traces, ranks)
    if known.lost > 0:
        _check_like_removed(known, file, ranks, analysis)


def _rows(traces: Iterable[RankTrace]) -> Counter[Row]:
    rows: Counter[Row] = Counter()
    for trace in traces:
        columns = trace.device_events[["device", "start", "end"]]
        rows.update(Row(*map(int, row)) for row in columns.itertuples(index=False))
    return rows


def _without_ends(rows: Counter[Row]) -> Counter[tuple[int, int]]:
    starts: Counter[tuple[int, int]] = Counter()
    for row, count in rows.items():
        starts[row.device, row.start] += count
    return starts


def _check_told(
    lost: Counter[Row],
    file: str,
    traces: list[RankTrace],
    ranks: list[RankResult],
    analysis: Analysis,
) -> None:
    """Hold that as many losses are told as there are, and that the rank is not called complete."""
    if not lost:
        return
    untimed = sum(sum(trace.info.untimed.values()) for trace in traces)
    told = untimed + sum(trace.info.damaged_device_events for trace in traces)
    told += sum(rank_lost(rank) for rank in ranks)
    cut = any(trace.info.truncated for trace in traces)
    assert cut or told >= lost.total(), f"{file}: {lost.total()} events lost, {told} told: {lost}"
    numbers = {rank.rank for rank in ranks}
    warnings = [said for said in analysis.notices if said.level == "warning"]
    assert any(said.file == file or said.rank in numbers for said in warnings)
    if untimed < lost.total():
        # Of several processes in a file, a launch without a record says which one lost it.
        assert any(rank.partial for rank in ranks), f"{file}: events lost, the rank is whole"


def rank_lost(rank: RankResult) -> int:
    """Return how many launches of a rank have no record."""
    return max((device.total.launches_without_record for device in rank.devices), default=0)


def _check_device_time(traces: list[RankTrace], ranks: list[RankResult]) -> None:
    """Hold that each device was busy for the union of its events, swept event by event."""
    spans: defaultdict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for number, trace in enumerate(traces):
        columns = trace.device_events[["process", "device", "start", "end"]]
        for process, device, start, end in columns.itertuples(index=False, name=None):
            spans[number, process, device].append((start, end))
    busy = sorted(device.total.busy_ns for rank in ranks for device in rank.devices)
    if spans and len(busy) == len(spans):
        assert busy == sorted(raw_trace.length(part) for part in spans.values())


def _check_like_removed(
    known: Known, file: str, ranks: list[RankResult], analysis: Analysis
) -> None:
    """Hold that events which are none any more change no time: like a file without them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_bytes(known.file)
        (other,) = tracelens.analyze(path).ranks
    (rank,) = ranks
    assert [_times(device) for device in rank.devices] == [_times(d) for d in other.devices]


def _times(device: DeviceResult) -> object:
    return device.device, device.total, [step.partition for step in device.steps]

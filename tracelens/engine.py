"""Read a run and reduce its ranks, one after the other or in parallel processes."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens import addresses, interrupts, limits
from tracelens.discovery import Candidate, discover
from tracelens.errors import ForeignTrace, InputError, PluginError, TraceLensError
from tracelens.model.result import SourceFile
from tracelens.notices import notice
from tracelens.reduction import Selection, reduce_rank
from tracelens.registry import parsers
from tracelens.strategy.inference import Given
from tracelens.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracelens.doctor.check import Lack
    from tracelens.model.result import Analysis, Notice
    from tracelens.model.trace import RankTrace
    from tracelens.reduced import RankReduction
    from tracelens.registry import Parser
    from tracelens.run import Run

_PARALLEL_FROM_BYTES = 8 << 20  # below, starting a process costs more than it saves
_PARALLEL_FROM_FILES = 200  # ... and so many take longer than that, however small they are
_MEMORY_SHARE = 0.6
_WORKER_BYTES = 400 << 20  # parsing 500 MB takes 200 (benchmarks/README.md); the rest is margin


@dataclass(frozen=True, slots=True)
class Options:
    """What shapes the numbers of an analysis.

    Attributes:
        selection: Steps to look at, and kernel rules.
        ranks: Ranks to look at, None for all.
        given: Facts the user supplied.
        workers: Processes. None decides by size, cores and memory, as the command line does; a
            script that asks for it needs the usual `if __name__ == "__main__":` guard, since
            worker processes import the main module again.
        shown: The options as the user wrote them, for the report.
        limits: What compressed files may inflate to.
    """

    selection: Selection = field(default_factory=Selection)
    ranks: frozenset[int] | None = None
    given: Given = field(default_factory=Given)
    workers: int | None = 1
    shown: dict[str, str] = field(default_factory=dict)
    limits: limits.Limits = field(default_factory=limits.Limits)


class Progress:
    """Told what happens; this one says nothing."""

    def start(self, files: int, size: int) -> None:
        """Reading begins: so many files of so many bytes in all."""

    def advance(self, size: int) -> None:
        """So many bytes more were read."""

    def finish(self) -> None:
        """Reading is over."""


@dataclass(slots=True)
class _Outcome:
    candidate: Candidate
    reductions: list[RankReduction] = field(default_factory=list)
    error: str | None = None
    foreign: bool = False
    device_events: int = 0


def analyze(
    paths: str | Path | Sequence[str | Path],
    options: Options | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse the traces of a run.

    Args:
        paths: A folder, a file, a glob, or several of them.
        options: What to look at and what is known already.
        progress: Told how reading goes.

    Returns:
        The result; every report renders it.

    Raises:
        InputError: If nothing there can be analysed.
    """
    from tracelens import communicators
    from tracelens.analysis import analyse
    from tracelens.model.result import Source
    from tracelens.run import assemble

    options = options or Options()
    listed = _as_list(paths)
    candidates, outcomes, reductions = _reduce(listed, options, progress or Progress())
    _check_steps(reductions, options)
    run = assemble(reductions, options.ranks)
    communicators.complete(run)
    source = Source(
        path=_names(listed),
        files=_source_files(candidates, outcomes, run),
        options=options.shown,
    )
    notices = [*_file_notices(candidates, outcomes), *_rank_notices(run)]
    return analyse(run, source, notices, options.given)


def examine(
    paths: str | Path | Sequence[str | Path],
    options: Options | None = None,
    progress: Progress | None = None,
) -> tuple[Run, list[Lack]]:
    """Read the traces of a run, and say what they lack for which section of the report.

    Args:
        paths: A folder, a file, a glob, or several of them.
        options: How to find steps and kernels.
        progress: Told how reading goes.

    Returns:
        The run, and what it lacks, most important first.

    Raises:
        InputError: If nothing there can be analysed.
    """
    from tracelens import communicators
    from tracelens.doctor.examination import examine as examine_run
    from tracelens.run import assemble

    options = options or Options()
    candidates, outcomes, reductions = _reduce(_as_list(paths), options, progress or Progress())
    run = assemble(reductions, options.ranks)
    communicators.complete(run)
    return run, examine_run(run, _file_notices(candidates, outcomes))


def load(paths: str | Path | Sequence[str | Path]) -> list[RankTrace]:
    """Parse the traces of a run into tables, without analysing them.

    Returns:
        One RankTrace per file (and rank in it), in order of rank; unreadable files are left out.

    Raises:
        InputError: If no file can be read.
    """
    listed = _as_list(paths)
    traces: list[RankTrace] = []
    errors: list[str] = []
    with Workspace() as workspace:
        for candidate in discover(listed, parsers(), workspace):
            if candidate.parser is None:
                continue
            try:
                traces += _parser(candidate.parser).parse(candidate.path)
            except TraceLensError as error:
                errors.append(error.message)
            except Exception as error:
                errors.append(f"{candidate.path}: {type(error).__name__}: {error}")
    if not traces:
        raise InputError("; ".join(errors) or f"{_names(listed)}: no trace file", slug="no-traces")
    return sorted(traces, key=lambda t: (t.info.rank is None, t.info.rank or 0, t.info.path))


def _as_list(paths: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, (str, Path)) else list(paths)


def _names(paths: Iterable[str | Path]) -> str:
    return " ".join(addresses.shown(path) for path in paths)


def _parser(name: str | None) -> Parser:
    for parser in parsers():
        if parser.name == name:
            return parser
    raise PluginError(f"the parser {name} is gone", slug="no-plugin")


# reading -----------------------------------------------------------------------------------------


def _reduce(
    paths: list[str | Path], options: Options, progress: Progress
) -> tuple[list[Candidate], list[_Outcome], list[RankReduction]]:
    """Read every trace there is; at least one.

    Raises:
        InputError: If nothing there can be analysed.
    """
    with Workspace() as workspace, limits.use(options.limits):
        candidates = discover(paths, parsers(), workspace)
        outcomes = _read(candidates, options, progress)
    reductions = _selected([r for o in outcomes for r in o.reductions], options.ranks)
    if not reductions:
        raise _nothing(paths, candidates, outcomes, options)
    return candidates, outcomes, reductions


def _read(candidates: list[Candidate], options: Options, progress: Progress) -> list[_Outcome]:
    traces = [c for c in candidates if c.parser is not None]
    progress.start(len(traces), sum(c.size for c in traces))
    workers = options.workers or _workers(traces)
    try:
        if workers < 2:
            outcomes = [_reduce_file(c, options.selection, progress.advance) for c in traces]
        else:
            outcomes = _read_parallel(traces, options, progress, workers)
    finally:
        progress.finish()
    return sorted(outcomes, key=lambda o: o.candidate.shown)


def _workers(traces: list[Candidate]) -> int:
    small = sum(c.size for c in traces) < _PARALLEL_FROM_BYTES
    if len(traces) < 2 or (small and len(traces) < _PARALLEL_FROM_FILES):
        return 1
    by_memory = int(_MEMORY_SHARE * _available_memory() / _WORKER_BYTES)
    return max(min(len(os.sched_getaffinity(0)), len(traces), by_memory), 1)


def _available_memory() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 4 << 30
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields.get("MemAvailable", "4194304 kB").split()[0]) << 10


def _read_parallel(
    traces: list[Candidate], options: Options, progress: Progress, workers: int
) -> list[_Outcome]:
    # Large files first, so that no core waits for the last one. A forked child of a threaded
    # parent (rich's progress bar) can deadlock, so workers are spawned.
    order = sorted(traces, key=lambda c: -c.size)
    outcomes: list[_Outcome] = []
    start = get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, start, interrupts.end_this_process) as pool:
            with interrupts.held():
                pending = {pool.submit(_reduce_in_worker, c, options): c for c in order}
            try:
                for future in as_completed(pending):
                    outcomes.append(future.result())
                    progress.advance(pending[future].size)
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool:
        # The system killed a worker, for memory as a rule: go on here, one file at a time.
        done = {outcome.candidate for outcome in outcomes}
        left = [c for c in order if c not in done]
        outcomes += [_reduce_file(c, options.selection, progress.advance) for c in left]
    return outcomes


def _reduce_in_worker(candidate: Candidate, options: Options) -> _Outcome:
    with limits.use(options.limits):
        return _reduce_file(candidate, options.selection)


def _reduce_file(
    candidate: Candidate, selection: Selection, on_bytes: Callable[[int], None] | None = None
) -> _Outcome:
    outcome = _Outcome(candidate)
    try:
        for trace in _parser(candidate.parser).parse(candidate.path, on_bytes=on_bytes):
            outcome.device_events += len(trace.device_events)
            said = tuple(replace(n, file=candidate.shown) for n in trace.info.notices)
            named = trace.with_info(path=candidate.shown, notices=said)
            if candidate.damage and not trace.info.truncated:
                named = _damaged(named, candidate.damage)
            outcome.reductions.append(reduce_rank(named, selection))
    except TraceLensError as error:
        outcome.error = error.message.removeprefix(f"{candidate.path}: ")
        outcome.foreign = isinstance(error, ForeignTrace)
    except Exception as error:  # a parser plugin may raise anything: the other ranks still count
        reason = f"{type(error).__name__}: {error}"
        outcome.error = f"the parser {candidate.parser} failed ({reason})"
    return outcome


def _damaged(trace: RankTrace, damage: str) -> RankTrace:
    """Say that any byte of a trace may be wrong, though it could be read to its end."""
    info = trace.info
    said = notice("damaged-member", file=info.path, rank=info.rank, reason=damage)
    lost = info.damaged_device_events + 1
    return trace.with_info(damaged_device_events=lost, notices=(*info.notices, said))


def _selected(reductions: list[RankReduction], ranks: frozenset[int] | None) -> list[RankReduction]:
    return [r for r in reductions if ranks is None or r.info.rank in ranks]


def _check_steps(reductions: list[RankReduction], options: Options) -> None:
    recorded = sorted({step for reduction in reductions for step in reduction.recorded_steps})
    if recorded and not any(options.selection.keeps(step) for step in recorded):
        from tracelens.run import ranges

        raise InputError(
            f"none of the selected steps is in the traces (found: {ranges(recorded)})",
            slug="no-such-step",
        )


# what became of each file ------------------------------------------------------------------------


def _source_files(
    candidates: list[Candidate], outcomes: list[_Outcome], run: Run
) -> list[SourceFile]:
    of_candidate = {outcome.candidate: outcome for outcome in outcomes}
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for rank in run.ranks:
        for number, cycle in enumerate(rank.cycles):
            held[cycle.info.path].append((rank.rank, number))
    return [_source_file(c, of_candidate.get(c), held.get(c.shown, [])) for c in candidates]


def _source_file(
    candidate: Candidate, outcome: _Outcome | None, held: list[tuple[int, int]]
) -> SourceFile:
    """Say what became of a file; `held` has (rank, profiler cycle within it) of all in it."""
    first = outcome.reductions[0] if outcome and outcome.reductions else None
    if outcome is None or first is None:
        reason = candidate.reason if outcome is None else outcome.error
        return SourceFile(
            candidate.shown,
            candidate.format,
            None,
            None,
            "skipped",
            reason,
            candidate.size,
            None,
            None,
        )
    infos = [reduction.info for reduction in outcome.reductions]
    partial = any(info.lacks_device_events for info in infos)
    return SourceFile(
        path=candidate.shown,
        format=candidate.format,
        rank=first.info.rank if len(outcome.reductions) == 1 else None,
        ranks=sorted({rank for rank, _ in held}),
        cycle=held[0][1] if held else None,
        status="partial" if partial else "complete",
        reason="it ends early" if any(info.truncated for info in infos) else None,
        bytes=candidate.size,
        events=sum(info.events for info in infos),
        device_events=outcome.device_events,
    )


def _rank_notices(run: Run) -> list[Notice]:
    """Return what parsers said of each rank; only now it is known which one it is."""
    return [
        replace(said, rank=rank.rank) if said.rank is None else said
        for rank in run.ranks
        for cycle in rank.cycles
        for said in cycle.notices
    ]


def _file_notices(candidates: list[Candidate], outcomes: list[_Outcome]) -> list[Notice]:
    skipped = Counter(c.reason for c in candidates if c.parser is None and not c.lost)
    found = []
    for reason, count in sorted(skipped.items(), key=lambda item: str(item[0])):
        names = [c.shown for c in candidates if c.reason == reason and not c.lost]
        text = f"{reason} ({', '.join(names[:5])}{', …' if count > 5 else ''})"
        found.append(notice("skipped-file", file=names[0], count=count, reason=text))
    lost = [c for c in candidates if c.lost and c.parser is None]
    found += [notice("unreadable-file", file=c.shown, reason=c.reason or "") for c in lost]
    for outcome in outcomes:
        shown = outcome.candidate.shown
        if outcome.error and outcome.foreign:
            found.append(notice("foreign-trace", file=shown, reason=outcome.error))
        elif outcome.error:
            found.append(notice("unreadable-file", file=shown, reason=outcome.error))
    return found


def _nothing(
    paths: list[str | Path],
    candidates: list[Candidate],
    outcomes: list[_Outcome],
    options: Options,
) -> InputError:
    """Say in one line why there is nothing to analyse."""
    where = _names(paths)
    if any(o.reductions for o in outcomes):
        present = sorted(
            {r.info.rank for o in outcomes for r in o.reductions if r.info.rank is not None}
        )
        asked = sorted(options.ranks or ())
        message = f"{where}: none of the ranks {asked} is there (found: {present})"
        return InputError(message, slug="no-such-rank")
    reasons = [f"{o.candidate.shown}: {o.error}" for o in outcomes if o.error]
    reasons += [f"{c.shown}: {c.reason}" for c in candidates if c.parser is None]
    if not candidates:
        hint = (
            "traces end in .json, .json.gz, .sqlite or .nsys-rep; how to record: docs/recording.md"
        )
        return InputError(f"{where}: no trace file in it", hint=hint, slug="no-traces")
    more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
    return InputError(
        f"{where}: nothing can be analysed: {'; '.join(reasons[:3])}{more}", slug="no-traces"
    )

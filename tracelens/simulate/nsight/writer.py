"""Put one export a node or a rank together and write it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.simulate import clocks, host_events
from tracelens.simulate.host_events import Links, Splits
from tracelens.simulate.nsight import about, device, metrics, ranges
from tracelens.simulate.nsight.calls import Calls, Communicators
from tracelens.simulate.nsight.payloads import Nccl
from tracelens.simulate.nsight.tables import PRODUCTS, Database

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.simulate.recording import RecordedRank, Recording

SCHEMAS = tuple(PRODUCTS)
_LEAD = 10**9  # ns a session lasts before the run begins: time to make communicators


@dataclass(frozen=True, slots=True)
class Options:
    """What a capture and its export contain.

    Attributes:
        schema: The schema of the export, one of `SCHEMAS`.
        nccl: The release of NCCL, which decides what its calls say.
        blobs: Whether the export includes binary payloads (`--include-blobs`).
        json: Whether it includes payloads as JSON (`--include-json`).
        torch: PyTorch's ranges: `emit_nvtx` (all of them), `names` (without operators) or `none`.
        mark: Whether the mark is there that says rank and groups.
        setup: Whether the capture began before the communicators were made.
        links: Whether the links of the GPUs were sampled.
    """

    schema: str = "3.25.0"
    nccl: str = "2.27"
    blobs: bool = True
    json: bool = False
    torch: str = "emit_nvtx"
    mark: bool = True
    setup: bool = True
    links: bool = False

    def __post_init__(self) -> None:
        if self.schema not in SCHEMAS:
            known = ", ".join(SCHEMAS)
            raise ValueError(f"no Nsight Systems schema {self.schema}: known are {known}")
        if self.torch not in ranges.STYLES:
            known = ", ".join(ranges.STYLES)
            raise ValueError(f"no ranges of the kind {self.torch}: known are {known}")


def write(
    recording: Recording, folder: Path, *, per_node: bool = True, options: Options | None = None
) -> list[Path]:
    """Write a run as SQLite exports.

    Args:
        recording: The run in true time; each process shows its own clock.
        folder: Where to write; made if it is missing.
        per_node: One file a host (nsys around torchrun), or one a rank (nsys around each process).
        options: What the exports contain.
    """
    folder.mkdir(parents=True, exist_ok=True)
    exports = _Exports(recording, options or Options(), per_node=per_node)
    return exports.write(folder)


class _Exports:
    """The exports of one run."""

    def __init__(self, recording: Recording, options: Options, *, per_node: bool) -> None:
        self._recording, self._options, self._per_node = recording, options, per_node
        self._splits = Splits(recording)
        self._communicators = Communicators(recording)
        self._carried = metrics.transfers(recording) if options.links else {}

    def write(self, folder: Path) -> list[Path]:
        paths = []
        for name, ranks in self._files():
            path = folder / f"{name}.sqlite"
            self._database(ranks).write(path)
            paths.append(path)
        return paths

    def _files(self) -> list[tuple[str, list[RecordedRank]]]:
        """Return the name and the ranks of each file: `-o run_%h`, or `-o run_%h_%q{RANK}`."""
        ranks = self._recording.ranks
        if not self._per_node:
            return [(f"run_{rank.host}_{rank.rank}", [rank]) for rank in ranks]
        hosts = dict.fromkeys(rank.host for rank in ranks)
        return [(f"run_{host}", [rank for rank in ranks if rank.host == host]) for host in hosts]

    def _database(self, ranks: list[RecordedRank]) -> Database:
        session = _session(ranks)
        shown = [clocks.of_rank(rank, clocks.EPOCH_NS - session) for rank in ranks]
        database = Database(self._options.schema)
        about.add(database, shown, self._recording, session)
        environment = [] if self._per_node else _environment(ranks[0], self._recording)
        about.add_capture(database, ranks[0].host, environment)
        about.add_export(
            database,
            self._recording,
            blobs=self._options.blobs,
            texts=self._options.json,
            wall=datetime.datetime.fromtimestamp(session // 10**9, datetime.UTC).isoformat(),
        )
        if self._options.links:
            metrics.add(database, ranks, self._carried, clocks.EPOCH_NS - session)
        for rank in shown:
            device.add(database, rank)
            self._add_ranges(database, rank)
        return database

    def _add_ranges(self, database: Database, rank: RecordedRank) -> None:
        options, links = self._options, Links.of(rank)
        host = host_events.events(rank, self._recording.groups, links)
        calls = Calls(rank, self._recording, host, links, self._splits, self._communicators).all()
        nccl = ranges.NcclRanges(
            database, rank, Nccl(options.nccl), blobs=options.blobs, texts=options.json
        )
        nccl.add_domain(0, {call.name for call in calls})
        if options.setup:
            nccl.add_setup(self._communicators.made_by(rank.rank), _LEAD // 10)
        if options.mark:
            ranges.add_description(database, rank, self._recording, _LEAD // 2)
        ranges.add_torch(database, rank, host, options.torch)
        nccl.add_calls(calls)


def _session(ranks: list[RecordedRank]) -> int:
    """Return when the session began: whole seconds, and before anything on any rank's clock."""
    first = min(clocks.reading(rank.clock, 0) for rank in ranks)
    return (clocks.EPOCH_NS + first) // 10**9 * 10**9 - _LEAD


def _environment(rank: RecordedRank, recording: Recording) -> list[tuple[str, str]]:
    world = max(len(group.ranks) for group in recording.groups)
    return [
        ("RANK", str(rank.rank)),
        ("LOCAL_RANK", str(rank.device)),
        ("WORLD_SIZE", str(world)),
        ("MASTER_PORT", "29500"),
    ]

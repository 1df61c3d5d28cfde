"""Read a CSV of one rank's kernels and steps, times in nanoseconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pandas as pd

from tracelens.errors import UnreadableTrace
from tracelens.model import trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TITLE = re.compile(rb"# kernels of rank (\d+) of (\d+)")


class CsvParser:
    """Reads files whose first line is like `# kernels of rank 0 of 2`."""

    name = "csv"
    formats = ("csv",)
    suffixes = (".csv",)

    def recognise(self, path: Path, head: bytes) -> str | None:
        """Claim a file by its first bytes, never by its name."""
        return "csv" if TITLE.match(head) else None

    def inspect(self, path: Path) -> trace.FileFacts:
        """Say what is known without reading the file whole."""
        with path.open("rb") as file:
            rank, world = (int(number) for number in TITLE.findall(file.readline())[0])
        return trace.FileFacts("csv", rank=rank, rank_source="first line", world_size=world)

    def parse(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> list[trace.RankTrace]:
        """Turn the lines into tables."""
        said = self.inspect(path)
        info = trace.RankInfo(str(path), "csv", said.rank, said.rank_source, said.world_size)
        try:
            lines = pd.read_csv(path, skiprows=1).sort_values("start", ignore_index=True)
            tables = _tables(lines)
        except (KeyError, ValueError) as error:
            raise UnreadableTrace(f"{path}: {error}", slug="unreadable-file") from error
        if on_bytes:
            on_bytes(path.stat().st_size)
        return [trace.RankTrace(info, **tables)]


def _tables(lines: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Columns left out are filled by `frame`; one GPU, so process, device and stream are 0."""
    lines = lines.assign(process=0, device=0, stream=0, source="args", dtype="float32")
    is_step = lines["kind"] == "step"
    events = lines[~is_step].reset_index(drop=True)
    sent = events[events["elements"] > 0]
    sent = sent.assign(event=sent.index, in_elems=sent["elements"], out_elems=sent["elements"])
    return {
        "device_events": _pick(trace.DEVICE_EVENTS, events),
        "communications": _pick(trace.COMMUNICATIONS, sent),
        "marks": _pick(trace.MARKS, lines[is_step]),
    }


def _pick(columns: dict[str, str], lines: pd.DataFrame) -> pd.DataFrame:
    return trace.frame(columns, {name: lines[name].array for name in columns if name in lines})

"""The plugin: recognise and inspect a Kineto file; parsing is loaded when it is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens.errors import ForeignTrace
from tracelens.gzip_head import HEAD
from tracelens.model.facts import FileFacts
from tracelens_kineto import evidence, header
from tracelens_kineto.header import rank_of
from tracelens_kineto.inflate import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelens.model.trace import RankTrace
    from tracelens_kineto.header import Header

_EVENTS = re.compile(rb'"traceEvents"\s*:|"ph"\s*:\s*"[A-Za-z(),]"')
_HEADER_KEYS = re.compile(rb'"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:')
_STEP = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_KERNEL = re.compile(rb'"cat"\s*:\s*"(?:kernel|Kernel|gpu_mem|Mem)')
_EVENT_START = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_OPENED = b'{"traceEvents":['
_TAIL = 1 << 20
_LONGEST_HEAD = 1 << 24  # process groups of ten thousand ranks are below


class KinetoParser:
    """Reads PyTorch profiler traces: `.json` or gzip, decided by content."""

    name = "kineto"
    formats: tuple[str, ...] = ("kineto",)
    suffixes: tuple[str, ...] = (".json", ".gz", ".trace")

    def recognise(self, path: Path, head: bytes) -> str | None:  # noqa: ARG002 - the Protocol's
        """Return "kineto" if the head looks like a list of trace events or their container."""
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not text.startswith((b"{", b"[")):
            return None
        if b'"nodes"' in text[:4096] and b'"traceEvents"' not in text:
            return None  # a PyTorch execution trace often lies beside
        if _EVENTS.search(text):
            return "kineto"
        # The events of a long header begin behind the head; a whole file without any has none.
        whole = len(head) < HEAD and text.rstrip().endswith((b"}", b"]"))
        return "kineto" if _HEADER_KEYS.search(text) and not whole else None

    def inspect(self, path: Path) -> FileFacts:
        """Read a file's facts with regular expressions over its bytes; no event is decoded.

        Raises:
            ForeignTrace: If another tool wrote it.
        """
        source = Source(path)
        steps: set[int] = set()
        kernels = 0
        head = tail = b""
        in_head, ours = True, False
        for piece in _between_braces(source.blocks()):
            if in_head:
                head += piece
                in_head = b'"traceEvents"' not in piece and len(head) < _LONGEST_HEAD
            steps.update(int(match) for match in _STEP.findall(piece))
            ours = ours or evidence.in_text(piece)
            kernels += len(_KERNEL.findall(piece))
            tail = (tail + piece)[-_TAIL:]
        if not ours and not evidence.in_root(head, tail, path) and _is_whole(head, tail):
            raise ForeignTrace(f"{path}: {evidence.FOREIGN}", slug="foreign-trace")
        facts = header.with_sidecar(_facts_from_edges(head, tail), path)
        rank, rank_source = rank_of(facts, path)
        return FileFacts(
            format="kineto",
            rank=rank,
            rank_source=rank_source,
            world_size=facts.world_size,
            host=facts.host,
            backend=facts.backend,
            steps=tuple(sorted(steps)),
            device_events=kernels,
            complete=source.cut is None and _is_whole(head, tail),
            note="; ".join(filter(None, (source.cut, header.others_said(facts, path)))) or None,
        )

    def parse(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> list[RankTrace]:
        """Read one file into a `RankTrace` for each process in it, mostly one.

        Raises:
            UnreadableTrace: If it holds no trace events.
            ForeignTrace: If another tool wrote them.
        """
        from tracelens_kineto.reading import read

        return read(path, on_bytes)


def _between_braces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Cut at opening braces, so that no key and its value are torn apart."""
    rest = b""
    for block in blocks:
        piece, brace, rest = (rest + block).rpartition(b"{")
        rest = brace + rest
        if len(rest) > _LONGEST_HEAD:  # no trace: no object is that long
            piece, rest = piece + rest, b""
        yield piece
    yield rest


def _is_whole(head: bytes, tail: bytes) -> bool:
    """Tell whether the end of the text closes the array of events and its root.

    The tail is read like a trace of its own from the first event in it: a brace or bracket at the
    end may belong to an event.
    """
    from tracelens_kineto.scanner import Scan

    if len(tail) == _TAIL:
        start = _EVENT_START.search(tail)
        if start is None:  # metadata alone is longer
            return tail.rstrip().endswith((b"}", b"]"))
        opened = b"[" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") else _OPENED
        tail = opened + tail[start.end() :]
    scan = Scan(iter([tail]))
    for _ in scan.batches():
        pass
    return scan.closed and scan.whole and not scan.damage.cut


def _facts_from_edges(head: bytes, tail: bytes) -> Header:
    before, _, _ = head.partition(b'"traceEvents"')
    footer = tail[tail.rfind(b"]", 0, max(tail.find(b'"distributedInfo"'), 0)) + 1 :]
    return header.read(before, footer)

"""Tell a profiler's trace of a run from one that another tool wrote in the same format.

Browsers, Perfetto, TensorFlow, JAX and tracers of Python write lists of trace events too. Such a
file must not take the place of a rank that is missing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens import sidecar
from tracelens_kineto.categories import BUCKETS, IGNORED, UNREAD_WORK
from tracelens_kineto.header import OF_PROFILER

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_kineto.collector import Collector

FOREIGN = (
    "a trace of another tool: no event in it is of a kind that a PyTorch profiler writes, and "
    "nothing in it says that it is of a run"
)
SOME = "{count} of the {of} traces in it: " + FOREIGN
CUT = "it ends early, and no event before that is of a kind that a PyTorch profiler writes"
# Words that any tool may use for its own.
_COMMON = {"async", "enqueue", "dequeue"}
_OWN = (BUCKETS.keys() | IGNORED | UNREAD_WORK) - _COMMON
_ROOT = re.compile(rf'"(?:{"|".join(OF_PROFILER)})"\s*:'.encode())
_EVENT = re.compile(
    rb'"cat"\s*:\s*"(?:'
    + b"|".join(re.escape(name).encode() for name in sorted(_OWN))
    + rb')"|"(?:stream|device)"\s*:\s*"?-?\d|"labels"\s*:\s*"(?:CPU|[A-Z]{2,5}[ :]\d+)"'
    + rb'|"pid"\s*:\s*"(?:CPU|CUDA) functions"'
)


def in_root(header: bytes, footer: bytes, path: Path) -> bool:
    """Tell whether what stands around the events, or beside the file, is of a run."""
    return bool(_ROOT.search(header) or _ROOT.search(footer)) or sidecar.read(path).rank is not None


def in_events(collector: Collector) -> bool:
    """Tell whether events are of a kind that is known, or show that a device worked."""
    return bool(collector.categories & _OWN) or collector.unknown.tell_a_profiler()


def in_text(text: bytes) -> bool:
    """Tell whether the text of events looks like one of those, without decoding any."""
    return _EVENT.search(text) is not None

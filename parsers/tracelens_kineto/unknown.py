"""Count events of categories nothing is known about, and tell which of them are a device's work.

What shows it: arguments that name a device or a stream, or the label the trace gives to the
event's process. Kineto labels processes "CPU" and "GPU 0"; torch_npu's trace_view.json "CPU" and
"NPU 0", and gives the rows of the device no category at all.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelens_kineto.categories import UNREAD_WORK
from tracelens_kineto.events import KERNEL_ARGS, LABEL_ARGS
from tracelens_kineto.processes import Process, normal
from tracelens_kineto.recorded import decode

if TYPE_CHECKING:
    from collections.abc import Iterable

# Kineto labels every process it names, a device's with its number.
_LABEL = re.compile(r"CPU$|[A-Z]{2,5}[ :]\d+$")
# torch.autograd's profiler before Kineto wrote no categories, and these for process ids.
_BEFORE_KINETO = ("CPU functions", "CUDA functions")
_DEVICE = re.compile(r"(?!CPU\b)[A-Z]{2,5}(?:[ :]\d+)?$")


@dataclass
class UnknownEvents:
    """Events by category and process; what their processes are called may follow them."""

    _count: Counter[tuple[str, Process]] = field(default_factory=Counter)
    _named: Counter[tuple[str, Process]] = field(default_factory=Counter)
    _labels: dict[Process, set[str]] = field(default_factory=dict)
    _names: dict[Process, str] = field(default_factory=dict)

    def describe(self, metadata: Iterable[Any]) -> None:
        """Remember what events of phase M call processes."""
        for event in metadata:
            if event.name in ("process_labels", "process_name"):
                said, process = decode(LABEL_ARGS, event.args), normal(event.pid)
                if event.name == "process_labels" and said.labels:
                    self._labels.setdefault(process, set()).add(said.labels)
                elif said.name:
                    self._names[process] = said.name

    def add(self, category: str, events: Iterable[Any]) -> None:
        """Count events of one category."""
        for event in events:
            key = category, normal(event.pid)
            args = decode(KERNEL_ARGS, event.args)
            self._count[key] += 1
            self._named[key] += args.stream is not None or args.device is not None

    def tell_a_profiler(self) -> bool:
        """Tell whether events or labels are such as only a profiler's are."""
        labels = (label for labels in self._labels.values() for label in labels)
        old = any(process in _BEFORE_KINETO for _, process in self._count)
        return old or any(map(_LABEL.match, labels)) or bool(self.of_devices())

    def of_devices(self) -> Counter[str]:
        """Count those that are work of a device, by category or what their process is called."""
        return self._by_name({key: self._work(*key) for key in self._count})

    def others(self) -> Counter[str]:
        """Count the rest in the same way."""
        return self._by_name({key: self._count[key] - self._work(*key) for key in self._count})

    def _by_name(self, counts: dict[tuple[str, Process], int]) -> Counter[str]:
        found: Counter[str] = Counter()
        for (category, process), count in counts.items():
            found[category or self._names.get(process) or "none"] += count
        return +found

    def _work(self, category: str, process: Process) -> int:
        # In a container the program's own process can have the number of a device: two labels.
        labels = self._labels.get(process, set())
        all_of_it = category in UNREAD_WORK or (labels and all(map(_DEVICE.match, labels)))
        return (self._count if all_of_it else self._named)[category, process]

"""What to change, most costly first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.devices import device_steps
from tracelens.reporting.mean import mean_step
from tracelens.reporting.numbers import UNKNOWN, count, ms, number, percent, share, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.result import Analysis, Finding, Status

_SECTIONS = {
    "ranks": "step",
    "step": "step",
    "steps": "stability",
    "stability": "stability",
    "lateness": "stability",
    "stragglers": "stability",
    "collectives": "collectives",
    "groups": "collectives",
    "volumes": "volume",
    "volume": "volume",
    "parallelism": "volume",
    "pipeline": "pipeline",
    "layout": "layout",
    "topology": "layout",
    "kernels": "kernels",
    "contention": "kernels",
    "notices": "trust",
    "trust": "trust",
}
_LOOKS: dict[str, Status] = {"high": "fail", "medium": "warn", "low": "unknown"}


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding as a reader sees it; `sections` are the ids of sections that hold its evidence."""

    title: str
    severity: str
    status: Status
    saving: str | None
    evidence: list[tuple[str, str]]
    advice: str
    sections: list[str]


def finding_views(analysis: Analysis) -> list[FindingView]:
    """Return the findings in the order of the analysis, which is by time to gain."""
    mean = mean_step(device_steps(analysis))
    window = None if mean is None else mean.window_ns
    found = analysis.findings
    return [_view(one, window, _shared(one, found[:place])) for place, one in enumerate(found)]


def _shared(finding: Finding, before: list[Finding]) -> list[int]:
    """Return the numbers of earlier findings whose gain is of the same calls."""
    calls = _calls(finding)
    return [number for number, other in enumerate(before, 1) if calls & _calls(other)]


def _calls(finding: Finding) -> set[str]:
    """Return the calls whose exposed time a finding promises: links into the table of them."""
    if finding.saving_ns_per_step is None:
        return set()
    return {link for link in finding.links if link.startswith("collectives/")}


def _view(finding: Finding, window: float | None, shared: list[int]) -> FindingView:
    return FindingView(
        title=finding.title,
        severity=finding.severity,
        status=_LOOKS[finding.severity],
        saving=_saving(finding.saving_ns_per_step, window, shared),
        evidence=[evidence(name, value) for name, value in finding.evidence.items()],
        advice=words.sentence(finding.advice),
        sections=_sections(finding.links),
    )


def _saving(time: int | None, window: float | None, shared: list[int]) -> str | None:
    """Write the gain, and which findings above it are of the same time: that is gained once."""
    if time is None:
        return None
    of = f" ({share(time, window)})" if window else ""
    which = "finding" if len(shared) == 1 else "findings"
    again = f", of the same time as {which} {', '.join(map(str, shared))}" if shared else ""
    return f"up to {ms(time)} ms per step{of}{again}"


def _sections(links: list[str]) -> list[str]:
    found = [_SECTIONS.get(link.partition("/")[0]) for link in links]
    return list(dict.fromkeys(section for section in found if section is not None))


def evidence(name: str, value: float | str | None) -> tuple[str, str]:
    """Write one piece of evidence; the ending of its name says the unit."""
    if value is None:
        return _label(name), UNKNOWN
    if isinstance(value, str):
        return _label(name), value
    for ending, write in _WRITERS.items():
        if name.endswith(ending):
            return _label(name.removesuffix(ending)), write(value)
    return _label(name), count(value) if isinstance(value, int) else number(value)


def _label(name: str) -> str:
    return name.replace("_", " ")


_WRITERS: dict[str, Callable[[float], str]] = {
    "_ns_per_step": lambda value: f"{ms(value)} ms per step",
    "_ns": lambda value: f"{ms(value)} ms",
    "_bytes_per_step": lambda value: f"{size(value)} per step",
    "_bytes": size,
    "_pct": percent,
    "_gbps": lambda value: f"{number(value)} GB/s",
    "_us": lambda value: f"{number(value)} µs",
    "_ms": lambda value: f"{number(value)} ms",
}

"""The whole report before anybody chose a format: header, verdict, tiles, findings, sections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.collectives import collectives_section
from tracelens.reporting.dimensions import by_dimension
from tracelens.reporting.findings import FindingView, finding_views
from tracelens.reporting.kernels import kernels_section
from tracelens.reporting.layout import layout_section, summary_line
from tracelens.reporting.numbers import metric_value, ranges
from tracelens.reporting.pipeline import pipeline_section
from tracelens.reporting.stability import stability_section
from tracelens.reporting.step import step_section
from tracelens.reporting.trust import command, tally, trust_section
from tracelens.reporting.volumes import volumes_section

if TYPE_CHECKING:
    from tracelens.model.result import Analysis, Metric, RunFacts, Status
    from tracelens.reporting.content import Section


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline number as it is shown."""

    name: str
    label: str
    value: str
    status: Status
    symbol: str
    budget: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Document:
    """Everything a report shows, as words and numbers.

    `lines` say in a summary what sections say in tables: where exposed time goes, the layout.
    """

    name: str
    facts: list[str]
    status: Status
    symbol: str
    word: str
    headline: str
    verdict: str
    tiles: list[Tile]
    findings: list[FindingView]
    sections: list[Section]
    lines: list[str]
    command: str
    provenance: str


def document(analysis: Analysis) -> Document:
    """Lay an analysis out; every format renders the result."""
    status = analysis.summary.status
    return Document(
        name=run_name(analysis),
        facts=run_facts(analysis),
        status=status,
        symbol=words.SYMBOLS[status],
        word=words.WORDS[status],
        headline=headline(analysis),
        verdict=analysis.summary.verdict,
        tiles=[_tile(metric) for metric in analysis.summary.metrics],
        findings=finding_views(analysis),
        sections=sections(analysis),
        lines=[line for line in (by_dimension(analysis), summary_line(analysis)) if line],
        command=command(analysis),
        provenance=provenance(analysis),
    )


def sections(analysis: Analysis) -> list[Section]:
    """Return the sections in reading order."""
    return [
        step_section(analysis),
        collectives_section(analysis),
        volumes_section(analysis),
        pipeline_section(analysis),
        layout_section(analysis),
        stability_section(analysis),
        kernels_section(analysis),
        trust_section(analysis),
    ]


def _tile(metric: Metric) -> Tile:
    return Tile(
        name=metric.name,
        label=metric.label,
        value=metric_value(metric),
        status=metric.status,
        symbol=words.SYMBOLS[metric.status],
        budget=metric.budget,
        detail=metric.detail,
    )


def headline(analysis: Analysis) -> str:
    """Say how many budgets were missed, or how the run looks where none was set."""
    judged = [metric for metric in analysis.summary.metrics if metric.budget is not None]
    if not judged and analysis.summary.status == "ok" and analysis.findings:
        return f"headline numbers are fine, with {words.plural(len(analysis.findings), 'finding')}"
    if not judged:
        return words.HEADLINES[analysis.summary.status]
    of = words.plural(len(judged), "budget")
    for status, outcome in _OUTCOMES.items():
        number = sum(metric.status == status for metric in judged)
        if number:
            return f"{number} of {of} {outcome}"
    return f"{of} met"


_OUTCOMES: dict[Status, str] = {
    "fail": "missed",
    "warn": "missed, as a warning",
    "unknown": "could not be judged",
}


def run_name(analysis: Analysis) -> str:
    """Name the run after the folder or file it was read from."""
    return PurePath(analysis.source.path).name or analysis.source.path or "unnamed run"


def run_facts(analysis: Analysis) -> list[str]:
    """Say in a few words which run this is."""
    parallel = analysis.parallelism
    facts = [
        words.strategy(parallel.strategy) if parallel.strategy else None,
        words.framework(parallel.framework) if parallel.framework else None,
        words.dims(parallel.dims),
        _machines(analysis.run),
        _steps(analysis.run),
        (analysis.run.started or "")[:10],
    ]
    return [fact for fact in facts if fact]


def _machines(run: RunFacts) -> str:
    world = run.world_size or len(run.ranks_present)
    kinds = sorted(set(run.devices))
    if len(kinds) == 1 and len(run.devices) in {1, len(run.ranks_present)}:
        return f"{world:,} × {kinds[0]}"
    return tally(run.devices) or words.plural(world, "rank")


def _steps(run: RunFacts) -> str | None:
    if not run.steps:
        return None
    return f"{'step' if len(run.steps) == 1 else 'steps'} {ranges(run.steps, most=4)}"


def provenance(analysis: Analysis) -> str:
    """Say in one line what the numbers stand on and what made them."""
    run = analysis.run
    ranks = words.ranks_read(len(run.ranks_present), run.world_size)
    steps = f"{run.steps_complete} of {words.plural(len(run.steps), 'step')} complete"
    return " · ".join([ranks, steps, f"{analysis.tool.name} {analysis.tool.version}"])

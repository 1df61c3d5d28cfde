"""What each section says, before any format: tested as data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import analysis_builder
import pytest

from tracelens.model.result import Analysis, Metric, RankResult, Status, Summary
from tracelens.reporting.collectives import collective_rows, collectives_section
from tracelens.reporting.content import Bars, Bullets, Lines, Section, Table
from tracelens.reporting.devices import device_steps, known_classes, median_device, shown
from tracelens.reporting.dimensions import by_dimension
from tracelens.reporting.document import document, headline, sections
from tracelens.reporting.findings import evidence, finding_views
from tracelens.reporting.kernels import kernels_section
from tracelens.reporting.numbers import ms
from tracelens.reporting.pipeline import pipeline_section
from tracelens.reporting.stability import stability_section, straggler_table
from tracelens.reporting.step import step_section
from tracelens.reporting.trust import (
    CPU_CAVEAT,
    clock_table,
    command,
    match_table,
    trust_section,
)
from tracelens.reporting.volumes import volumes_section

if TYPE_CHECKING:
    from collections.abc import Callable

BUILDERS: dict[str, Callable[[], Analysis]] = {
    "fsdp2": analysis_builder.fsdp2,
    "large": analysis_builder.large,
    "one_rank": analysis_builder.one_rank,
    "nothing": analysis_builder.nothing,
    "without_steps": analysis_builder.without_steps,
    "cpu": analysis_builder.cpu,
    "hostile": analysis_builder.hostile,
}


@pytest.fixture(params=list(BUILDERS), ids=list(BUILDERS))
def analysis(request: pytest.FixtureRequest) -> Analysis:
    builder: Callable[[], Analysis] = BUILDERS[request.param]
    return builder()


def test_every_section_answers_or_says_why_not(analysis: Analysis) -> None:
    for section in sections(analysis):
        assert section.title.endswith("?")
        assert section.lead
        assert bool(section.blocks) != bool(section.empty), section.id


def test_every_row_has_a_cell_a_column(analysis: Analysis) -> None:
    for section in sections(analysis):
        for block in section.blocks:
            table = block.table
            assert all(len(row) == len(table.columns) for row in table.rows), table.caption
            assert table.total is None or len(table.total) == len(table.columns)


def test_every_figure_has_a_finding_and_data(analysis: Analysis) -> None:
    figures = [b.figure for s in sections(analysis) for b in s.blocks if b.figure is not None]

    for figure in figures:
        assert len(figure.finding.split()) > 4
        if isinstance(figure.chart, Bars | Lines):
            assert figure.chart.series
        if isinstance(figure.chart, Bullets):
            assert figure.chart.labels


def test_parts_of_every_mean_step_add_up(analysis: Analysis) -> None:
    for step in device_steps(analysis):
        assert sum(step.parts.values()) == step.window_ns


def test_bubble_is_no_class_where_it_is_not_known() -> None:
    assert "bubble" not in known_classes(device_steps(analysis_builder.fsdp2()))
    assert "bubble" in known_classes(device_steps(analysis_builder.large()))


def test_the_total_row_is_the_step() -> None:
    table = step_section(analysis_builder.fsdp2()).blocks[-1].table

    assert table.total is not None
    assert table.total[1].sort == sum(row[1].sort or 0 for row in table.rows if not row[0].part)


def test_very_many_ranks_show_the_median_and_the_outliers() -> None:
    analysis = analysis_builder.large(1024)
    steps = device_steps(analysis)
    section = step_section(analysis)
    bars = _chart(section)

    assert len(bars.labels) == len(shown(steps)) == 25
    assert bars.labels[0].endswith("(median)")
    assert "rank 768" in bars.labels  # the builder's slow rank
    assert len(section.blocks[0].table.rows) == 1024
    assert any("out of 1,024" in note for note in section.notes)


def _chart(section: Section) -> Bars:
    figure = section.blocks[0].figure
    assert figure is not None
    assert isinstance(figure.chart, Bars)
    return figure.chart


def test_without_a_mean_step_the_whole_recording_is_shown_as_such() -> None:
    section = step_section(analysis_builder.without_steps())

    assert "No complete step" in section.lead
    assert section.blocks[0].figure is None
    assert "no step" in section.blocks[0].table.caption


def test_ranks_that_do_not_count_are_left_out_and_named() -> None:
    base = analysis_builder.fsdp2()
    partial = dataclasses.replace(base.ranks[0], partial=True, in_means=False)
    section = step_section(dataclasses.replace(base, ranks=[partial, *base.ranks[1:]]))

    assert [row[0].text for row in section.blocks[0].table.rows] == ["rank 1", "rank 2", "rank 3"]
    assert "Left out: 1 set of files" in section.notes[1]
    alone = step_section(dataclasses.replace(base, ranks=[partial]))
    assert alone.blocks[0].table.caption == "Mean step"


def test_two_devices_of_a_rank_stay_apart() -> None:
    base = analysis_builder.fsdp2()
    first = base.ranks[0]
    second = dataclasses.replace(first.devices[0], device=1)
    both = dataclasses.replace(first, devices=[first.devices[0], second])
    analysis = dataclasses.replace(base, ranks=[both])

    assert [s.label for s in device_steps(analysis)] == ["rank 0, device 0", "rank 0, device 1"]


def test_groups_of_one_role_are_merged_and_weighted_by_ranks() -> None:
    rows = collective_rows(analysis_builder.large())
    labels = [(row.label, row.groups) for row in rows]

    assert ("all-gather · dp (8 ranks)", 8) in labels
    assert ("all-reduce · tp (2 ranks)", 32) in labels
    exposed = [row.exposed_ns or 0 for row in rows]
    assert exposed == sorted(exposed, reverse=True)


def test_groups_of_unknown_role_stay_apart() -> None:
    analysis = analysis_builder.hostile()

    assert len(collective_rows(analysis)) == len(analysis.collectives)


def test_unknown_bytes_are_unknown_and_counted() -> None:
    section = collectives_section(analysis_builder.one_rank())
    row = section.blocks[0].table.rows[0]

    columns = [column.title for column in section.blocks[0].table.columns]
    cells = dict(zip(columns, (cell.text for cell in row), strict=True))
    assert cells["Message B"] == cells["Wire B"] == "unknown"
    assert cells["Bytes known"] == "0 %"
    assert "Bus GB/s" not in cells  # not one is known
    assert "0 of 256 calls" in section.notes[0]


def test_volumes_say_verdict_multiple_and_coverage() -> None:
    section = volumes_section(analysis_builder.fsdp2())

    assert section.lead.startswith("✓ Explained: data parallelism moves 39.4 GB")
    assert "2.92 Ψ" in section.lead
    assert "318 of 320" in section.notes[0]
    bullets = section.blocks[1].figure
    assert bullets is not None
    assert isinstance(bullets.chart, Bullets)
    assert len(bullets.chart.labels) == 2  # the third term was not observed


@pytest.mark.parametrize(("observed", "status"), [(1.001, "ok"), (0.97, "warn"), (2.0, "warn")])
def test_a_term_is_as_close_as_the_verdict_asks(observed: float, status: Status) -> None:
    """An explanation is of the paper and this scheme, not of this scheme and what was seen."""
    base = analysis_builder.fsdp2()
    [term, *_] = base.volumes.terms
    assert term.explanation
    off = dataclasses.replace(term, observed_bytes=round((term.predicted_bytes or 0) * observed))
    volumes = dataclasses.replace(base.volumes, terms=[off])
    section = volumes_section(dataclasses.replace(base, volumes=volumes))
    [table] = [b.table for b in section.blocks if b.table and b.table.caption.startswith("Term")]
    assert table.rows[0][3].status == status


def test_kernels_are_those_of_the_median_rank() -> None:
    analysis = analysis_builder.large(64)
    median = median_device(device_steps(analysis))
    section = kernels_section(analysis)

    assert median is not None
    assert section.lead.startswith(f"Rank {median.rank.rank}, the median rank")
    assert len(section.blocks[0].table.rows) == 30
    assert section.blocks[0].table.sortable


def test_kernels_stand_in_the_order_of_the_times_shown() -> None:
    base = analysis_builder.fsdp2()
    first, second, *_ = base.ranks[0].top_kernels
    kernels = [
        dataclasses.replace(first, total_ns=9, mean_step_ns=1),
        dataclasses.replace(second, total_ns=8, mean_step_ns=2),
    ]
    ranks = [dataclasses.replace(rank, top_kernels=kernels) for rank in base.ranks]
    table = kernels_section(dataclasses.replace(base, ranks=ranks)).blocks[0].table
    assert table is not None
    assert [row[0].text for row in table.rows] == [second.name, first.name]


def test_calls_of_kernels_are_not_said_to_be_those_of_a_step() -> None:
    """A kernel's time is per step, its calls are of the whole recording."""
    base = analysis_builder.fsdp2()
    kernel = dataclasses.replace(
        base.ranks[0].top_kernels[0], count=78, total_ns=27_540_000, mean_step_ns=9_180_000
    )
    ranks = [dataclasses.replace(rank, top_kernels=[kernel]) for rank in base.ranks]
    section = kernels_section(dataclasses.replace(base, ranks=ranks))

    assert section.lead.endswith(
        "its longest kernel takes 9.18 ms per step; the whole recording has 78 calls of it."
    )
    assert "Calls in all" in [column.title for column in section.blocks[0].table.columns]


def test_kernels_without_step_times_show_totals() -> None:
    base = analysis_builder.one_rank()
    rank = base.ranks[0]
    kernels = [dataclasses.replace(kernel, mean_step_ns=None) for kernel in rank.top_kernels]
    ranks: list[RankResult] = [dataclasses.replace(rank, top_kernels=kernels)]
    section = kernels_section(dataclasses.replace(base, ranks=ranks))

    assert "of the whole recording" in section.lead
    assert "ms in all" in [column.title for column in section.blocks[0].table.columns]


def timed(analysis: Analysis, windows: list[int], complete: list[bool]) -> Analysis:
    """Give every rank steps with these windows in ms; on the host each takes 1 s."""
    ranks = []
    for rank in analysis.ranks:
        device = rank.devices[0]
        steps = [
            dataclasses.replace(
                device.steps[0],
                step=number,
                complete=whole,
                period_ns=10**9,
                partition=dataclasses.replace(
                    device.steps[0].partition, window_ns=window * 1_000_000
                ),
            )
            for number, (window, whole) in enumerate(zip(windows, complete, strict=True))
        ]
        ranks.append(dataclasses.replace(rank, devices=[dataclasses.replace(device, steps=steps)]))
    return dataclasses.replace(analysis, ranks=ranks)


def test_a_step_takes_what_the_headline_says_it_takes() -> None:
    """Windows of the device, not of the host; a step that is cut off says nothing."""
    analysis = timed(analysis_builder.fsdp2(), [40, 44, 7], [True, True, False])
    section = stability_section(analysis)
    assert section.lead == (
        "Over 2 steps the median rank's step takes 40.0 ms (step 0) to 44.0 ms (step 1), "
        "10.0 % apart."
    )
    table = section.blocks[0].table
    assert table is not None
    assert [row[1].text for row in table.rows] == ["40.0", "44.0", "7.00"]


def test_one_step_draws_no_line() -> None:
    section = stability_section(analysis_builder.one_rank())

    assert "One step says nothing" in section.lead
    assert all(block.figure is None for block in section.blocks)


def test_many_ranks_become_median_fastest_and_slowest() -> None:
    section = stability_section(analysis_builder.large())
    figure = section.blocks[0].figure

    assert figure is not None
    assert isinstance(figure.chart, Lines)
    assert [series.label for series in figure.chart.series] == ["slowest", "median", "fastest"]


def test_a_pipeline_that_was_not_measured_is_not_denied() -> None:
    measured = analysis_builder.large()
    section = pipeline_section(dataclasses.replace(measured, pipeline=None))

    assert "The run has 4 pipeline stages" in (section.empty or "")
    assert "No pipeline" in (pipeline_section(analysis_builder.fsdp2()).empty or "")


def test_trust_names_every_notice_and_why_steps_are_left_out() -> None:
    section = trust_section(analysis_builder.fsdp2())
    tables = {block.table.caption: block.table for block in section.blocks}

    assert len(tables["Notices"].rows) == 2
    assert tables["Notices"].rows[0][0].text == "warning"
    left_out = tables["Steps left out of the mean"].rows
    assert [[cell.text for cell in row] for row in left_out] == [["10", "no: slower than the rest"]]
    cut = trust_section(analysis_builder.without_steps())
    cut_rows = {b.table.caption: b.table.rows for b in cut.blocks}["Steps left out of the mean"]
    assert {row[1].text for row in cut_rows} == {"no: cut off"}


def test_runs_on_cpus_carry_their_caveat() -> None:
    assert CPU_CAVEAT in trust_section(analysis_builder.cpu()).notes
    assert CPU_CAVEAT not in trust_section(analysis_builder.fsdp2()).notes


def test_the_command_can_be_pasted_whatever_the_names() -> None:
    assert command(analysis_builder.fsdp2()) == "tracelens analyze traces/llama-7b --steps 10:20"
    hostile = command(analysis_builder.hostile())
    assert hostile.isprintable()
    assert "'traces/a | b" in hostile


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["fail", "warn", "ok"], "1 of 3 budgets missed"),
        (["warn", "ok"], "1 of 2 budgets missed, as a warning"),
        (["unknown", "ok"], "1 of 2 budgets could not be judged"),
        (["ok"], "1 budget met"),
    ],
)
def test_headline_counts_budgets(statuses: list[Status], expected: str) -> None:
    metrics = [Metric("m", "M", 1.0, "%", "≤ 1 %", status) for status in statuses]
    base = analysis_builder.nothing()

    assert headline(dataclasses.replace(base, summary=Summary("", "ok", metrics))) == expected
    assert headline(base) == "too little data to judge"


def test_findings_and_nothing_to_see_exclude_each_other() -> None:
    base = analysis_builder.fsdp2()
    fine = dataclasses.replace(base, summary=Summary("", "ok", []), findings=base.findings[:1])
    assert headline(fine) == "headline numbers are fine, with 1 finding"
    assert headline(dataclasses.replace(fine, findings=[])) == "nothing stands out"


def test_findings_keep_their_order_and_link_to_sections() -> None:
    views = finding_views(analysis_builder.fsdp2())

    assert [view.title[:10] for view in views] == ["All-gather", "Rank 3 ent", "A third of"]
    assert views[0].saving == "up to 42.0 ms per step (5.62 %)"
    assert views[0].sections == ["collectives", "volume"]
    assert views[2].saving is None
    assert finding_views(analysis_builder.hostile())[0].sections == ["collectives"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("exposed_ns", 21_000_000, ("exposed", "21.0 ms")),
        ("extra_bytes_per_step", 7e9, ("extra", "7.00 GB per step")),
        ("late_in_pct", 86.1, ("late in", "86.1 %")),
        ("bus_gbps", 212.4, ("bus", "212 GB/s")),
        ("calls", 64, ("calls", "64")),
        ("ratio", 1.5, ("ratio", "1.50")),
        ("host", "gpu-a1", ("host", "gpu-a1")),
        ("stage", None, ("stage", "unknown")),
    ],
)
def test_evidence_is_written_in_its_unit(
    name: str, value: float | str | None, expected: tuple[str, str]
) -> None:
    assert evidence(name, value) == expected


def test_the_document_names_the_run() -> None:
    content = document(analysis_builder.large())

    assert content.name == "llama-7b-64"
    assert content.facts[:3] == ["ZeRO-3", "FSDP2", "dp 8 × tp 2 × pp 4"]
    assert "64 × NVIDIA H100 80GB HBM3" in content.facts
    assert document(analysis_builder.nothing()).name == "unnamed run"


def dimension_table(analysis: Analysis) -> list[list[str]]:
    tables = [block.table for block in step_section(analysis).blocks]
    [found] = [table for table in tables if table.caption.startswith("Exposed communication by")]
    return [[column.title for column in found.columns]] + [
        [cell.text for cell in row] for row in found.rows
    ]


def test_exposed_time_by_dimension_is_a_mean_over_devices() -> None:
    analysis = analysis_builder.large(8)
    titles, *rows = dimension_table(analysis)
    assert titles == ["Exposed communication for", "Transfer ms", "% of step"]
    assert [row[0] for row in rows] == [
        "dp, data parallel", "tp, tensor parallel", "pp, pipeline parallel",
    ]  # fmt: skip
    breakdowns = [rank.devices[0].breakdown for rank in analysis.ranks]
    times = [
        b.transfer_by_dimension_ns["dp"] for b in breakdowns if b and b.transfer_by_dimension_ns
    ]
    assert rows[0][1] == ms(sum(times) / len(times))
    line = by_dimension(analysis)
    assert line is not None
    assert line.startswith(f"Exposed transfer per step: dp {rows[0][1]} ms, tp {rows[1][1]} ms")


def test_time_that_could_not_be_split_has_its_own_column() -> None:
    base = analysis_builder.large(8)
    analysis = dataclasses.replace(base, ranks=[_unsplit(rank) for rank in base.ranks])
    titles, *rows = dimension_table(analysis)
    assert titles == ["Exposed communication for", "Not split ms", "% of step"]
    assert [row[:2] for row in rows] == [
        ["tp, tensor parallel", "4.00"],
        ["other or unknown", "1.00"],
    ]
    assert by_dimension(analysis) == ("Exposed communication per step: tp 4.00 ms, other 1.00 ms")


def _unsplit(rank: RankResult) -> RankResult:
    device = rank.devices[0]
    assert device.breakdown is not None
    changed = dataclasses.replace(
        device.breakdown,
        transfer_by_dimension_ns=None,
        exposed_unsplit_by_dimension_ns={"tp": 4_000_000, "other": 1_000_000},
    )
    return dataclasses.replace(rank, devices=[dataclasses.replace(device, breakdown=changed)])


def test_a_single_dimension_needs_no_split() -> None:
    assert by_dimension(analysis_builder.fsdp2()) is None
    captions = [block.table.caption for block in step_section(analysis_builder.fsdp2()).blocks]
    assert not any(caption.startswith("Exposed communication by") for caption in captions)


def test_shares_of_the_link_say_of_what() -> None:
    section = collectives_section(analysis_builder.fsdp2())
    titles = [column.title for column in section.blocks[0].table.columns]
    cells = dict(zip(titles, (c.text for c in section.blocks[0].table.rows[0]), strict=True))
    assert cells["% of link"] == "21.0 %"
    [note] = [note for note in section.notes if "share of the link" in note]
    assert "450 GB/s one way a GPU (NVLink 4; NVIDIA H100" in note
    assert "NVLS" in note


def test_without_a_known_link_there_is_no_share() -> None:
    base = analysis_builder.fsdp2()
    collectives = [dataclasses.replace(c, busbw_of_link_pct=None) for c in base.collectives]
    section = collectives_section(dataclasses.replace(base, collectives=collectives))
    assert "% of link" not in [column.title for column in section.blocks[0].table.columns]
    assert not any("share of the link" in note for note in section.notes)


def test_a_fit_says_how_many_calls_latency_binds() -> None:
    base = analysis_builder.fsdp2()
    fitted = dataclasses.replace(
        base.collectives[0], alpha_us=20.0, beta_gbps=300.0, latency_bound_calls_pct=25.0
    )
    section = collectives_section(dataclasses.replace(base, collectives=[fitted]))
    [note] = [note for note in section.notes if "bound by latency" in note]
    assert note.endswith(
        "so below 6.00 MB it is bound by latency; 25.0 % of the matched calls are."
    )


def test_slowed_kernels_stand_beside_the_longest() -> None:
    blocks = kernels_section(analysis_builder.fsdp2()).blocks
    assert blocks[1].table.caption.endswith("1.21 times as long in all")
    assert [cell.text for cell in blocks[1].table.rows[0][1:4]] == ["182", "239", "1.31"]
    without = dataclasses.replace(analysis_builder.fsdp2(), contention=None)
    assert len(kernels_section(without).blocks) == 1


def cells_of(table: Table, row: int = 0) -> dict[str, str]:
    titles = [column.title for column in table.columns]
    return dict(zip(titles, (cell.text for cell in table.rows[row]), strict=True))


def test_estimates_of_one_rank_are_marked_and_explained() -> None:
    base = analysis_builder.fsdp2()
    alone = [
        dataclasses.replace(
            one, wait_ns=None, wait_per_step_ns=None, transfer_ns=None, busbw_gbps=None,
            transfer_estimate_ns=one.time_ns, busbw_estimate_gbps=212.0,
        )
        for one in base.collectives
    ]  # fmt: skip
    section = collectives_section(dataclasses.replace(base, collectives=alone))
    cells = cells_of(section.blocks[0].table)
    assert cells["Transfer ms, estimate"] == "≈ 240"
    assert cells["Bus GB/s"] == "≈ 212"
    assert "Wait ms" not in cells
    assert any(note.startswith("Estimates (≈)") for note in section.notes)
    known = collectives_section(base)
    assert "Transfer ms, estimate" not in cells_of(known.blocks[0].table)
    assert not any("≈" in note for note in known.notes)


def test_clocks_of_every_rank() -> None:
    table = clock_table(analysis_builder.fsdp2())
    assert [row[0].text for row in table.rows] == ["0", "1", "2", "3"]
    cells = cells_of(table, 2)
    assert cells["Drift ppm"] == "0"
    assert cells["Half of the ends within µs"] == "4.40"
    assert cells["95 % within µs"] == "19.8"


def test_ranks_of_one_clock_need_no_table() -> None:
    base = analysis_builder.fsdp2()
    same = [dataclasses.replace(r, clock_residual_ns=None) for r in base.ranks]
    analysis = dataclasses.replace(base, ranks=same)
    assert not clock_table(analysis).rows
    captions = [block.table.caption for block in trust_section(analysis).blocks]
    assert clock_table(analysis).caption not in captions


def test_how_calls_were_matched() -> None:
    cells = cells_of(match_table(analysis_builder.fsdp2()))
    assert (cells["Calls"], cells["Exact"], cells["High"], cells["Low"]) == (
        "256", "–", "250", "2.50",
    )  # fmt: skip
    assert not match_table(analysis_builder.one_rank()).rows


def test_a_straggler_is_persistent_or_occasional() -> None:
    base = analysis_builder.fsdp2()
    cells = cells_of(straggler_table(base))
    assert (cells["Late steps"], cells["Pattern"]) == ("9 of 10", "persistent")
    assert (cells["Cause"], cells["Groups"]) == ("computes longer", "dp (4 ranks)")
    [one] = base.stragglers
    rare = dataclasses.replace(one, persistent=False, late_steps=1, cause=None, groups=[])
    cells = cells_of(straggler_table(dataclasses.replace(base, stragglers=[rare])))
    assert (cells["Late steps"], cells["Pattern"]) == ("1 of 10", "occasional")
    assert (cells["Cause"], cells["Groups"]) == ("unknown", "unknown")

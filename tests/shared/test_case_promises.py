"""What each case says the tool must and must not do: every sentence has a check.

A check names its case and a few words of its sentence. A sentence without a check is a failure, and
so is a check without a sentence.
"""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from case_folders import NAMES, Outcome, case, outcome
from github_markdown import assert_only_our_markup, assert_rows_fit

from tracelens_kineto import KinetoParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens.model.result import DeviceResult, Partition

pytestmark = pytest.mark.shared

CLEAN_RANK_1 = {"01", "02", "03", "04", "10", "15"}
CHECKS: dict[tuple[int, str], Any] = {}


def holds(number: int, words: str) -> Callable[[Any], Any]:
    """Let a function check the sentence of a case in which these words stand."""

    def register(check: Any) -> Any:
        assert (number, words) not in CHECKS
        CHECKS[number, words] = check
        return check

    return register


def checks_of(name: str, sentence: str) -> list[Any]:
    number = case(name).number
    return [check for (of, words), check in CHECKS.items() if of == number and words in sentence]


SENTENCES = [
    pytest.param(name, sentence, id=f"{name[:2]}-{place}-{number}")
    for name in NAMES
    for place, sentences in (("must", case(name).must), ("must-not", case(name).must_not))
    for number, sentence in enumerate(sentences)
]


@pytest.mark.parametrize(("name", "sentence"), SENTENCES)
def test_every_sentence_holds(name: str, sentence: str) -> None:
    found = checks_of(name, sentence)
    assert len(found) == 1, f"{len(found)} checks for {name}: {sentence}"
    found[0](outcome(name))


@pytest.mark.usefixtures("cases_folder")
def test_every_check_has_its_sentence() -> None:
    said = [(case(name).number, s) for name in NAMES for s in case(name).must + case(name).must_not]
    lonely = [key for key in CHECKS if not any(of == key[0] and key[1] in s for of, s in said)]
    assert lonely == []


@pytest.mark.parametrize("name", NAMES)
def test_what_holds_of_every_case(name: str) -> None:
    result = outcome(name)
    assert result.code == 0
    assert "Traceback" not in result.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.reports)
    assert not re.search(r"\b(nan|inf|infinity)\b", result.out + result.markdown, re.I)
    for document in (result.document, *figures(result)):
        json.loads(document, parse_constant=pytest.fail)
    assert_rows_fit(result.markdown)
    assert_only_our_markup(result.markdown)
    for rank in result.analysis.ranks:
        for device in rank.devices:
            for part in (device.total, device.mean_step, *(s.partition for s in device.steps)):
                assert part is None or closes(part)


@pytest.mark.parametrize("name", [name for name in NAMES if name[:2] in CLEAN_RANK_1])
def test_a_clean_rank_has_nothing_to_say(name: str) -> None:
    assert [notice for notice in outcome(name).analysis.notices if notice.rank == 1] == []


def closes(part: Partition) -> bool:
    parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_copy_ns, part.idle_ns)
    return sum(parts) == part.window_ns and min(parts) >= 0


# what several checks look at ---------------------------------------------------------------------


def device(result: Outcome, rank: int) -> DeviceResult:
    (one,) = result.rank(rank).devices
    return one


def codes(result: Outcome) -> set[str]:
    return {notice.code for notice in result.analysis.notices}


def figures(result: Outcome) -> list[str]:
    """Return the JSON in the page's script elements."""
    return re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', result.page, re.S)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def percentages(result: Outcome) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+) %", result.markdown + result.out)]


def both_ranks_are_whole(result: Outcome) -> None:
    """Check that ranks 0 and 1 have the same times, and neither lacks anything."""
    first, second = result.rank(0), result.rank(1)
    assert result.analysis.run.ranks_partial == []
    assert first.in_means
    assert second.in_means
    assert [s.partition.compute_ns for s in device(result, 0).steps] == [700_000, 700_000]
    for one, other in zip(device(result, 0).steps, device(result, 1).steps, strict=True):
        assert (one.step, one.complete, one.in_mean) == (other.step, True, True)
        assert basic(one.partition) == basic(other.partition)
    assert basic(device(result, 0).total) == basic(device(result, 1).total)


def basic(part: Partition) -> tuple[int, ...]:
    """Return a partition without its copies, which are hidden in all cases."""
    return (
        part.window_ns, part.compute_ns, part.comm_ns, part.overlapped_comm_ns,
        part.exposed_comm_ns, part.exposed_copy_ns, part.idle_ns,
    )  # fmt: skip


# 01: unescaped quotes ----------------------------------------------------------------------------

holds(1, "same GPU numbers as rank 1")(both_ranks_are_whole)
holds(1, "drop rank 0")(both_ranks_are_whole)


@holds(1, "which file was damaged")
def _(result: Outcome) -> None:
    said = result.notice("damaged-events")
    assert said.file is not None
    assert f"{said.file}: 4 damaged events" in result.err
    place = re.search(r"first at byte ([\d,]+): 4 repaired, 0 skipped", said.message)
    assert place is not None
    at = int(place[1].replace(",", ""))
    text = result.case.path(said.file).read_bytes()
    assert text[at : at + 1] == b"{"
    json.loads(text[:at].rstrip().rstrip(b",") + b"]}")  # before it nothing is damaged


@holds(1, "no GPU event was lost")
def _(result: Outcome) -> None:
    assert "no device event skipped" in result.notice("damaged-events").message
    assert result.markdown.count("no device event skipped") == 1


@holds(1, "JSONDecodeError")
def _(result: Outcome) -> None:
    assert "JSONDecodeError" not in result.reports


# 02: inf, nan and N/A ----------------------------------------------------------------------------


@holds(2, "treat the non-numbers as 'not recorded'")
def _(result: Outcome) -> None:
    both_ranks_are_whole(result)
    said = result.notice("damaged-events")
    assert said.count == 6
    assert said.message.endswith("6 repaired, 0 skipped; no device event skipped")


@holds(2, "3 copies, 1,052,872 bytes, 16.5 us")
def _(result: Outcome) -> None:
    copies = [k for k in result.rank(0).top_kernels if k.kernel_class == "copy"]
    assert sum(kernel.count for kernel in copies) == device(result, 0).total.copies == 3
    assert sum(kernel.total_ns for kernel in copies) == 16_500
    said = "rank 0 copies and fills memory 3 times: 1.05 MB in 0.0165 ms"
    assert said in result.markdown
    assert said in Elements(result.page).text.replace("\N{NO-BREAK SPACE}", " ")
    assert device(result, 0).total.copied_bytes == 1_052_872


@holds(2, "print nan or inf")
def _(result: Outcome) -> None:
    for text in (result.reports, Elements(result.page).text, *figures(result)):
        shown = text.replace(result.case.name, "")
        assert not re.search(r"\b(nan|inf|infinity|n/a)\b", shown, re.I)


@holds(2, "write NaN/Infinity into any JSON")
def _(result: Outcome) -> None:
    assert figures(result)
    for document in (result.document, *figures(result)):
        json.loads(document, parse_constant=pytest.fail)


# 03: invalid UTF-8 -------------------------------------------------------------------------------


@holds(3, "valid UTF-8")
def _(result: Outcome) -> None:
    # They were read as UTF-8 without replacing anything; a lone surrogate would not encode.
    for text in (result.page, result.markdown, result.document):
        assert text.encode("utf-8")
        assert "norm_bwd" in text


@holds(3, "keep the three kernels apart")
@holds(3, "replace the name by 'unknown'")
def _(result: Outcome) -> None:
    kernels = [k for k in result.rank(0).top_kernels if k.kernel_class == "compute"]
    assert sorted(kernel.total_ns for kernel in kernels) == [400_000, 400_000, 600_000]
    assert all(kernel.name.startswith("acme") for kernel in kernels)


@holds(3, "UnicodeDecodeError")
def _(result: Outcome) -> None:
    assert result.code == 0
    assert "Unicode" not in result.err


@holds(3, "raw ESC sequence")
def _(result: Outcome) -> None:
    for text in (result.reports, result.page, result.document):
        assert "\x1b" not in text
        assert "\x01" not in text
    assert r"\x1b" in result.markdown, "it is shown as an escape"


# 04: cut JSON ------------------------------------------------------------------------------------


@holds(4, "ends early")
def _(result: Outcome) -> None:
    said = result.notice("truncated-file")
    assert said.rank == 0
    assert "ends early (inside the events, after 42 of them)" in said.message
    assert "sums of rank 0 are lower bounds" in said.message
    assert device(result, 0).total.launches_without_record == 3
    assert "lost-device-records" not in codes(result), "it is the same loss"
    events = [f.events for f in result.analysis.source.files if f.status == "partial"]
    assert events == [42]


@holds(4, "still give step 10")
def _(result: Outcome) -> None:
    first, _ = device(result, 0).steps
    assert (first.step, first.complete) == (10, True)
    assert device(result, 0).mean_step == first.partition


@holds(4, "keep step 11 of rank 0 out")
def _(result: Outcome) -> None:
    _, last = device(result, 0).steps
    assert (last.step, last.complete, last.in_mean) == (11, False, False)
    assert not result.rank(0).in_means
    whole = device(result, 1).mean_step
    assert whole is not None
    (times,) = (m for m in result.analysis.summary.metrics if m.name == "step_time_ns")
    assert times.value == whole.window_ns


@holds(4, "rank 0 as the fast rank")
def _(result: Outcome) -> None:
    assert result.analysis.stragglers == []
    assert not any("rank 1" in finding.title for finding in result.analysis.findings)


@holds(4, "exit 0 with no warning")
def _(result: Outcome) -> None:
    assert "warning:" in result.err
    assert "ends early" in result.err


# 05: members of gzip -----------------------------------------------------------------------------

holds(5, "both ranks the same numbers")(both_ranks_are_whole)
holds(5, "drop rank 1")(both_ranks_are_whole)


@holds(5, "warn once")
def _(result: Outcome) -> None:
    said = result.notice("trailing-bytes")
    assert said.rank == 1
    assert said.count in (272, 372)
    assert "ignored; no number changes" in said.message


@holds(5, "only the first member")
def _(result: Outcome) -> None:
    assert "truncated-file" not in codes(result)
    assert {file.status for file in result.analysis.source.files} == {"complete"}


# 06: ranks from inside ---------------------------------------------------------------------------


@holds(6, "map files to ranks")
@holds(6, "use the number in the file name")
def _(result: Outcome) -> None:
    by_rank = [result.rank(rank).files for rank in range(4)]
    assert sorted(by_rank) != by_rank, "the order of names is another one"
    assert result.rank(1).files[0].startswith("rank7")
    for rank, values in result.case.values["per_rank"].items():
        assert result.rank(rank).files == [values["file"]]
        facts = KinetoParser().inspect(result.case.path(values["file"]))
        assert (facts.rank, facts.rank_source) == (int(rank), "distributedInfo")


@holds(6, "4 of 4 ranks present")
def _(result: Outcome) -> None:
    assert "4 of 4 ranks read" in result.out
    assert "4 of 4 ranks read" in result.markdown
    assert result.analysis.run.ranks_missing == []


@holds(6, "default an unmatched file to rank 0")
def _(result: Outcome) -> None:
    assert not codes(result) & {"rank-unknown", "duplicate-rank", "missing-ranks"}
    assert [len(rank.files) for rank in result.analysis.ranks] == [1, 1, 1, 1]


# 07: profiler cycles -----------------------------------------------------------------------------


@holds(7, "join the two files of a rank")
@holds(7, "report 4 ranks")
def _(result: Outcome) -> None:
    assert [rank.rank for rank in result.analysis.ranks] == [0, 1]
    cycles = [(file.rank, file.cycle) for file in result.analysis.source.files]
    assert sorted(cycles, key=str) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(len(device(result, rank).steps) == 4 for rank in (0, 1))
    assert "2 of 2 ranks read" in result.out


@holds(7, "leave the ~98 ms between the cycles out")
def _(result: Outcome) -> None:
    for rank in (0, 1):
        whole = device(result, rank)
        assert [s.partition.window_ns for s in whole.steps] == [1_000_000] * 4
        assert [s.period_ns for s in whole.steps] == [1_000_000] * 4
        assert whole.total.idle_ns < 1_000_000
        assert whole.total.window_ns < 5_000_000


@holds(7, "silently replace the first")
def _(result: Outcome) -> None:
    assert all(len(rank.files) == 2 for rank in result.analysis.ranks)
    assert device(result, 0).total.compute_ns == 4 * 700_000


@holds(7, "call the two files duplicate ranks")
def _(result: Outcome) -> None:
    assert result.analysis.run.ranks_duplicated == []
    assert "duplicate-rank" not in codes(result)


# 08: annotations on the device -------------------------------------------------------------------


@holds(8, "count 2 all-reduces")
def _(result: Outcome) -> None:
    (row,) = result.analysis.collectives
    assert (row.op, row.calls, row.time_ns) == ("all_reduce", 2, 600_000)
    assert row.message_bytes == 2 * 4_194_304, "the paper's convention counts both directions"


@holds(8, "count gpu_user_annotation rows as kernels")
def _(result: Outcome) -> None:
    for rank in (0, 1):
        assert device(result, rank).total.kernels == 8
        assert [s.partition.busy_ns for s in device(result, rank).steps] == [800_000] * 2
        names = {kernel.name for kernel in result.rank(rank).top_kernels}
        assert not any(re.search("ProfilerStep|forward|nccl:", name) for name in names)


@holds(8, "count a step twice")
def _(result: Outcome) -> None:
    for rank in (0, 1):
        steps = device(result, rank).steps
        assert [(s.step, s.occurrence) for s in steps] == [(10, 0), (11, 0)]


# 09: below a microsecond -------------------------------------------------------------------------


@holds(9, "to the nanosecond")
@holds(9, "round to whole microseconds")
def _(result: Outcome) -> None:
    (tiny,) = (k for k in result.rank(0).top_kernels if k.name == "acme_tiny_add")
    assert (tiny.count, tiny.total_ns, tiny.mean_ns) == (50, 10_000, 200)
    assert device(result, 0).total.overlapped_comm_ns == 200


# 10: impossible times ----------------------------------------------------------------------------


@holds(10, "leave the 4 GPU events out")
def _(result: Outcome) -> None:
    said = result.notice("untimed-events")
    assert said.count == 4
    for reason in ("2 without times", "1 with a negative duration", "1 without a duration"):
        assert reason in said.message
    assert "counted, but in no sum" in said.message
    assert "lost-device-records" not in codes(result), "their launches are no lost ones"


@holds(10, "use the window of the steps")
@holds(10, "let the window begin at 0")
def _(result: Outcome) -> None:
    for rank in (0, 1):
        assert [s.partition.window_ns for s in device(result, rank).steps] == [1_000_000] * 2
        assert device(result, rank).total.window_ns == 1_800_000
        assert [s.partition.idle_ns for s in device(result, rank).steps] == [200_000] * 2


@holds(10, "subtract the negative duration")
def _(result: Outcome) -> None:
    damaged, clean = (
        {kernel.name: (kernel.count, kernel.total_ns) for kernel in result.rank(r).top_kernels}
        for r in (0, 1)
    )
    assert damaged == clean


# 11: overlapping kernels -------------------------------------------------------------------------


@holds(11, "keep all 4 kernels")
@holds(11, "drop acme_pdl_secondary")
def _(result: Outcome) -> None:
    assert device(result, 0).total.kernels == 4
    times = {kernel.name[:18]: kernel.total_ns for kernel in result.rank(0).top_kernels}
    assert len(times) == 4
    assert times["acme_pdl_secondary"] == 70_000


@holds(11, "at or below 100 %")
@holds(11, "report 226 % utilisation")
def _(result: Outcome) -> None:
    assert percentages(result)
    assert max(percentages(result)) <= 100
    for part in (device(result, 0).total, device(result, 0).steps[0].partition):
        assert part.compute_ns <= part.busy_ns <= part.window_ns
        assert part.overlap_pct is not None
        assert part.overlap_pct <= 100
    assert not re.search(r"1[.,]77|226", result.markdown)


@holds(11, "name it so")
def _(result: Outcome) -> None:
    said = "Kernels of several streams run side by side, so these times can exceed the step."
    assert said in result.markdown
    assert said in result.page


# 12: two devices of a process --------------------------------------------------------------------


@holds(12, "analyse the two devices apart")
def _(result: Outcome) -> None:
    for text in (result.markdown, result.page):
        assert "rank 0, device 0" in text
        assert "rank 0, device 1" in text
    assert result.notice("several-devices").count == 2


@holds(12, "no rank information")
def _(result: Outcome) -> None:
    said = result.notice("rank-unknown")
    assert said.level == "warning"
    assert "says no rank, neither inside nor in its name" in said.message


@holds(12, "hide communication of GPU 0")
def _(result: Outcome) -> None:
    first, second = result.rank(0).devices
    assert (first.total.overlapped_comm_ns, first.total.exposed_comm_ns) == (0, 200_000)
    assert (second.total.overlapped_comm_ns, second.total.exposed_comm_ns) == (100_000, 0)


# 13: duplicated and missing ranks ----------------------------------------------------------------


@holds(13, "in one clear message each")
def _(result: Outcome) -> None:
    both = [file for rank in result.analysis.ranks if rank.rank == 1 for file in rank.files]
    assert len(both) == 2
    assert all(file in result.notice("duplicate-rank").message for file in both)
    assert "1 of 4 ranks (2)" in result.notice("missing-ranks").message
    assert "4 in 3 files, 8 in 1 file" in result.notice("world-size-conflict").message


@holds(13, "go on with both rank-1 files shown apart")
@holds(13, "sum or average the two files")
def _(result: Outcome) -> None:
    times = [(rank.rank, device_of.total.compute_ns) for rank in result.analysis.ranks
             for device_of in rank.devices]  # fmt: skip
    assert sorted(times) == [(0, 300_000), (1, 400_000), (1, 450_000), (3, 500_000)]


@holds(13, "pick one of the two files silently")
def _(result: Outcome) -> None:
    (kept,) = (rank for rank in result.analysis.ranks if rank.rank == 1 and rank.in_means)
    said = result.notice("duplicate-rank").message
    assert f"only {kept.files[0]} is in the means" in said


@holds(13, "profiler cycles")
def _(result: Outcome) -> None:
    assert all(len(rank.files) == 1 for rank in result.analysis.ranks)
    assert {file.cycle for file in result.analysis.source.files} == {0}


# 14: names and metadata of NCCL ------------------------------------------------------------------


@holds(14, "prefer metadata")
@holds(14, "put the all-to-all under send/recv")
def _(result: Outcome) -> None:
    ops = sorted((kernel.op, kernel.total_ns) for kernel in result.rank(0).top_kernels)
    assert ops == [
        ("all_gather", 50_000),
        ("all_gather", 100_000),
        ("all_to_all", 80_000),
        ("reduce_scatter", 60_000),
        ("unknown", 30_000),
    ]


@holds(14, "its own class")
def _(result: Outcome) -> None:
    assert device(result, 0).total.comm_by_op_ns["unknown"] == 30_000
    assert "unclassified communication" in result.markdown
    assert "unclassified communication" in result.page


@holds(14, "bytes are known for 3 of 5")
def _(result: Outcome) -> None:
    assert "bytes are known for 3 of 5 calls" in result.markdown
    assert "the size of 2 of 5 collective calls" in result.notice("bytes-unknown").message
    assert "no ratio to theory is complete" in result.err
    assert result.analysis.volumes.verdict == "unknown"


@holds(14, "count unknown bytes as 0")
def _(result: Outcome) -> None:
    unknown = [row for row in result.analysis.collectives if row.calls_without_bytes]
    assert len(unknown) == 2
    assert all(row.message_bytes is None and row.wire_bytes is None for row in unknown)
    (ratio,) = (m for m in result.analysis.summary.metrics if "theory" in m.label)
    assert ratio.value is None
    assert not any(prediction.matches for prediction in result.analysis.volumes.predictions)
    assert "Bytes are known for 2 of 4 calls, so no comparison with theory is complete" in (
        result.analysis.volumes.explanation or ""
    )


# 15: hostile names -------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Every element of a page, and all text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside not in {"script", "style"}:
            self.text += data


@holds(15, "show the names as text")
def _(result: Outcome) -> None:
    names = [k.name for k in result.rank(0).top_kernels if k.kernel_class == "compute"]
    assert len(names) == 3
    shown = Elements(result.page).text
    for name in names:
        assert name in shown
        assert html.escape(name, quote=False)[:20] in result.page


@holds(15, "every Markdown table row")
def _(result: Outcome) -> None:
    assert result.markdown.count("|") > 100
    assert_rows_fit(result.markdown)
    assert_only_our_markup(result.markdown)


@holds(15, "window.__pwned stays undefined")
def _(result: Outcome) -> None:
    """Check what could run; tests/reports/test_browser.py opens the page."""
    for tag, attributes in Elements(result.page).found:
        assert tag not in {"img", "iframe", "object", "embed", "base"}
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or not any("pwned" in (v or "") for v in attributes.values())


@holds(15, "unescaped inside a <script> JSON block")
def _(result: Outcome) -> None:
    blocks = figures(result)
    assert blocks
    assert not any("<" in block for block in blocks)
    ours = re.compile(r"<br>|</?b>|<span style='font-size:11px'>|</span>|<extra></extra>")
    words = [word for block in blocks for word in strings(json.loads(block))]
    assert [word for word in words if "<" in ours.sub("", word)] == []

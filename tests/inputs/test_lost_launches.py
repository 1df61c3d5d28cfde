"""Launches whose device event is damaged, unread or unlinked: each loss is named once."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from command import run
from standard_run import codes, is_standard, rank, rank_of, said

import tracelens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builders import Trace

    from tracelens.model.result import Analysis

ARGUMENTS = re.compile(r'"args": \{.*\}\s*\}$')


def first_kernel(trace: Trace) -> int:
    return next(i for i, event in enumerate(trace.events) if '"cat": "kernel"' in event)


def changed(folder: Path, change: Callable[[str], str]) -> Analysis:
    """Analyse a run of two ranks; the first kernel of rank 0 is changed."""
    trace = rank(0)
    place = first_kernel(trace)
    trace.events[place] = change(trace.events[place])
    trace.write(folder / "rank0.json")
    rank(1).write(folder / "rank1.json")
    return tracelens.analyze(folder)


LOST = {
    "damaged-events": lambda event: event.replace('"ts"', 'ts": x"').replace('"ph"', "ph"),
    "unread-device-events": lambda event: event.replace('"cat": "kernel"', '"cat": "odd_kernel"'),
    "untimed-events": lambda event: re.sub(r'"dur": [0-9.]+', '"dur": -1', event),
}


@pytest.mark.parametrize("code", LOST)
def test_what_another_notice_names_is_no_lost_record(code: str, tmp_path: Path) -> None:
    result = changed(tmp_path, LOST[code])
    assert code in codes(result)
    assert "lost-device-records" not in codes(result)
    first, *_ = rank_of(result, 0).devices[0].steps
    assert not first.complete
    assert run("analyze", ".", "-o", "r.json", "--strict", cwd=tmp_path).code == 4


def test_records_that_are_lost_beside_damage_are_counted_alone(tmp_path: Path) -> None:
    trace = rank(0)
    trace.events[first_kernel(trace)] = '{"ph": "X", "cat": "kernel", "name'
    for index in range(3):
        trace.call("cudaLaunchKernel", 1300 + index, correlation=9000 + index)
    trace.write(tmp_path / "rank0.json")
    rank(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert "0 repaired, 1 skipped; 1 device event lost" in said(result, "damaged-events")
    assert "3 launches without a device record" in said(result, "lost-device-records")
    assert result.run.ranks_partial == [0]


def test_launches_whose_events_a_cut_has_lost_are_the_cut_s(tmp_path: Path) -> None:
    trace = rank(0)
    calls = [event for event in trace.events if '"cat": "kernel"' not in event]
    trace.events = calls + [event for event in trace.events if '"cat": "kernel"' in event]
    whole = trace.bytes()
    (tmp_path / "rank0.json").write_bytes(whole[: whole.rindex(b'"cat": "kernel"')])
    rank(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert "truncated-file" in codes(result)
    assert "lost-device-records" not in codes(result)


@pytest.mark.parametrize("unreadable", ['"correlation": null', '"correlation": "x"', '"other": 1'])
def test_an_event_without_its_correlation_is_no_lost_record(
    unreadable: str, tmp_path: Path
) -> None:
    """Its time counts; its step may begin or end elsewhere, since nothing says who launched it."""
    result = changed(tmp_path, lambda event: re.sub(r'"correlation": \d+', unreadable, event))
    assert "lost-device-records" not in codes(result)
    first, second = rank_of(result, 0).devices[0].steps
    assert (first.complete, second.complete) == (False, True)
    assert rank_of(result, 0).devices[0].total.compute_ns == 1_400_000


def test_an_event_that_another_id_links_loses_nothing(tmp_path: Path) -> None:
    """The launch it names is found, so the step is whole."""
    trace = rank(0)
    place = first_kernel(trace)
    kernel = json.loads(trace.events[place])
    number = kernel["args"].pop("correlation")
    kernel["args"]["External id"] = 77
    trace.events[place] = json.dumps(kernel)
    calls = [json.loads(event) for event in trace.events]
    (at,) = (
        i
        for i, event in enumerate(calls)
        if event.get("cat") == "cuda_runtime" and event["args"].get("correlation") == number
    )
    calls[at]["args"]["External id"] = 77
    trace.events[at] = json.dumps(calls[at])
    trace.write(tmp_path / "rank0.json")
    rank(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert "lost-device-records" not in codes(result)
    is_standard(result)


def test_no_other_odd_event_hides_a_loss(tmp_path: Path) -> None:
    """A fill without its correlation, and a kernel without a time, are not the lost record."""
    trace = rank(0)
    trace.raw(
        '{"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 0, "tid": 7, "ts": 450,'
        ' "dur": 5, "args": {"device": 0, "stream": 7}}'
    )
    trace.kernel("early", 90, "-1", launch=None)
    trace.call("cudaLaunchKernel", 1300, correlation=9000)
    trace.write(tmp_path / "rank0.json")
    rank(1).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert "1 launch without a device record" in said(result, "lost-device-records")
    assert result.run.ranks_partial == [0]
    assert [step.complete for step in rank_of(result, 0).devices[0].steps] == [True, False]


def test_a_rank_whose_launches_lack_records_is_partial_whatever_names_it(tmp_path: Path) -> None:
    """An event without its correlation may be the one that is missing, or another."""
    result = changed(tmp_path, lambda event: re.sub(r'"correlation": \d+', '"other": 1', event))
    assert result.run.ranks_partial == [0]

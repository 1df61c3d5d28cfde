"""`RankTrace.validate`: what a parser author is told."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from tracelens.model.trace import (
    COMMUNICATIONS,
    DEVICE_EVENTS,
    HOST_CALLS,
    MARKS,
    NONE,
    OPERATORS,
    RankInfo,
    RankTrace,
    frame,
)

if TYPE_CHECKING:
    import pandas as pd

INFO = RankInfo("trace.json", "kineto")
SCHEMAS = {
    "device_events": DEVICE_EVENTS,
    "communications": COMMUNICATIONS,
    "marks": MARKS,
    "host_calls": HOST_CALLS,
    "operators": OPERATORS,
}


def trace_with(table: str, data: pd.DataFrame) -> RankTrace:
    return dataclasses.replace(RankTrace(INFO), **{table: data})  # type: ignore[arg-type]


def one_row(table: str, **values: Any) -> pd.DataFrame:
    return frame(SCHEMAS[table], {name: [value] for name, value in values.items()})


def test_an_empty_trace_is_valid() -> None:
    RankTrace(INFO).validate()


@pytest.mark.parametrize("table", SCHEMAS)
def test_frame_fills_what_is_not_given(table: str) -> None:
    data = one_row(table, start=1, end=2)
    trace_with(table, data).validate()
    for name, kind in SCHEMAS[table].items():
        if name not in ("start", "end"):
            assert data[name].tolist() == [NONE if kind == "int64" else ""]


@pytest.mark.parametrize("table", SCHEMAS)
def test_an_event_must_not_end_before_it_starts(table: str) -> None:
    with pytest.raises(ValueError, match=f"{table}: an event ends before it starts"):
        trace_with(table, one_row(table, start=2, end=1)).validate()


@pytest.mark.parametrize("table", SCHEMAS)
def test_columns_must_be_those_of_the_schema(table: str) -> None:
    data = one_row(table, start=1, end=2)
    for wrong in (data.drop(columns="start"), data.assign(more=1), data[data.columns[::-1]]):
        with pytest.raises(ValueError, match=f"{table}: columns"):
            trace_with(table, wrong).validate()


@pytest.mark.parametrize("table", SCHEMAS)
def test_types_must_be_those_of_the_schema(table: str) -> None:
    data = one_row(table, start=1, end=2).astype({"start": "float64"})
    with pytest.raises(ValueError, match=f"{table}: column start is float64"):
        trace_with(table, data).validate()


def test_device_events_must_be_sorted() -> None:
    data = frame(DEVICE_EVENTS, {"start": [5, 1], "end": [6, 2]})
    with pytest.raises(ValueError, match="not sorted by start"):
        trace_with("device_events", data).validate()


@pytest.mark.parametrize("event", [-1, 0, 7])
def test_arguments_must_point_at_an_event(event: int) -> None:
    with pytest.raises(ValueError, match="column event points outside"):
        trace_with(
            "communications", one_row("communications", start=1, end=2, event=event)
        ).validate()


def test_with_info_changes_a_copy() -> None:
    trace = RankTrace(INFO)
    changed = trace.with_info(rank=3, cycle=1)
    assert (changed.info.rank, changed.info.cycle, trace.info.rank) == (3, 1, None)
    assert changed.marks is trace.marks

"""Times in every spelling, and times that cannot be: exact, or counted and in no sum."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from builders import EPOCH_US, Schema, Trace
from standard_run import BYTES, codes, holds, is_standard, rank, rank_of, said, write_ranks

import tracelens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def retimed(trace: Trace, spell: Callable[[Decimal], str], base: int = 0) -> Trace:
    """Write every time of a trace in another spelling, as JSON text."""
    for index, text in enumerate(trace.events):
        event = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        marked = {"ts": spell(event["ts"] + base), "dur": spell(event["dur"])}
        rest = {key: value for key, value in json.loads(text).items() if key not in marked}
        times = ", ".join(f'"{key}": {value}' for key, value in marked.items())
        trace.events[index] = f"{json.dumps(rest)[:-1]}, {times}}}"
    return trace


SPELLINGS: dict[str, Callable[[Decimal], str]] = {
    "exponent": lambda us: f"{us:.6e}",
    "capital exponent": lambda us: f"{us:.9E}",
    "quoted exponent": lambda us: f'"{us:.6e}"',
    "quoted capital exponent": lambda us: f'"{us:.6E}"',
    "quoted": lambda us: f'"{us:.3f}"',
    "quoted with blanks": lambda us: f'" {us:.3f} "',
    "quoted whole": lambda us: f'"{us:.0f}"',
    "whole": lambda us: f"{us:.0f}",
    "many decimals": lambda us: f"{us:.12f}",
    "a negative exponent": lambda us: f"{us * 1000:.0f}e-3",
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_of_relative_times(spell: Callable[[Decimal], str], tmp_path: Path) -> None:
    for number in (0, 1):
        retimed(rank(number), spell).write(tmp_path / f"rank{number}.json")
    is_standard(tracelens.analyze(tmp_path))


EPOCH_SPELLINGS: dict[str, Callable[[Decimal], str]] = {
    "19 digits": lambda us: f"{us:.3f}",
    "quoted": lambda us: f'"{us:.3f}"',
    "exponent": lambda us: f"{us:.21e}",
    "quoted exponent": lambda us: f'"{us:.21E}"',
    "nanoseconds and an exponent": lambda us: f"{us * 1000:.0f}e-3",
}


@pytest.mark.parametrize("spell", EPOCH_SPELLINGS.values(), ids=EPOCH_SPELLINGS)
def test_spellings_of_epoch_times(spell: Callable[[Decimal], str], tmp_path: Path) -> None:
    """A double would be off by up to 125 ns: kernels end 1 ns after each other here."""
    for number in (0, 1):
        made = rank(number, base_ns=0)
        made.kernel("sliver", "950.001", "0.001").kernel("sliver", "950.003", "0.001")
        retimed(made, spell, EPOCH_US).write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    for one in result.ranks:
        first, second = one.devices[0].steps
        holds(first.partition, compute_ns=700_002, idle_ns=199_998)
        holds(second.partition)
        (sliver,) = [kernel for kernel in one.top_kernels if kernel.name == "sliver"]
        assert (sliver.count, sliver.total_ns) == (2, 2)


@pytest.mark.parametrize("schema", [Schema(times="text"), Schema(times="epoch text")])
def test_one_rank_in_strings_beside_one_in_numbers(schema: Schema, tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank0.json")
    rank(1, schema=schema).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "different-times" not in codes(result)
    assert [one.clock_offset_ns for one in result.ranks] == [0, 0]


# device events -----------------------------------------------------------------------------------

NO_DURATIONS = {
    "missing": None,
    "null": "null",
    "negative": "-300.000",
    "negative huge": "-1e15",
    "a double's end": "1e308",
    "infinite by its exponent": "1e999",
    "2^63": "9223372036854775807",
    "a word": '"N/A"',
    "31 years": "1e15",
    "2 hours": "7200000000",
    "minus zero": "-0.0",
}


@pytest.mark.parametrize("duration", NO_DURATIONS.values(), ids=NO_DURATIONS)
def test_a_kernel_without_a_usable_duration_is_counted_and_in_no_sum(
    duration: str | None, tmp_path: Path
) -> None:
    write_ranks(tmp_path)
    trace = rank(1).kernel("bad", 1950, 7)
    old = '"dur": 7.000'
    assert old in trace.events[-1]
    new = f'"dur": {duration}' if duration else '"was": 7.000'
    trace.events[-1] = trace.events[-1].replace(old, new)
    trace.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result, lacking=[(1, 1)])
    (device,) = rank_of(result, 1).devices
    assert device.untimed_events == 1
    assert device.total.launches_without_record == 0, "its record is there"
    assert "rank1.json: 1 device event without a usable time" in said(result, "untimed-events")
    assert "1 step cut" in said(result, "incomplete-steps")


@pytest.mark.parametrize("start", ["0", "-1e300", "null", '"never"', None])
def test_a_kernel_without_a_usable_start(start: str | None, tmp_path: Path) -> None:
    write_ranks(tmp_path)
    trace = rank(1).kernel("bad", 1950, 7)
    new = f'"ts": {start}' if start else '"was": 0'
    trace.events[-1] = trace.events[-1].replace('"ts": 1950.000', new)
    trace.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result, lacking=[(1, 1)])
    assert rank_of(result, 1).devices[0].untimed_events == 1
    assert "1 without times" in said(result, "untimed-events")


def test_every_kind_of_untimed_event_at_once(tmp_path: Path) -> None:
    write_ranks(tmp_path)
    trace = rank(1).kernel("a", 0, 5).kernel("b", 1950, None).kernel("c", 1960, -5)
    trace.kernel("d", 1970, 0).copy(1980, -1).memset(0, 5).kernel("e", 1990, 7_200_000_000)
    trace.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result, lacking=[(1, 1)])
    assert rank_of(result, 1).devices[0].untimed_events == 7
    assert (
        "7 device events without a usable time (2 with a negative duration, 1 with an impossible "
        "duration, 1 without a duration, 3 without times)" in said(result, "untimed-events")
    )


def test_negative_times_are_times(tmp_path: Path) -> None:
    """Events before the base time: some writers do not cut them to 0."""
    for number in (0, 1):
        rank(number, at=-1450).write(tmp_path / f"rank{number}.json")
    is_standard(tracelens.analyze(tmp_path))


# host events -------------------------------------------------------------------------------------

IMPOSSIBLE = [None, "-5.000", "1e15", "1e300", "9223372036854775807", '"N/A"']


def with_duration(trace: Trace, name: str, duration: str | None) -> Trace:
    """Give the event of a name another duration, or none."""
    for index, text in enumerate(trace.events):
        if f'"name": "{name}"' in text:
            event = json.loads(text)
            old = f'"dur": {event["dur"]:.3f}'
            assert old in text
            new = f'"dur": {duration}' if duration else '"was": 0'
            trace.events[index] = text.replace(old, new)
    return trace


@pytest.mark.parametrize("duration", IMPOSSIBLE)
@pytest.mark.parametrize("broken", [10, 11, 12])
def test_a_step_mark_without_a_usable_duration(
    broken: int, duration: str | None, tmp_path: Path
) -> None:
    """It swallows no other step, and no other step takes its work."""
    write_ranks(tmp_path, steps=3)
    with_duration(rank(1, steps=3), f"ProfilerStep#{broken}", duration).write(
        tmp_path / "rank1.json"
    )
    result = tracelens.analyze(tmp_path)
    steps = rank_of(result, 1).devices[0].steps
    assert [step.step for step in steps] == [10, 11, 12]
    assert [step.complete for step in steps] == [number != broken for number in (10, 11, 12)]
    for step in steps:
        if step.step != broken or broken != 12:
            holds(step.partition)
    if broken == 12:  # the trace ends with the launch of its last kernel
        holds(steps[2].partition, window_ns=800_000, idle_ns=0)
    assert f"rank1.json: 1 step mark without a usable duration (step {broken})" in (
        said(result, "unended-steps")
    )
    assert "untimed-host-events" not in codes(result), "said once"
    holds(rank_of(result, 1).devices[0].mean_step)
    (row,) = result.collectives
    assert row.bytes_per_step.message == 2 * BYTES


@pytest.mark.parametrize("duration", IMPOSSIBLE)
def test_an_operator_without_a_usable_duration_on_a_gpu(
    duration: str | None, tmp_path: Path
) -> None:
    write_ranks(tmp_path)
    trace = rank(1).operator("aten::mm", 90, 5).mark("forward", 80, 50)
    with_duration(trace, "aten::mm", duration)
    with_duration(trace, "forward", duration).write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "rank1.json: 2 host events without a usable time (1 operator, 1 range)" in (
        said(result, "untimed-host-events").replace("1 range, 1 operator", "1 operator, 1 range")
    )


@pytest.mark.parametrize("duration", IMPOSSIBLE)
def test_an_operator_without_a_usable_duration_on_a_cpu(
    duration: str | None, tmp_path: Path
) -> None:
    trace = Trace(world=1).step(1, 0, 1000).operator("aten::mm", 70, 400)
    trace.operator("aten::add", 600, 5).gloo(
        "allreduce_", 700, 100, [[[8]]], annotated="all_reduce"
    )
    with_duration(trace, "aten::add", duration).write(tmp_path / "rank0.json")
    result = tracelens.analyze(tmp_path)
    (step,) = rank_of(result, 0).devices[0].steps
    holds(step.partition, compute_ns=400_000, comm_ns=100_000, idle_ns=500_000)
    assert "(1 operator)" in said(result, "untimed-host-events")
    assert "lower bound" in said(result, "untimed-host-events")


def test_a_launch_without_a_start_leaves_its_kernel(tmp_path: Path) -> None:
    """Its time counts; of which of the two steps around it, nobody knows."""
    write_ranks(tmp_path)
    trace = rank(1)
    for index, text in enumerate(trace.events):
        event: dict[str, Any] = json.loads(text)
        if event["cat"] == "cuda_runtime" and event["ts"] == 680:  # norm of the first step
            trace.events[index] = text.replace('"ts": 680.000', '"ts": null')
    trace.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    (device,) = rank_of(result, 1).devices
    assert device.total.compute_ns == 1_400_000
    assert [step.complete for step in device.steps] == [False, False]
    assert "(1 call)" in said(result, "untimed-host-events")

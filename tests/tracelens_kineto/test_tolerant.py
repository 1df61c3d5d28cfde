"""Damaged events: each kind of kineto.md, repaired to the right values or skipped and counted."""

from __future__ import annotations

import time
from typing import Any

import pytest
from builders import Trace, parse_bytes

from tracelens.model.trace import NONE, RankTrace
from tracelens.reduction import reduce_rank

START, END = "200.001", "50.002"


def kernel_text(name: str = '"gemm"', **changed: str) -> str:
    """Return one kernel as JSON text; changes are the JSON texts of fields."""
    values = {
        "ph": '"X"', "cat": '"kernel"', "name": name, "pid": "0", "tid": "7", "ts": START,
        "dur": END, "args": '{"External id": 12, "device": 0, "stream": 7, "correlation": 31}',
    }  # fmt: skip
    fields = values | changed
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"


def with_ids(argument: str) -> str:
    """Return the usual arguments as JSON text, behind one more."""
    return f'{{{argument}, "device": 0, "stream": 7, "correlation": 31, "External id": 12}}'


def parsed(damaged: str | bytes, *, last: bool = False) -> RankTrace:
    """Parse a file whose middle (or last) event is the damaged one, between two good ones."""
    trace = Trace().kernel("before", 100, 10, launch=None)
    trace.raw("DAMAGED")
    if not last:
        trace.kernel("after", 900, 10, launch=None)
    raw = damaged if isinstance(damaged, bytes) else damaged.encode()
    return parse_bytes(trace.bytes().replace(b"DAMAGED", raw))


def the_kernel(trace: RankTrace) -> dict[str, Any]:
    """Return the damaged kernel's row; its neighbours must be whole."""
    table = trace.device_events.astype({"name": object})
    others = table["name"].isin(["before", "after"])
    assert table[others]["start"].tolist() in ([100_000, 900_000], [100_000])
    (row,) = table[~others].to_dict("records")
    return {str(key): value for key, value in row.items()}


def damage(trace: RankTrace) -> str:
    (found,) = [notice for notice in trace.info.notices if notice.code == "damaged-events"]
    return found.message


REPAIRED = {
    "unescaped quotes": (kernel_text('"void f<"x">(int)"'), 'void f<"x">(int)'),
    "a raw newline": (kernel_text('"two\nlines"'), "two\nlines"),
    "a raw tab and control bytes": (kernel_text('"a\tb\x01\x1b[31m"'), "a\tb\x01\x1b[31m"),
    "a lone backslash": (kernel_text(r'"C:\work\all"'), "C:\\work\\all"),
    "quotes and backslashes": (kernel_text(r'"C:\w "x" \a"'), 'C:\\w "x" \\a'),
    "right escapes beside wrong ones": (kernel_text(r'"a\\b \"x\" "y" \w"'), 'a\\b "x" "y" \\w'),
    "a bad unicode escape": (kernel_text(r'"\uZZZZ"'), r"\uZZZZ"),
    "a lone surrogate": (kernel_text(r'"x\ud800y"'), "x\ufffdy"),
    "quotes in an argument": (
        kernel_text(args=with_ids('"note": "say "hi""')),
        "gemm"),
    "inf": (kernel_text(args=with_ids('"GB/s": inf')), "gemm"),
    "-nan(ind)": (
        kernel_text(args=with_ids('"GB/s": -nan(ind)')),
        "gemm"),
    "Infinity": (
        kernel_text(args=with_ids('"x": Infinity')), "gemm"),
    "N/A": (kernel_text(args=with_ids('"x": N/A')), "gemm"),
    "a name that is a number": (kernel_text("17"), "17"),
    "a fractional pid": (kernel_text(pid="1.5"), "gemm"),
    "a thread that is a list": (kernel_text(tid="[]"), "gemm"),
    "a process that is true": (kernel_text(pid="true"), "gemm"),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", REPAIRED)
def test_repaired(kind: str, last: bool) -> None:
    text, name = REPAIRED[kind]
    trace = parsed(text, last=last)
    row = the_kernel(trace)
    assert row["name"] == name
    assert (row["start"], row["end"]) == (200_001, 250_003)
    assert (row["device"], row["stream"], row["correlation"], row["external_id"]) == (0, 7, 31, 12)
    assert "1 repaired, 0 skipped" in damage(trace)
    assert "no device event skipped" in damage(trace)
    assert not trace.info.truncated


# Values some of the typed decoders take and others do not.
ODD_FIELDS = {"pid": "1.0", "tid": "true", "id": "[1]", "ts": '"200.001"', "dur": '"50.002"'}


@pytest.mark.parametrize("key", ODD_FIELDS)
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("shift", ["", "1767225600000"])
def test_every_reading_of_a_file_takes_what_one_takes(key: str, damaged: bool, shift: str) -> None:
    """Flow arrows are read in a second pass, absolute times with decoders of their own."""
    fields = {"ts": START, **({key: ODD_FIELDS[key]} if key != "ts" else {})}
    fields["ts"] = shift + fields["ts"]
    if key == "ts":
        fields["ts"] = f'"{fields["ts"]}"'
    args = '{"device": 0, "stream": 7}'  # no correlation: arrows are asked
    text = kernel_text(args=args, **fields)
    if damaged:
        text += ',\n{"ph": "X", "cat": "cpu_op", "name": "a "b"", "ts": 1, "dur": 1}'
    row = the_kernel(parsed(text))
    start = 200_001 + 1000 * int(f"{shift}000" if shift else 0)
    assert (row["start"], row["end"] - row["start"]) == (start, 50_002)


def test_invalid_utf8_keeps_kernels_apart() -> None:
    for raw, name in ((b"\xff", "\\xff"), (b"\xfe", "\\xfe"), (b"\xff\xfe\xe4", "\\xff\\xfe\\xe4")):
        trace = parsed(kernel_text('"acme_@_norm"').encode().replace(b"@", raw))
        assert the_kernel(trace)["name"] == f"acme_{name}_norm"
        assert the_kernel(trace)["start"] == 200_001


def test_valid_utf8_beside_damage_stays_as_it_is() -> None:
    trace = parsed(kernel_text('"größe "x" 漢字"'))
    assert the_kernel(trace)["name"] == 'größe "x" 漢字'


def test_epoch_times_of_damaged_events_stay_exact() -> None:
    trace = parsed(kernel_text('"a "b" c"', ts="1767225600000200.123"))
    assert the_kernel(trace)["start"] == 1_767_225_600_000_200_123
    assert the_kernel(trace)["end"] == 1_767_225_600_000_250_125


@pytest.mark.parametrize(
    "ts",
    ["inf", "NaN", "N/A", '"N/A"', "null", "1e400", "true", '"2_00"', '"1e999999999999999999"'],
)
def test_a_time_that_is_no_number(ts: str) -> None:
    trace = parsed(kernel_text(ts=ts))
    assert len(trace.device_events) == 2
    assert trace.info.untimed == {(0, 0): 1}


@pytest.mark.parametrize("dur", ["inf", "nan", '"N/A"', "null", "-5", "0"])
def test_a_duration_that_is_no_number(dur: str) -> None:
    trace = parsed(kernel_text(dur=dur))
    assert len(trace.device_events) == 2
    assert trace.info.untimed == {(0, 0): 1}


@pytest.mark.parametrize("ts", ['" 200.001 "', '"+200.001"', '"2.00001E+02"', '"200001.e-3"'])
def test_a_text_python_reads_as_a_number_costs_no_other_event(ts: str) -> None:
    trace = parsed(kernel_text(ts=ts))
    assert len(trace.device_events) == 3
    assert the_kernel(trace)["start"] == 200_001


@pytest.mark.parametrize("pid", [str(1 << 64), str(-(1 << 63) - 1), "1.5", "[0]", "true"])
def test_a_process_id_that_no_integer_holds(pid: str) -> None:
    trace = parsed(kernel_text(pid=pid))
    assert len(trace.device_events) == 3
    assert the_kernel(trace)["start"] == 200_001


def test_an_event_beyond_repair_is_skipped_and_counted() -> None:
    trace = parsed('{"ph": "X", "cat": "kernel", "name": "x "y" z", "tss": 1}')
    assert len(trace.device_events) == 2
    assert "0 repaired, 1 skipped; 1 device event lost" in damage(trace)
    assert trace.info.damaged_device_events == 1


def test_a_skipped_host_event_costs_no_device_event() -> None:
    trace = parsed('{"ph": "X", "cat": "cpu_op", "name": "x "y" z", "tss": 1}')
    assert "0 repaired, 1 skipped; no device event skipped" in damage(trace)
    assert trace.info.damaged_device_events == 0


def test_a_step_that_is_lost_leaves_no_step_complete() -> None:
    """The step before it would be taken for both."""
    trace = Trace()
    for step in (1, 2, 3):
        trace.step(step, 1_000 * step, 900).kernel("gemm", 1_000 * step + 100, 300)
    for lost in ('"ts": null', '"tss": 1'):
        text = trace.text().replace('"ts": 2000.000', lost)
        assert lost in text
        got = parse_bytes(text.encode())
        assert got.info.damaged_device_events == 1
        assert not any(step.complete for step in reduce_rank(got).devices[0].steps)


def test_without_a_device_host_events_are_its_work() -> None:
    trace = Trace().step(1, 1_000, 900).operator("aten::mm", 1_100, 300)
    lost = trace.raw('{"ph": "X", "cat": "cpu_op", "name": "a "b" c", "tss": 1}').parse()
    assert "0 repaired, 1 skipped; 1 operator or range lost" in damage(lost)
    assert lost.info.damaged_device_events == 1
    (step,) = reduce_rank(lost).devices[0].steps
    assert not step.complete


_NO_PROCESS = ["", '"pid": null, ', '"pid": [], ', '"pid": true, ', '"pid": "", ', '"pid": " ", ']


@pytest.mark.parametrize("pid", _NO_PROCESS)
def test_an_event_that_lost_its_process_is_of_no_other_one(pid: str) -> None:
    trace = Trace().step(1, 1_000, 900).operator("aten::mm", 1_100, 300)
    got = trace.raw(f'{{"ph": "X", "cat": "cpu_op", "name": "a", {pid}"ts": 1, "dur": 1}}').parse()
    assert (got.info.rank, got.info.process) == (0, 4012)


def test_events_of_which_next_to_nothing_is_left_are_counted() -> None:
    launch = '{"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 1, "ts": 17672256'
    trace = parsed(f'{launch},\n{{,\n{{"p,\n{kernel_text()}')
    assert the_kernel(trace)["start"] == 200_001
    assert "0 repaired, 3 skipped; up to 2 device events lost" in damage(trace)


@pytest.mark.parametrize("size", [70, 500, 1 << 20])
def test_the_first_damage_is_placed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens_kineto.inflate.BLOCK", size)
    monkeypatch.setattr("tracelens_kineto.inflate._READ", size)
    trace = Trace().kernel("before", 100, 10).raw(kernel_text('"a "b" c"'))
    place = trace.text().index('"a "b') - len('{"ph": "X", "cat": "kernel", "name": ')
    assert f"at byte {place:,}:" in damage(trace.parse())


def test_only_the_damaged_events_are_counted() -> None:
    trace = Trace()
    for at in range(100, 200):
        trace.kernel("gemm", at, 1, launch=None)
        if at % 10 == 0:
            trace.raw(kernel_text('"a "b" c"', ts=f"{at}.5"))
    got = trace.parse()
    assert len(got.device_events) == 110
    assert "10 damaged events" in damage(got)


@pytest.mark.parametrize("size", [50, 97, 200, 1000])
def test_damage_at_any_block_boundary(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens_kineto.inflate.BLOCK", size)
    monkeypatch.setattr("tracelens_kineto.inflate._READ", size)
    trace = Trace()
    for at in range(100, 140):
        trace.kernel("gemm", at, 1, launch=None)
        trace.raw(kernel_text('"a },{ "b" c"', ts=f"{at}.500", dur="0.250"))
    got = trace.parse()
    assert got.device_events["name"].value_counts().to_dict() == {"gemm": 40, 'a },{ "b" c': 40}
    assert "40 damaged events" in damage(got)
    assert "40 repaired" in damage(got)


def test_strings_for_numbers_are_no_damage() -> None:
    text = kernel_text(ts=f'"{START}"', dur=f'"{END}"', pid='"0"', tid='"stream 7"')
    trace = parsed(text)
    assert trace.info.notices == ()
    assert the_kernel(trace)["start"] == 200_001
    # ... also in a batch that has to be walked because of another event
    damaged = parsed(
        text + ",\n" + '{"ph": "X", "cat": "cpu_op", "name": "a "b"", "ts": 1, "dur": 1}'
    )
    assert "1 damaged event," in damage(damaged)


@pytest.mark.parametrize("text", ["null", "{}"])
def test_an_empty_element_is_no_damage(text: str) -> None:
    """Some tools close the array with one."""
    trace = parsed(text)
    assert len(trace.device_events) == 2
    assert trace.info.notices == ()


NO_EVENTS = {
    "a number": ("17", True),
    "a text": ('"text"', True),
    "a list": ("[1, 2]", True),
    "an event in a list": (f"[{kernel_text()}]", True),
    "no phase": (kernel_text().replace('"ph": "X", ', ""), True),
    "an unknown phase": (kernel_text(ph='"Q"'), True),
    "a phase that is a list": (kernel_text(ph='["X"]'), True),
    "an operator without a phase": ('{"cat": "cpu_op", "name": "x", "ts": 1}', False),
    "a damaged category": (kernel_text(cat='"ker"nel"', name='"a"b"'), True),
    "a damaged key": (kernel_text().replace('"cat":', '"cat:'), True),
    "two events in one": (kernel_text()[:75] + kernel_text(), True),
}


@pytest.mark.parametrize("kind", NO_EVENTS)
def test_what_cannot_be_told_is_skipped_and_may_have_been_device_work(kind: str) -> None:
    text, may_be_device_work = NO_EVENTS[kind]
    trace = parsed(text)
    assert trace.device_events["name"].astype(object).tolist() == ["before", "after"]
    assert "0 repaired, 1 skipped" in damage(trace)
    assert trace.info.damaged_device_events == may_be_device_work


CUT_SHORT = {
    "in a name": '{"ph": "X", "cat": "kernel", "name": "ge',
    "in its first key": '{"p',
    "in a time": '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 200.',
    "in a duration": '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 200.5, "dur": 3',
    "in a quoted duration": '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": "200", "dur": "3',
    "in an argument": '{"ph": "X", "cat": "kernel", "args": {"a": [1, {"b": 2',
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", CUT_SHORT)
def test_an_event_without_its_end_costs_itself_only(kind: str, last: bool) -> None:
    following = "" if last else ', {"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 1}'
    trace = parsed(f"{CUT_SHORT[kind]},\n{kernel_text()}{following}", last=last)
    assert the_kernel(trace)["start"] == 200_001
    most = "" if "cat" in CUT_SHORT[kind] else "up to "
    assert f"0 repaired, 1 skipped; {most}1 device event lost" in damage(trace)


def test_an_event_without_its_end_that_says_enough_is_repaired() -> None:
    cut = kernel_text("before", ts="300", dur="2").partition('"stream"')[0]
    trace = parsed(f"{cut},\n{kernel_text()}")
    assert trace.device_events["start"].tolist() == [100_000, 200_001, 300_000, 900_000]


def test_several_events_without_their_ends() -> None:
    known = [text for text in CUT_SHORT.values() if '"ph"' in text]
    trace = parsed(",".join([*known, kernel_text()]))
    assert the_kernel(trace)["start"] == 200_001
    assert "0 repaired, 5 skipped; 5 device events lost" in damage(trace)


def test_a_name_like_an_event_is_no_event() -> None:
    inside = '{"ph": "X", "cat": "kernel", "name": "y", "ts": 1, "dur": 2}'
    trace = parsed(kernel_text(f'"say "x", {inside}"'))
    assert trace.device_events["start"].tolist() == [100_000, 900_000]
    assert "0 repaired, 1 skipped" in damage(trace)


def test_an_event_of_an_unknown_category_that_names_a_device() -> None:
    trace = parsed(kernel_text(cat='"ccp_events"'))
    (notice,) = trace.info.notices
    assert notice.code == "unread-device-events"
    assert "1 event of a device in a form TraceLens cannot attribute (ccp_events)" in notice.message
    assert trace.info.damaged_device_events == 1
    (notice,) = parsed(kernel_text(cat='"mine"', args="{}")).info.notices
    assert notice.code == "unknown-categories"


def test_an_event_that_lost_its_device() -> None:
    lost = kernel_text(pid='"GPU"', args='{"stream": 7}')
    assert the_kernel(parsed(lost))["device"] == 0, "the only one there is"
    trace = Trace().kernel("a", 100, 10, device=0).kernel("b", 100, 10, device=1).raw(lost).parse()
    assert len(trace.device_events) == 2
    assert trace.info.damaged_device_events == 1
    assert [notice.code for notice in trace.info.notices] == ["device-unknown"]


@pytest.mark.parametrize(
    "text",
    [
        "{" * 200_000,
        '{"ph": "X", "name": "' + '}] ' * 200_000,
        '{"ph": "X", "a": [' * 50_000,
        '{"ph": "X", "name": "a", "x": [' + '{"ph": "X", "a": [1},{"ph": "X"' * 20_000,
        '"name": "' * 100_000,
    ],
    ids=["braces", "array ends", "open lists", "half events", "names"],
)  # fmt: skip
def test_no_damage_takes_long(text: str) -> None:
    began = time.process_time()
    trace = parsed(text, last=True)
    assert time.process_time() - began < 10
    assert "before" in set(trace.device_events["name"].astype(object))


def test_damaged_arguments_cost_only_themselves() -> None:
    trace = parsed(
        kernel_text(args='{"stream": [7], "device": 0, "correlation": 31, "External id": 12}')
    )
    row = the_kernel(trace)
    assert (row["correlation"], row["stream"]) == (31, 7)  # the thread id stands in
    for args in ("[]", "null", '"text"', "17"):
        row = the_kernel(parsed(kernel_text(args=args)))
        assert (row["start"], row["correlation"]) == (200_001, NONE)


def test_a_cut_inside_an_event_is_a_cut_and_no_damage() -> None:
    trace = Trace().kernel("one", 100, 10, launch=None).kernel("two", 200, 10, launch=None)
    text = trace.text()
    got = parse_bytes(text[: text.index('"two"') + 30].encode())
    assert got.info.truncated
    assert got.device_events["name"].astype(object).tolist() == ["one"]
    assert [notice.code for notice in got.info.notices] == ["truncated-file"]


def test_a_cut_between_events_is_a_cut() -> None:
    trace = Trace().kernel("one", 100, 10, launch=None).kernel("two", 200, 10, launch=None)
    text = trace.text()
    end = text.index("}}") + 2
    for cut in (text[:end], text[: end + 1], text[:end] + "\n"):
        got = parse_bytes(cut.encode())
        assert got.info.truncated
        assert len(got.device_events) == 1
        assert [notice.code for notice in got.info.notices] == ["truncated-file"]


def test_reading_damage_needs_no_recursion() -> None:
    deep = "[" * 100_000
    trace = parsed(kernel_text(args=deep))
    assert {"before", "after"} <= set(trace.device_events["name"].astype(object))


@pytest.mark.parametrize("block", [bytes(1000), bytes(range(256)) * 4], ids=["zeros", "any"])
@pytest.mark.parametrize("place", ["name", "args"])
def test_what_replaced_whole_events_is_not_repaired(block: bytes, place: str) -> None:
    """A hole may begin in a text of one event and end in one of another: no event is both."""
    head, _, tail = (
        kernel_text(args=with_ids('"note": "hole"'))
        .encode()
        .partition(b"gemm" if place == "name" else b"hole")
    )
    got = parsed(head + block + tail)
    assert got.device_events["start"].tolist() == [100_000, 900_000]
    assert got.info.damaged_device_events == 1
    assert (
        "0 repaired, 1 skipped; at least 1 device event lost: bytes that are no text stand in"
        in (damage(got))
    )


@pytest.mark.parametrize("again", ['", "dur": 3.5, "args": {', '", "args": {'])
def test_pieces_of_two_events_are_none(again: str) -> None:
    """The end of one event and the beginning of the other are gone."""
    got = parsed(kernel_text().replace('"stream"', '"str' + again + '"stream"', 1))
    assert got.device_events["start"].tolist() == [100_000, 900_000]
    assert "0 repaired, 1 skipped; 1 device event lost" in damage(got)


def test_pieces_may_be_of_a_device_event_behind_one_of_the_host() -> None:
    operator = kernel_text('"aten::mm"', cat='"cpu_op"').partition("gemm")[0]
    got = parsed(operator.partition('"ts"')[0] + '"aten' + kernel_text())
    assert got.info.damaged_device_events == 1

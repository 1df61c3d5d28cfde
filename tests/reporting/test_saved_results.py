"""A saved analysis.json is whatever somebody sends: it renders, or one line says what is wrong."""

from __future__ import annotations

import copy
import functools
import json
from typing import TYPE_CHECKING, Any

import analysis_builder
import pytest
from command import run
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.model.result import Analysis
from tracelens.reporting.terminal import summary
from tracelens_html import HtmlReport
from tracelens_markdown import MarkdownReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Place = tuple[str | int, ...]
_EACH = 2  # of a list one or two elements stand for all


@functools.cache
def document() -> dict[str, Any]:
    """Return a document in which nothing is empty, lists cut to two elements."""
    base = json.loads(analysis_builder.large(8).to_json())
    base["volumes"]["network"] = [
        {"host": "a", "ranks": [0], "sent_bytes_per_step": 1, "received_bytes_per_step": 1,
         "requested_bytes_per_step": 1}
    ]  # fmt: skip
    return _short(base)  # type: ignore[no-any-return]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value[:_EACH]] if isinstance(value, list) else value


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where every value of a document stands."""
    if at:
        yield at
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        yield from places(one, (*at, key))


def changed(at: Place, value: Any) -> str:
    """Return the document with another value at a place."""
    found = copy.deepcopy(document())
    inside: Any = found
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = value
    return json.dumps(found)


def value_at(at: Place) -> Any:
    inside: Any = document()
    for key in at:
        inside = inside[key]
    return inside


def check_refusal(error: InputError) -> None:
    assert error.slug in ("not-a-result", "newer-result")
    assert "\n" not in error.message
    assert len(error.message) < 300


def renders_or_is_refused(text: str) -> bool:
    """Render a text in every form; tell whether it was refused instead."""
    try:
        analysis = Analysis.from_json(text)
    except InputError as error:
        check_refusal(error)
        return True
    HtmlReport().render(analysis)
    MarkdownReport().render(analysis)
    summary(analysis)
    return False


PLACES = list(places(document()))
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None), max_size=20)
    | st.sampled_from(analysis_builder.EVIL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def like(value: Any) -> st.SearchStrategy[Any]:
    """Return values of a kind: those that types alone cannot refuse."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, (int, float)):
        return st.integers(-3, 3) | st.integers(-(2**63), 2**63) | st.floats(-1e18, 1e18)
    if isinstance(value, str):
        return st.sampled_from(["", "\n", "dp", "pp", "all_gather", *analysis_builder.EVIL])
    if isinstance(value, list):
        return st.sampled_from([[], value[::-1], value[:1], value * 2, value * 40])
    if isinstance(value, dict):
        first = next(iter(value.values()), None)
        return st.sampled_from([{}, {**value, "77": first}, {**value, "-1": first}])
    return st.integers(-(2**63), 2**63) | st.floats(-1e18, 1e18) | st.text(max_size=3)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Place, Any]:
    at = draw(st.sampled_from(PLACES))
    return at, draw(ANYTHING | like(value_at(at)))


def test_the_document_is_one() -> None:
    assert not renders_or_is_refused(json.dumps(document()))
    assert len(PLACES) > 400


@settings(max_examples=150, deadline=20_000)
@given(mutations())
def test_any_value_anywhere(mutation: tuple[Place, Any]) -> None:
    renders_or_is_refused(changed(*mutation))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("run", "world_size"), 10**30),
        (("run", "world_size"), "eight"),
        (("pipeline", "stages"), 2**62),
        (("ranks",), {"0": 1}),
        (("ranks", 0, "devices", 0, "total"), None),
        (("lateness", "ranks"), [0]),
        (("lateness", "late_ns"), [[1], [1, 2]]),
        (("collectives", 0, "calls"), 1e308),
        (("summary", "status"), "great"),
        (("notices", 0, "level"), 3),
        (("source", "options"), []),
        (("pipeline", "stage_of_rank"), {"x": 1}),
        (("run", "ranks_present"), [0] * 1_000_000),
    ],
)
def test_what_is_refused(at: Place, value: Any) -> None:
    refused = renders_or_is_refused(changed(at, value))
    assert refused == (value != 2**62), "a large number of stages is only odd"


@pytest.mark.parametrize("place", ["schema", "tool", "source", "run", "summary", "ranks"])
def test_a_missing_key_is_named(place: str) -> None:
    text = json.dumps({key: value for key, value in document().items() if key != place})
    with pytest.raises(InputError, match=f"missing required field `{place}`"):
        Analysis.from_json(text)


def test_keys_of_a_later_minor_version_are_passed_over() -> None:
    text = json.dumps({**document(), "news": {"a": [1]}})
    assert Analysis.from_json(text) == Analysis.from_json(json.dumps(document()))


TEXTS: dict[str, tuple[bytes, str]] = {
    "NaN": (changed(("run", "world_size"), float("nan")).encode(), "not a TraceLens result"),
    "infinity": (changed(("run", "world_size"), float("inf")).encode(), "not a TraceLens result"),
    "UTF-16": (json.dumps(document()).encode("utf-16"), "not a TraceLens result"),
    "bytes": (b'{"schema": "tracelens/1", "tool": "\xff\xfe"}', "TraceLens result"),
    "empty": (b"", "not a TraceLens result"),
    "deep": (b'{"schema": "tracelens/1", "x": ' + b"[" * 10**6 + b"]" * 10**6 + b"}", "recursion"),
    "deep at the top": (b"[" * 10**6, "not a TraceLens result"),
    "newer": (changed(("schema",), "tracelens/2").encode(), "schema tracelens/2"),
    "other": (changed(("schema",), "x\x1b[31m/1").encode(), "its schema is"),
    "cut": (json.dumps(document()).encode()[:5000], "not a TraceLens result"),
    "list": (b"[]", "not a TraceLens result"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_such_json(name: str) -> None:
    text, said = TEXTS[name]
    with pytest.raises(InputError) as caught:
        Analysis.from_json(text)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_the_command_names_the_file(tmp_path: Path) -> None:
    for name, said in (("deep", "recursion"), ("newer", "update tracelens"), ("bytes", "UTF-8")):
        (tmp_path / "saved.json").write_bytes(TEXTS[name][0])
        done = run("report", "saved.json", "-o", "x.md", cwd=tmp_path)
        assert done.code == 1
        assert done.err.startswith("Error: saved.json: ")
        assert said.lower() in done.err.lower()
        assert not (tmp_path / "x.md").exists()


def test_it_is_not_read_without_end(tmp_path: Path) -> None:
    done = run("report", "/dev/zero", "-o", "x.md", cwd=tmp_path)
    assert (done.code, "more than" in done.err) == (1, True)

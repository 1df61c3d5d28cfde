"""Every notice comes from the registry, every error names its section of docs/messages.md."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tracelens import errors
from tracelens.notices import NOTICES, notice

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CODE = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in ("tracelens", "parsers", "reports")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
LEVELS = {"info", "warning", "error"}
GIVEN = {"s", "es", "rank"}  # by `notice` itself
ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.TraceLensError)
}


def calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of a function or class of ours, with where it stands."""
    for path, tree in CODE.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in names:
                    yield f"{path}:{node.lineno}", node


def keywords(node: ast.Call) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in node.keywords}


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


NOTICE_CALLS = list(calls("notice"))
ERROR_CALLS = [
    one for one in calls(*ERRORS - {"OptionError"}) if not one[0].startswith("tracelens/errors.py")
]


def test_there_are_calls_to_look_at() -> None:
    assert len(NOTICE_CALLS) >= len(NOTICES)
    assert len(ERROR_CALLS) > 20


def test_nobody_else_makes_notices() -> None:
    assert [where.partition(":")[0] for where, _ in calls("Notice")] == ["tracelens/notices.py"]


@pytest.mark.parametrize(("where", "node"), NOTICE_CALLS, ids=[where for where, _ in NOTICE_CALLS])
def test_a_notice_is_registered_and_fills_its_template(where: str, node: ast.Call) -> None:
    code = node.args[0] if node.args else None
    assert isinstance(code, ast.Constant), "the code stands in the call, to be found"
    assert code.value in NOTICES
    given = keywords(node)
    needed = fields(NOTICES[code.value].template)
    if needed & {"s", "es"}:
        needed.add("count")
    if None not in given:  # **who names file and rank
        assert "rank" not in needed or "rank" in given
    assert needed - GIVEN <= given.keys()
    unknown = given.keys() - needed - {"file", "rank", "count", None}
    assert not unknown, "values no template shows"


@pytest.mark.parametrize("code", NOTICES)
def test_the_registry_is_sound(code: str) -> None:
    """A code is its own anchor in docs/messages.md: lower case, words and dashes."""
    kind = NOTICES[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    assert kind.level in LEVELS
    assert f"\n### {code}\n" in (ROOT / "docs" / "messages.md").read_text()
    assert not kind.template.endswith(".")
    values = dict.fromkeys(fields(kind.template) - {"s", "es", "count", "rank"}, "x")
    made = notice(code, count=2, rank=0, **values)
    assert (made.code, made.level) == (code, kind.level)
    assert not re.search(r"[{}\n]", made.message)


def test_an_unregistered_notice_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        notice("surprise")
    with pytest.raises(KeyError):
        notice("truncated-file", count=1)


@pytest.mark.parametrize(("where", "node"), ERROR_CALLS, ids=[where for where, _ in ERROR_CALLS])
def test_an_error_says_where_it_is_documented(where: str, node: ast.Call) -> None:
    slug = keywords(node).get("slug")
    passed_on = isinstance(slug, ast.Attribute) and slug.attr == "slug"
    assert passed_on or isinstance(slug, ast.Constant), "no slug"
    if isinstance(slug, ast.Constant):
        assert f"\n### {slug.value!s}\n" in (ROOT / "docs" / "messages.md").read_text()

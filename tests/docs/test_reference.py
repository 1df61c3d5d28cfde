"""Nothing the product can say or take is undocumented, and nothing documented is gone."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tracelens import discovery, links
from tracelens.cli import COMMANDS, cli
from tracelens.findings import network, pipeline, rules
from tracelens.model import result
from tracelens.notices import NOTICES
from tracelens.operations import OPERATIONS, named
from tracelens.theory import scheme
from tracelens_kineto import KinetoParser
from tracelens_nsight import NsightParser

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CODE = [
    path
    for folder in ("tracelens", "parsers", "reports")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LEVELS = {"info": "information", "warning": "warning", "error": "error"}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def sections(text: str, level: int) -> dict[str, str]:
    """Return the text under each heading of a level, up to the next heading of it or above."""
    parts = re.split(rf"^(#{{1,{level}}}) (.+)$", text, flags=re.MULTILINE)[1:]
    found = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {title: body for marks, title, body in found if len(marks) == level}


def source() -> str:
    return "\n".join(path.read_text() for path in CODE)


def in_code(text: str) -> set[str]:
    """Return every word that stands between backticks."""
    return {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", span)}


# commands ----------------------------------------------------------------------------------------


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options(name: str) -> Iterator[str]:
    context = click.Context(command(name), parent=click.Context(cli), info_name=name)
    context.help_option_names = ["-h", "--help"]
    for parameter in command(name).get_params(context):
        if isinstance(parameter, click.Option):
            yield from parameter.opts + parameter.secondary_opts


def test_every_command_has_its_section() -> None:
    titles = set(sections(page("docs/cli.md"), 2))
    assert titles == {f"tracelens {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_a_command_are_those_documented(name: str) -> None:
    text = sections(page("docs/cli.md"), 2)[f"tracelens {name}"]
    rows = re.findall(r"^\| (`-.*?) \|", text, flags=re.MULTILINE)
    documented = {option for row in rows for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", row)}
    assert documented == set(options(name))


def test_environment_names_that_differ_are_documented() -> None:
    text = page("docs/cli.md").partition("## ")[0]
    parameters = command("analyze").params + command("report").params
    for parameter in parameters:
        long = [option for option in parameter.opts if option.startswith("--")]
        if long and parameter.name and long[0][2:].replace("-", "_") != parameter.name:
            assert f"`{long[0]}` is `…_{parameter.name.upper()}`" in text


# messages ----------------------------------------------------------------------------------------


def message_sections() -> tuple[dict[str, str], dict[str, str]]:
    """Return the documented notices and errors."""
    both = sections(page("docs/messages.md"), 2)
    return sections(both["Notices"], 3), sections(both["Errors"], 3)


def slugs() -> set[str]:
    return set(re.findall(r'slug="([^"]+)"', source()))


def test_notices_are_those_documented() -> None:
    assert set(message_sections()[0]) == set(NOTICES)


@pytest.mark.parametrize("code", NOTICES)
def test_a_notice_says_what_it_means_does_and_asks(code: str) -> None:
    text = message_sections()[0][code]
    assert text.strip().startswith(f"*{LEVELS[NOTICES[code].level]}"), "its level comes first"
    assert "- **Numbers:**" in text
    assert "- **Do:**" in text


@pytest.mark.parametrize("code", NOTICES)
def test_a_notice_is_given_somewhere(code: str) -> None:
    assert re.search(rf'\bnotice\(\s*"{code}"', source()), "no code gives it"


def test_error_slugs_are_those_documented() -> None:
    notices, errors = message_sections()
    # A file that cannot be read is a notice, and an error if it is the only one.
    assert set(errors) == slugs() - set(notices)


# findings ----------------------------------------------------------------------------------------


def test_finding_ids_are_those_documented() -> None:
    source = "".join(inspect.getsource(module) for module in (rules, network, pipeline))
    ids = set(re.findall(r'\bid=f?"([^"]+)"', source))
    documented = {title.replace("\\", "") for title in sections(page("docs/findings.md"), 2)}
    assert documented == {re.sub(r"\{.*\}", "*op*", one) for one in ids}


def test_every_exposed_finding_is_named() -> None:
    text = sections(page("docs/findings.md"), 2)["exposed-*op*"]
    assert set(re.findall(r"`(exposed-[\w-]+)`", text)) == {
        f"exposed-{named(o)}" for o in OPERATIONS
    }


@pytest.mark.parametrize(
    "share",
    [rules.EXPOSED_SHARE, rules.HIGH_SHARE, network.LOW_SHARE_OF_LINK,
     network.REACHED_SHARE_OF_LINK, network.LOST_SHARE],
)  # fmt: skip
def test_thresholds_of_findings_are_stated(share: float) -> None:
    assert f" {100 * share:g} %" in page("docs/findings.md")


# the result --------------------------------------------------------------------------------------

DATACLASSES = [
    value
    for value in vars(result).values()
    if dataclasses.is_dataclass(value) and isinstance(value, type)
]


@pytest.mark.parametrize("kind", DATACLASSES, ids=lambda kind: kind.__name__)
def test_every_field_of_the_result_is_named(kind: type) -> None:
    named_fields = in_code(page("docs/result.md"))
    missing = [f.name for f in dataclasses.fields(kind) if f.name not in named_fields]
    assert not missing


@pytest.mark.parametrize("status", [0, 1, 2, 4])
def test_exit_codes_are_documented(status: int) -> None:
    assert f"\n| {status} |" in sections(page("docs/result.md"), 2)["Exit codes"]


def test_links_are_those_documented() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| ([^|]+) \| ([\d.]+) \| ([^|]+) \|$",
        page("docs/attribution.md"),
        re.MULTILINE,
    )
    assert rows == [(link.kind, f"{link.gbps:g}", link.source) for link in links.LINKS]


# theory ------------------------------------------------------------------------------------------


_PREDICTIONS = ("Scheme", "Term", "tuple[Term, ...]")


def schemes() -> set[str]:
    """Return the functions that build a prediction, as module.name."""
    return {
        f"{path.stem}.{node.name}"
        for path in (ROOT / "tracelens" / "theory").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and ast.unparse(node.returns or ast.Constant(None)) in _PREDICTIONS
    }


def test_predictions_are_those_documented() -> None:
    rows = re.findall(r"\| `(\w+\.\w+)` \|$", page("docs/theory.md"), re.MULTILINE)
    assert set(rows) == schemes()


def test_tolerance_is_documented() -> None:
    assert (
        f"within {100 * scheme.TOLERANCE:g} %" in sections(page("docs/theory.md"), 2)["Tolerance"]
    )


# dependencies and files --------------------------------------------------------------------------


def dependencies() -> dict[str, set[str]]:
    """Return the names of the dependencies by extra; "" is the base install."""
    project = tomllib.loads(page("pyproject.toml"))["project"]
    by_extra = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
        for extra, requirements in by_extra.items()
    }


def documented_dependencies() -> dict[str, set[str]]:
    text = sections(page("docs/architecture.md"), 2)["Dependencies"]
    base, rest = text.split("Extras:")
    extras, dev = rest.split("Development (`dev`):")
    cells = r"^\| (`[^|]+) \|"
    found = {
        "": set(re.findall(r"`([^`]+)`", " ".join(re.findall(cells, base, re.MULTILINE)))),
        "dev": set(re.findall(r"`([^`]+)`", " ".join(re.findall(cells, dev, re.MULTILINE)))),
    }
    for extra, names in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", extras, re.MULTILINE):
        found[extra] = set(re.findall(r"`([^`]+)`", names))
    return found


def test_every_dependency_says_why_it_is_there() -> None:
    assert documented_dependencies() == dependencies()


@pytest.mark.parametrize("name", ["docs/messages.md", "parsers/README.md"])
def test_the_suffixes_searched_for_are_documented(name: str) -> None:
    listed = re.search(r"(?:ending in|end in) (.+? or `[^`]+`)", page(name))
    assert listed is not None
    searched = (*KinetoParser.suffixes, *discovery._KNOWN_SUFFIXES, *NsightParser.suffixes)
    assert tuple(re.findall(r"`([^`]+)`", listed[1])) == searched


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_that_code_refers_to_exist(path: Path) -> None:
    for name in re.findall(r"\bdocs/\w+\.md", path.read_text()):
        assert (ROOT / name).is_file(), name

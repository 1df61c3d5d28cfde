"""Nothing in the product can run what a file holds: no pickle, no eval, no shell."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CODE = sorted(
    path for folder in ("tracelens", "parsers", "reports") for path in (ROOT / folder).rglob("*.py")
)
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "xmlrpc"}
BUILT_IN = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "torch.load", "builtins.eval",
    "builtins.exec", "np.load", "numpy.load", "shutil.unpack_archive",
}  # fmt: skip
METHODS = {"extract", "extractall", "read_pickle", "to_pickle", "from_string"}
KEYWORDS = {"shell", "allow_pickle"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangers(tree: ast.AST) -> Iterator[str]:
    """Yield what could run or unpack the content of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from (name for name in names if name.partition(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[str]:
    name = dotted(node.func)
    last = name.rpartition(".")[2]
    is_method = isinstance(node.func, ast.Attribute)
    if name in CALLS | BUILT_IN or (is_method and last in METHODS):
        yield name
    for keyword in node.keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in KEYWORDS and not off:
            yield f"{name}({keyword.arg}=…)"


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_runs_what_a_file_holds(path: Path) -> None:
    assert list(dangers(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "eval(text)",
        "yaml.load(file)",
        "np.load(file, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "archive.extractall(folder)",
        "pd.read_pickle(path)",
    ],
)
def test_the_test_finds_them(code: str) -> None:
    assert list(dangers(ast.parse(code)))


def test_only_the_parser_of_reports_starts_a_program() -> None:
    """`nsys export` alone is run, as a list of arguments."""
    starting = [path for path in CODE if "subprocess" in path.read_text()]
    assert [path.name for path in starting] == ["report.py"]
    assert starting[0].parent.name == "tracelens_nsight"

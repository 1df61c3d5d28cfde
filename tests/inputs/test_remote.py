"""Traces another machine holds, with fsspec's memory file system in its place."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from standard_run import is_standard, rank, write_ranks

import tracelens
from tracelens.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bucket() -> Iterator[Any]:
    """Offer a folder of two ranks and something else."""
    system = fsspec.filesystem("memory")
    for number in (0, 1):
        system.pipe(f"/bucket/run/rank{number}.json", rank(number).bytes())
    system.pipe("/bucket/run/notes.txt", b"no trace")
    yield system
    system.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    "address", ["memory://bucket/run", "memory://bucket/run/", "memory://bucket/run/*.json"]
)
def test_folders_and_globs(bucket: Any, address: str) -> None:
    is_standard(tracelens.analyze(address))


def test_one_file(bucket: Any) -> None:
    result = tracelens.analyze("memory://bucket/run/rank1.json")
    assert [one.rank for one in result.ranks] == [1]


def test_what_is_not_there_is_one_line(bucket: Any) -> None:
    with pytest.raises(InputError, match="memory://bucket/other: cannot be reached"):
        tracelens.analyze("memory://bucket/other")


def test_the_folder_of_an_address_may_say_the_rank(bucket: Any) -> None:
    for number in (0, 1):
        bucket.pipe(f"/bucket/odd/rank{number}/trace.json", rank(None).bytes())
    addresses = [f"memory://bucket/odd/rank{number}/trace.json" for number in (0, 1)]
    assert [one.rank for one in tracelens.analyze(addresses).ranks] == [0, 1]
    assert [one.rank for one in tracelens.analyze("memory://bucket/odd").ranks] == [0, 1]


def test_what_is_passed_over_in_a_folder_here_is_passed_over_there(bucket: Any) -> None:
    for name in (".hidden/rank7.json", "tracelens-report/analysis.json", "sub/.rank8.json"):
        bucket.pipe(f"/bucket/run/{name}", rank(7).bytes())
    result = tracelens.analyze("memory://bucket/run")
    is_standard(result)
    assert [file.path for file in result.source.files] == ["rank0.json", "rank1.json"]


def test_one_object_named_twice_is_one(bucket: Any) -> None:
    is_standard(tracelens.analyze(["memory://bucket/run", "memory://bucket/run/rank0.json"]))


def test_google_storage_goes_the_same_way() -> None:
    """gcsfs needs an account or an emulator: another file system stands in for it."""

    class Stand(MemoryFileSystem):  # type: ignore[misc]
        protocol = ("gs", "gcs")
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.removeprefix("gs://")))

    with registered("gs", Stand):
        for number in (0, 1):
            Stand().pipe(f"/bucket/run/rank{number}.json", rank(number).bytes())
        is_standard(tracelens.analyze("gs://bucket/run/*.json"))


@contextlib.contextmanager
def registered(kind: str, system: type) -> Iterator[None]:
    """Let fsspec read a kind of address with a class."""
    before = dict(_registry)
    fsspec.register_implementation(kind, system, clobber=True)
    try:
        yield
    finally:
        _registry.clear()
        _registry.update(before)


def test_without_fsspec_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError) as caught:
        tracelens.analyze("s3://bucket/run")
    assert caught.value.message == "s3://bucket/run: remote paths need fsspec"
    assert caught.value.hint == "run `pip install 'tracelens-distributed[remote]' s3fs`"
    assert list(tmp_path.iterdir()) == [], "no folder called s3:"


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        ("s3", "s3fs", "s3fs"),
        ("gs", "gcsfs", "gcsfs"),
        ("http", "fsspec.implementations.http", "aiohttp"),
        ("az", "adlfs", "adlfs"),
    ],
)
def test_without_its_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, kind: str, module: str, package: str
) -> None:
    monkeypatch.delitem(_registry, kind, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError) as caught:
        tracelens.analyze(f"{kind}://me:planted@bucket/run/rank0.json?sig=planted")
    said = f"{kind}://bucket/run/rank0.json: an address of this kind needs {package}"
    assert caught.value.message == said
    assert caught.value.hint == f"run `pip install {package}`"
    assert caught.value.slug == "no-remote"


def test_a_kind_of_address_nobody_knows() -> None:
    with pytest.raises(InputError, match=r"^nothing://bucket/run: cannot be reached: .*not known"):
        tracelens.analyze("nothing://me:planted@bucket/run")


def test_an_address_of_this_machine_is_a_path(tmp_path: Path) -> None:
    write_ranks(tmp_path / "my run")
    for address in (
        (tmp_path / "my run").as_uri(),
        f"file://{tmp_path}/my run",
        f"file:{tmp_path}/*",
    ):
        is_standard(tracelens.analyze(address))

"""Traces another machine holds, with fsspec's memory file system in its place."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fsspec")

import fsspec
from standard_run import is_standard, rank

import tracelens
from tracelens.addresses import is_remote, shown
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


def test_without_fsspec_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError) as caught:
        tracelens.analyze("s3://bucket/run")
    assert "tracelens-distributed[remote]" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == [], "no folder called s3:"


def test_secrets_of_an_address_are_not_shown() -> None:
    address = "https://me:secret@host.example/run/rank0.json?X-Signature=abc#part"
    assert shown(address) == "https://host.example/run/rank0.json"


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/run", True),
        ("s3:/bucket/run", True),
        ("C:/traces", False),
        ("run/rank0.json", False),
        ("file:///traces", False),
    ],
)
def test_what_is_remote(path: str, remote: bool) -> None:
    assert is_remote(path) == remote

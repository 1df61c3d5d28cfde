"""What is an address, and what of it may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.addresses import harmless, is_remote, local, shown


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/run", True),
        ("s3:/bucket/run", True),
        (Path("s3://bucket/run"), True),
        ("S3://bucket/run", True),
        ("abfs+x.1-a://bucket", True),
        ("simplecache::s3://bucket/run", True),
        ("zip://rank*.json::s3://bucket/run.zip", True),
        ("C:/traces", False),
        ("C:\\traces\\rank0.json", False),
        ("c://traces", False),
        ("run/rank0.json", False),
        ("run/s3://bucket", False),
        ("rank0:/x", True),
        ("file:///traces", False),
        ("FILE:///traces", False),
        ("local:///traces", False),
        ("12:30:/x", False),
    ],
)
def test_what_is_remote(path: str | Path, remote: bool) -> None:
    assert is_remote(path) == remote


def test_a_folder_that_looks_like_an_address_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run1:" / "x").mkdir(parents=True)
    assert not is_remote("run1:/x")
    assert is_remote("run1:/y")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://me:planted@host.example/run/rank0.json?X-Signature=planted#planted",
         "https://host.example/run/rank0.json"),
        ("https://planted@host:8443/run/", "https://host:8443/run/"),
        ("https://me:plan@ted@host/run", "https://host/run"),
        ("s3://AKIA:plan/ted@bucket/run", "s3://bucket/run"),
        ("s3:/AKIA:planted@bucket/run", "s3://bucket/run"),
        ("simplecache::https://me:planted@host/x?sig=planted", "simplecache::https://host/x"),
        ("zip://a.json::https://me:planted@host/x.zip?sig=planted", "zip://a.json::https://host/x.zip"),
        ("az://container/run?sv=1&sig=planted", "az://container/run"),
        ("http://host?token=planted", "http://host"),
        ("http://host:8000/run@2/rank0.json", "http://host:8000/run@2/rank0.json"),
        ("http://host:8000", "http://host:8000"),
        ("http://[::1]:8000/run/", "http://[::1]:8000/run/"),
        ("s3://bucket/run@2/rank?.json", "s3://bucket/run@2/rank?.json"),
        ("s3://bucket/a#1/rank0.json", "s3://bucket/a#1/rank0.json"),
        ("C:\\me@host", "C:\\me@host"),
        ("me@host?a=b", "me@host?a=b"),
    ],
)  # fmt: skip
def test_what_is_shown_of_an_address(address: str, expected: str) -> None:
    assert shown(address) == expected
    assert "plan" not in expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Cannot connect to host 127.0.0.1:1", "Cannot connect to host 127.0.0.1:1"),
        ("no\nanswer\tof https://me:planted@host/x", "no answer of …"),
        ("403, url='https://host/x?sig=planted'", "403, …"),
        ("GET /run/x.json?X-Amz-Signature=planted failed", "GET … failed"),
        ("bad Credential=planted, Signature=planted", "bad … …"),
        ("secret=planted", "…"),
        ("x" * 1000, "x" * 200),
    ],
)
def test_what_is_shown_of_an_error(text: str, expected: str) -> None:
    assert harmless(text) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("file:///traces/run", "/traces/run"),
        ("file:/traces/run", "/traces/run"),
        ("FILE:///traces/run", "/traces/run"),
        ("file://localhost/traces", "/traces"),
        ("local:///traces", "/traces"),
        ("file://traces/run", "traces/run"),
        ("file:///my%20traces", "/my traces"),
        ("traces/file://x", "traces/file://x"),
        ("files/x", "files/x"),
    ],
)
def test_local_addresses_are_paths(given: str, expected: str) -> None:
    assert local(given) == expected


def test_a_path_with_a_percent_sign_is_taken_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "run%201"
    odd.mkdir()
    assert local(f"file://{odd}") == str(odd)

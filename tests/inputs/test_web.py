"""Traces on a web server: the standard library's, on this machine."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

import aiohttp
import fsspec
import object_store
from command import run as run_command
from standard_run import codes, is_standard, rank, said, write_ranks

import tracelens
from tracelens import remote, remote_listing
from tracelens.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOGIN = "me:planted"
SIGNED = "X-Amz-Credential=planted/20261201/us-east-1/s3/aws4_request&X-Amz-Signature=planted"


class Handler(SimpleHTTPRequestHandler):
    """Serve files; some paths are guarded, broken, slow or endless."""

    root: Path
    released: threading.Event

    def translate_path(self, path: str) -> str:
        self.directory = str(self.root)
        return super().translate_path(path)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        login = "Basic " + base64.b64encode(LOGIN.encode()).decode()
        if path.startswith("/guarded/") and self.headers.get("authorization") != login:
            self.send_error(401)
        elif path.startswith("/signed/") and query != SIGNED:
            self.send_error(403)
        elif path.startswith("/broken/"):
            self.send_error(500, "out of order")
        elif path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("location", path.replace("/moved/", "/plain/"))
            self.end_headers()
        elif path.startswith("/endless/"):
            self._page("".join(f'<a href="{number}/">{number}</a>' for number in range(3)))
        elif path.startswith("/cut/"):
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"[")
        elif path.startswith("/silent/"):
            self.released.wait(30)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _page(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what the server offers."""
    root = tmp_path_factory.mktemp("served")
    for name in ("plain", "guarded", "signed"):
        write_ranks(root / name / "run")
    (root / "plain" / "run" / "notes.txt").write_text("no trace")
    (root / "nested" / "host a").mkdir(parents=True)
    (root / "nested" / "host-b").mkdir()
    rank(0).write(root / "nested" / "host a" / "rank0.json.gz")
    rank(1).write(root / "nested" / "host-b" / "rank1.json.gz")
    (root / "empty").mkdir()
    (root / "told").mkdir()
    rank(None).write(root / "told" / "a.json")
    (root / "told" / "a.json.tracelens.json").write_text('{"rank": 5, "world_size": 8}')
    shutil.make_archive(str(root / "run"), "zip", root / "plain" / "run")
    return root


@pytest.fixture
def web(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in object_store.UNSET:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    class Here(Handler):
        root = folder
        released = threading.Event()

    with object_store.serving(Here) as url:
        yield url
        Here.released.set()


def document(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.to_json())
    del found["source"]["path"]
    return found


@pytest.mark.parametrize("name", ["plain/run/", "nested/"])
def test_a_folder_reads_as_the_local_one(web: str, folder: Path, name: str) -> None:
    result = tracelens.analyze(f"{web}/{name}")
    is_standard(result)
    local = tracelens.analyze(folder / name)
    if name == "plain/run/":
        assert document(result) == document(local)
    assert result.source.path == f"{web}/{name}"


@pytest.mark.parametrize("name", ["plain/r*", "nested/*/rank[0-1].json.gz", "run.zip"])
def test_globs_and_archives(web: str, name: str) -> None:
    is_standard(tracelens.analyze(f"{web}/{name}"))


def test_several_files_and_where_they_moved_to(web: str) -> None:
    addresses = [f"{web}/plain/run/rank0.json", f"{web}/moved/run/rank1.json"]
    result = tracelens.analyze(addresses)
    is_standard(result)
    assert [file.path for file in result.source.files] == addresses


def test_the_facts_beside_a_trace_come_along(web: str) -> None:
    for name in ("told/", "told/a.json"):
        result = tracelens.analyze(f"{web}/{name}")
        assert [one.rank for one in result.ranks] == [5]


def test_a_signature_is_used_and_not_shown(web: str) -> None:
    result = tracelens.analyze([f"{web}/signed/run/rank{n}.json?{SIGNED}" for n in (0, 1)])
    is_standard(result)
    expected = [f"{web}/signed/run/rank{number}.json" for number in (0, 1)]
    assert [file.path for file in result.source.files] == expected
    assert result.source.path == " ".join(expected)


def test_a_login_is_used_and_not_shown(web: str) -> None:
    address = web.replace("://", f"://{LOGIN}@") + "/guarded/run/"
    result = tracelens.analyze(address)
    is_standard(result)
    assert result.source.path == f"{web}/guarded/run/"
    assert "planted" not in result.to_json()


def test_no_secret_is_in_any_output(web: str, tmp_path: Path) -> None:
    """One file can be had, the others fail in different ways."""
    login = web.replace("://", f"://{LOGIN}@")
    paths = [
        f"{web}/signed/run/rank0.json?{SIGNED}",
        f"{web}/signed/run/rank1.json?{SIGNED}&planted=1",
        f"{login}/broken/rank2.json",
        f"{login}/cut/rank3.json?{SIGNED}",
        f"{web}/missing/rank4.json?{SIGNED}",
        f"http://{LOGIN}@127.0.0.1:1/rank5.json?{SIGNED}",
    ]
    outputs = ["report.html", "report.md", "analysis.json"]
    asked = [word for name in outputs for word in ("-o", name)]
    done = run_command("analyze", "-v", *paths, *asked, cwd=tmp_path)
    assert done.code == 0
    everything = done.out + done.err + "".join((tmp_path / name).read_text() for name in outputs)
    for secret in ("planted", "aws4_request", "Signature"):
        assert secret not in everything
    reasons = {
        "rank1": "permission denied",
        "rank2": "the server answers 500 out of order",
        "rank3": "the connection broke off within the file",
        "rank4": "it is not there",
        "rank5": "ClientConnectorError: Cannot connect to host 127.0.0.1:1",
    }
    for name, reason in reasons.items():
        (line,) = [line for line in done.err.splitlines() if f"{name}.json: could not" in line]
        assert f"cannot be fetched: {reason}" in line
    kinds = {line.split(":")[0].split(" ")[0] for line in done.err.splitlines()}
    assert kinds <= {"warning", "info", "Wrote"}, "nothing but what TraceLens says"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("{web}/missing/", "it is not there"),
        ("{web}/missing/*.json", "it is not there"),
        ("{login}/guarded/run/", "permission denied"),
        ("{web}/broken/run/", "the server answers 500 out of order"),
        ("http://127.0.0.1:1/run/", "ClientConnectorError: Cannot connect"),
    ],
)
def test_a_folder_that_cannot_be_listed(web: str, address: str, reason: str) -> None:
    given = address.format(web=web, login=web.replace("://", "://me:wrong-planted@"))
    with pytest.raises(InputError) as caught:
        tracelens.analyze(given)
    expected = f"{address.format(web=web, login=web)}: cannot be reached: {reason}"
    assert caught.value.message.startswith(expected)
    assert "\n" not in caught.value.message


def test_a_folder_of_nothing(web: str) -> None:
    with pytest.raises(InputError, match=r"/empty/: no trace file there"):
        tracelens.analyze(f"{web}/empty/")


def test_a_server_that_does_not_answer(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = {"timeout": aiohttp.ClientTimeout(sock_read=0.3)}
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": soon})
    with pytest.raises(InputError, match=r"rank0\.json: cannot be fetched: it does not answer in"):
        tracelens.analyze(f"{web}/silent/rank0.json")


def test_long_files_may_take_long(web: str) -> None:
    system, _ = remote._system(f"{web}/plain/run/")
    limit = system.client_kwargs["timeout"]
    assert limit.total is None
    assert limit.sock_read == limit.sock_connect == 60


def test_a_folder_inside_that_cannot_be_listed_is_named(
    web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, lambda page: page.endswith("/host-b/"))
    result = tracelens.analyze(f"{web}/nested/")
    assert [one.rank for one in result.ranks] == [0]
    assert said(result, "unreadable-file").startswith(
        "host-b/: could not be read: cannot be listed: permission denied"
    )


def refuse(monkeypatch: pytest.MonkeyPatch, which: Callable[[str], bool]) -> None:
    """Let a web server refuse to list some folders."""
    from fsspec.implementations.http import HTTPFileSystem

    listed = HTTPFileSystem._ls_real

    async def ls(self: Any, url: str, **options: Any) -> Any:
        if which(url):
            raise PermissionError(url)
        return await listed(self, url, **options)

    monkeypatch.setattr(HTTPFileSystem, "_ls_real", ls)


def test_folders_without_end_come_to_an_end(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_listing, "_MOST", 20)
    with pytest.raises(InputError, match=r"nothing can be analysed: .* too many folders"):
        tracelens.analyze(f"{web}/endless/")
    result = tracelens.analyze([f"{web}/endless/", f"{web}/plain/run/"])
    is_standard(result)
    assert "unreadable-file" in codes(result)

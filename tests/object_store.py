"""An S3 server on this machine, with a door in front of it that counts, and fails when told to."""

from __future__ import annotations

import contextlib
import http.client
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "training"
ACCESS_KEY = "AKIAPLANTEDACCESSKEY"
SECRET_KEY = "planted/secret+key"
_PASSED_ON = ("content-type", "content-length", "content-range", "etag", "last-modified")
_NOT_FOUND = b"<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_BROKEN = b"<Error><Code>InternalError</Code><Message>We failed.</Message></Error>"
ANSWERS = {403: _DENIED, 404: _NOT_FOUND, 500: _BROKEN}


@dataclass
class Door:
    """What stands in front of the server.

    Attributes:
        url: Where it is.
        faults: What goes wrong when an object is read or a bucket is listed, by its path: a status,
            "cut" (half of the answer is missing), "cut once", "stall" (it stops half way).
        reads: How often each object was read.
        served: How many bytes of it.
        delay_s: How long each request takes before it is answered.
        stalled: Set when a reader waits.
    """

    url: str = ""
    faults: dict[str, int | str] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    delay_s: float = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def mend(self) -> None:
        """Let nothing go wrong any more, and count from nothing."""
        self.released.set()
        self.released = threading.Event()
        self.stalled.clear()
        for counted in (self.faults, self.reads, self.served):
            counted.clear()
        self.delay_s = 0


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run the S3 server and return its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    try:
        yield f"{host}:{port}"
    finally:
        moto.stop()


@contextlib.contextmanager
def door(behind: str) -> Iterator[Door]:
    """Put a door in front of a server."""
    state = Door()

    class Handler(_Handler):
        door = state
        server_behind = behind

    with serving(Handler) as url:
        state.url = url
        try:
            yield state
        finally:
            state.released.set()


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve requests on a free port of this machine."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}"
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Hand a request on, count what comes back, and spoil it if told to."""

    protocol_version = "HTTP/1.1"
    door: Door
    server_behind: str

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        time.sleep(self.door.delay_s)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = unquote(self.path.partition("?")[0]).strip("/")
        reads_object = self.command == "GET" and "/" in path
        fault = self.door.faults.get(path) if self.command == "GET" else None
        if isinstance(fault, int):
            self._send(fault, [("content-length", str(len(ANSWERS[fault])))], ANSWERS[fault])
            return
        behind = http.client.HTTPConnection(self.server_behind, timeout=30)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        headers = [(k, v) for k, v in answer.getheaders() if k.lower() in _PASSED_ON]
        if reads_object:
            self.door.reads[path] += 1
            self.door.served[path] += len(content)
        if fault is None:
            self._send(answer.status, headers, content)
        else:
            self._spoil(path, str(fault), answer.status, headers, content)

    def _spoil(
        self, path: str, fault: str, status: int, headers: list[tuple[str, str]], content: bytes
    ) -> None:
        self.close_connection = True
        self._send(status, headers, content[: len(content) // 2])
        if fault == "stall":
            self.door.stalled.set()
            self.door.released.wait(60)
        elif fault == "cut once":
            del self.door.faults[path]

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            self.wfile.flush()


def environment(url: str) -> dict[str, str]:
    """Return what a user would set for a server of their own: nothing may leave this machine."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


UNSET = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROFILE", "AWS_SESSION_TOKEN")


def upload(system: Any, folder: Path, prefix: str) -> None:
    """Put all files of a folder under a prefix of the bucket."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            system.pipe_file(f"{BUCKET}/{prefix}/{name}", path.read_bytes())

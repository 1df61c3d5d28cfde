"""A real browser for tests of pages: Chromium over its debugging pipe, no driver needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE = 60  # seconds
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--remote-debugging-pipe",
    "--force-color-profile=srgb",
]


# Chromium reads from descriptor 3 and writes to 4; copies above 9 cannot be in their way.
_LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One Chromium, spoken to over two pipes (file descriptors 3 and 4 on its side)."""

    def __init__(self, executable: str, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        launch = [sys.executable, "-c", _LAUNCHER, str(to_read), str(to_write), executable]
        self._process = subprocess.Popen(
            [*launch, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End this browser and wait for it."""
        try:
            self.send("Browser.close")
        finally:
            os.close(self._to)
            os.close(self._from)
            self._process.wait(timeout=30)

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol and wait for its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._from], [], [], _PATIENCE)
            assert readable, "Chromium does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(raw)
        return answer

    def open(
        self, path: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True
    ) -> Page:
        """Open a file in a tab of its own and wait until its figures are there."""
        return Page(self, path, width, dark, scripts)


class Page:
    """One open file, its console and what can be asked of it."""

    def __init__(self, browser: Browser, path: Path, width: int, dark: bool, scripts: bool) -> None:
        self._browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.send("Target.attachToTarget", targetId=target, flatten=True)
        self._target, self._session = target, attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._send("Page.navigate", url=path.as_uri())
        self._wait(scripts)

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def _wait(self, scripts: bool) -> None:
        ready = "document.readyState === 'complete'"
        if scripts:
            ready += (
                " && [...document.querySelectorAll('[data-figure]')].every(f => f.dataset.state)"
            )
        # Asked again and again, not awaited: with scripts off no promise is ever kept.
        start = time.monotonic()
        while not self.ask(ready):
            assert time.monotonic() - start < _PATIENCE, "the page was never ready"
            time.sleep(0.05)

    def ask(self, expression: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = self._send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _own(self, method: str) -> list[dict[str, Any]]:
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == method
        ]

    @property
    def errors(self) -> list[str]:
        """Everything the console complains about: exceptions, errors, warnings."""
        thrown = [str(one["exceptionDetails"]) for one in self._own("Runtime.exceptionThrown")]
        logged = [str(one["entry"]) for one in self._own("Log.entryAdded")]
        console = [
            str(one["args"])
            for one in self._own("Runtime.consoleAPICalled")
            if one["type"] in {"error", "warning", "assert"}
        ]
        return thrown + logged + console

    @property
    def requests(self) -> list[str]:
        """Every address the page asked for."""
        return [one["request"]["url"] for one in self._own("Network.requestWillBeSent")]

    def press(self, selector: str) -> None:
        """Click on an element."""
        self.ask(f"document.querySelector({json.dumps(selector)}).click()")

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        data = self._send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Close the tab."""
        self._browser.send("Target.closeTarget", targetId=self._target)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return Chromium, or skip where there is none."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("no Chromium: apt-get install chromium")
    started = Browser(executable, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()

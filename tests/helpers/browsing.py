"""Pages in a real browser, for tests."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium in PATH; install it to test pages"
)

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage "
    "--hide-scrollbars "
    "--remote-debugging-pipe"
)
# Chromium reads commands from descriptor 3 and answers on 4; a fresh interpreter puts the pipes
# there.
LAUNCH = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execv(sys.argv[1], sys.argv[1:])"
WIDE, NARROW = (1280, 900), (380, 800)


class Browser:
    """A headless Chromium with one page, spoken to through the DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        hears, self._write = os.pipe()
        self._read, says = os.pipe()
        ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (hears, says))
        command = [
            sys.executable,
            "-c",
            LAUNCH.format(*ends),
            CHROMIUM,
            *FLAGS.split(),
            f"--user-data-dir={profile}",
        ]
        log = (profile.parent / "chromium.log").open("w")
        self._process = subprocess.Popen(command, pass_fds=ends, stdout=log, stderr=log)
        for end in (hears, says, *ends):
            os.close(end)
        log.close()
        self._number, self._left, self._session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Sends a command and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> float:
        """Opens a page; returns the seconds until it was drawn."""
        self.look(size, scheme)
        self.events.clear()
        start = time.perf_counter()
        self.call("Page.navigate", url=path.as_uri())
        while self.run("document.documentElement?.dataset.ready") != "yes":
            assert time.perf_counter() - start < 20, self.events
            time.sleep(0.02)
        return time.perf_counter() - start

    def look(self, size: tuple[int, int], scheme: str = "light") -> None:
        """Sets the window's size and the system's theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def run(self, expression: str) -> Any:
        """The value of an expression, once it is there."""
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, name: str, text: str = "") -> None:
        """Presses a key."""
        codes = {"Enter": 13, "Tab": 9, "ArrowRight": 39}
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                windowsVirtualKeyCode=codes[name],
                **extra,
            )

    def picture(self, path: Path) -> None:
        """Saves the whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def requests(self) -> list[str]:
        """Every address asked for since the page was opened; data the page holds itself is none."""
        sent = [
            event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")
        ]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def complaints(self) -> list[Any]:
        """Errors, exceptions and refusals by the page's policy since it was opened."""
        logged = [event["params"]["entry"] for event in self._events("Log.entryAdded")]
        return [
            *self._events("Runtime.exceptionThrown"),
            *(entry for entry in logged if entry["level"] == "error"),
        ]

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        for end in (self._write, self._read):
            os.close(end)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _events(self, method: str) -> list[dict[str, Any]]:
        self.run("0")
        return [event for event in self.events if event.get("method") == method]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._read], [], [], 30)[0], "chromium has not answered for 30 s"
            part = os.read(self._read, 1 << 16)
            assert part, "chromium has gone"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


# Every chart with how many shapes (lines, marks, bars, areas, pictures) are in it.
SHAPES = """(async () => {
  for (const place of document.querySelectorAll('.chart')) {
    place.scrollIntoView();
    for (let turn = 0; turn < 200 && !place.querySelector('.main-svg, .empty'); turn += 1)
      await new Promise(done => setTimeout(done, 10));
  }
  return [...document.querySelectorAll('.chart')].map(place => [
    place.dataset.chart + ' ' + place.dataset.group,
    place.querySelectorAll('.trace path, .heatmaplayer image, .point path, .fills path').length]);
})()"""


def as_printed(browser: Browser) -> Any:
    """What a page is when it is printed: how many charts are drawn, how wide they are, and the
    color of their text.
    """
    browser.run("""addEventListener('beforeprint', () => { window.printed = {
      charts: [...document.querySelectorAll('.chart')]
        .filter(place => place.querySelector('.main-svg')).length,
      wide: Math.max(...[...document.querySelectorAll('.main-svg')].map(svg => svg.clientWidth)),
      ink: getComputedStyle(document.querySelector('.chart text')).fill}; })""")
    browser.call("Page.printToPDF")
    return browser.run("printed")

"""A headless Chromium, spoken to through its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

__all__ = ["Chromium"]

LIMIT_S = 60
"""The program is ended when a page takes longer, in seconds."""


class Chromium:
    """The browser while the block lasts, with one page.

    `complaints` are the console's messages and uncaught errors, `requests` the URLs of everything that was asked for.
    """

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        if not program:
            raise RuntimeError("expected chromium on the path, or CHROMIUM to name it: run `make test-services`")
        self.complaints: list[Any] = []
        self.requests: list[str] = []
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # It reads from file descriptor 3 and writes to 4; the shell puts the pipes there.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, *options, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received = os.fdopen(self._in, "rb")
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self._received.close()
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a command of the DevTools protocol gives; its errors raise."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | self._target()).encode() + b"\0")
        answer = self._until(lambda found: found.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _target(self) -> dict[str, Any]:
        return {} if self._session is None else {"sessionId": self._session}

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read up to a message that fits, and keep what the page complains of."""
        while True:
            message = self._message()
            self._keep(message)
            if wanted(message):
                return message

    def _message(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._received.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("chromium has ended")
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message

    def _keep(self, message: dict[str, Any]) -> None:
        method, found = message.get("method"), message.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(found)
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light", scale: float = 1) -> None:
        """Load a file, in a window of so many pixels, in the "light" or the "dark"."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and let go of a key, by its name ("Tab", "ArrowRight")."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def point(self, x: float, y: float) -> None:
        """Move the mouse there, in pixels of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, full: bool = False) -> None:
        """What the window shows, or all of the page, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(shot["data"]))

"""A real Chromium without a window, driven over its debugging pipe: pages are opened, files dropped, keys pressed, pictures taken."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
HEADLESS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--hide-scrollbars"]
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
PATIENCE = 60.0  # seconds


class Browser:
    """One page of a running browser."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest, self._number, self._session = to, back, b"", 0, ""
        self.errors: list[str] = []  # what the page threw, or wrote to its console as an error; refused loads too
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != self._number:
            self._note(reply)
        assert "error" not in reply, (method, reply["error"])
        return reply["result"]

    def _next(self) -> dict[str, Any]:
        deadline, waiting = time.monotonic() + PATIENCE, select.poll()
        waiting.register(self._back, select.POLLIN)
        while b"\0" not in self._rest:
            ready = waiting.poll(1000 * max(0, deadline - time.monotonic()))
            part = os.read(self._back, 1 << 20) if ready else b""
            assert part, "the browser says nothing any more"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        facts = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(facts["exceptionDetails"].get("exception", {}).get("description")))
        elif event.get("method") == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.errors.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")

    def eval(self, script: str) -> Any:
        """What a JavaScript expression gives; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Until the expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.eval(condition)):
            assert time.monotonic() < deadline, (condition, self.eval("document.body.innerText"), self.errors)
            time.sleep(0.05)
        return value

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """A page in a window of this size."""
        self.view(width=width, height=height, dark=dark)
        self.call("Page.navigate", url=url)

    def view(self, *, width: int, height: int, dark: bool = False) -> None:
        """Another window for the same page; narrow ones are a phone's."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def drop(self, selector: str, *files: Path) -> None:
        """Files from the desktop onto the middle of an element."""
        box = self.eval(
            f"(box => [box.x + box.width / 2, box.y + box.height / 2])(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=box[0], y=box[1], data=data)

    def press(self, key: str, code: int = 0) -> None:
        """One key: Tab (9), ArrowRight (39), " " (32), ..."""
        more = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, file: Path) -> Path:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))
        return file


@contextmanager
def browser(program: str, profile: Path, *flags: str) -> Iterator[Browser]:
    """A browser with an empty profile in this folder."""
    (theirs_in, to), (back, theirs_out) = os.pipe(), os.pipe()
    pipes = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash"]  # its descriptors are 3 and 4
    command = [*pipes, program, *HEADLESS, *QUIET, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    with subprocess.Popen(
        command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(to, back)
        finally:
            os.close(to)  # a browser without its pipe ends
            os.close(back)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

"""Controls a headless Chromium through WebDriver (JSON over HTTP)."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from patience import PATIENCE

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",
        "--window-size=1100,560",
    ),
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # key of an element reference in the WebDriver standard


def programs() -> tuple[str, str] | None:
    """Paths of the browser and its driver; None unless both are installed."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def _start(driver: str) -> tuple["subprocess.Popen[str]", str]:
    """Start the driver, and return its process and port. Starts it again if another process has taken the port."""
    for _ in range(3):
        process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.search(r"successfully on port (\d+)", line):
                return process, match[1]
        process.communicate(timeout=PATIENCE)
    raise AssertionError(f"{driver} does not start")


class Browser:
    """A browser window, closed on exit of the context. `profile` is an empty folder."""

    def __init__(self, profile: Path, *, phone: bool = False, dark: bool = False) -> None:
        found = programs()
        assert found is not None
        binary, driver = found
        self._driver, port = _start(driver)
        self._address = f"http://127.0.0.1:{port}/session"
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--force-dark-mode"] if dark else [])]
        options: dict[str, Any] = {"binary": binary, "args": flags}
        if phone:
            options["mobileEmulation"] = {"deviceMetrics": {"width": 360, "height": 740, "pixelRatio": 2}}
        session = self._call("POST", "", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self._address += f"/{session['sessionId']}"

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.communicate(timeout=PATIENCE)

    def open(self, address: str) -> None:
        self._call("POST", "/url", {"url": address})

    def type(self, selector: str, text: str) -> None:
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def hover(self, selector: str) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {_ELEMENT: self._find(selector)}}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._call("POST", "/actions", {"actions": [pointer]})

    def texts(self, selector: str) -> list[str]:
        """The text of each element that matches the selector."""
        script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
        return list(self.run(script, selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": arguments})

    def wait_for(self, selector: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.texts(selector):
            assert time.monotonic() < end, f"no {selector}: {self.texts('body')}"
            time.sleep(0.05)

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("GET", "/screenshot"))

    def _find(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def _call(self, method: str, path: str, values: Any = None) -> Any:
        body = None if values is None else json.dumps(values).encode()
        request = urllib.request.Request(
            self._address + path, body, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)["value"]

"""nmt-serve as a process of its own, for tests to talk to."""

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patience import PATIENCE
from repository import BIN

SEARCH: dict[str, Any] = {"beam": 3, "max_len_b": 3}
OPTIONS = ("--device", "cpu", "--precision", "fp32", "--threads", "1", "--beam", "3", "--max-len-b", "3")


class Server:
    """nmt-serve, running on a free port, with one checkpoint or with several by language pair."""

    def __init__(self, models: Path | Mapping[str, Path], *options: object, **process: Any) -> None:
        pairs = (
            {"--checkpoint": [models]}
            if isinstance(models, Path)
            else {"--model": [f"{pair}={path}" for pair, path in models.items()]}
        )
        chosen = [word for option, values in pairs.items() for value in values for word in (option, value)]
        port = () if "--fd" in options else ("--port", "0")
        self.process = subprocess.Popen(
            [*map(str, (sys.executable, BIN / "nmt-serve", *chosen, *OPTIONS, *port, *options))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **process,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline().decode()
        match = re.search(r"serving on (http://127\.0\.0\.1:(\d+))\n", line)
        assert match, line
        self.address, self.port = match[1], int(match[2])

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {} if body is None else {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(), response
        finally:
            connection.close()

    def translate(self, **values: Any) -> Any:
        status, body, _ = self.request("POST", "/translate", json.dumps(values))
        assert status == 200, body
        return json.loads(body)["translations"]

    def metric(self, name: str) -> float:
        match = re.search(rf"^nmtkit_{name} (\S+)$", self.request("GET", "/metrics")[1].decode(), re.MULTILINE)
        assert match
        return float(match[1])

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and stderr. Asserts that stdout is empty."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        assert out == b""
        return self.process.returncode, err.decode()

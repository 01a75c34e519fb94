"""The options of the HTTP service."""

import re
from dataclasses import dataclass
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]*|\[[0-9a-fA-F:.%]+\]):)?(?P<port>[0-9]+)")


@dataclass(frozen=True)
class ServeConfig(Config):
    heading: ClassVar[str] = "Server"

    serve: str | None = option(
        None,
        metavar="HOST:PORT",
        help="Answer HTTP requests instead of reading a text: POST /translate takes and gives JSON, GET / is a page to "
        "type into, /health and /metrics are for who watches. A port alone is for this machine only; 0 takes a free "
        "one. Options of the search hold for all requests.",
    )
    max_body: int = option(1 << 20, min=1, metavar="BYTES", help="A request with a longer body is answered 413.")
    max_request_lines: int = option(1000, min=1, metavar="N", help="A request for more lines is answered 413.")
    max_queue: int = option(
        10_000, min=1, metavar="LINES", help="Where so many lines wait already, a request is answered 429."
    )
    max_requests: int = option(
        128, min=1, metavar="N", help="Where so many requests are open already, another is answered 503."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.serve is not None:
            _ = self.address

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `serve`."""
        match = _ADDRESS.fullmatch(self.serve or "")
        if not match:
            raise UserError(f"--serve {self.serve}: HOST:PORT or PORT is expected, such as 127.0.0.1:8080")
        if int(match["port"]) > 65535:
            raise UserError(f"--serve {self.serve}: there is no port {match['port']}, the highest is 65535")
        return (match["host"] or LOOPBACK).strip("[]"), int(match["port"])

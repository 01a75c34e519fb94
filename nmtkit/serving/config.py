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
        help="Answer HTTP requests instead of reading a text: POST /translate reads and writes JSON, GET / is a page "
        "to type into, /health and /metrics are for monitoring. A port alone listens on this machine only; 0 picks a "
        "free one. Search options apply to all requests.",
    )
    max_body: int = option(1 << 20, min=1, metavar="BYTES", help="A request with a longer body is answered 413.")
    max_request_lines: int = option(1000, min=1, metavar="N", help="A request with more lines is answered 413.")
    max_request_chars: int = option(
        100_000,
        min=1,
        metavar="N",
        help="A request with more characters is answered 413; with nbest, characters times nbest. Bounds how long one "
        "request computes.",
    )
    max_queue: int = option(
        10_000, min=1, metavar="LINES", help="A request that would make the queue longer is answered 429."
    )
    max_requests: int = option(
        128,
        min=1,
        metavar="N",
        help="Requests translated at the same time; another one is answered 503. A request counts once its body has "
        "arrived.",
    )
    max_connections: int = option(
        512,
        min=2,
        metavar="N",
        help="Open connections. For another one, the connection that has waited longest without a complete request is "
        "closed.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.serve is not None:
            _ = self.address
        if self.max_requests >= self.max_connections:
            raise UserError(
                f"--max-requests {self.max_requests} must be less than --max-connections {self.max_connections}"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `serve`."""
        match = _ADDRESS.fullmatch(self.serve or "")
        if not match:
            raise UserError(f"--serve {self.serve}: HOST:PORT or PORT is expected, such as 127.0.0.1:8080")
        if int(match["port"]) > 65535:
            raise UserError(f"--serve {self.serve}: there is no port {match['port']}, the highest is 65535")
        return (match["host"] or LOOPBACK).strip("[]"), int(match["port"])

"""Sends requests to an ASGI application in this process, without a network."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Scope

JSON = ((b"content-type", b"application/json"),)


@dataclass(frozen=True)
class Answer:
    """The response of an application; `headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def values(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)


def part(body: bytes, more_body: bool = False) -> Message:
    """The ASGI message for a part of a request body."""
    return {"type": "http.request", "body": body, "more_body": more_body}


def whole(**values: Any) -> Message:
    """The ASGI message for a whole request body, as JSON."""
    return part(json.dumps(values).encode())


def never() -> Awaitable[None]:
    """Wait forever."""
    return asyncio.Event().wait()  # type: ignore[return-value]


async def send_request(
    app: ASGIApp,
    messages: Sequence[Message],
    method: str = "POST",
    path: str = "/translate",
    headers: Sequence[tuple[bytes, bytes]] = JSON,
    then: Callable[[], Awaitable[None]] = never,
) -> Answer:
    """Send a request with the body `messages`. `then` is awaited when the application reads beyond them."""
    incoming, outgoing = iter(messages), list[Message]()

    async def receive() -> Message:
        message = next(incoming, None)
        if message is None:
            await then()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Message) -> None:
        outgoing.append(message)

    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "client": ("192.0.2.1", 50000),
        "query_string": b"",
        "headers": list(headers),
    }
    await app(scope, receive, send)
    start, *bodies = outgoing
    names = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], names, b"".join(message.get("body", b"") for message in bodies))

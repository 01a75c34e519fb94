"""The service: what is answered to an HTTP request, as an ASGI application."""

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Translation
from nmtkit.log import logger
from nmtkit.serving.batching import Batcher, QueueFull
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.messages import Ask, Refusal, answer, read_ask
from nmtkit.serving.metrics import Metrics
from nmtkit.tokenizer import Tokenizer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SECONDS_FOR_BODY = 30.0
PAGE = Path(__file__).with_name("page.html")
_METHODS = {"/": "GET", "/health": "GET", "/metrics": "GET", "/translate": "POST"}
_SAFE = {  # the page runs nothing but itself, talks to nobody but the server, and stands in nobody else's page
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class ClientGone(Exception):  # noqa: N818 (nothing to answer any more)
    """The client has closed the connection."""


@dataclass(frozen=True)
class Response:
    """What goes back to the client."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class App:
    """The application. Nothing that a client sends can raise an error out of it."""

    def __init__(
        self,
        batcher: Batcher,
        search: SearchConfig,
        source: Tokenizer,
        languages: Sequence[str],
        config: ServeConfig,
        metrics: Metrics,
        is_loopback: bool = False,
    ) -> None:
        """`source` is the tokenizer of the language that is translated, `languages` are source and target.

        What `is_loopback` answers this machine only, and no web page that has had its own name point to it.
        """
        self._batcher, self._search, self._source = batcher, search, source
        self._config, self._metrics, self._is_loopback = config, metrics, is_loopback
        self._languages = dict(zip(("source_language", "target_language"), languages, strict=True))
        self._page = PAGE.read_bytes()
        self._open = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        path, method = scope["path"], scope["method"]
        try:
            response = await self._respond(path, method, dict(scope["headers"]), receive)
        except ClientGone:
            return
        except Refusal as refusal:
            response = _refused(refusal, path)
        except asyncio.CancelledError:  # by uvicorn, where the time to answer is over
            response = _refused(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server ends"), path)
        except Exception as error:
            logger.error("%s %s: %s: %s", method, path, type(error).__name__, error)
            response = _refused(Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "an error of the server, see its log"), path)
        self._metrics.answered(path if path in _METHODS else "other", response.status, time.monotonic() - start)
        await _send(send, response, with_body=method != "HEAD")

    async def _respond(self, path: str, method: str, headers: dict[bytes, bytes], receive: Receive) -> Response:
        if self._is_loopback:
            _check_host(headers.get(b"host", b"").decode("latin-1"), own=self._config.address[0])
        if path not in _METHODS:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no {path[:100]}, only {', '.join(_METHODS)}")
        if method != _METHODS[path] and (method, _METHODS[path]) != ("HEAD", "GET"):
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {_METHODS[path]}")
        if path == "/":
            return Response(HTTPStatus.OK, "text/html; charset=utf-8", self._page, tuple(_SAFE.items()))
        if path == "/metrics":
            return Response(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self._metrics.text().encode())
        if path == "/health":
            alive = self._batcher.alive
            status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
            return _json(status, {"status": "ok" if alive else "stopped", **self._languages})
        if self._open >= self._config.max_requests:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are open: try again soon")
        self._count(1)
        try:
            body = await _read_body(headers, receive, self._config.max_body)
            ask = read_ask(body, self._config.max_request_lines, self._search.beam)
            return _json(HTTPStatus.OK, answer(ask, await self._translated(ask, receive), self._source))
        finally:
            self._count(-1)

    def _count(self, requests: int) -> None:
        self._open += requests
        self._metrics.add("open_requests", requests)

    async def _translated(self, ask: Ask, receive: Receive) -> list[Translation]:
        """The translations, unless the client goes before they are there: then nobody works on them any more."""
        try:
            job = self._batcher.submit(ask.lines, ask.search(self._search))
        except QueueFull as error:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too many lines wait: try again soon") from error
        result = asyncio.wrap_future(job.result)
        waiting: list[asyncio.Future[Any]] = [result, asyncio.ensure_future(_until_gone(receive))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientGone
            return result.result()
        finally:
            job.abandoned = True
            for future in waiting:
                future.cancel()


def _check_host(host: str, own: str) -> None:
    """Refuse a name that anybody can make point here, as web pages do to get behind a loopback address."""
    name = re.sub(r":\d*$", "", host).rstrip(".").lower()
    if name in ("", "localhost", own.lower()) or name.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError as error:
        reason = f"this is not {host[:100]}: only localhost and IP addresses are answered as Host"
        raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, reason) from error


async def _read_body(headers: dict[bytes, bytes], receive: Receive, max_bytes: int) -> bytes:
    too_large = Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {max_bytes} bytes")
    if int(headers.get(b"content-length", 0)) > max_bytes:
        raise too_large

    async def read() -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise too_large
            if not message.get("more_body"):
                return bytes(body)

    try:
        return await asyncio.wait_for(read(), SECONDS_FOR_BODY)
    except asyncio.TimeoutError as error:
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come in {SECONDS_FOR_BODY:.0f} seconds") from error


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(status: HTTPStatus, values: Any, *headers: tuple[str, str]) -> Response:
    body = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(status, "application/json", body, headers)


def _refused(refusal: Refusal, path: str) -> Response:
    headers = []
    if refusal.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("allow", _METHODS[path]))
    if refusal.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers.append(("retry-after", "1"))
    return _json(refusal.status, {"error": refusal.reason}, *headers)


async def _send(send: Send, response: Response, with_body: bool) -> None:
    headers = {"content-type": response.kind, "content-length": str(len(response.body)), **dict(response.headers)}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body if with_body else b""})

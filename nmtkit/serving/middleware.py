"""The middleware of the HTTP service: request targets, metrics, ambiguous lengths, foreign hosts."""

import ipaddress
import re
import time
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmtkit.serving.metrics import Metrics

_ABSOLUTE_FORM = re.compile(r"https?://([^/?#]+)(/.*)?", re.IGNORECASE | re.DOTALL)


class OriginForm:
    """Middleware that answers a target in absolute form, `GET http://host/path`, as `GET /path` (RFC 9112, §3.2.2).

    The host of the target replaces the header Host.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if match := _ABSOLUTE_FORM.fullmatch(scope["path"]):
            host = (b"host", match[1].encode("latin-1", "replace"))
            headers = [host, *(header for header in scope["headers"] if header[0] != b"host")]
            scope = {**scope, "path": match[2] or "/", "headers": headers}
        await self._app(scope, receive, send)


class RequestMetrics:
    """Middleware that counts requests by path and status, and measures the time to answer them.

    Paths that are not among `paths` are counted together.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.monotonic(), int(HTTPStatus.INTERNAL_SERVER_ERROR)  # until another one is sent

        async def send_and_note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.answered(path, status, time.monotonic() - start)


class UnambiguousLength:
    """Middleware that refuses a request with both Transfer-Encoding and Content-Length, and closes its connection.

    A proxy that uses the length would see other requests in the same bytes: request smuggling (RFC 9112, §6.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if {b"transfer-encoding", b"content-length"} <= {name for name, _ in scope["headers"]}:
            reason = "Transfer-Encoding and Content-Length are mutually exclusive: send one of them"
            answer = JSONResponse({"error": reason}, HTTPStatus.BAD_REQUEST, {"connection": "close"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


class LoopbackHost:
    """Middleware that answers only to hosts that are names of this machine: localhost, IP addresses and `own`.

    Web pages can make any other name point to this machine (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, own: str) -> None:
        self._app, self._own = app, own.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        if self._is_own(host):
            await self._app(scope, receive, send)
            return
        reason = f"this is not {host[:100]}: only localhost and IP addresses are accepted as Host"
        await JSONResponse({"error": reason}, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        name = re.sub(r":\d*$", "", host).rstrip(".").lower()
        if name in ("", "localhost", self._own) or name.endswith(".localhost"):
            return True
        if "%" in name:  # a zone, which may be any text
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

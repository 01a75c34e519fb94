"""The middleware of the HTTP service: metrics, access log, and a check of the Host header."""

import re
import time
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmtkit.console.log import report
from nmtkit.serving.prometheus import Metrics

_MAX_METHOD, _MAX_PATH = 20, 200  # most characters in the access log
_OWN_HOST = re.compile(r"(.+\.)?localhost|[\d.]+|\[[\da-f:.]+\]")  # names of this machine, and IP addresses


class RequestRecorder:
    """Middleware that counts requests by path and status, measures them, and logs them with `access_log`. Paths that
    are not in `paths` are counted together."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str], access_log: bool) -> None:
        self._app, self._metrics, self._paths, self._access_log = app, metrics, paths, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.monotonic(), int(HTTPStatus.INTERNAL_SERVER_ERROR)  # until a response starts
        size = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status, size
            status = int(message.get("status", status))  # Python 3.10 formats an HTTPStatus as its name
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            seconds, path = time.monotonic() - start, scope["path"]
            self._metrics.answered(path if path in self._paths else "other", status, seconds)
            if self._access_log:
                _log_request(scope, status, size, seconds)


def _log_request(scope: Scope, status: int, size: int, seconds: float) -> None:
    """Log a request without query and body. The path is percent-encoded, so it cannot imitate other fields."""
    client, _ = scope.get("client") or ("unknown", 0)
    path = quote(scope["path"][:_MAX_PATH])
    values = {"client": client, "method": scope["method"][:_MAX_METHOD], "path": path, "status": status}
    report("request", {**values, "bytes": size, "ms": round(1000 * seconds, 1)})


class LoopbackHost:
    """Middleware that rejects requests whose Host header does not name this machine.

    It accepts localhost, its subdomains, IP addresses and `own`. Web pages can make any other name point to this
    machine (DNS rebinding). A request without a Host header, as in HTTP/1.0, does not come from a browser. Starlette's
    TrustedHostMiddleware cannot accept all IP addresses.
    """

    def __init__(self, app: ASGIApp, own: str) -> None:
        self._app, self._own = app, own.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host")
        name = re.sub(r":\d*$", "", host or "").rstrip(".").lower()
        if host is None or name == self._own or _OWN_HOST.fullmatch(name):
            await self._app(scope, receive, send)
            return
        reason = f"Host {host[:100]!r} is not this machine: use localhost or an IP address"
        await JSONResponse({"error": reason}, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, send)

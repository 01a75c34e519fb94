"""The settings of uvicorn, and the parts of its behaviour that are changed: accepting, shutdown, log."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from nmtkit.console.log import logger
from nmtkit.serving.connections import Connections, reporting

SECONDS_TO_DRAIN = 60  # for accepted requests at shutdown
SECONDS_FOR_LAST_BODIES = 1.0  # for bodies that are incomplete at shutdown
BACKLOG = 1024  # connections that wait in the kernel to be accepted
# Connections that asyncio accepts in one turn of its loop. Those beyond --max-connections are closed in later turns,
# and hold file descriptors until then.
ACCEPTED_AT_ONCE = 16
SECONDS_BETWEEN_WARNINGS = 60.0


class HttpServer(uvicorn.Server):
    """uvicorn, which accepts few connections at a time and waits a second for incomplete requests at shutdown.

    SIGINT stays ignored if it was. `refuse_incomplete` answers the requests whose body has not arrived.
    """

    def __init__(self, app: ASGIApp, connections: Connections, refuse_incomplete: Callable[[], None]) -> None:
        super().__init__(_settings(app, connections))
        self._refuse_incomplete = refuse_incomplete
        self._ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as a shell's background job

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not (sig == signal.SIGINT and self._ignores_interrupts):
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio has set it to ACCEPTED_AT_ONCE

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(SECONDS_FOR_LAST_BODIES, self._stop_reading)
        await super().shutdown(sockets)

    def _stop_reading(self) -> None:
        self._refuse_incomplete()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # closes those without a request: the last to be accepted


def _settings(app: ASGIApp, connections: Connections) -> uvicorn.Config:
    config = uvicorn.Config(
        reporting(app),
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=SECONDS_TO_DRAIN,
    )
    config.load()
    config.http_protocol_class = connections.protocol(config.http_protocol_class)
    return config


def limit_foreign_messages() -> None:
    """Silence uvicorn, since clients get their errors as answers, and log asyncio's messages as rare warnings."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").handlers = [AsyncioHandler()]


class AsyncioHandler(logging.Handler):
    """Logs messages of asyncio as warnings of one line, at most one a minute: under load they come in thousands."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_WARNINGS
        error = record.exc_info[1] if record.exc_info else None
        reason = f": {error}" if error else ""
        logger.warning("asyncio: %s%s", record.getMessage().partition("\n")[0], reason)

"""The server around the service: its socket, its signals, its end."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.serving.app import App
from nmtkit.serving.batching import Batcher, Translate
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.metrics import Metrics
from nmtkit.tokenizer import Tokenizer

SECONDS_TO_ASK = 30.0  # for a client that has connected
SECONDS_TO_TAKE = 30.0  # for a client to take any of an answer that is too long to leave at once
SECONDS_TO_DRAIN = 60


class _Protocol(H11Protocol):
    """Ends a connection over which a request, the first or a later one, does not come to the end of its head, and one
    whose client takes nothing of its answer.

    uvicorn ends one over which, after an answer, nothing comes at all.
    """

    _asking: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_watching()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _wait_for_request(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._asking is None and not self.transport.is_closing():
            self._asking = self.loop.call_later(SECONDS_TO_ASK, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _watch(self, untaken: int) -> None:
        self._taking = self.loop.call_later(SECONDS_TO_TAKE, self._end_unless_taken, untaken)

    def _end_unless_taken(self, before: int) -> None:
        """End the connection if no byte of what was not taken before has been taken since."""
        untaken = self.transport.get_write_buffer_size()
        if untaken < before:
            self._watch(untaken)
        else:
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._taking is not None:
            self._taking.cancel()


def serve(
    translate: Translate, search: SearchConfig, source: Tokenizer, languages: Sequence[str], config: ServeConfig
) -> None:
    """Answer requests until SIGINT or SIGTERM, which are raised again when what had been asked has been answered.

    Raises UserError where the address cannot be used, or the model has not what `search` asks for.
    """
    with _listening(config) as listener:
        translate(["A first one."], replace(search, alignment=True), lambda done: None)
        metrics = Metrics()
        batcher = Batcher(translate, config.max_queue, metrics)
        host, port = listener.getsockname()[:2]
        is_loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
        app = App(batcher, search, source, languages, config, metrics, is_loopback)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what clients do wrong is told to them
        settings = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SECONDS_TO_DRAIN,
        )
        logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        try:
            uvicorn.Server(settings).run(sockets=[listener])
        finally:
            batcher.close()


def _listening(config: ServeConfig) -> socket.socket:
    host, port = config.address
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # the latter of names with a part that is empty or too long
        raise UserError(f"--serve {config.serve}: {getattr(error, 'strerror', None) or error}") from error

"""Runs the service: checks the machine, binds the socket, loads the model, and answers until a signal."""

import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from nmtkit.checkpoint import load_checkpoint
from nmtkit.console.log import logger
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.requests import RequestFiles
from nmtkit.decoding.translation import Translation
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.machine.threads import available_cores
from nmtkit.serving.app import Service
from nmtkit.serving.config import ServeConfig, ServingOptions
from nmtkit.serving.prometheus import Metrics
from nmtkit.serving.scheduler import DynamicBatcher, Line

MAX_CONNECTIONS = 512  # beyond, requests get 503; a process may usually open 1,024 files
BACKLOG = 1024  # connections that wait in the kernel
SECONDS_TO_DRAIN = 60  # time for accepted requests at shutdown


def serve(paths: Sequence[Path], options: ServingOptions) -> None:
    """Answer requests until SIGINT or SIGTERM, which is raised again after accepted requests are answered.

    `paths` are one checkpoint, or several for an ensemble. The address is bound before they are loaded, but connections
    are refused until then. Raises UserError if the address cannot be used, if this machine is too small for the
    options, or if the model does not support the search.
    """
    _check_workers(options.engine.workers)
    with bind(options.server) as listener:
        request_files = RequestFiles(options.requests)
        checkpoints = [load_checkpoint(path) for path in paths]
        translator = Translator.of(checkpoints, options.engine, options.weights, paths)
        batches = replace(options.batches, split_sentences=options.batches.split_sentences is not False)

        search = replace(options.search, repetition_guard=options.search.repetition_guard is not False)

        def translate(
            lines: Sequence[Line], search: SearchConfig, advance: Callable[[int], None]
        ) -> Iterator[Translation]:
            return translator.stream_chunks(request_files.attach([lines]), search, batches, advance)

        next(translate(["A first one."], replace(search, alignment=True), lambda done: None))
        metrics = Metrics()
        # with workers, never stop a search, since they would have to load the model again
        batcher = DynamicBatcher(translate, options.server.max_queue, metrics, can_stop=options.engine.workers == 1)
        service = Service(batcher, search, translator.source, checkpoints[0].languages, options.server, metrics)
        try:
            _run(service, listener, options.server, metrics)
        finally:
            batcher.close()


def _check_workers(workers: int) -> None:
    cores = available_cores()
    if workers > cores:
        raise UserError(
            f"--workers {workers}: each needs a core, and this process has {cores}: use at most --workers {cores}"
        )


def _run(service: Service, listener: socket.socket, config: ServeConfig, metrics: Metrics) -> None:
    """Answer requests until a signal."""
    listener.listen(BACKLOG)
    host, port = listener.getsockname()[:2]
    is_loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    server = _Server(_settings(service.app(is_loopback)))
    metrics.open_connections.set_function(lambda: len(server.server_state.connections))
    logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's server, but SIGINT stays ignored if it was, as in a background job of a script."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not (sig == signal.SIGINT and self._ignores_interrupts):
            super().handle_exit(sig, frame)


def _settings(app: ASGIApp) -> uvicorn.Config:
    """Configure uvicorn. Slow clients are left to a proxy. Its messages are hidden: clients get them as answers."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SECONDS_TO_DRAIN,
    )


def bind(config: ServeConfig) -> socket.socket:
    """Bind a socket to the address, without listening yet. Raises UserError if the address cannot be used."""
    host = config.host.removeprefix("[").removesuffix("]")
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))  # :: is all interfaces
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # UnicodeError: a name has an empty or too long part
        reason = getattr(error, "strerror", None) or error
        message = f"--host {config.host} --port {config.port}: {reason}: use a different port or address"
        raise UserError(message) from error
    return listener

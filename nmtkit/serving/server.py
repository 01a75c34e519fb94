"""Runs the service: its socket, its signals, its shutdown."""

import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.serving.app import Service
from nmtkit.serving.batching import DynamicBatcher, Translate
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.connections import Connections, reporting
from nmtkit.serving.metrics import Metrics
from nmtkit.tokenizer import Tokenizer

SECONDS_TO_DRAIN = 60


def serve(
    translate: Translate,
    search: SearchConfig,
    source: Tokenizer,
    languages: Sequence[str],
    config: ServeConfig,
    can_stop: bool = True,
) -> None:
    """Answer requests until SIGINT or SIGTERM, which is raised again after the accepted requests are answered.

    `can_stop`: a search that nobody waits for is stopped (`DynamicBatcher`). Raises UserError if the address cannot be
    used or the model lacks something that `search` needs.
    """
    with _listening(config) as listener:
        list(translate(["A first one."], replace(search, alignment=True), lambda done: None))
        metrics = Metrics()
        batcher = DynamicBatcher(translate, config.max_queue, metrics, can_stop)
        host, port = listener.getsockname()[:2]
        is_loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
        app = Service(batcher, search, source, languages, config, metrics).app(is_loopback)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # clients get their errors as answers, not in the log
        logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        try:
            uvicorn.Server(settings(app, Connections(config.max_connections, metrics))).run(sockets=[listener])
        finally:
            batcher.close()


def settings(app: ASGIApp, connections: Connections) -> uvicorn.Config:
    """The settings of uvicorn for an application, with its connections bounded."""
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
        timeout_graceful_shutdown=SECONDS_TO_DRAIN,
    )
    config.load()
    config.http_protocol_class = connections.protocol(config.http_protocol_class)
    return config


def _listening(config: ServeConfig) -> socket.socket:
    host, port = config.address
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # the latter for names with an empty or too long part
        raise UserError(f"--serve {config.serve}: {getattr(error, 'strerror', None) or error}") from error

"""Runs the service: checks the machine, binds the socket, loads the models, and answers until a signal."""

import functools
import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.console.log import logger
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.requests import RequestFiles
from nmtkit.decoding.translation import Translation
from nmtkit.decoding.translator import Translator
from nmtkit.errors import RunError, UserError
from nmtkit.machine.threads import available_cores
from nmtkit.serving.app import Service
from nmtkit.serving.config import Languages, ServeConfig, ServingOptions
from nmtkit.serving.models import Model
from nmtkit.serving.prometheus import Metrics
from nmtkit.serving.scheduler import DynamicBatcher, Line

MAX_CONNECTIONS = 512  # beyond, requests get 503; a process may usually open 1,024 files
BACKLOG = 1024  # connections that wait in the kernel
SECONDS_TO_DRAIN = 60  # time for accepted requests at shutdown


def serve(files: Mapping[Languages | None, Sequence[Path]], options: ServingOptions) -> None:
    """Answer requests until SIGINT or SIGTERM, which is raised again after accepted requests are answered.

    `files` are one checkpoint of each model, or several for an ensemble, by its languages in requests; None for those
    of the checkpoint. The address is bound before they are loaded, but until then connections are refused. Raises
    UserError if the address cannot be used, if this machine is too small for the options, or if a model does not
    support the search.
    """
    if (workers := options.engine.workers) > (cores := available_cores()):
        raise UserError(
            f"--workers {workers}: each needs a core, and this process has {cores}: use at most --workers {cores}"
        )
    with _listener(options.server) as listener:
        load = functools.partial(_load, options, RequestFiles(options.requests, options.search.ignore_case))
        models = [load(*item) for item in files.items()]
        metrics = Metrics()
        # with workers, never stop a search, since they would have to load the model again
        batcher = DynamicBatcher(options.server.max_queue, metrics, can_stop=options.engine.workers == 1)
        service, one_at_a_time = Service(batcher, models, options.server, metrics), threading.Lock()

        def reload() -> None:
            with one_at_a_time:
                now = time.monotonic_ns() // 1000  # with which systemd matches the message to its signal
                notify(f"RELOADING=1\nMONOTONIC_USEC={now}")
                try:
                    for number, (languages, paths) in enumerate(files.items()):
                        name = _file_names(paths)
                        try:
                            models[number] = load(languages, paths)
                            service.use(models)
                            logger.info("reloaded %s", name)
                        except (UserError, RunError) as error:
                            logger.error("cannot reload %s, the current model stays in use: %s", name, error)
                finally:
                    notify("READY=1")

        try:
            _run(service, listener, options.server, metrics, reload)
        finally:
            batcher.close()


def _load(
    options: ServingOptions, request_files: RequestFiles, languages: Languages | None, paths: Sequence[Path]
) -> Model:
    """Load a model, and check that it supports the search of the options."""
    checkpoints = [load_checkpoint(path) for path in paths]
    codes, batches = checkpoints[0].source.language_codes, options.batches.for_documents()
    given = options.requests.source_lang or "", options.requests.target_lang or ""
    given = languages if languages and codes else given
    translator = Translator.of(checkpoints, options.engine, options.weights, paths, given)
    search = options.search.over(translator.search)
    translator.log_settings(search)
    search = replace(search, repetition_guard=search.repetition_guard is not False)

    def translate(lines: Sequence[Line], search: SearchConfig, advance: Callable[[int], None]) -> Iterator[Translation]:
        requests = request_files.attach([lines])
        return translator.stream_chunks(requests, search, batches, advance, warns_of_outputs=False)

    if languages is None or codes:
        languages = translator.languages
    model = Model(translate, translator.source, languages, _identity(paths, checkpoints), search)
    first = replace(model, languages=(codes[0], codes[0])) if codes else model
    next(translate(first.requests(["A first one."]), replace(search, alignment=True), lambda done: None))
    return model


def _identity(paths: Sequence[Path], checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    values = {
        "model": _file_names(paths),
        "checkpoint": ",".join((checkpoint.checksum or "")[:12] for checkpoint in checkpoints),
    }
    updates = [str(checkpoint.progress["update"]) for checkpoint in checkpoints if "update" in checkpoint.progress]
    return values | ({"update": ",".join(updates)} if updates else {})


def _file_names(paths: Sequence[Path]) -> str:
    return ",".join(path.name for path in paths)


def _run(
    service: Service, listener: socket.socket, config: ServeConfig, metrics: Metrics, reload: Callable[[], None]
) -> None:
    """Answer requests until a signal. SIGHUP calls `reload` in a separate thread."""
    listener.listen(BACKLOG)
    host, port = listener.getsockname()[:2]
    is_loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # clients get the messages as responses
    settings = uvicorn.Config(
        service.app(is_loopback),
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
    server = uvicorn.Server(settings)
    metrics.open_connections.set_function(lambda: len(server.server_state.connections))
    if not _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reload, daemon=True).start())
    logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    notify("READY=1")
    server.run(sockets=[listener])


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _listener(config: ServeConfig) -> socket.socket:
    """Bind the address, or use the socket of --fd. Raises UserError if that is not possible."""
    if config.fd is None:
        return bind(config)
    try:
        listener = socket.socket(fileno=config.fd)
    except OSError as error:
        raise UserError(f"--fd {config.fd}: {error.strerror}: pass a listening socket, as systemd does") from error
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        listener.close()
        raise UserError(f"--fd {config.fd} is not a TCP socket: use ListenStream=ADDRESS:PORT")
    return listener


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


def notify(state: str) -> None:
    """Send a state such as `READY=1` to systemd, as sd_notify(3) does. Without a service manager, do nothing."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(path.replace("@", "\0", 1) if path.startswith("@") else path)
            sender.sendall(state.encode())

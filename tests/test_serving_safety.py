"""The HTTP service against web pages that reach for it, and against clients that never come to an end."""

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
from conftest import Run
from patience import PATIENCE
from running_server import Server

pytest.importorskip("uvicorn")

import uvicorn

from nmtkit.decoding.config import SearchConfig
from nmtkit.serving import server as server_module
from nmtkit.serving.app import App
from nmtkit.serving.batching import Batcher
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.metrics import Metrics
from nmtkit.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    running = Server(tiny_checkpoint)
    yield running
    running.end()


def answer_to(server: Server, path: str, host: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    method, body = ("POST", '{"text": "a cat"}') if path == "/translate" else ("GET", None)
    connection.request(method, path, body, {"Host": host})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content) if response.status == 421 else None


@pytest.mark.parametrize("path", ["/", "/translate", "/health", "/metrics", "/nowhere"])
def test_a_page_whose_name_was_made_to_point_here_is_refused(server: Server, path: str) -> None:
    status, values = answer_to(server, path, "pages.example:80")
    assert status == 421
    assert values == {"error": "this is not pages.example:80: only localhost and IP addresses are answered as Host"}


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "a.localhost.", "127.0.0.1:9", "[::1]", "10.1.2.3:80"])
def test_names_that_nobody_can_point_elsewhere_are_answered(server: Server, host: str) -> None:
    assert answer_to(server, "/translate", host) == (200, None)


@pytest.mark.parametrize("host", ["127.0.0.1.pages.example", "localhost.pages.example", "pages.example:1:2", "[::1].x"])
def test_names_that_look_like_this_machine_are_refused(server: Server, host: str) -> None:
    assert answer_to(server, "/translate", host)[0] == 421


@pytest.mark.parametrize(("serve", "is_loopback"), [("Workstation:80", True), ("0.0.0.0:80", False)])
def test_the_name_that_was_given_and_all_names_beyond_loopback_are_answered(
    tokenizer: Tokenizer, serve: str, is_loopback: bool
) -> None:
    metrics, config = Metrics(), ServeConfig(serve=serve)
    batcher = Batcher(lambda lines, search, advance: [], 1, metrics)
    app = App(batcher, SearchConfig(), tokenizer, ("en", "de"), config, metrics, is_loopback)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read of a GET")

    scope = {"type": "http", "path": "/health", "method": "GET", "headers": [(b"host", b"workstation:80")]}
    asyncio.run(app(scope, receive, send))
    batcher.close()
    assert sent[0]["status"] == 200


def test_a_port_that_cannot_be_is_named(run_here: Run, tiny_checkpoint: Path) -> None:
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, "--serve", "99999")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"nmt-generate: --serve 99999: there is no port 99999, the highest is 65535\n"


# Clients that never come to an end -------------------------------------------------------------------------------

WHOLE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


async def say_ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connected(app: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server with this application, and with the service's own way to wait for requests."""
    config = uvicorn.Config(app, http=server_module._Protocol, log_config=None, lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup(sockets=[listener])
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        yield reader, writer
        writer.close()
        await server.shutdown(sockets=[listener])


@pytest.mark.parametrize(
    ("whole", "begun"),
    [
        pytest.param([], b"GET /hea", id="first request"),
        pytest.param([WHOLE], b"GET /hea", id="second request"),
        pytest.param([WHOLE, WHOLE], b"GET /health HTTP/1.1\r\nHost:", id="third request"),
        pytest.param([WHOLE.replace(b"Host", b"Content-Length: 9999\r\nHost")], b"x", id="body that nobody asked for"),
    ],
)
def test_a_connection_over_which_no_whole_request_comes_is_ended(
    whole: list[bytes], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SECONDS_TO_ASK", 0.3)

    async def drip(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"a")
            await asyncio.sleep(0.02)

    async def run() -> bytes:
        async with connected(say_ok) as (reader, writer):
            for request in whole:
                writer.write(request)
                assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)
            writer.write(begun)
            slow = asyncio.create_task(drip(writer))
            try:
                return await asyncio.wait_for(reader.read(), PATIENCE)
            except ConnectionResetError:  # what came too late was not read
                return b""
            finally:
                slow.cancel()

    assert asyncio.run(run()) == b""


def test_a_request_that_is_being_answered_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SECONDS_TO_ASK", 0.1)

    async def answer_slowly(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.4)
        await say_ok(scope, receive, send)

    async def run() -> bytes:
        async with connected(answer_slowly) as (reader, writer):
            writer.write(WHOLE)
            return await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)

    assert b"200 OK" in asyncio.run(run())


def test_a_connection_whose_client_takes_nothing_of_its_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SECONDS_TO_TAKE", 0.1)

    async def run() -> bool:
        ended = asyncio.Event()

        async def answer_at_length(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(50 << 20), "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            ended.set()

        async with connected(answer_at_length) as (_, writer):
            writer.write(WHOLE)
            return await asyncio.wait_for(ended.wait(), PATIENCE)

    assert asyncio.run(run())


def test_a_client_that_takes_its_answer_slowly_is_waited_for() -> None:
    left, waits, ended = [300, 200, 100, 100], list[tuple[Any, int]](), list[bool]()
    transport = SimpleNamespace(get_write_buffer_size=lambda: left.pop(0), abort=lambda: ended.append(True))
    loop = SimpleNamespace(call_later=lambda seconds, check, untaken: waits.append((check, untaken)))
    protocol = SimpleNamespace(transport=transport, loop=loop)
    for name in ("_watch", "_end_unless_taken"):
        setattr(protocol, name, MethodType(getattr(server_module._Protocol, name), protocol))
    protocol._watch(transport.get_write_buffer_size())
    for taken_before in (300, 200, 100):
        check, untaken = waits.pop()
        assert (untaken, ended) == (taken_before, [])
        check(untaken)
    assert (waits, ended) == ([], [True])

"""The HTTP service against web pages that try to reach it, and against slow clients."""

import asyncio
import http.client
import json
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from patience import PATIENCE
from running_server import Server

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from asgi_client import send_request
from echo_service import echo_service
from starlette.exceptions import HTTPException

from nmtkit.errors import UserError
from nmtkit.serving import connections
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.connections import Connection, Connections
from nmtkit.serving.descriptors import PER_WORKER, SPARE, reserve_descriptors
from nmtkit.serving.http_server import AsyncioHandler, HttpServer
from nmtkit.serving.prometheus import Metrics
from nmtkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    running = Server(tiny_checkpoint)
    yield running
    running.end()


def answer_to(server: Server, path: str, host: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    method, body = ("POST", '{"text": "a cat"}') if path == "/translate" else ("GET", None)
    connection.request(method, path, body, {"Host": host, "Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content) if response.status == 421 else None


@pytest.mark.parametrize("path", ["/", "/translate", "/health", "/metrics", "/nowhere"])
def test_a_host_name_rebound_to_this_server_is_refused(server: Server, path: str) -> None:
    status, values = answer_to(server, path, "pages.example:80")
    assert status == 421
    assert values == {"error": "Host 'pages.example:80' is not this machine: use localhost or an IP address"}
    assert answer_to(server, path, "[fe80::1%pages.example]:80")[0] == 421


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "a.localhost.", "127.0.0.1:9", "[::1]", "10.1.2.3:80"])
def test_localhost_names_and_ip_addresses_are_accepted_as_host(server: Server, host: str) -> None:
    assert answer_to(server, "/translate", host) == (200, None)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1.pages.example",
        "localhost.pages.example",
        "pages.example:1:2",
        "[::1].x",
        "notlocalhost",
        "",
        ":80",
        ".",
    ],
)
def test_host_names_that_resemble_localhost_are_refused(server: Server, host: str) -> None:
    assert answer_to(server, "/translate", host)[0] == 421


@pytest.mark.parametrize(
    ("own", "is_loopback", "status"), [("Workstation", True, 200), ("0.0.0.0", False, 200), ("127.0.0.1", True, 421)]
)
def test_loopback_accepts_its_configured_host_name_and_other_addresses_accept_any(
    tokenizer: Tokenizer, own: str, is_loopback: bool, status: int
) -> None:
    headers = [(b"host", b"workstation:80")]
    with echo_service(tokenizer, ServeConfig(host=own)) as (service, _):
        app = service.app(is_loopback)
        answer = asyncio.run(send_request(app, [], method="GET", path="/health", headers=headers))
    assert answer.status == status


def test_clients_whose_body_does_not_arrive_do_not_block_others(server: Server) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
            connection.sendall(head)
        assert server.metric("open_requests") == 0
        assert server.translate(text="") == [{"text": ""}]


# Slow clients ----------------------------------------------------------------------------------------------------

WHOLE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD_ONLY = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def say_ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def read_and_say_ok(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await say_ok(scope, receive, send)


@asynccontextmanager
async def running(
    app: Any, most: int = 100, refuse_incomplete: Callable[[], None] = lambda: None
) -> AsyncIterator[Callable[[], Awaitable[Streams]]]:
    """A function that connects to a server with this application, whose connections are bounded as the service's."""
    metrics = Metrics()
    server = HttpServer(app, Connections(most, metrics), refuse_incomplete)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        address = listener.getsockname()
        writers: list[asyncio.StreamWriter] = []

        async def connect() -> Streams:
            reader, writer = await asyncio.open_connection(*address)
            writers.append(writer)
            return reader, writer

        yield connect
        for writer in writers:
            writer.transport.abort()
        server.should_exit = True
        await asyncio.wait_for(serving, PATIENCE)
    assert "nmtkit_open_connections 0.0\n" in metrics.text()


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What the server sends before it closes the connection."""
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    except ConnectionResetError:  # the server did not read what came last
        return b""


@pytest.mark.parametrize(
    ("whole", "begun"),
    [
        pytest.param([], b"", id="nothing"),
        pytest.param([], b"GET /hea", id="first request"),
        pytest.param([WHOLE], b"GET /hea", id="second request"),
        pytest.param([WHOLE, WHOLE], b"GET /health HTTP/1.1\r\nHost:", id="third request"),
        pytest.param([HEAD_ONLY], b"x", id="body that is not read"),
    ],
)
def test_a_connection_without_a_whole_request_is_closed(
    whole: list[bytes], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.3)

    async def drip(writer: asyncio.StreamWriter) -> None:
        while begun and not writer.is_closing():
            writer.write(b"a")
            await asyncio.sleep(0.02)

    async def run() -> bytes:
        async with running(say_ok) as connect:
            reader, writer = await connect()
            for request in whole:
                writer.write(request)
                assert b"200 OK" in await answer_of(reader)
            writer.write(begun)
            slow = asyncio.create_task(drip(writer))
            try:
                return await rest_of(reader)
            finally:
                slow.cancel()

    assert asyncio.run(run()) == b""


@pytest.mark.parametrize("requests", [1, 3])
def test_a_connection_is_not_closed_while_its_request_is_answered(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.1)

    async def answer_slowly(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.3)
        await read_and_say_ok(scope, receive, send)

    async def run() -> list[bytes]:
        async with running(answer_slowly) as connect:
            reader, writer = await connect()
            writer.write(WHOLE * requests)  # pipelined
            return [await answer_of(reader) for _ in range(requests)]

    assert all(b"200 OK" in answer for answer in asyncio.run(run()))


def answering(body: bytes, ended: asyncio.Event) -> Any:
    """An application that answers with a body, and then notices when the connection is closed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    return app


def test_a_connection_whose_client_does_not_read_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_READ", 0.1)
    monkeypatch.setattr(connections, "SLOWEST_READER", 1 << 30)

    async def run() -> bool:
        ended = asyncio.Event()
        async with running(answering(bytes(50 << 20), ended)) as connect:
            _, writer = await connect()
            writer.write(WHOLE)
            return await asyncio.wait_for(ended.wait(), PATIENCE)

    assert asyncio.run(run())


def test_a_connection_that_sends_many_requests_and_reads_no_answers_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is small and complete: only the next request finds that the client has read none."""
    monkeypatch.setattr(connections, "SECONDS_TO_READ", 0.1)
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.1)
    monkeypatch.setattr(connections, "SLOWEST_READER", 1 << 30)

    async def say_much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(60_000)})

    async def send_until_closed(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(WHOLE)
            await writer.drain()
            await asyncio.sleep(0.05)

    async def run() -> None:
        async with running(say_much) as connect:
            reader, writer = await connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(WHOLE * 1000)
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(send_until_closed(writer), PATIENCE)

    asyncio.run(run())


def test_too_many_unread_answers_close_the_longest_waiting_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_UNREAD", 100)
    unread = {"first": 40, "second": 30, "read": 90, "third": 50, "fourth": 100}
    transports = {name: Mock(get_write_buffer_size=lambda size=size: size) for name, size in unread.items()}

    async def run() -> list[list[str]]:
        limits, closed = Connections(10, Metrics()), []
        for name, transport in transports.items():
            connection = Connection(limits, asyncio.Protocol())
            connection.connection_made(transport)
            if name == "read":
                continue
            connection.pause_writing()
            closed.append([name for name, transport in transports.items() if transport.abort.called])
        return closed

    assert asyncio.run(run()) == [[], [], ["first"], ["first", "second", "third"]]


def test_a_client_that_reads_steadily_gets_its_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.1)
    monkeypatch.setattr(connections, "SECONDS_TO_READ", 0.1)
    size = 20 << 20  # takes at most 20 s at the lowest speed
    monkeypatch.setattr(connections, "SLOWEST_READER", 1 << 20)

    async def run() -> int:
        async def say_much(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": bytes(size)})

        async with running(say_much) as connect:
            reader, writer = await connect()
            writer.write(WHOLE)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.5)  # longer than either deadline without its extension
            return len(await rest_of(reader))

    assert asyncio.run(run()) >= size


@pytest.mark.parametrize(("is_answered", "closed"), [(False, False), (True, True)])
def test_a_client_that_resumes_reading_has_time_for_its_next_request(
    is_answered: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.01)
    monkeypatch.setattr(connections, "SECONDS_TO_READ", 0.01)
    transport = Mock(get_write_buffer_size=lambda: 0)

    async def run() -> None:
        connection = Connection(Connections(1, Metrics()), asyncio.Protocol())
        connection.connection_made(transport)
        connection.begin_request(is_chunked=False)
        connection.pause_writing()
        if is_answered:
            connection.wait_for_request()
        connection.resume_writing()
        await asyncio.sleep(0.1)

    asyncio.run(run())
    assert transport.abort.called == closed


def test_the_parser_receives_small_chunks() -> None:
    sent, pieces = bytes(range(256)) * 1024, []

    class Recorder(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            pieces.append(data)

    async def run() -> None:
        limits = Connections(1, Metrics())
        server = await asyncio.get_running_loop().create_server(lambda: Connection(limits, Recorder()), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(sent)
            writer.write_eof()
            await rest_of(reader)
            writer.close()

    asyncio.run(run())
    assert b"".join(pieces) == sent
    assert max(map(len, pieces)) <= connections.READ_BYTES


CHUNKED = b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of connections."""
    sizes, original = list[int](), Connection.buffer_updated

    def buffer_updated(self: Connection, nbytes: int) -> None:
        sizes.append(nbytes)
        original(self, nbytes)

    monkeypatch.setattr(Connection, "buffer_updated", buffer_updated)
    return sizes


async def read_then_refuse(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers 400 where the body cannot be read, as starlette does."""
    try:
        await read_and_say_ok(scope, receive, send)
    except HTTPException as error:
        await send({"type": "http.response.start", "status": error.status_code, "headers": []})
        await send({"type": "http.response.body", "body": error.detail.encode()})


@pytest.mark.parametrize("app", [read_then_refuse, say_ok], ids=["the body is read", "the body is not read"])
def test_a_connection_with_small_chunks_is_closed_before_they_are_all_parsed(app: Any, reads: list[int]) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"1\r\nx\r\n" * 100)
            await writer.drain()

    async def run() -> None:
        async with running(app) as connect:
            reader, writer = await connect()
            writer.write(CHUNKED)
            sending = asyncio.gather(send(writer), return_exceptions=True)
            await rest_of(reader)
            writer.close()
            await asyncio.wait_for(sending, PATIENCE)

    asyncio.run(run())
    assert connections.MAX_FRAMING < sum(reads) < 3 * connections.MAX_FRAMING
    assert reads[-10:] == [connections.READ_BYTES_AFTER] * 10


def test_a_large_body_in_large_chunks_is_read(reads: list[int]) -> None:
    async def run() -> bytes:
        async with running(read_then_refuse) as connect:
            reader, writer = await connect()
            writer.write(CHUNKED + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 1000 + b"0\r\n\r\n")
            return await answer_of(reader)

    assert b"200 OK" in asyncio.run(run())
    assert sum(reads) > 1_000_000


def test_small_chunks_of_many_requests_do_not_add_up(reads: list[int]) -> None:
    async def run() -> list[bytes]:
        async with running(read_then_refuse) as connect:
            reader, writer = await connect()
            answers = []
            for _ in range(20):
                writer.write(CHUNKED + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")
                answers.append(await answer_of(reader))
            return answers

    assert all(b"200 OK" in answer for answer in asyncio.run(run()))
    assert sum(reads) > connections.MAX_FRAMING


def test_too_many_connections_close_the_longest_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 2 * PATIENCE)

    async def run() -> list[bytes]:
        async with running(read_and_say_ok, most=4) as connect:
            used, idle, other = [await connect() for _ in range(3)]
            used[1].write(WHOLE)  # is idle again after that, for the shortest time
            assert b"200 OK" in await answer_of(used[0])
            begun = await connect()
            begun[1].write(HEAD_ONLY)
            answers = []
            for closed in (idle, other):
                reader, writer = await connect()
                assert await rest_of(closed[0]) == b""
                writer.write(WHOLE)
                answers.append(await answer_of(reader))
            return answers

    assert all(b"200 OK" in answer for answer in asyncio.run(run()))


def test_a_connection_with_a_pending_request_is_not_closed_for_a_new_one() -> None:
    async def run() -> tuple[bytes, bytes]:
        arrived, may_answer = asyncio.Event(), asyncio.Event()

        async def answer_later(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            arrived.set()
            await may_answer.wait()
            await say_ok(scope, receive, send)

        async with running(answer_later, most=1) as connect:
            reader, writer = await connect()
            writer.write(WHOLE)
            await asyncio.wait_for(arrived.wait(), PATIENCE)
            refused, _ = await connect()
            nothing = await rest_of(refused)
            may_answer.set()
            return nothing, await answer_of(reader)

    nothing, answer = asyncio.run(run())
    assert nothing == b""
    assert b"200 OK" in answer


def test_a_burst_of_connections_does_not_exhaust_file_descriptors(tiny_checkpoint: Path) -> None:
    most = 40
    server = Server(tiny_checkpoint, "--max-connections", most, "--max-requests", most // 2)
    limit = most + SPARE + PER_WORKER
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with ExitStack() as stack:
        for _ in range(5 * limit):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", server.port))
        assert server.translate(text="") == [{"text": ""}]
        assert server.metric("open_connections") <= most
    assert server.end() == (143, "nmt-serve: terminated\n")


@pytest.mark.parametrize(
    ("limits", "raised"),
    [((64, 4096), (232, 4096)), ((64, -1), (232, -1)), ((232, 232), None), ((-1, -1), None)],
)
def test_a_soft_descriptor_limit_that_is_too_low_is_raised(
    limits: tuple[int, int], raised: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: found.append(new))
    reserve_descriptors(100, workers=1)
    assert found == ([raised] if raised else [])


@pytest.mark.parametrize(
    ("connections", "limit", "said"),
    [
        (512, 256, "--max-connections 512 needs 644 file descriptors, and the limit is 256: use at most 124, or raise"),
        (2, 133, "--max-connections 2 needs 134 file descriptors, and the limit is 133: raise"),
    ],
)
def test_the_error_for_a_low_hard_descriptor_limit_gives_the_most_connections_if_any_fit(
    connections: int, limit: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, limit))
    with pytest.raises(UserError) as error:
        reserve_descriptors(connections, workers=1)
    assert str(error.value) == f"{said} the limit (ulimit -n)"


def test_the_most_connections_that_the_error_gives_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: None)
    reserve_descriptors(124, workers=1)


def test_asyncio_messages_give_at_most_one_warning_per_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, handler = 1000.0, AsyncioHandler()
    monkeypatch.setattr("time.monotonic", lambda: now)
    error = OSError(24, "Too many open files")
    message = "socket.accept() out of system resource\nsocket: <asyncio.TransportSocket>"
    for seconds in (0, 1, 59, 60, 61):
        now = 1000.0 + seconds
        handler.handle(logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (), (OSError, error, None)))
    line = "asyncio: socket.accept() out of system resource: [Errno 24] Too many open files"
    assert caplog.record_tuples == [("nmtkit", logging.WARNING, line)] * 2


def test_malformed_http_during_a_request_is_not_logged_as_an_application_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> bytes:
        async with running(say_ok) as connect:
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
            return await rest_of(reader)

    assert b"400 Bad Request" in asyncio.run(run())
    assert "Exception in ASGI application\n" not in caplog.messages

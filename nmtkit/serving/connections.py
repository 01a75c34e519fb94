"""Bounds the open connections: their number, and how long a client can be slow.

uvicorn closes a connection that is silent after an answer, and nothing else: not one that never sends a request, sends
it byte by byte, or does not read its answer. Its parser takes as long for a small chunk of a chunked body as for a
large one.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmtkit.serving.prometheus import Metrics

SECONDS_TO_ASK = 30.0  # to send the head of a request, from the connect or from the previous answer
SECONDS_TO_READ = 30.0  # to read an answer that does not fit into the buffers of the sockets
READ_BYTES = 4096  # at a time from a connection
MUCH_FRAMING, READ_BYTES_AFTER = 2 * READ_BYTES, 512  # framing of a chunked body, and bytes at a time beyond it
SLOWEST_READER = 20_000  # bytes per second: what is unread extends either deadline at this speed
MAX_FRAMING = 64 << 10  # bytes of a chunked body that are not its content, and of one that nobody reads
MAX_UNREAD = 256 << 20  # bytes of answers that wait in this process for their clients to read them


class Connection(asyncio.BufferedProtocol):
    """A connection: passes its events on to `inner`, the HTTP server's protocol, and closes it if it is too slow.

    It reads little at a time, since other connections have their turn between reads only.
    """

    def __init__(self, connections: "Connections", inner: asyncio.Protocol) -> None:
        self._connections, self._inner = connections, inner
        self._buffer = bytearray(READ_BYTES)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_answering = self._is_paused = self._has_answered = self._is_chunked = False
        self._framing = 0  # bytes since the head of the request, without the content of its body that has been read
        self.is_malformed = False  #: uvicorn's parser has refused what was sent, and answers 400
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        self._connections.add(self)
        self.wait_for_request()

    def get_buffer(self, sizehint: int) -> memoryview:
        is_costly = self._is_chunked and self._framing > MUCH_FRAMING
        return memoryview(self._buffer)[: READ_BYTES_AFTER if is_costly else READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.data_received(bytes(self._buffer[:nbytes]))
        self.is_malformed = self._transport.is_closing()
        self._framing += nbytes
        if self._has_answered and self.has_small_chunks:  # of a body that is not read
            self.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        self._connections.remove(self)
        self._inner.connection_lost(exc)
        self._lost.set()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._inner.pause_writing()
        self._set_deadline(SECONDS_TO_READ)
        self._connections.add_unread(self)

    def resume_writing(self) -> None:
        self._is_paused = False
        self._connections.remove_unread(self)
        self._inner.resume_writing()
        if self._is_answering:
            self._set_deadline(None)

    @property
    def unread_bytes(self) -> int:
        """The bytes of answers that the client has not read, without those in the kernel."""
        return self._transport.get_write_buffer_size()

    @property
    def has_small_chunks(self) -> bool:
        """Whether the chunks of the body are so small that parsing them takes too long."""
        return self._is_chunked and self._framing > MAX_FRAMING

    def wait_for_request(self) -> None:
        """Begin to wait for the head of a request; the client may still be reading the previous answer."""
        self._is_answering = False
        self._set_deadline(SECONDS_TO_ASK)
        self._connections.set_idle(self, True)

    def begin_request(self, is_chunked: bool) -> None:
        """The head of a request has arrived. The application bounds the time for its body."""
        self._is_answering, self._has_answered = True, False
        self._is_chunked, self._framing = is_chunked, 0
        if not self._is_paused:  # otherwise the client has yet to read the previous answer
            self._set_deadline(None)

    def body_read(self, size: int) -> None:
        """The application has read so many bytes of the body."""
        self._framing -= size

    def body_arrived(self) -> None:
        """The request is complete: until its answer begins, the connection is not closed for another one."""
        self._connections.set_idle(self, False)

    async def begin_answer(self) -> None:
        """The answer is sent from now on. uvicorn fails to send one if it is closing the connection, as it does after
        malformed HTTP, and ignores it once the connection is closed: wait for that."""
        self._has_answered = True
        self._connections.set_idle(self, True)
        if self._transport.is_closing():
            await self._lost.wait()

    def abort(self) -> None:
        """Close at once, and discard what the client has not read."""
        self._connections.remove(self)
        self._transport.abort()

    def _set_deadline(self, seconds: float | None) -> None:
        """Abort after so many seconds, plus those that the slowest reader needs for what is unread; None: never."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            seconds += self.unread_bytes / SLOWEST_READER
            self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)


class Connections:
    """The open connections. When there are `most`, another one closes the one that has been idle longest.

    Idle means here: no complete request has arrived, or its answer is already being sent. When more than `MAX_UNREAD`
    bytes of answers are unread, the connection that has waited longest for its client to read is closed.
    """

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most, self._metrics = most, metrics
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # ordered by time
        self._unread: dict[Connection, None] = {}  # likewise

    def protocol(self, inner: Callable[..., asyncio.Protocol]) -> type[asyncio.Protocol]:
        """A protocol class for uvicorn: each instance bounds one of `inner`. The application must be `reporting`."""
        connections = self

        class BoundedConnection(Connection):
            def __init__(self, *, app_state: dict[str, Any], **settings: Any) -> None:
                super().__init__(connections, inner(app_state={**app_state, "connection": self}, **settings))

        return cast(type[asyncio.Protocol], BoundedConnection)  # uvicorn's annotation is narrower than asyncio's

    def add(self, connection: Connection) -> None:
        """Count a new connection, and close another one if there are too many; itself if no other is idle."""
        self._open.add(connection)
        if len(self._open) > self._most:
            next(iter(self._idle), connection).abort()
        self._metrics.open_connections.set(len(self._open))

    def remove(self, connection: Connection) -> None:
        """The inverse of `add`. Does nothing the second time."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self.remove_unread(connection)
        self._metrics.open_connections.set(len(self._open))

    def add_unread(self, connection: Connection) -> None:
        """Count the unread answers of a connection, and close connections if there is too much of them."""
        self._unread[connection] = None
        while sum(each.unread_bytes for each in self._unread) > MAX_UNREAD:
            next(iter(self._unread)).abort()

    def remove_unread(self, connection: Connection) -> None:
        """The inverse of `add_unread`. Does nothing the second time."""
        self._unread.pop(connection, None)

    def set_idle(self, connection: Connection, is_idle: bool) -> None:
        """Whether the connection may be closed for another one; the last to become idle is the last to be closed."""
        self._idle.pop(connection, None)
        if is_idle and connection in self._open:
            self._idle[connection] = None


def reporting(app: ASGIApp) -> ASGIApp:
    """`app`, which reports the progress of each request to its `Connection`.

    The request's state tells whether the HTTP of its connection `is_malformed`. To read the body raises HTTPException
    400 if its chunks are too small.
    """

    async def reporting_app(scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"]["connection"]

        async def receive_and_report() -> Message:
            message = await receive()
            scope["state"]["is_malformed"] = connection.is_malformed
            if message["type"] == "http.request":
                connection.body_read(len(message.get("body", b"")))
                if connection.has_small_chunks:
                    raise _small_chunks()
                if not message.get("more_body"):
                    connection.body_arrived()
            return message

        async def send_and_report(message: Message) -> None:
            await connection.begin_answer()
            await send(message)

        connection.begin_request(b"transfer-encoding" in dict(scope["headers"]))
        try:
            await app(scope, receive_and_report, send_and_report)
        finally:
            connection.wait_for_request()

    return reporting_app


def _small_chunks() -> HTTPException:
    reason = "the chunks of the body are too small: send larger ones, or a Content-Length"
    return HTTPException(HTTPStatus.BAD_REQUEST, reason, {"connection": "close"})

"""The HTTP service as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive

from nmtkit.console.log import logger
from nmtkit.decoding.translation import Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.files import Downloads, read_file, uploaded_file
from nmtkit.serving.json_fields import TranslationRequest
from nmtkit.serving.messages import check_media_type, json_object, read_request
from nmtkit.serving.middleware import LoopbackHost, RequestRecorder
from nmtkit.serving.models import Model, choose, languages_answer
from nmtkit.serving.prometheus import MEDIA_TYPE, Metrics
from nmtkit.serving.scheduler import DynamicBatcher, QueueFull
from nmtkit.version import __version__

SECONDS_FOR_BODY = 30.0
MAX_REQUESTS = 128  # translated at the same time
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that has disconnected: only for metrics and access log
PAGE = Path(__file__).with_name("page.html")
OPENAPI = Path(__file__).with_name("openapi.json")
_RETRY = {"retry-after": "1"}
_PAGE_HEADERS = {  # the page runs no foreign scripts, connects only to this server, and cannot be framed
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Service:
    """The endpoints."""

    def __init__(self, batcher: DynamicBatcher, models: Sequence[Model], config: ServeConfig, metrics: Metrics) -> None:
        self._batcher = batcher
        self._config, self._metrics = config, metrics
        self.use(models)
        self._page, self._openapi = PAGE.read_bytes(), OPENAPI.read_bytes()
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._downloads = Downloads()

    def use(self, models: Sequence[Model]) -> None:
        """Serve these models from now on. Requests that have begun keep their model."""
        self._models = tuple(models)
        self._metrics.models.clear()
        for model in models:
            self._metrics.models.labels(*model.languages).info({"version": __version__, **model.identity})

    def app(self, is_loopback: bool = False) -> Starlette:
        """Create the application. If `is_loopback`, it accepts only Host headers that name this machine."""
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/languages", self.languages),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
            Route("/translate", self.translate, methods=["POST"]),
            Route("/translate_file", self.translate_file, methods=["POST"]),
            Route("/download_file/{token}/{name}", self.download_file),
        ]
        paths, config = [route.path for route in routes], self._config
        handlers = {HTTPException: _refuse, ClientDisconnect: _drop, Exception: _fail}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        if origins := config.cors_origin:
            methods, headers = ("GET", "POST"), ("retry-after",)
            app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, expose_headers=headers)
        if is_loopback:
            app.add_middleware(LoopbackHost, own=config.host)
        # the outermost, which records rejected requests too
        app.add_middleware(RequestRecorder, metrics=self._metrics, paths=paths, access_log=config.access_log)
        return app

    async def page(self, request: Request) -> Response:
        """Answer with the page for a browser."""
        return Response(self._page, media_type="text/html", headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Answer whether the server translates requests, and with which models."""
        alive = self._batcher.alive
        status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
        names = ("source_language", "target_language")
        models = [dict(zip(names, model.languages, strict=True)) | model.identity for model in self._models]
        values = {"status": "ok" if alive else "stopped", "version": __version__, "models": models}
        return JSONResponse(values, status)

    async def languages(self, request: Request) -> Response:
        """Answer with the languages of the models, in the form of LibreTranslate."""
        return JSONResponse(languages_answer(self._models))

    async def openapi(self, request: Request) -> Response:
        """Answer with the OpenAPI description of all endpoints."""
        return Response(self._openapi, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics for Prometheus."""
        return Response(self._metrics.text(), media_type=MEDIA_TYPE)

    async def translate(self, request: Request) -> Response:
        """Translate the lines of a request."""
        check_media_type(request.headers)
        body = await _read_body(request, self._config.max_body)
        async with self._slot():  # taken late, so that clients with slow uploads hold no slot
            # Large requests and answers take a second to parse and build: threads let other requests continue.
            values = await asyncio.to_thread(json_object, body)
            model = choose(self._models, values)
            asked = await asyncio.to_thread(read_request, values, self._config, model)
            translations = await self._translated(asked, model, request)
            return await asyncio.to_thread(lambda: JSONResponse(asked.answer(translations)))

    async def translate_file(self, request: Request) -> Response:
        """Translate a file of a form, and answer with the address of the result."""
        body = await _read_body(request, self._config.max_body)
        name, content, values = await uploaded_file(request.headers, body)
        model = choose(self._models, values)
        async with self._slot():
            name, asked = await asyncio.to_thread(read_file, name, content, self._config, model.languages[1])
            translations = await self._translated(asked, model, request)
            result = await asyncio.to_thread(asked.answer, translations)
        path = self._downloads.add(name, result)
        return JSONResponse({"translatedFileUrl": str(request.base_url.replace(path=f"/{path}"))})

    async def download_file(self, request: Request) -> Response:
        """Answer with a translated file, once or several times."""
        name = request.path_params["name"]
        content = self._downloads.get(f"download_file/{request.path_params['token']}/{quote(name)}")
        if content is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such file: translated files are kept for ten minutes")
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
            "x-content-type-options": "nosniff",
        }
        return Response(content, media_type="application/octet-stream", headers=headers)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold one of the `MAX_REQUESTS` slots. Raises HTTPException 503 if all are taken."""
        if self._slots.locked():
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests: try again later", _RETRY)
        async with self._slots:
            with self._metrics.open_requests.track_inprogress():
                yield

    async def _translated(self, asked: TranslationRequest, model: Model, request: Request) -> list[Translation]:
        """Wait for the translations. Drops the job if the wait is cancelled, for example if the client disconnects."""
        try:
            job = self._batcher.submit(model.requests(asked.lines), asked.search(model.search), model.translate)
        except QueueFull as error:
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, "the queue is full: try again later", _RETRY) from error
        result = asyncio.wrap_future(job.result)
        waiting: list[asyncio.Future[Any]] = [result, asyncio.ensure_future(_disconnected(request.receive))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnect
            return result.result()
        except asyncio.CancelledError as error:  # uvicorn cancels requests after the time to drain
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down", _RETRY) from error
        finally:
            self._batcher.abandon(job)
            for future in waiting:
                future.cancel()


async def _read_body(request: Request, max_bytes: int) -> bytes:
    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                reason = f"the body is too long: the limit is {max_bytes} bytes"
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), SECONDS_FOR_BODY)
    except asyncio.TimeoutError as error:
        reason = f"the body did not arrive within {SECONDS_FOR_BODY:.0f} seconds"
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, reason) from error


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason, path = error.detail, request.scope["path"][:100]
    if error.status_code == HTTPStatus.NOT_FOUND and not path.startswith("/download_file/"):
        reason = f"no such path {path}: the paths are {', '.join(route.path for route in request.app.routes)}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        reason = f"{path} takes {(error.headers or {})['Allow']}"
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def _drop(request: Request, error: Exception) -> Response:
    """Create a response for the metrics only, because the client has disconnected."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _fail(request: Request, error: Exception) -> Response:
    logger.error("%s %s: %s: %s", request.method, request.scope["path"], type(error).__name__, error)
    return JSONResponse({"error": "internal error, see the log of the server"}, HTTPStatus.INTERNAL_SERVER_ERROR)

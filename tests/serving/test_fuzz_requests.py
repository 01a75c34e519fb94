"""Random and mutated requests to the HTTP service: each gets a proper answer, and the service continues."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from asgi_client import JSON, Answer, never, part, send_request, whole
from echo_service import echo_service
from starlette.types import ASGIApp

from nmtkit.serving import libretranslate
from nmtkit.serving.app import CLIENT_CLOSED_REQUEST, Service
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.messages import FIELDS
from nmtkit.serving.prometheus import Metrics
from nmtkit.text.tokenizer import Tokenizer

TEXTS = [
    "",
    "a dog",
    "\n",
    "a\nb\r\n",
    "\ud800",
    "\udc00\ud800",
    "🐕",
    "\x00",
    "\u2028",
    "e\u0301" * 50,
    "\ufeff",
    "x" * 999,
]
NUMBERS: list[Any] = [0, 1, 2, -1, 4, 5, 1.0, 1e308, -0.0, 10**30, float("nan"), float("inf"), True]
REQUESTS: list[dict[str, Any]] = [
    {"text": "the dog runs"},
    {"text": ["the dog", "", "a cat"], "nbest": 2, "scores": True, "alignment": True},
    {"text": "a\nb", "alignment": True},
    {"q": "a\nb", "source": "auto", "target": "de", "format": "text", "alternatives": 2, "api_key": ""},
    {"q": ["a", "", "b\nc"], "source": "en", "target": "de", "alternatives": 1},
]
CONFIG = ServeConfig(port=0, max_queue=20, max_request_chars=20)
PATHS = ["/", "/health", "/languages", "/metrics", "/openapi.json", "/x\ufffd\x00", "//", ""]
METHODS = ["GET", "HEAD", "PUT", "\x00"]
HEADERS = [b"content-type", b"content-length", b"host", b"expect", b"origin", b"x-" * 40]
INSERTIONS = [b"\x00", b"\xff", b"{", b'"', b"\\u", b"[" * 999, b"9" * 999, b" " * 3000]
HEADER_VALUES = [
    b"",
    b"application/json",
    b"text/plain",
    b"-1",
    b"5",
    b"9" * 5000,
    b"\xff\x00",
    b"\xb2",
    b"100-continue",
]


def some_json(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON value, at most a few levels deep."""
    kind = draw.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return [some_json(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 5:
        names = [*FIELDS, *libretranslate.FIELDS, *TEXTS]
        return {draw.choice(names): some_json(draw, depth + 1) for _ in range(draw.randrange(5))}
    return draw.choice([None, draw.choice(TEXTS), draw.choice(NUMBERS), draw.random() < 0.5])


def some_request(draw: random.Random) -> bytes:
    """A body that is nearly a request: one with another value somewhere, repeated, cut, or with other bytes."""
    request = dict(draw.choice(REQUESTS))
    for _ in range(draw.randrange(3)):
        request[draw.choice([*request, "beam", ""])] = some_json(draw)
    body = bytearray(json.dumps(request, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass"))
    return bytes(mutated(draw, body))


def mutated(draw: random.Random, data: bytearray) -> bytearray:
    """The same, or shorter, longer, or with a few bytes changed."""
    for _ in range(draw.choice([0, 0, 1, 3])):
        place = draw.randrange(len(data) + 1)
        match draw.randrange(4):
            case 0:
                del data[place:]
            case 1:
                data[place:place] = draw.choice(INSERTIONS)
            case 2 if place < len(data):
                data[place] ^= 1 << draw.randrange(8)
            case _:
                data += data[place : place + 40]
    return data


def some_headers(draw: random.Random) -> list[tuple[bytes, bytes]]:
    own = list(JSON) if draw.random() < 0.8 else []
    return own + [(draw.choice(HEADERS), draw.choice(HEADER_VALUES)) for _ in range(draw.choice([0, 0, 1, 3]))]


@pytest.fixture
def service(tokenizer: Tokenizer) -> Iterator[tuple[Service, Metrics]]:
    with echo_service(tokenizer, CONFIG) as made:
        yield made


def check(answer: Answer, method: str, path: str) -> None:
    """A status that clients can understand, and JSON but for the page, the metrics, and clients that have gone."""
    assert answer.status in (200, 400, 404, 405, 413, 415, 421, CLIENT_CLOSED_REQUEST), answer
    if answer.status != CLIENT_CLOSED_REQUEST and path not in ("/", "/metrics"):
        assert answer.headers["content-type"] == "application/json"
        if path not in ("/languages", "/openapi.json"):
            assert answer.values.keys() & {"error", "translations", "translatedText", "status"}, (method, path, answer)


async def at_once() -> None:
    """The client goes when the application asks for more."""


async def exchange(draw: random.Random, app: ASGIApp) -> int:
    """The status of the answer to a random request, whose client goes in the middle of the body now and then."""
    body = some_request(draw)
    cut = draw.randrange(len(body) + 1)
    messages = draw.choices([[part(body)], [part(body[:cut], True), part(body[cut:])], [part(body, True)]], [16, 3, 1])[
        0
    ]
    path = draw.choice(PATHS) if draw.random() < 0.1 else "/translate"
    method = draw.choice(METHODS) if draw.random() < 0.1 else "POST"
    then = at_once if messages[-1]["more_body"] else never
    answer = await send_request(app, messages, method, path, some_headers(draw), then)
    check(answer, method, path)
    return answer.status


@pytest.mark.parametrize("seed", range(2))
def test_random_requests_get_valid_responses(seed: int, service: tuple[Service, Metrics]) -> None:
    draw = random.Random(seed)
    endpoints, metrics = service
    app, own_host_app = endpoints.app(is_loopback=False), endpoints.app(is_loopback=True)

    async def run() -> set[int]:
        statuses = {await exchange(draw, draw.choice([app, own_host_app])) for _ in range(250)}
        answer = await send_request(app, [whole(text="still")])
        assert answer.values == {"translations": [{"text": "still"}]}
        return statuses

    assert asyncio.run(run()) >= {200, 400, 404, 405, 413, 415, CLIENT_CLOSED_REQUEST}
    assert "\nnmtkit_open_requests 0.0\n" in metrics.text()
    assert "\nnmtkit_queued_lines 0.0\n" in metrics.text()

"""Foreign hosts, cross-origin requests, slow clients and the access log."""

import asyncio
import json
import logging
from collections.abc import Sequence

import pytest

pytest.importorskip("starlette")

from asgi_client import JSON, Answer, send_request, whole
from echo_service import echo_service

from nmtkit.console.log import LogConfig, configure
from nmtkit.serving.config import ServeConfig
from nmtkit.text.tokenizer import Tokenizer

ALLOWED, OTHER = "https://app.example", "https://evil.example"
HOST = (b"host", b"localhost:8080")


def ask(
    tokenizer: Tokenizer,
    config: ServeConfig,
    method: str = "POST",
    path: str = "/translate",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Answer:
    """The answer of a service that listens on this machine only."""
    with echo_service(tokenizer, config) as (service, _):
        sent = (*JSON, HOST, *headers)
        return asyncio.run(send_request(service.app(is_loopback=True), [whole(text="a")], method, path, sent))


def status_for(tokenizer: Tokenizer, host: str, is_loopback: bool = True, own: str = "127.0.0.1") -> int:
    """The status of a request whose Host is `host`."""
    with echo_service(tokenizer, ServeConfig(host=own)) as (service, _):
        app = service.app(is_loopback)
        return asyncio.run(send_request(app, [], "GET", "/health", [(b"host", host.encode())])).status


@pytest.mark.parametrize("path", ["/", "/translate", "/metrics", "/nowhere"])
def test_a_host_name_rebound_to_this_server_is_refused(tokenizer: Tokenizer, path: str) -> None:
    with echo_service(tokenizer, ServeConfig()) as (service, _):
        headers = [*JSON, (b"host", b"pages.example:80")]
        answer = asyncio.run(send_request(service.app(is_loopback=True), [whole(text="a")], "POST", path, headers))
    assert answer.status == 421
    assert "use localhost" in answer.values["error"]


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "a.localhost.", "127.0.0.1:9", "[::1]:9", "10.1.2.3:80"])
def test_localhost_names_and_ip_addresses_are_accepted_as_host(tokenizer: Tokenizer, host: str) -> None:
    assert status_for(tokenizer, host) == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1.pages.example", "localhost.pages.example", "pages.example:1:2", "[::1].x", "notlocalhost", "."]
)
def test_host_names_that_resemble_localhost_are_refused(tokenizer: Tokenizer, host: str) -> None:
    assert status_for(tokenizer, host) == 421


def test_loopback_accepts_its_own_name_and_other_addresses_accept_any(tokenizer: Tokenizer) -> None:
    assert status_for(tokenizer, "workstation:80", own="Workstation") == 200
    assert status_for(tokenizer, "workstation:80", is_loopback=False) == 200


def preflight(tokenizer: Tokenizer, origin: str, allowed: tuple[str, ...]) -> Answer:
    """The answer to the question of a browser whether a page of `origin` may send JSON."""
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    headers = [(name.encode(), value.encode()) for name, value in asked.items()]
    return ask(tokenizer, ServeConfig(cors_origin=allowed), "OPTIONS", headers=headers)


@pytest.mark.parametrize(
    ("origin", "allowed", "answered"),
    [(ALLOWED, (ALLOWED,), ALLOWED), (OTHER, ("*",), "*"), (OTHER, (ALLOWED,), None), (ALLOWED, (), None)],
)
def test_pages_of_allowed_origins_may_use_the_server_and_others_may_not(
    tokenizer: Tokenizer, origin: str, allowed: tuple[str, ...], answered: str | None
) -> None:
    question = preflight(tokenizer, origin, allowed)
    assert question.headers.get("access-control-allow-origin") == answered
    if answered:
        assert question.status == 200
        assert "POST" in question.headers["access-control-allow-methods"]
        assert "Content-Type" in question.headers["access-control-allow-headers"]
    answer = ask(tokenizer, ServeConfig(cors_origin=allowed), headers=[(b"origin", origin.encode())])
    assert answer.values == {"translations": [{"text": "a"}]}
    assert answer.headers.get("access-control-allow-origin") == answered


def test_without_cors_origin_a_preflight_request_is_refused(tokenizer: Tokenizer) -> None:
    assert preflight(tokenizer, ALLOWED, ()).status == 405


def test_an_allowed_origin_does_not_open_other_hosts(tokenizer: Tokenizer) -> None:
    with echo_service(tokenizer, ServeConfig(cors_origin=("*",))) as (service, _):
        headers = [*JSON, (b"host", b"pages.example"), (b"origin", ALLOWED.encode())]
        answer = asyncio.run(send_request(service.app(is_loopback=True), [whole(text="a")], headers=headers))
    assert answer.status == 421


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log as nmt-serve does with --log-format json, and restore the logger afterwards."""
    logger = logging.getLogger("nmtkit")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr("nmtkit.console.log._config", None)
    configure(LogConfig(log_format="json"))


@pytest.mark.usefixtures("logged")
def test_the_access_log_has_one_line_for_each_request_and_none_of_its_text(
    tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ServeConfig(access_log=True)
    answer = ask(tokenizer, config)
    ask(tokenizer, config, "GET", "/x\x1b[31m |\n status 200" + "y" * 1000)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time") > 0
    assert first.pop("ms") >= 0
    assert first == {
        "event": "request",
        "client": "192.0.2.1",
        "method": "POST",
        "path": "/translate",
        "status": 200,
        "bytes": len(answer.body),
    }
    assert second["path"].startswith("/x%1B%5B31m%20%7C%0A%20status%20200yyy")
    assert len(second["path"]) < 300
    assert (second["method"], second["status"]) == ("GET", 404)


@pytest.mark.usefixtures("logged")
def test_requests_are_not_logged_by_default(tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    ask(tokenizer, ServeConfig())
    assert capsys.readouterr().err == ""

"""nmt-serve as a process: what it answers, what it refuses, how it ends; and its options."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import Run
from patience import PATIENCE
from repository import ROOT
from running_server import SEARCH, Server

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from prometheus_client.parser import text_string_to_metric_families

from nmtkit import Translator
from nmtkit.decoding.config import SearchConfig
from nmtkit.serving import server as server_module
from nmtkit.serving.app import OPENAPI
from nmtkit.serving.config import ServeConfig

LINES = ["the dog runs", "", "a cat", "die katze läuft über die straße"]
MAX_LINES, MAX_CHARS = 50, 10_000
MAX_BODY = ServeConfig(max_request_chars=MAX_CHARS).max_body


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    running = Server(
        tiny_checkpoint, "--max-queue", MAX_LINES, "--max-request-chars", MAX_CHARS, "--no-repetition-guard"
    )
    yield running
    assert running.end() == (143, "nmt-serve: terminated\n")  # nothing else was said


@pytest.fixture(scope="module")
def translator(tiny_checkpoint: Path) -> Translator:
    return Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")


# What is answered ------------------------------------------------------------------------------------------------


def test_a_list_of_lines_gives_a_list_of_translations(server: Server, translator: Translator) -> None:
    expected = translator.stream(LINES, SearchConfig(**SEARCH))
    doubts = [{name: True for name in ("cut", "repetitive") if getattr(each.candidates[0], name)} for each in expected]
    texts = translator.translate(LINES, **SEARCH)
    assert server.translate(text=LINES) == [{"text": text} | doubt for text, doubt in zip(texts, doubts, strict=True)]
    assert any(doubts)
    assert server.translate(text=[]) == []


def test_a_text_is_translated_line_by_line(server: Server) -> None:
    assert server.translate(text="\n".join(LINES)) == server.translate(text=LINES)
    assert server.translate(text="") == [{"text": ""}]


def test_nbest_scores_and_alignments_are_returned_on_request(server: Server, translator: Translator) -> None:
    config = SearchConfig(**SEARCH, nbest=2, alignment=True)
    expected = list(translator.stream(LINES, config))
    found = server.translate(text=LINES, nbest=2, scores=True, alignment=True)
    for line, translation in zip(found, expected, strict=True):
        assert line["source_words"] == translation.source.split()
        assert line == line["nbest"][0] | {"source_words": line["source_words"], "nbest": line["nbest"]}
        for hypothesis, candidate in zip(line["nbest"], translation.candidates, strict=True):
            assert hypothesis["text"] == candidate.text
            assert hypothesis["tokens"] == list(candidate.tokens)
            assert hypothesis["score"] == pytest.approx(candidate.score, rel=1e-4)
            assert hypothesis["token_log_probs"] == pytest.approx(candidate.token_log_probs, rel=1e-4, abs=1e-5)
            assert hypothesis["alignment"] == [list(pair) for pair in candidate.alignment or ()]
    assert server.translate(text=LINES, nbest=1)[0].keys() >= {"text", "nbest"}


def test_source_words_match_the_indices_of_alignments(server: Server) -> None:
    for text, words in (
        ("The  dog\u3000RUNS", ["The", "dog", "RUNS"]),
        ("½ cat\u00a0on", ["½", "cat", "on"]),
        ("a\u200bb\u180ec d", ["a\u200bb\u180ec", "d"]),
        ("a\x1cb \x1c c", ["a", "b", "c"]),
        ("x\ufdfay z", ["x\ufdfay", "z"]),
        ("\u00b4a don\u00b4t", ["\u00b4a", "don\u00b4t"]),
        ("", []),
    ):
        (line,) = server.translate(text=[text], alignment=True)
        assert line["source_words"] == words
        assert all(source < len(words) for source, _ in line["alignment"])


def test_unusual_characters_do_not_change_the_number_of_lines(server: Server) -> None:
    odd = ["dog\rcat", "dog\x00cat", "dog\u2028cat", "half a pair \ud800", "🐕", "x" * 500]
    found = server.translate(text=odd)
    assert len(found) == len(odd)
    assert all("\n" not in line["text"] for line in found)


def test_requests_that_arrive_together_are_translated_together(server: Server, translator: Translator) -> None:
    texts = [f"{line} {number}" for number in range(10) for line in LINES if line]
    expected = translator.translate(texts, **SEARCH)
    rounds = server.metric("rounds_total")
    with ThreadPoolExecutor(len(texts)) as clients:
        found = list(clients.map(lambda text: server.translate(text=text), texts))
    assert [line["text"] for (line,) in found] == expected
    assert server.metric("rounds_total") - rounds < len(texts) / 2


def test_the_benchmark_runs_the_requested_number_of_clients(server: Server, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the dog runs\n\na cat\n")
    benchmark = ROOT / "benchmarks/serve.py"
    options = ("--port", server.port, "--input", tmp_path / "text", "--clients", 3, "--seconds", 0.1)
    command = [sys.executable, str(benchmark), *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(benchmark.parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| 3 \| [\d.]+ \| [\d,]+ ms \| [\d,]+ ms \|$", done.stdout, re.MULTILINE)


def test_health_and_metrics_are_served(server: Server) -> None:
    status, body, _ = server.request("GET", "/health")
    assert status == 200
    assert json.loads(body)["status"] == "ok"
    lines = server.metric("lines_total")
    server.translate(text=LINES)
    assert server.metric("lines_total") == lines + len(LINES)
    assert server.metric("queued_lines") == server.metric("open_requests") == 0
    status, body, response = server.request("GET", "/metrics")
    assert response.getheader("content-type", "").startswith("text/plain; version=0.0.4")
    kinds = {family.name: family.type for family in text_string_to_metric_families(body.decode())}
    assert kinds == {
        **dict.fromkeys(("nmtkit_lines", "nmtkit_tokens", "nmtkit_rounds", "nmtkit_search_seconds"), "counter"),
        **dict.fromkeys(("nmtkit_failures", "nmtkit_requests", "nmtkit_cut", "nmtkit_repetitive"), "counter"),
        **dict.fromkeys(("nmtkit_queued_lines", "nmtkit_open_requests", "nmtkit_open_connections"), "gauge"),
        "nmtkit_model_info": "gauge",
        "nmtkit_request_seconds": "histogram",
    }


def test_the_openapi_description_is_served(server: Server) -> None:
    status, body, response = server.request("GET", "/openapi.json")
    assert (status, response.getheader("content-type")) == (200, "application/json")
    assert json.loads(body) == json.loads(OPENAPI.read_text())


def test_the_page_loads_no_external_resources(server: Server) -> None:
    status, body, response = server.request("GET", "/")
    assert status == 200
    assert response.getheader("content-type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in str(response.getheader("content-security-policy"))
    assert not re.search(rb"(https?:)?//\w|@import|url\(", re.sub(rb"//.*", b"", body))
    assert server.request("HEAD", "/")[:2] == (200, b"")


# What clients do wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"[" * 20_000, 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b"{}", 400, 'the field "text" is missing'),
        (b'{"text": {"a": 1}}', 400, "text: a string, or a list"),
        (b'{"text": "a", "nbest": 4}', 400, "nbest: a number from 1 to 3"),
        (b'{"text": "a", "scores": 1}', 400, '"scores: true or false is expected"'),
        (
            b'{"text": "a", "beam": 1000}',
            400,
            'the field "beam" is unknown (known: text, source, target, source_lang, target_lang, nbest, '
            "scores, alignment, tag_handling, ignore_tags)",
        ),
        (b'{"txt": "a"}', 400, 'the field "text" is missing; the field "txt" is unknown'),
        (b'{"text": "' + b"\\n" * MAX_LINES + b'"}', 413, "51 lines are too many: the limit is 50"),
        (b'{"text": "' + b"x" * 10_001 + b'"}', 413, "10001 characters are too many: the limit is 10000"),
        (
            b'{"text": ["' + b"x" * 2000 + b'", "' + b"x" * 1500 + b'"], "nbest": 3}',
            413,
            "3500 characters times nbest 3 are too many: the limit is 10000",
        ),
        (b'{"text": "' + b"x" * MAX_BODY + b'"}', 413, f"the body is too long: the limit is {MAX_BODY} bytes"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
def test_invalid_translation_requests_are_refused_in_json(server: Server, body: bytes, status: int, words: str) -> None:
    found, answer, response = server.request("POST", "/translate", body)
    assert (found, response.getheader("content-type")) == (status, "application/json")
    assert words in (json.loads(answer)["error"] if '"' not in words[:1] else answer.decode())
    assert server.translate(text="") == [{"text": ""}]


def test_null_fields_are_treated_as_absent(server: Server) -> None:
    assert server.translate(text="a", nbest=None, scores=None, alignment=None) == server.translate(text="a")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/translate", 405),
        ("DELETE", "/", 405),
        ("POST", "/health", 405),
        ("GET", "/../../etc/passwd", 404),
        ("POST", "/translate/", 404),
    ],
)
def test_unknown_paths_and_methods_are_refused_in_json(server: Server, method: str, path: str, status: int) -> None:
    found, answer, response = server.request(method, path)
    assert (found, list(json.loads(answer))) == (status, ["error"])
    assert (response.getheader("allow") is not None) == (status == 405)
    assert "translate" in json.loads(answer)["error"] or status == 405


def test_the_limit_of_a_chunked_body_is_checked_as_it_arrives(server: Server) -> None:
    pieces = (b"x" * 1000 for _ in range(1000))
    try:
        status, answer, _ = server.request("POST", "/translate", pieces)
        assert (status, json.loads(answer)) == (413, {"error": f"the body is too long: the limit is {MAX_BODY} bytes"})
    except (BrokenPipeError, ConnectionResetError):  # the server need not read to the end what it has refused
        pass
    small = iter([b'{"text":', b' "a cat"}'])
    status, _, _ = server.request("POST", "/translate", small)
    assert status == 200


POST = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 30_000 + b"\r\n",
        POST + b"Content-Length: 100\r\n\r\nonly this",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b'Content-Length: 24\r\n\r\n{"text": "the dog runs"}',
    ],
    ids=lambda sent: sent.removeprefix(POST)[:40],
)
def test_truncated_requests_and_other_protocols_do_not_disturb_the_server(server: Server, sent: bytes) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            try:
                connection.sendall(sent)
            except (BrokenPipeError, ConnectionResetError):
                continue
    assert server.translate(text="") == [{"text": ""}]
    assert server.request("GET", "/health")[0] == 200


# Its end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_server_after_open_requests_are_answered(
    number: int, code: int, tiny_checkpoint: Path
) -> None:
    server = Server(tiny_checkpoint, "--max-len-b", 60)
    with ThreadPoolExecutor(1) as client:
        lines = ["the dog runs on the street"] * 150
        answer = client.submit(server.translate, text=lines)
        deadline = time.monotonic() + PATIENCE
        while not server.metric("queued_lines"):
            assert time.monotonic() < deadline
        found, message = server.end(number)
        assert len(answer.result(timeout=PATIENCE)) == len(lines)
    assert found == code
    assert message.endswith(f"nmt-serve: {'terminated' if code == 143 else 'interrupted'}\n")


# Options ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(run_here: Run, tiny_checkpoint: Path) -> Callable[..., str]:
    """Run nmt-serve with options that it refuses; its message."""

    def run(*arguments: object) -> str:
        done = run_here("nmt-serve", "--checkpoint", tiny_checkpoint, *arguments)
        (line,) = done.stderr.decode().splitlines()
        assert (done.returncode, done.stdout) == (2, b""), line
        return line

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "nowhere"], "'nowhere' is not a valid int"),
        (["--cors-origin", "https://a.example/"], "--cors-origin https://a.example/ is not an origin"),
        (["--port", 0, "--alignment-layer", 9], "the model has 2 decoder layers"),
        (["--workers", 1000], "--workers 1000: each needs a core, and this process has "),
        (["--nbest", 2], "it is not needed: each request asks for its n-best list"),
    ],
)
def test_invalid_options_are_refused(arguments: list[object], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*arguments)


def test_an_address_in_use_is_refused_before_the_model_is_loaded(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.serving.server.load_checkpoint", lambda path: pytest.fail("the model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"--host 127.0.0.1 --port {port}: Address already in use: use a different port or address"
        assert refused("--port", port).endswith(message)


@pytest.mark.parametrize(("host", "bound"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("::1", "::1")])
def test_connections_are_refused_until_the_server_listens(host: str, bound: str) -> None:
    with server_module.bind(ServeConfig(host=host, port=0)) as listener:
        address = listener.getsockname()
        assert address[0] == bound
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address[:2], timeout=PATIENCE)
        listener.listen()
        socket.create_connection(address[:2], timeout=PATIENCE).close()


@pytest.mark.parametrize("package", ["uvicorn", "starlette", "prometheus_client"])
def test_a_missing_package_is_reported_with_its_install_command(
    package: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((f"{package}.", "nmtkit.serving."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    line = refused("--port", 0)
    assert line.startswith(f"nmt-serve: {package}")
    assert line.endswith(" is not installed: pip install starlette uvicorn prometheus-client")

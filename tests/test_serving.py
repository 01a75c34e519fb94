"""The HTTP service: what it answers, how it batches, and that nothing a client does takes it down."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from patience import PATIENCE
from running_server import Server

pytest.importorskip("uvicorn")

from nmtkit import Translator
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.errors import RunError
from nmtkit.serving import app as app_module
from nmtkit.serving.app import App
from nmtkit.serving.batching import LINES_A_ROUND, LINES_OF_A_JOB, Batcher, QueueFull
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.metrics import Metrics
from nmtkit.tokenizer import Tokenizer

Advance = Callable[[int], None]

LINES = ["the dog runs", "", "a cat", "die katze läuft über die straße"]
SEARCH: dict[str, Any] = {"beam": 3, "max_len_b": 3}  # of Server
MAX_BODY, MAX_LINES = 30_000, 50


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    running = Server(tiny_checkpoint, "--max-body", MAX_BODY, "--max-request-lines", MAX_LINES)
    yield running
    assert running.end() == (143, "nmt-generate: terminated\n")  # nor was anything said in between


@pytest.fixture(scope="module")
def translator(tiny_checkpoint: Path) -> Translator:
    return Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")


# What is answered ------------------------------------------------------------------------------------------------


def test_a_list_of_lines_gives_a_list_of_translations(server: Server, translator: Translator) -> None:
    assert server.translate(text=LINES) == [{"text": text} for text in translator.translate(LINES, **SEARCH)]
    assert server.translate(text=[]) == []


def test_a_text_is_translated_line_by_line(server: Server) -> None:
    assert server.translate(text="\n".join(LINES)) == server.translate(text=LINES)
    assert server.translate(text="") == [{"text": ""}]


def test_nbest_scores_and_alignments_are_told_where_they_are_asked_for(server: Server, translator: Translator) -> None:
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
    assert server.translate(text=LINES, nbest=1)[0].keys() == {"text", "nbest"}


def test_source_words_are_those_that_alignments_count(server: Server) -> None:
    for text, words in (
        ("The  dog\u3000RUNS", ["The", "dog", "RUNS"]),
        ("½ cat\u00a0on", ["½", "cat", "on"]),
        ("", []),
    ):
        (line,) = server.translate(text=[text], alignment=True)
        assert line["source_words"] == words
        assert all(source < len(words) for source, _ in line["alignment"])


def test_odd_lines_are_lines(server: Server) -> None:
    odd = ["dog\rcat", "dog\x00cat", "dog\u2028cat", "a\nb", "half a pair \ud800", "🐕", "x" * 500]
    found = server.translate(text=odd)
    assert len(found) == len(odd)
    assert all(line["text"] and "\n" not in line["text"] for line in found)


def test_requests_that_arrive_together_are_translated_together(server: Server, translator: Translator) -> None:
    texts = [f"{line} {number}" for number in range(10) for line in LINES if line]
    expected = translator.translate(texts, **SEARCH)
    rounds = server.metric("rounds_total")
    with ThreadPoolExecutor(len(texts)) as clients:
        found = list(clients.map(lambda text: server.translate(text=text), texts))
    assert [line["text"] for (line,) in found] == expected
    assert server.metric("rounds_total") - rounds < len(texts) / 2


def test_the_benchmark_asks_as_many_at_a_time_as_it_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the dog runs\n\na cat\n")
    benchmark = Path(__file__).parent.parent / "benchmarks/serve.py"
    options = ("--port", server.port, "--input", tmp_path / "text", "--clients", 3, "--seconds", 0.1)
    command = [sys.executable, str(benchmark), *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(benchmark.parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| 3 \| [\d.]+ \| [\d,]+ ms \| [\d,]+ ms \|$", done.stdout, re.MULTILINE)


def test_health_and_metrics(server: Server) -> None:
    status, body, _ = server.request("GET", "/health")
    assert (status, json.loads(body)) == (200, {"status": "ok", "source_language": "en", "target_language": "de"})
    lines = server.metric("lines_total")
    server.translate(text=LINES)
    assert server.metric("lines_total") == lines + len(LINES)
    assert server.metric("queued_lines") == server.metric("open_requests") == 0
    status, body, response = server.request("GET", "/metrics")
    assert response.getheader("content-type", "").startswith("text/plain; version=0.0.4")
    rows = [row for row in body.decode().splitlines() if not row.startswith("# ")]
    assert all(re.fullmatch(r'nmtkit_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.]+', row) for row in rows)


def test_the_page_needs_nothing_but_itself(server: Server) -> None:
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
        (b"{", 400, "not JSON"),
        (b"\xff\xfe\x00", 400, "not JSON"),
        (b"[" * 20_000, 400, "not JSON"),
        (b'{"text": ' + b"9" * 6000 + b"}", 400, "not JSON"),
        (b"[]", 400, "an object is expected"),
        (b'"a dog"', 400, "an object is expected"),
        (b"{}", 400, "an object is expected"),
        (b'{"text": null}', 400, "text: a string, or a list"),
        (b'{"text": 7}', 400, "text: a string, or a list"),
        (b'{"text": {"a": 1}}', 400, "text: a string, or a list"),
        (b'{"text": ["a", 1]}', 400, "text: a string, or a list"),
        (b'{"text": [["a"]]}', 400, "text: a string, or a list"),
        (b'{"text": "a", "nbest": 0}', 400, "nbest: a number from 1 to 3"),
        (b'{"text": "a", "nbest": 4}', 400, "nbest: a number from 1 to 3"),
        (b'{"text": "a", "nbest": true}', 400, "nbest: a number from 1 to 3"),
        (b'{"text": "a", "nbest": 1e99}', 400, "nbest: a number from 1 to 3"),
        (b'{"text": "a", "scores": 1}', 400, "true or false"),
        (b'{"text": "a", "alignment": "yes"}', 400, "true or false"),
        (b'{"text": "a", "beam": 1000}', 400, "'beam' is not one of"),
        (b'{"text": "' + b"\\n" * MAX_LINES + b'"}', 413, "51 lines are too many"),
        (b'{"text": "' + b"x" * MAX_BODY + b'"}', 413, "a body may have 30000 bytes"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
def test_what_cannot_be_translated_is_refused_in_json(server: Server, body: bytes, status: int, words: str) -> None:
    found, answer, response = server.request("POST", "/translate", body)
    assert (found, response.getheader("content-type")) == (status, "application/json")
    assert words in json.loads(answer)["error"]
    assert server.translate(text="") == [{"text": ""}]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/translate", 405), ("DELETE", "/", 405), ("POST", "/health", 405), ("GET", "/../../etc/passwd", 404)],
)
def test_other_ways_and_places_are_refused_in_json(server: Server, method: str, path: str, status: int) -> None:
    found, answer, response = server.request(method, path)
    assert (found, list(json.loads(answer))) == (status, ["error"])
    assert bool(response.getheader("allow")) == (status == 405)


def test_a_body_without_a_length_is_counted_as_it_comes(server: Server) -> None:
    pieces = (b"x" * 1000 for _ in range(1000))
    try:
        status, answer, _ = server.request("POST", "/translate", pieces)
        assert (status, json.loads(answer)) == (413, {"error": "a body may have 30000 bytes"})
    except (BrokenPipeError, ConnectionResetError):  # the server need not read to the end what it has refused
        pass
    small = iter([b'{"text":', b' "a cat"}'])
    status, _, _ = server.request("POST", "/translate", small)
    assert status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00\xff" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 30_000 + b"\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\nx",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nonly this",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b'POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n{"text": "the dog runs"}',
    ],
    ids=lambda sent: sent[:40],
)
def test_connections_that_end_too_early_or_speak_no_http_do_no_harm(server: Server, sent: bytes) -> None:
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
def test_a_signal_ends_it_when_all_that_was_asked_is_answered(number: int, code: int, tiny_checkpoint: Path) -> None:
    server = Server(tiny_checkpoint, "--max-len-b", 60)
    with ThreadPoolExecutor(1) as client:
        lines = ["the dog runs on the street"] * 150
        answer = client.submit(server.translate, text=lines)
        deadline = time.monotonic() + PATIENCE
        while not server.metric("queued_lines"):
            assert time.monotonic() < deadline
        found, message = server.end(number)
        assert len(answer.result(timeout=PATIENCE)) == len(lines)
    assert (found, message) == (code, f"nmt-generate: {'terminated' if code == 143 else 'interrupted'}\n")


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serve", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:9", ("localhost", 9)),
    ],
)
def test_an_address_is_a_port_or_a_host_and_a_port(serve: str, address: tuple[str, int]) -> None:
    assert ServeConfig(serve=serve).address == address


def test_addresses_and_options_that_make_no_sense_are_refused(run_here: Run, tiny_checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases: list[tuple[str, list[object]]] = [
            ("--serve nowhere: HOST:PORT or PORT is expected", ["--serve", "nowhere"]),
            ("--serve 70000: there is no port 70000", ["--serve", "70000"]),
            ("--serve a..b:80: encoding with 'idna' codec failed", ["--serve", "a..b:80"]),
            ("Address already in use", ["--serve", taken.getsockname()[1]]),
            ("--input has no effect with --serve", ["--serve", 0, "--input", "x"]),
            ("--nbest has no effect with --serve: each request", ["--serve", 0, "--nbest", 2]),
            ("--prefix has no effect with --serve", ["--serve", 0, "--prefix", "x"]),
            ("and no DATASET: x", ["x", "--serve", 0]),
            ("--max-body has no effect without --serve", ["--max-body", 7]),
            ("the model has 2 decoder layers", ["--serve", 0, "--alignment-layer", 9]),
        ]
        for words, arguments in cases:
            done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, *arguments)
            (line,) = done.stderr.decode().splitlines()
            assert (done.returncode, done.stdout, words in line) == (2, b"", True), line


def test_a_missing_package_is_named_with_the_way_to_get_it(
    run_here: Run, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "nmtkit.serving.server")
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, "--serve", 0)
    assert done.returncode == 2
    assert done.stderr.decode() == "nmt-generate: --serve needs the package uvicorn: pip install uvicorn\n"


# Batching, without a network -------------------------------------------------------------------------------------


class Upside:
    """A search that turns lines around, once it is let; it keeps what it was given."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.begun, self.may_go = threading.Semaphore(0), threading.Event()

    def __call__(self, lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        self.rounds.append(list(lines))
        self.begun.release()
        assert self.may_go.wait(20)
        if any("bad" in line for line in lines):
            raise RunError("out of memory")
        return [Translation(line, (Candidate(line[::-1]),)) for line in lines]


@pytest.fixture
def search() -> Upside:
    return Upside()


@pytest.fixture
def batcher(search: Upside) -> Iterator[Batcher]:
    batcher = Batcher(search, 1000, Metrics())
    batcher.submit(["first"], SearchConfig())
    assert search.begun.acquire(timeout=PATIENCE)  # what is submitted from now on waits
    yield batcher
    search.may_go.set()
    batcher.close()
    assert not batcher.alive


def texts(job: Any) -> list[str]:
    return [translation.text for translation in job.result.result(timeout=PATIENCE)]


def test_what_waits_goes_together_and_comes_back_apart(batcher: Batcher, search: Upside) -> None:
    jobs = [batcher.submit([f"a{n}", f"b{n}"], SearchConfig(nbest=1 + n % 2)) for n in range(6)]
    search.may_go.set()
    assert [texts(job) for job in jobs] == [[f"{n}a", f"{n}b"] for n in range(6)]
    assert search.rounds[1:] == [[f"{x}{n}" for n in odd for x in "ab"] for odd in ((0, 2, 4), (1, 3, 5))]


def test_a_long_request_does_not_keep_short_ones_waiting(batcher: Batcher, search: Upside) -> None:
    long = batcher.submit([f"{n}" for n in range(500)], SearchConfig())
    short = batcher.submit(["short"], SearchConfig())
    search.may_go.set()
    assert texts(short) == ["trohs"]
    assert texts(long) == [f"{n}"[::-1] for n in range(500)]
    assert len(search.rounds[1]) == LINES_OF_A_JOB + 1
    assert max(map(len, search.rounds)) <= LINES_A_ROUND + LINES_OF_A_JOB


def test_one_request_that_fails_does_not_fail_the_others(batcher: Batcher, search: Upside) -> None:
    jobs = [batcher.submit([word], SearchConfig()) for word in ("good", "bad", "better")]
    search.may_go.set()
    assert (texts(jobs[0]), texts(jobs[2])) == (["doog"], ["retteb"])
    with pytest.raises(RunError):
        jobs[1].result.result(timeout=PATIENCE)
    assert batcher.alive


def test_what_nobody_waits_for_is_not_translated(batcher: Batcher, search: Upside) -> None:
    gone, kept = (batcher.submit([word], SearchConfig()) for word in ("gone", "kept"))
    gone.abandoned = True
    search.may_go.set()
    assert texts(kept) == ["tpek"]
    assert ["kept"] in search.rounds


def test_more_lines_than_may_wait_are_refused_until_there_is_room(batcher: Batcher, search: Upside) -> None:
    waiting = batcher.submit(["line"] * 990, SearchConfig())
    with pytest.raises(QueueFull):
        batcher.submit(["line"] * 10, SearchConfig())
    search.may_go.set()
    texts(waiting)
    assert len(texts(batcher.submit(["line"] * 1000, SearchConfig()))) == 1000


def test_a_search_is_ended_with_the_batcher() -> None:
    begun = threading.Event()

    def endless(lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        while True:
            begun.set()
            advance(0)

    batcher = Batcher(endless, 1000, Metrics())
    batcher.submit(["line"], SearchConfig())
    assert begun.wait(PATIENCE)
    batcher.close()
    assert not batcher._thread.is_alive()


# The application, without a network ------------------------------------------------------------------------------


@pytest.fixture
def ask(batcher: Batcher, tokenizer: Tokenizer) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Send a request to an application that takes two at a time; `sent` are the messages of its body."""
    config = ServeConfig(max_requests=2, max_queue=1000, max_request_lines=1000)
    app = App(batcher, SearchConfig(), tokenizer, ("en", "de"), config, Metrics())

    def send_request(*sent: dict[str, Any], then: Callable[[], Any] = lambda: None) -> tuple[int, dict[str, Any]]:
        async def run() -> tuple[int, dict[str, Any]]:
            incoming, outgoing = iter(sent), list[Any]()

            async def receive() -> Any:
                message = next(incoming, None)
                if message is None:
                    then()
                    await asyncio.Event().wait()
                return message

            async def send(message: Any) -> None:
                outgoing.append(message)

            await app({"type": "http", "path": "/translate", "method": "POST", "headers": []}, receive, send)
            if not outgoing:
                return 0, {}
            start, body = outgoing
            return start["status"], {"headers": dict(start["headers"])} | json.loads(body["body"])

        return asyncio.run(run())

    return send_request


def body(**values: Any) -> dict[str, Any]:
    return {"type": "http.request", "body": json.dumps(values).encode(), "more_body": False}


def test_a_full_queue_is_said_to_be_full(ask: Callable[..., Any], batcher: Batcher) -> None:
    batcher.submit(["line"] * 900, SearchConfig())
    status, answer = ask(body(text=["line"] * 100))
    assert (status, answer["error"]) == (429, "too many lines wait: try again soon")
    assert answer["headers"][b"retry-after"] == b"1"


def test_more_requests_than_may_be_open_are_refused(ask: Callable[..., Any], search: Upside) -> None:
    with ThreadPoolExecutor(2) as clients:
        both_wait = threading.Barrier(3)
        first = [clients.submit(ask, body(text="dog"), then=both_wait.wait) for _ in range(2)]
        both_wait.wait(PATIENCE)
        status, answer = ask(body(text="cat"))
        assert (status, answer["error"]) == (503, "too many requests are open: try again soon")
        search.may_go.set()
        assert [request.result(timeout=PATIENCE)[0] for request in first] == [200, 200]
    assert ask(body(text="cat"))[1]["translations"] == [{"text": "tac"}]


def test_a_client_that_goes_is_not_translated_for(ask: Callable[..., Any], batcher: Batcher, search: Upside) -> None:
    assert ask(body(text="of no use"), {"type": "http.disconnect"}) == (0, {})
    assert ask({"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}) == (0, {})
    search.may_go.set()
    assert texts(batcher.submit(["dog"], SearchConfig())) == ["god"]
    assert ["of no use"] not in search.rounds


def test_what_cannot_be_answered_before_the_end_is_refused(ask: Callable[..., Any]) -> None:
    def end() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    status, answer = ask(body(text="late"), then=end)
    assert (status, answer["error"]) == (503, "the server ends")


def test_an_error_of_the_search_is_answered_and_told_to_who_runs_the_server(
    ask: Callable[..., Any], search: Upside, caplog: pytest.LogCaptureFixture
) -> None:
    search.may_go.set()
    status, answer = ask(body(text="bad"))
    assert (status, answer["error"]) == (500, "an error of the server, see its log")
    assert "POST /translate: RunError: out of memory" in caplog.messages


def test_what_fails_once_is_tried_again(search: Upside, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([RunError("a worker process died"), None])

    def unlucky(lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        error = next(calls)
        if error is not None:
            raise error
        return search(lines, config, advance)

    monkeypatch.setattr(batcher, "_translate", unlucky)
    search.may_go.set()
    assert texts(batcher.submit(["dog"], SearchConfig())) == ["god"]


def test_a_body_that_does_not_come_is_not_waited_for(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "SECONDS_FOR_BODY", 0.05)
    assert ask({"type": "http.request", "body": b"{", "more_body": True})[0] == 408

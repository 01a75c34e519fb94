"""The batcher and the application of the HTTP service, without a network and without a model."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE

pytest.importorskip("starlette")

from asgi_client import Answer, never, part, send_request, whole

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.engine import WorkersNotStartedError
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.errors import RunError
from nmtkit.serving import app as app_module
from nmtkit.serving.app import CLIENT_CLOSED_REQUEST, Service
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.models import Model
from nmtkit.serving.prometheus import Metrics
from nmtkit.serving.scheduler import (
    CHARS_PER_JOB,
    CHARS_PER_ROUND,
    LINES_PER_JOB,
    LINES_PER_ROUND,
    DynamicBatcher,
    Job,
    QueueFull,
)
from nmtkit.text.tokenizer import Tokenizer

Advance = Callable[[int], None]
Ask = Callable[..., Answer]
Awaitables = Callable[[], Awaitable[None]]


class Reverse:
    """A search that reverses lines, once `may_go` is set; it keeps the rounds that it was given."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.begun, self.may_go = threading.Semaphore(0), threading.Event()

    def __call__(self, lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        self.rounds.append(list(lines))
        self.begun.release()
        assert self.may_go.wait(PATIENCE)
        if any("bad" in line for line in lines):
            raise RunError("out of memory")
        if any("gone" in line for line in lines):
            raise WorkersNotStartedError("model.pt has been replaced")
        return [Translation(line, (Candidate(line[::-1], attention=np.zeros((9, 9), np.float32)),)) for line in lines]


@pytest.fixture
def search() -> Reverse:
    return Reverse()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def batcher(search: Reverse, metrics: Metrics) -> Iterator[DynamicBatcher]:
    """A batcher that is busy with the line "first" until the search may go: what is submitted now waits."""
    batcher = DynamicBatcher(1000, metrics)
    batcher.submit(["first"], SearchConfig(), search)
    assert search.begun.acquire(timeout=PATIENCE)
    yield batcher
    search.may_go.set()
    batcher.close()
    assert not batcher.alive


def texts(job: Job) -> list[str]:
    return [translation.text for translation in job.result.result(timeout=PATIENCE)]


def value(metrics: Metrics, name: str) -> float:
    (row,) = [row for row in metrics.text().splitlines() if row.startswith(f"nmtkit_{name} ")]
    return float(row.split()[1])


# Rounds ----------------------------------------------------------------------------------------------------------


def test_waiting_jobs_share_a_round_and_get_their_own_results(batcher: DynamicBatcher, search: Reverse) -> None:
    jobs = [batcher.submit([f"a{n}", f"b{n}"], SearchConfig(nbest=1 + n % 2), search) for n in range(6)]
    search.may_go.set()
    assert [texts(job) for job in jobs] == [[f"{n}a", f"{n}b"] for n in range(6)]
    assert search.rounds[1:] == [[f"{x}{n}" for n in odd for x in "ab"] for odd in ((0, 2, 4), (1, 3, 5))]


def test_a_job_of_many_lines_does_not_delay_short_ones(batcher: DynamicBatcher, search: Reverse) -> None:
    long = batcher.submit([f"{n}" for n in range(500)], SearchConfig(), search)
    short = batcher.submit(["short"], SearchConfig(), search)
    search.may_go.set()
    assert texts(short) == ["trohs"]
    assert texts(long) == [f"{n}"[::-1] for n in range(500)]
    assert len(search.rounds[1]) == LINES_PER_JOB + 1
    assert max(map(len, search.rounds)) <= LINES_PER_ROUND + LINES_PER_JOB


def test_a_job_of_long_lines_does_not_delay_short_ones(batcher: DynamicBatcher, search: Reverse) -> None:
    line = "x" * (CHARS_PER_JOB // 4)
    long = batcher.submit([line] * 9, SearchConfig(), search)
    nbest = batcher.submit([line] * 9, SearchConfig(nbest=4), search)
    huge = batcher.submit(["y" * 9 * CHARS_PER_JOB], SearchConfig(), search)
    last = batcher.submit(["last"], SearchConfig(), search)
    search.may_go.set()
    assert [len(texts(job)) for job in (long, nbest, huge, last)] == [9, 9, 1, 1]
    assert [len(lines) for lines in search.rounds[1:4]] == [5, 1, 5]  # 4 + huge, 1 with nbest, last + 4
    assert 4 * CHARS_PER_JOB <= CHARS_PER_ROUND < sum(map(len, search.rounds[1]))  # huge filled the round


def test_one_bad_job_does_not_fail_the_others(batcher: DynamicBatcher, search: Reverse) -> None:
    jobs = [batcher.submit([word], SearchConfig(), search) for word in ("good", "bad", "better")]
    search.may_go.set()
    assert (texts(jobs[0]), texts(jobs[2])) == (["doog"], ["retteb"])
    with pytest.raises(RunError):
        jobs[1].result.result(timeout=PATIENCE)
    assert batcher.alive


def test_the_batcher_is_not_alive_from_a_search_without_workers_to_the_next_result(
    batcher: DynamicBatcher, search: Reverse
) -> None:
    search.may_go.set()
    states = []
    for word in ("good", "bad", "gone", "bad", "better"):
        job = batcher.submit([word], SearchConfig(), search)
        failure = job.result.exception(timeout=PATIENCE)
        states.append((type(failure), batcher.alive))
    without = [(WorkersNotStartedError, False), (RunError, False)]
    assert states == [(type(None), True), (RunError, True), *without, (type(None), True)]


def test_workers_that_cannot_be_started_fail_all_requests_of_a_round_at_once(
    batcher: DynamicBatcher, search: Reverse, metrics: Metrics
) -> None:
    jobs = [batcher.submit(["gone"], SearchConfig(nbest=1 + n % 2), search) for n in range(6)]
    abandoned = batcher.submit(["gone"], SearchConfig(), search)
    batcher.abandon(abandoned)
    search.may_go.set()
    for job in jobs:
        with pytest.raises(WorkersNotStartedError, match="replaced"):
            job.result.result(timeout=PATIENCE)
    assert search.rounds == [["first"], ["gone"] * 3, ["gone"] * 3]
    assert texts(batcher.submit(["dog"], SearchConfig(), search)) == ["god"]
    assert value(metrics, "failures_total") == 6
    assert value(metrics, "queued_lines") == 0


def test_lines_of_a_round_are_searched_by_the_model_of_their_request(batcher: DynamicBatcher, search: Reverse) -> None:
    other = Reverse()
    other.may_go.set()
    jobs = [
        batcher.submit([f"{word}{n}"], SearchConfig(), model)
        for n in "12"
        for word, model in (("gone", search), ("a", other))
    ]
    search.may_go.set()
    assert [texts(job) for job in jobs[1::2]] == [["1a"], ["2a"]]
    assert all(isinstance(job.result.exception(timeout=PATIENCE), WorkersNotStartedError) for job in jobs[::2])
    assert (search.rounds[1:], other.rounds) == ([["gone1", "gone2"]], [["a1", "a2"]])


def test_a_search_that_failed_once_is_retried(search: Reverse, batcher: DynamicBatcher) -> None:
    calls = iter([RunError("a worker process died"), None])

    def unlucky(lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        error = next(calls)
        if error is not None:
            raise error
        return search(lines, config, advance)

    search.may_go.set()
    assert texts(batcher.submit(["dog"], SearchConfig(), unlucky)) == ["god"]


def test_a_full_queue_refuses_lines_until_there_is_space(batcher: DynamicBatcher, search: Reverse) -> None:
    waiting = batcher.submit(["line"] * 990, SearchConfig(), search)
    with pytest.raises(QueueFull):
        batcher.submit(["line"] * 10, SearchConfig(), search)
    search.may_go.set()
    texts(waiting)
    assert len(texts(batcher.submit(["line"] * 1000, SearchConfig(), search))) == 1000


def test_closing_ends_a_running_search() -> None:
    begun = threading.Event()

    def endless(lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        while True:
            begun.set()
            advance(0)

    batcher = DynamicBatcher(1000, Metrics(), can_stop=False)
    batcher.submit(["line"], SearchConfig(), endless)
    assert begun.wait(PATIENCE)
    batcher.close()
    assert not batcher._thread.is_alive()


# Abandoned jobs --------------------------------------------------------------------------------------------------


def test_lines_of_an_abandoned_job_leave_the_queue_at_once(
    batcher: DynamicBatcher, search: Reverse, metrics: Metrics
) -> None:
    gone = [batcher.submit(["gone"] * 99, SearchConfig(), search) for _ in range(10)]
    kept = batcher.submit(["kept"], SearchConfig(), search)
    for job in gone:
        batcher.abandon(job)
        batcher.abandon(job)
    assert value(metrics, "queued_lines") == 2  # "first" and "kept"
    large = batcher.submit(["large"] * 998, SearchConfig(), search)
    search.may_go.set()
    assert (texts(kept), len(texts(large))) == (["tpek"], 998)
    assert all("gone" not in lines for lines in search.rounds)
    assert value(metrics, "queued_lines") == 0


class Batches:
    """A search that reports a batch of one line whenever it is let."""

    def __init__(self) -> None:
        self.waits, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.ended: list[str] = []

    def __call__(self, lines: Sequence[str], config: SearchConfig, advance: Advance) -> list[Translation]:
        for line in lines:
            self.waits.release()
            assert self.may_go.acquire(timeout=PATIENCE)
            advance(1)
            self.ended.append(line)
        return [Translation(line, (Candidate(line),)) for line in lines]


@pytest.mark.parametrize(("can_stop", "ended"), [(True, []), (False, ["a", "b", "c"])])
def test_a_search_of_abandoned_jobs_stops_after_the_current_batch_if_possible(can_stop: bool, ended: list[str]) -> None:
    search, metrics = Batches(), Metrics()
    batcher = DynamicBatcher(1000, metrics, can_stop)
    job = batcher.submit(["a", "b", "c"], SearchConfig(), search)
    assert search.waits.acquire(timeout=PATIENCE)
    batcher.abandon(job)
    assert value(metrics, "queued_lines") == 0
    search.may_go.release(3)
    later = batcher.submit([], SearchConfig(), search)
    later.result.result(timeout=PATIENCE)
    assert search.ended == ended
    batcher.close()


def test_a_search_continues_for_jobs_that_are_not_abandoned(batcher: DynamicBatcher, search: Reverse) -> None:
    batches = Batches()
    gone, kept = (batcher.submit([word], SearchConfig(), batches) for word in ("gone", "kept"))
    search.may_go.set()
    assert batches.waits.acquire(timeout=PATIENCE)
    batcher.abandon(gone)
    batches.may_go.release(2)
    assert texts(kept) == ["kept"]
    assert batches.ended == ["gone", "kept"]
    assert not gone.result.done()


# The application -------------------------------------------------------------------------------------------------


@pytest.fixture
def ask(
    batcher: DynamicBatcher, search: Reverse, tokenizer: Tokenizer, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """Send a request to an application with two slots."""
    monkeypatch.setattr(app_module, "MAX_REQUESTS", 2)
    config = ServeConfig(max_queue=1000)
    app = Service(batcher, [Model(search, tokenizer, ("en", "de"))], config, metrics).app()

    def send(*messages: Any, then: Awaitables = never, **request: Any) -> Answer:
        async def run() -> Answer:
            try:
                return await send_request(app, messages, then=then, **request)
            except RunError as error:  # raised again after the answer, for the server to close the connection
                return Answer(500, {}, str(error).encode())

        return asyncio.run(run())

    return send


def test_a_full_queue_is_answered_429(ask: Ask, batcher: DynamicBatcher, search: Reverse) -> None:
    batcher.submit(["line"] * 900, SearchConfig(), search)
    answer = ask(whole(text=["line"] * 100))
    assert (answer.status, answer.values) == (429, {"error": "the queue is full: try again later"})
    assert answer.headers["retry-after"] == "1"


def test_requests_beyond_the_available_slots_are_answered_503(ask: Ask, search: Reverse, metrics: Metrics) -> None:
    with ThreadPoolExecutor(2) as clients:
        both_wait = threading.Barrier(3)

        async def wait() -> None:
            await asyncio.to_thread(both_wait.wait, PATIENCE)
            await never()

        first = [clients.submit(ask, whole(text="dog"), then=wait) for _ in range(2)]
        both_wait.wait(PATIENCE)
        assert value(metrics, "open_requests") == 2
        answer = ask(whole(text="cat"))
        assert (answer.status, answer.values) == (503, {"error": "too many requests: try again later"})
        search.may_go.set()
        assert [request.result(timeout=PATIENCE).status for request in first] == [200, 200]
    assert ask(whole(text="cat")).values["translations"] == [{"text": "tac"}]
    assert value(metrics, "open_requests") == 0


def test_a_request_whose_body_has_not_arrived_takes_no_slot(ask: Ask, search: Reverse, metrics: Metrics) -> None:
    search.may_go.set()
    with ThreadPoolExecutor(5) as clients:
        all_wait, may_end = threading.Barrier(6), threading.Event()

        async def wait() -> None:
            await asyncio.to_thread(all_wait.wait, PATIENCE)
            await asyncio.to_thread(may_end.wait, PATIENCE)

        slow = [clients.submit(ask, part(b"{", more_body=True), then=wait) for _ in range(5)]
        all_wait.wait(PATIENCE)
        assert value(metrics, "open_requests") == 0
        assert ask(whole(text="cat")).values["translations"] == [{"text": "tac"}]
        may_end.set()
        assert {request.result(timeout=PATIENCE).status for request in slow} == {CLIENT_CLOSED_REQUEST}


async def at_once() -> None:
    """What a client that goes after its request does."""


def test_a_request_whose_client_disconnects_leaves_the_queue(ask: Ask, search: Reverse, metrics: Metrics) -> None:
    for _ in range(3):
        assert ask(whole(text=["of no use"] * 900), then=at_once).status == CLIENT_CLOSED_REQUEST
    assert value(metrics, "queued_lines") == 1  # "first"
    search.may_go.set()
    assert ask(whole(text=["dog"] * 900)).status == 200
    assert all("of no use" not in lines for lines in search.rounds)


def test_a_request_that_is_cancelled_at_shutdown_is_answered_503(ask: Ask, metrics: Metrics) -> None:
    async def end() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await never()

    answer = ask(whole(text="late"), then=end)
    assert (answer.status, answer.values) == (503, {"error": "the server is shutting down"})
    assert value(metrics, "queued_lines") == 1  # "first"


def test_a_search_error_is_answered_500_and_logged(
    ask: Ask, search: Reverse, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    search.may_go.set()
    assert ask(whole(text="bad")) == Answer(500, {}, b"out of memory")
    assert "POST /translate: RunError: out of memory" in caplog.messages
    assert 'nmtkit_requests_total{path="/translate",status="500"} 1.0' in metrics.text()


def test_a_body_that_does_not_arrive_in_time_is_answered_408(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "SECONDS_FOR_BODY", 0.05)
    answer = ask(part(b"{", more_body=True))
    assert (answer.status, answer.values) == (408, {"error": "the body did not arrive within 0 seconds"})


@pytest.mark.parametrize("kind", [None, "text/plain", "application/jsonp", "text/plain, application/json"])
def test_only_json_bodies_are_accepted(kind: str | None, ask: Ask, search: Reverse) -> None:
    """A browser asks before it sends JSON to another origin; it sends the other types without a question."""
    search.may_go.set()
    assert ask(whole(text="dog"), headers=[(b"content-type", b"Application/JSON; charset=utf-8")]).status == 200
    headers = [] if kind is None else [(b"content-type", kind.encode())]
    answer = ask(whole(text="dog"), headers=headers)
    assert (answer.status, answer.values) == (415, {"error": "send the header Content-Type: application/json"})

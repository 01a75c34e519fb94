"""What many ask for at a time goes through the model together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Translation
from nmtkit.log import logger
from nmtkit.serving.metrics import Metrics

# Lines and their search, and what to call with each number of lines that are done: what it raises ends the search.
Translate = Callable[[Sequence[str], SearchConfig, Callable[[int], None]], Sequence[Translation]]

WINDOW_SECONDS = 0.005  # for others to join the request that begins a round
LINES_A_ROUND = 256
LINES_OF_A_JOB = 64  # in a round, so that a long request does not keep short ones waiting


class QueueFull(Exception):  # noqa: N818 (said to the client, who may come again)
    """More lines wait than there may."""


class _Closed(Exception):  # noqa: N818 (nobody waits any more)
    """There is nothing to go on for."""


@dataclass
class Job:
    """The lines of a request. What is set to be `abandoned` need not be translated any more."""

    lines: Sequence[str]
    config: SearchConfig
    translations: list[Translation] = field(default_factory=list)
    result: "Future[list[Translation]]" = field(default_factory=Future)
    abandoned: bool = False

    def next_lines(self) -> Sequence[str]:
        return self.lines[len(self.translations) :][:LINES_OF_A_JOB]


class Batcher:
    """A thread that translates jobs, a round of lines at a time, each with some of several jobs.

    `translate` must give a translation for each line. Where it fails, each job of the round is tried once more by
    itself, so that only the one that is to blame fails, if it is one and not the moment.
    """

    def __init__(self, translate: Translate, max_lines: int, metrics: Metrics) -> None:
        self._translate, self._max_lines, self._metrics = translate, max_lines, metrics
        self._jobs: deque[Job] = deque()
        self._queued = 0  # lines of all jobs, those of the round included
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are being done."""
        return self._thread.is_alive() and not self._closed

    def submit(self, lines: Sequence[str], config: SearchConfig) -> Job:
        """A job, whose `result` comes. Raises QueueFull."""
        job = Job(lines, config)
        job.result.set_running_or_notify_cancel()  # from here on nobody else ends it
        with self._change:
            if self._queued and self._queued + len(lines) > self._max_lines:
                raise QueueFull
            self._count(len(lines))
            self._jobs.append(job)
            self._change.notify()
        return job

    def close(self) -> None:
        """End the thread after the batch that it is at: one that computes while the process ends would abort it."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next_round():
            start = time.monotonic()
            for config in dict.fromkeys(job.config for job in jobs):
                self._search([job for job in jobs if job.config == config], config)
            self._metrics.add("rounds_total")
            self._metrics.add("search_seconds_total", time.monotonic() - start)
            self._put_back(jobs)

    def _next_round(self) -> list[Job]:
        """The jobs of the next round, at least one; none when there are to be no more."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._closed)
            self._change.wait_for(self._is_round_full, WINDOW_SECONDS)
            jobs: list[Job] = []
            while self._jobs and not self._closed and sum(len(job.next_lines()) for job in jobs) < LINES_A_ROUND:
                jobs.append(self._jobs.popleft())
            return jobs

    def _is_round_full(self) -> bool:
        return self._closed or sum(len(job.next_lines()) for job in self._jobs) >= LINES_A_ROUND

    def _search(self, jobs: list[Job], config: SearchConfig) -> None:
        """Translate the next lines of jobs, which have the same `config`."""
        try:
            self._search_together([job for job in jobs if not job.abandoned], config)
        except _Closed:
            pass
        except Exception as error:
            logger.warning("a search failed, its requests are tried one by one: %s: %s", type(error).__name__, error)
            for job in (job for job in jobs if not job.abandoned):
                try:
                    self._search_together([job], config)
                except Exception as own_error:
                    self._metrics.add("failures_total")
                    job.result.set_exception(own_error)

    def _search_together(self, jobs: list[Job], config: SearchConfig) -> None:
        lines = [line for job in jobs for line in job.next_lines()]
        translations = iter(self._translate(lines, config, self._check_open))
        found = [[next(translations) for _ in job.next_lines()] for job in jobs]
        self._metrics.add("lines_total", len(lines))
        for job, own in zip(jobs, found, strict=True):
            self._metrics.add("tokens_total", sum(max(0, len(line.candidates[0].tokens) - 1) for line in own))
            job.translations += own

    def _check_open(self, done: int) -> None:
        if self._closed:
            raise _Closed

    def _put_back(self, jobs: list[Job]) -> None:
        """Give the results of jobs that are done; the others go to the end of the queue."""
        with self._change:
            for job in jobs:
                if job.abandoned or job.result.done():
                    self._count(-len(job.lines))
                elif len(job.translations) < len(job.lines):
                    self._jobs.append(job)
                else:
                    self._count(-len(job.lines))
                    job.result.set_result(job.translations)

    def _count(self, lines: int) -> None:
        self._queued += lines
        self._metrics.add("queued_lines", lines)

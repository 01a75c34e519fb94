"""Translates the lines of concurrent requests in shared batches."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from nmtkit.console.log import logger
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.engine import WorkersNotStartedError
from nmtkit.decoding.requests import Request
from nmtkit.decoding.translation import Translation
from nmtkit.serving.prometheus import Metrics

# Takes lines, their search, and a function to call with the number of finished lines after each batch. If that function
# raises an exception, the search ends.
Line = str | Request
Translate = Callable[[Sequence[Any], SearchConfig, Callable[[int], None]], Iterable[Translation]]

WINDOW_SECONDS = 0.005  # how long a round waits for more requests
# Sizes of a round, and of one job in it, so that a long request does not delay short ones. Characters are multiplied by
# nbest.
LINES_PER_ROUND, LINES_PER_JOB = 256, 64
CHARS_PER_ROUND, CHARS_PER_JOB = 32_000, 8_000


class QueueFull(Exception):  # noqa: N818 (the client is asked to try again)
    """Raised if the queue has no space for the lines."""


class _SearchStopped(Exception):  # noqa: N818 (not an error)
    """Raised if no client waits for the results of the running search."""


@dataclass(eq=False)
class Job:
    """The lines of a request, to be translated by its model. `result` is set when all lines are translated."""

    lines: Sequence[Line]
    config: SearchConfig
    translate: Translate
    translations: list[Translation] = field(default_factory=list)
    result: "Future[list[Translation]]" = field(default_factory=Future)
    abandoned: bool = False

    def chars(self, lines: Sequence[Line]) -> int:
        """Count the characters of some of the lines, times nbest."""
        return sum(len(line if isinstance(line, str) else line.text) for line in lines) * self.config.nbest

    def next_lines(self) -> Sequence[Line]:
        """Select the lines for the job's next round: at least one, unless all are translated."""
        waiting = self.lines[len(self.translations) :][:LINES_PER_JOB]
        fits = sum(chars <= CHARS_PER_JOB for chars in accumulate(self.chars([line]) for line in waiting))
        return waiting[: max(1, fits)]


Share = tuple[Job, Sequence[Line]]  # a job and its lines that a round translates


class DynamicBatcher:
    """A thread that translates jobs in rounds. A round contains lines of several jobs.

    One model searches at a time, with all threads of this process. If a search fails, each of its jobs is retried
    separately, so that a bad job does not affect the others. If all jobs of a search are abandoned, it stops after the
    current batch if `can_stop`; otherwise it finishes the round.
    """

    def __init__(self, max_lines: int, metrics: Metrics, can_stop: bool = True) -> None:
        self._max_lines, self._metrics, self._can_stop = max_lines, metrics, can_stop
        self._jobs: deque[Job] = deque()
        self._queued = 0  # lines of jobs that are neither done nor abandoned
        self._closed = False
        self._has_workers = True  # False after workers could not be started, until the next result
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and can translate jobs."""
        return self._thread.is_alive() and not self._closed and self._has_workers

    def submit(self, lines: Sequence[Line], config: SearchConfig, translate: Translate) -> Job:
        """Queue lines as a job. `translate` must return one translation for each. Raises QueueFull without space."""
        job = Job(lines, config, translate)
        job.result.set_running_or_notify_cancel()  # so that only this class can complete it
        with self._change:
            if self._queued + len(lines) > self._max_lines:
                raise QueueFull
            self._count(len(lines))
            self._jobs.append(job)
            self._change.notify()
        return job

    def abandon(self, job: Job) -> None:
        """Drop a job whose result nobody needs, and remove its lines from the queue. Do nothing if the job is done."""
        with self._change:
            if job.abandoned or job.result.done():
                return
            job.abandoned = True
            self._count(-len(job.lines))
            if job in self._jobs:  # otherwise it is in the current round
                self._jobs.remove(job)

    def close(self) -> None:
        """End the thread after the current batch, because a thread that computes at exit would abort the process."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._translate_round()  # a separate function, so that nothing of a round stays in memory while waiting

    def _translate_round(self) -> None:
        shares = self._next_round()
        start = time.monotonic()
        for search in dict.fromkeys((job.translate, job.config) for job, _ in shares):
            self._search([share for share in shares if (share[0].translate, share[0].config) == search])
        if shares:
            self._metrics.rounds.inc()
            self._metrics.search_seconds.inc(time.monotonic() - start)
        self._put_back([job for job, _ in shares])

    def _next_round(self) -> list[Share]:
        """Wait for the next round. It is empty if its jobs have been abandoned, or at the end."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._closed)
            self._change.wait_for(lambda: self._queued >= LINES_PER_ROUND or self._closed, WINDOW_SECONDS)
            shares: list[Share] = []
            lines = chars = 0
            while self._jobs and not self._closed and lines < LINES_PER_ROUND and chars < CHARS_PER_ROUND:
                job = self._jobs.popleft()
                share = job.next_lines()
                shares.append((job, share))
                lines, chars = lines + len(share), chars + job.chars(share)
            return shares

    def _search(self, shares: list[Share], is_retry: bool = False) -> None:
        """Translate shares of jobs with the same model and `config`, or one by one if this fails."""
        try:
            if wanted := _wanted(shares):
                self._search_together(wanted)
        except _SearchStopped:
            pass
        except Exception as error:
            if is_retry or isinstance(error, WorkersNotStartedError):  # each retry would wait for the same failure
                self._has_workers &= not isinstance(error, WorkersNotStartedError)
                for job, _ in _wanted(shares):
                    self._metrics.failures.inc()
                    job.result.set_exception(error)
                return
            logger.warning("a search failed, retrying its requests one by one: %s: %s", type(error).__name__, error)
            for share in _wanted(shares):
                self._search([share], is_retry=True)

    def _search_together(self, shares: list[Share]) -> None:
        def check_wanted(done: int) -> None:
            if self._closed or (self._can_stop and not _wanted(shares)):
                raise _SearchStopped

        job, lines = shares[0][0], [line for _, share in shares for line in share]
        found = iter([_without_attention(each) for each in job.translate(lines, job.config, check_wanted)])
        self._has_workers = True
        by_job = [[next(found) for _ in share] for _, share in shares]
        self._metrics.lines.inc(len(lines))
        for (job, _), own in zip(shares, by_job, strict=True):
            best = [line.candidates[0] for line in own]
            self._metrics.tokens.inc(sum(max(0, len(each.tokens) - 1) for each in best))
            self._metrics.cut.inc(sum(bool(each.cut) for each in best))
            self._metrics.repetitive.inc(sum(bool(each.repetitive) for each in best))
            job.translations += own

    def _put_back(self, jobs: list[Job]) -> None:
        """Publish the results of finished jobs, and move the others to the end of the queue."""
        with self._change:
            for job in jobs:
                if job.abandoned:  # its lines are no longer in the queue
                    continue
                if not job.result.done() and len(job.translations) < len(job.lines):
                    self._jobs.append(job)
                    continue
                self._count(-len(job.lines))
                if not job.result.done():
                    job.result.set_result(job.translations)

    def _count(self, lines: int) -> None:
        self._queued += lines
        self._metrics.queued_lines.inc(lines)


def _wanted(shares: list[Share]) -> list[Share]:
    return [share for share in shares if not share[0].abandoned]


def _without_attention(translation: Translation) -> Translation:
    """Remove attention matrices, which would take most of the memory while a request waits for other lines."""
    candidates = tuple(replace(candidate, attention=None) for candidate in translation.candidates)
    return replace(translation, candidates=candidates)

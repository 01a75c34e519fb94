"""A few processes that share a stream of tasks. Results come back in the order of the tasks.

The standard pools do not fit: one hangs when a worker is killed, the other leaves its workers behind when
the parent is, and both read the whole stream of tasks at once.
"""

import contextlib
import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from nmtkit import log
from nmtkit.errors import NmtkitError, RunError

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 4  # tasks a worker, begun before the oldest one is done: what bounds the memory


class WorkerPool:
    """`count` processes, started at once; a context manager that ends them.

    Each has a pipe of its own, so that either end notices when the other dies, however it dies. Raises RunError where
    one cannot be started.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share threads, locks and the others' pipes
        self._processes: dict[Connection, Any] = {}
        for number in range(count):
            try:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work, args=(theirs, log.config()), name=f"worker {number}", daemon=True
                )
                process.start()
            except OSError as error:  # too many processes, files, or too little memory for another
                raise RunError(f"only {number} of {count} --workers could be started ({error.strerror})") from error
            theirs.close()
            self._processes[ours] = process

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        for connection, process in self._processes.items():
            connection.close()
            process.terminate()
            process.join()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`function` of each task, in order. Both, and the results, must be picklable.

        Only a bounded number of tasks is taken ahead of the results. An error in a worker is raised here; after
        one, or when the results are not read to the end, the pool is good for nothing but to be closed.
        """
        for connection in self._processes:
            self._send(connection, function)
        window = AHEAD * len(self._processes)
        idle, busy = list(self._processes), dict[Connection, int]()
        finished: dict[int, R] = {}
        due = 0
        numbered = enumerate(tasks)
        upcoming = next(numbered, None)
        while upcoming is not None or busy:
            while upcoming is not None and idle and upcoming[0] < due + window:
                connection = idle.pop()
                busy[connection], task = upcoming
                self._send(connection, task)
                upcoming = next(numbered, None)
            while due in finished:
                yield finished.pop(due)
                due += 1
            for ready in wait(list(busy)) if busy else ():
                assert isinstance(ready, Connection)
                finished[busy.pop(ready)] = self._receive(ready)
                idle.append(ready)
        yield from (finished[number] for number in sorted(finished))

    def _send(self, connection: Connection, message: Any) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._death(connection) from error

    def _receive(self, connection: Connection) -> Any:
        try:
            result, error = connection.recv()
        except (EOFError, OSError) as failure:
            raise self._death(connection) from failure
        if error is not None:
            raise error
        return result

    def _death(self, connection: Connection) -> RunError:
        process = self._processes[connection]
        process.join(timeout=5)
        return RunError(
            f"a worker process died (exit code {process.exitcode}; -9: killed, most often for lack of memory): "
            "run again, with fewer --workers if memory is short"
        )


def _work(connection: Connection, messages: log.LogConfig | None) -> None:
    """A worker's life: take a function, then its tasks, until the parent goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides
    if messages is not None:
        log.configure(messages)
        log.escape_python_messages()
    gc.disable()  # thousands of sentences are no garbage in circles: looking for it took 5 % of the encoding
    function: Any = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if callable(message):
                function = message
                continue
            result: Any = None
            failure: Exception | None = None
            try:
                result = function(message)
            except (NmtkitError, OSError, MemoryError) as error:
                failure = error
            except Exception as error:  # of a kind that the parent may not know
                failure = RunError(f"a worker process failed: {type(error).__name__}: {error}")
            connection.send((result, failure))

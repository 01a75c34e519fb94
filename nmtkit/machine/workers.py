"""A pool of worker processes that share a stream of tasks, with results in the order of tasks.

The pools of the standard library are not suitable: `multiprocessing.Pool` hangs if a worker is killed,
`ProcessPoolExecutor` leaves its workers running if the parent is killed, and both read all tasks at once.
"""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nmtkit.console import log
from nmtkit.errors import NmtkitError, RunError, UserError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")

_END = object()  # marks the end of tasks
TASKS_AHEAD = 4  # tasks per worker started before the oldest result is due, to bound memory
_SAFE_PATH = "PYTHONSAFEPATH"  # if set, Python does not import from the current folder


@dataclass
class _Call:
    """A call of `map`, and its unread results by task number, each a value or an error."""

    function: Callable[[Any], Any]
    results: dict[int, tuple[Any, Exception | None]] = field(default_factory=dict)

    def take(self, number: int) -> Any:
        """Return a result, or raise it if it is an error."""
        value, error = self.results.pop(number)
        if error is not None:
            raise error
        return value


class WorkerPool:
    """A pool of `count` worker processes, started at once. Use it as a context manager, which terminates them. Each
    worker has its own pipe, so that both sides notice each other's death. Raises RunError if one cannot start."""

    def __init__(self, count: int) -> None:
        import multiprocessing  # here, because most translations need no workers

        context = multiprocessing.get_context("spawn")  # fork would copy locks and the pipes of other workers
        self._processes: dict[Connection, Any] = {}
        self._busy: dict[Connection, tuple[_Call, int]] = {}  # task of each busy worker
        self._functions: dict[Connection, Callable[[Any], Any]] = {}  # function last sent to each worker
        self._is_closed = False
        try:
            for number in range(count):
                parent_end, child_end = context.Pipe()
                process = context.Process(
                    target=_run_worker, args=(child_end, log.config()), name=f"worker {number}", daemon=True
                )
                with _starting():
                    process.start()
                child_end.close()
                self._processes[parent_end] = process
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError) and error.errno is not None:  # too many processes or files, or no memory
                started = f"only {len(self._processes)} of {count} --workers could be started"
                raise RunError(f"{started} ({error.strerror})") from error
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed = True
        for connection, process in self._processes.items():
            connection.close()
            process.kill()  # also ends a stopped process
        for process in self._processes.values():
            process.join()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Apply `function` to each task, and yield the results in order. Function, tasks and results must be picklable.

        A bounded number of tasks is read ahead. If a task fails, its error is raised instead of its result. Results of
        several calls may be read alternately, but by one thread at a time, and not necessarily to the end.
        """
        call = _Call(function)
        window = TASKS_AHEAD * len(self._processes)
        started = due = 0
        waiting = iter(tasks)
        upcoming = next(waiting, _END)
        while upcoming is not _END or due < started:
            while upcoming is not _END and started < due + window and (idle := self._idle()):
                self._start(idle, call, started, upcoming)
                started, upcoming = started + 1, next(waiting, _END)
            if due in call.results:
                yield call.take(due)
                due += 1
            else:
                self._wait()

    def run_in_each(self, function: Callable[[T], object], task: T) -> None:
        """Apply `function` to the same task in all workers, and drop the results. Raises the errors of `map`."""
        call = _Call(function)
        for number, connection in enumerate(self._processes):
            self._start(connection, call, number, task)
        while self._busy:
            self._wait()
        for number in range(len(self._processes)):
            call.take(number)

    @property
    def is_usable(self) -> bool:
        """Whether all workers are alive, and no message was interrupted."""
        return not self._is_closed and all(process.is_alive() for process in self._processes.values())

    def _idle(self) -> "Connection | None":
        return next((connection for connection in self._processes if connection not in self._busy), None)

    def _start(self, connection: "Connection", call: _Call, number: int, task: Any) -> None:
        self._check_open()
        try:
            if self._functions.get(connection) is not call.function:
                connection.send(call.function)
                self._functions[connection] = call.function
            connection.send(task)
            self._busy[connection] = call, number
        except BaseException as error:
            self._end_after(error, connection)
            raise

    def _wait(self) -> None:
        """Wait until a worker has finished a task of any call, and keep the result for its call."""
        from multiprocessing.connection import Connection, wait

        self._check_open()
        for ready in wait(list(self._busy)) if self._busy else ():
            assert isinstance(ready, Connection)
            try:
                result = ready.recv()
                call, number = self._busy.pop(ready)
                call.results[number] = result
            except BaseException as error:
                self._end_after(error, ready)
                raise

    def _end_after(self, error: BaseException, connection: "Connection") -> None:
        """End all workers after an error in a message. Raises RunError if the other side has died. A signal handler may
        raise any error there, such as TimeoutError, and leave part of a message in the pipe."""
        process = self._processes[connection]
        may_have_died = isinstance(error, EOFError | ConnectionError) or type(error) is OSError
        if may_have_died:
            process.join(timeout=5)
        code = process.exitcode
        self.__exit__()
        if may_have_died and code is not None:
            raise RunError(
                f"a worker process died (exit code {code}; -9: killed, most often for lack of memory): run again, with "
                "fewer --workers if memory is short"
            ) from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise RunError("the worker processes were ended by an earlier error or Ctrl-C: run again")


def import_nothing_from_current_folder() -> None:
    """Prevent Python processes that start later from importing modules in the current folder, which may be a model's.

    Before Python 3.11 this is impossible, so raises UserError if the folder contains a module that would be imported.
    """
    if sys.version_info < (3, 11):
        modules, packages = Path.cwd().glob("*.py*"), Path.cwd().glob("*/__init__.py")
        found = {path.stem for path in modules} | {path.parent.name for path in packages}
        for name in found & sys.stdlib_module_names & sys.modules.keys():
            raise UserError(f"the module {name} in this folder would shadow Python's: use a different folder")
    os.environ[_SAFE_PATH] = "1"


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Start processes within this context that import nothing from the current folder and block SIGINT. Ctrl-C reaches
    every process, but only the parent reacts."""
    before = os.environ.get(_SAFE_PATH)
    import_nothing_from_current_folder()
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later would unblock SIGINT
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _run_worker(connection: "Connection", log_config: log.LogConfig | None) -> None:
    """Run the main loop of a worker: receive a function, then its tasks, until the parent closes the pipe."""
    if log_config is not None:
        log.configure(log_config)
        log.escape_python_messages()
    gc.disable()  # sentences form no reference cycles, and collection took 5 % of the encoding time
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
            except (NmtkitError, log.LostReader, OSError, MemoryError) as error:
                failure = error
            except Exception as error:  # the parent may not be able to unpickle it
                failure = RunError(f"a worker process failed: {type(error).__name__}: {error}")
            connection.send((result, failure))

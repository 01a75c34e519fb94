"""Runs each case in a process of its own, so that no crash, hang or setting affects the cases after it."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")

# Every case is a fork of a process that has imported these modules and has not initialized CUDA.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "nmtkit.decoding.translator", "nmtkit.training.gradient", "nmtkit.training.optim"]
)
_GRACE = 10.0  # seconds for the end of a process after its result
_LONGEST_REASON = 200  # characters


class CaseError(Exception):
    """The reason why a case has no result, in one line."""


def run_isolated(work: Callable[[], T], variables: Mapping[str, str], seconds: float) -> T:
    """Return what `work` returns in a new process with these environment variables.

    `work` and its result must be picklable. Raises CaseError for an exception, a crash, or no result in time.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # an import that looks for a GPU does not initialize it
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(sender, work, dict(variables)))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise CaseError(f"no result within {seconds:.0f} s")
        result, reason = receiver.recv()
        process.join(_GRACE)
    except EOFError:
        process.join()
        raise CaseError(f"the process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if reason is not None:
        raise CaseError(reason)
    value: T = result
    return value


def _run(sender: Connection, work: Callable[[], object], variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    try:
        sender.send((work(), None))
    except Exception as error:
        sender.send((None, describe_error(error)))


def describe_error(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first_line}"[:_LONGEST_REASON]

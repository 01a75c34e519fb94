"""Runs commands of nmtkit in forks of itself, which saves their start, with a fault: a kill, a full disk, another user.

Reads one JSON object a line, the settings of `tests/faults/conftest.py`, and answers each with a list: the exit code
and what the command printed.
"""

import gc
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
from typing import Any

from nmtkit.cli.start import COMMANDS, module_of

ENGINES = (  # which commands import inside their bodies
    *("nmtkit.checkpoint", "nmtkit.conversion.safetensors", "nmtkit.decoding.generation"),
    *("nmtkit.training.averaging", "nmtkit.training.trainer", "torch._dynamo"),
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def kill_at(instant: int, folder: str) -> None:
    """Kill this process before its `instant`-th change of a file in `folder`."""
    count = 0

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        is_change = event in CHANGES or (event == "open" and arguments[2] & WRITING)
        if is_change and any(str(one).startswith(folder) for one in arguments[:2]):
            count += 1
            if count == instant:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def run(fault: dict[str, Any], output: int) -> Any:
    """Run a command in this process, and return its exit code."""
    for number in (1, 2):
        os.dup2(output, number)
    with tempfile.TemporaryFile() as file:
        file.write(fault["input"].encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.chdir(fault["cwd"])
    os.umask(fault["umask"])
    if fault["limit"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["limit"], fault["limit"]))
    if fault["user"] is not None:
        os.environ.pop("HOME", None)
        os.setgroups([])
        os.setgid(fault["user"])
        os.setuid(fault["user"])
    if fault["kill_at"]:
        kill_at(fault["kill_at"], fault["folder"])
    sys.argv = [fault["command"], *fault["arguments"]]
    try:
        importlib.import_module(module_of(fault["command"].removeprefix("nmt-"))).main()
    except SystemExit as error:
        return error.code


def main() -> None:
    for name in (*map(module_of, COMMANDS), *ENGINES):  # here, as a worker process imports this module too
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        with tempfile.TemporaryFile() as stderr:
            child = os.fork()
            if not child:
                code = run(json.loads(line), stderr.fileno())
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # the interpreter's own end takes long in a fork
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            stderr.seek(0)
            print(json.dumps([code, stderr.read().decode(errors="replace")]), flush=True)


if __name__ == "__main__":
    main()

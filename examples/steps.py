"""Runs the commands of a recipe in order, and skips those that are done.

A recipe is a script that lists its commands as a user would type them; each runs in the work folder. Next to the first
output of a command, OUTPUT.step records a digest of the command and of its inputs. A command is skipped if its digest
is unchanged and all its outputs exist, so a changed variable repeats only the commands that depend on it.

    python examples/multi30k.py UPDATES=1000     # variables: arguments, else the environment, else the defaults
    python examples/multi30k.py --list           # only lists the commands
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType

from download import checksum, download

EXAMPLES = Path(__file__).resolve().parent
OUTPUT_WORDS = ("--output", "--destdir", "--save-dir", ">", "tee")  # the output of a command follows these words


class Recipe:
    """The work folder of a recipe, locked for one run at a time. Call it with a command to run it.

    Commands can run the modules of examples/ and of `folder`, the recipe's folder in it, by `python -m`.
    """

    def __init__(self, folder: str, work: str = "", part: str = "") -> None:
        self.folder = EXAMPLES / folder
        self.work = (Path(work) if work else self.folder / "work") / part
        self.lists_only = "--list" in sys.argv[1:]
        self._digests: dict[str, str] = {}  # of each output so far
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = -1

    def __enter__(self) -> "Recipe":
        if not self.lists_only:
            self.work.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.work / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(
                    f"{self.work} is in use by another run: wait for it or stop it, or use a different WORK=folder"
                )
            except OSError:
                pass  # a file system without locks
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    signal.signal(number, self._forward)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        if isinstance(error, OSError):  # a full disk
            sys.exit(f"{error.filename or self.work}: {error.strerror}")

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal to the running command. When the command ends, the recipe ends too."""
        if self._process is None:
            sys.exit(128 + number)
        if number != signal.SIGINT:  # the terminal sends it to both
            self._process.send_signal(number)

    def __call__(self, command: str, *makes: str, launch: str = "", machine: str = "", resumable: str = "") -> bool:
        """Run a command unless it is done, and return whether it ran. `makes` adds outputs to `OUTPUT_WORDS`.

        Its inputs are the outputs of earlier commands and the absolute paths that it names. `launch` and `machine`
        precede and follow the command; changing them does not repeat it. `resumable` follows it too: if only that has
        changed, a training run continues. After any other change, the former run is moved to SAVE_DIR-DIGEST, and
        restored when its options return.
        """
        words = shlex.split(command)
        outputs = [*makes, *(word for flag, word in pairwise(words) if flag in OUTPUT_WORDS)]
        shown = " ".join(part for part in (launch, command, resumable, machine) if part)
        base = _digest([self._input(word) for word in words])
        digest = _digest([base, resumable])
        self._digests |= dict.fromkeys(outputs, digest)
        if self.lists_only:
            print(shown)
            return False
        stamp = self._stamp(outputs[0])
        before = _read(stamp)
        if "--save-dir" in words and before.get("base", base) != base:
            self._set_aside(outputs[0], before["base"], base)
            before = _read(stamp)
        is_done = before == {"base": base, "digest": digest, "done": True}
        if is_done and all((self.work / output).exists() for output in outputs):
            return False
        for path in (paths := [self.work / output for output in outputs]):
            path.parent.mkdir(parents=True, exist_ok=True)
            if before.get("base") != base:  # unfinished output of a different command
                path.with_name(f"{path.name}.partial").unlink(missing_ok=True)
        _write(stamp, {"base": base, "digest": digest, "done": False})
        print(shown, flush=True)
        self._run(shown)
        for path in paths:
            if not path.exists():
                sys.exit(f"{path} was not written by: {shown}")
            if path.is_file():  # nmtkit has written its folders to disk
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        _write(stamp, {"base": base, "digest": digest, "done": True})
        return True

    def file(self, name: str, source: str, how_to_get: str = "", size: int = 0, known: str = "") -> None:
        """Copy a file of the user, or download one of known size and checksum, to the work folder.

        Without a source, an existing file is used. Exits with `how_to_get` if it is missing.
        """
        target, is_url = self.work / name, source.startswith(("https:", "file:"))
        if self.lists_only:
            return
        if not is_url and not (Path(source) if source else target).exists():
            sys.exit(f"{source or name}: missing: {how_to_get}")
        digest = known.partition(":")[2] if is_url else checksum(Path(source) if source else target)
        self._digests[name] = digest
        if target.exists() and checksum(target) == digest:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"{'downloading' if is_url else 'copying'} {source}", flush=True)
        if is_url:
            download(source, target, size, known)
        else:
            shutil.copyfile(source, part := target.with_name(f"{target.name}.part"))
            part.replace(target)

    def lines(self, name: str) -> list[str]:
        """The lines of a result."""
        return (self.work / name).read_text(encoding="utf-8").splitlines()

    def show(self, name: str, *starts: str) -> None:
        """Print a result, or only its lines with one of the given starts."""
        if not self.lists_only:
            print(*(line for line in self.lines(name) if line.startswith(starts or "")), sep="\n", flush=True)

    def _stamp(self, output: str) -> Path:
        return (self.work / output).with_name(f"{Path(output).name}.step")

    def _input(self, word: str) -> str:
        """A word of a command, with the digests of the inputs that it names."""
        found = {
            digest
            for name in re.split(r"[\s=;]+", word)
            for output, digest in self._digests.items()
            if name == output or name.startswith(f"{output}/") or (name and output.startswith((f"{name}.", f"{name}/")))
        }
        if not self.lists_only and word.startswith("/") and Path(word).is_file():
            return checksum(Path(word))
        return " ".join([word, *sorted(found)])

    def _set_aside(self, output: str, before: str, now: str) -> None:
        """Move a training run aside, and restore an earlier one with the current options."""
        for path in (self.work / output, self._stamp(output)):
            aside, back = (path.with_name(f"{Path(output).name}-{base[:8]}{path.suffix}") for base in (before, now))
            if path.exists():
                path.rename(aside)
            if back.exists():
                back.rename(path)
        print(f"the run with other options or data is kept in {self.work / output}-{before[:8]}", flush=True)

    def _run(self, command: str) -> None:
        """Run a command in the work folder. The command also holds the lock, since it may outlive this process."""
        path, modules = Path(sys.executable).parent, os.pathsep.join([str(self.folder), str(EXAMPLES)])
        here = {"PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": f"{modules}:{os.environ.get('PYTHONPATH', '')}"}
        shell = ["bash", "-euo", "pipefail", "-c", command]
        with subprocess.Popen(shell, cwd=self.work, env=os.environ | here, pass_fds=[self._lock]) as self._process:
            code = self._process.wait()
        self._process = None
        if code:
            print("stopped; to resume, run the recipe again", file=sys.stderr)
            sys.exit(code if code > 0 else 128 - code)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(stamp: Path) -> dict[str, str]:
    """The record of a command; empty if there is none, or a power failure has truncated it."""
    try:
        return dict(json.loads(stamp.read_bytes()))
    except (FileNotFoundError, ValueError):
        return {}


def _write(stamp: Path, record: dict[str, object]) -> None:
    part = stamp.with_name(f"{stamp.name}.part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(stamp)

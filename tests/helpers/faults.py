"""What the tests in tests/faults share: the result of a command, and the comparison of what it wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nmtkit.checkpoint import load_checkpoint

TEXT = "a dog runs\nthe cat\n" * 60


class Result(NamedTuple):
    """The exit code of a command, negative after a signal, and what it printed."""

    code: int
    output: str

    @property
    def last_line(self) -> str:
        """The line that says why a command failed."""
        return self.output.splitlines()[-1]


Faulty = Callable[..., Result]


def contents(path: Path) -> dict[str, bytes]:
    """The files of a folder, or a file, without a run's logs and the times in its checkpoints."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    found = {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}
    for name in found:
        if name.startswith("checkpoint_"):
            found[name] = b"".join(weight.tobytes() for weight in load_checkpoint(path / name).weights.values())
    return {name: content for name, content in found.items() if name not in ("metrics.jsonl", "options.json")}

"""Where the numbers of a run go: to the log, to `metrics.jsonl` in the save folder, and to TensorBoard."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from nmtkit.log import report, to_json
from nmtkit.staging import staged_file

METRICS = "metrics.jsonl"


class MetricsWriter:
    """Appends one JSON object a line; after a restart, lines beyond the checkpoint gone back to are dropped first.

    Each object has `event` ("train", "valid", …) and `update`, then the numbers of that event.
    """

    def __init__(self, save_dir: Path, update: int, tensorboard: Path | None) -> None:
        path = save_dir / METRICS
        if path.exists():
            _drop_after(path, update)
        self._file = path.open("a", encoding="utf-8")
        self._board: Any = None
        if tensorboard is not None:
            from torch.utils.tensorboard.writer import SummaryWriter  # slow to import, seldom asked for

            self._board = SummaryWriter(str(tensorboard), purge_step=update + 1)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, event: str, update: int, values: dict[str, Any]) -> None:
        """Record the numbers of an event, and log them."""
        report(event, {"update": update, **values})
        print(to_json({"event": event, "update": update, **values}), file=self._file, flush=True)
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{event}/{name}", value, update)


def _drop_after(path: Path, update: int) -> None:
    """Keep the lines up to an update; a last line that a kill has cut is dropped as well."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["update"] <= update:
                kept.append(line + "\n")
        except ValueError:
            continue
    with staged_file(path) as file:
        file.write("".join(kept).encode())

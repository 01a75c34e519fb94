"""The save folder of a run: numbered checkpoints, the names `last` and `best`, and which of them are kept."""

import json
import time
from collections.abc import Callable
from typing import Any

from nmtkit.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    checkpoint_path,
    link_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.staging import staged_file
from nmtkit.training.config import CheckpointConfig

OPTIONS = "options.json"


class SaveDir:
    """Writes, finds and prunes the checkpoints of one run."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.folder = config.save_dir
        self.newest: int | None = None  # the update of the newest checkpoint
        self._validations: dict[int, float] = {}  # update -> value, of the checkpoints at a validation
        self._last_save = time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--save-dir {self.folder}: cannot be made ({error.strerror})") from error

    def prepare(self, options: dict[str, Any]) -> None:
        """Note the options of the run, and clear away what a killed one left half-written."""
        for leftover in self.folder.glob(".*.partial"):
            leftover.unlink()
        with staged_file(self.folder / OPTIONS) as file:
            file.write(json.dumps(options, indent=2).encode() + b"\n")

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be trained on. A damaged one is named in a warning and passed over."""
        numbered = list_checkpoints(self.folder)
        for update, path in reversed(numbered):
            try:
                checkpoint = load_checkpoint(path)
            except UserError as error:
                logger.warning("%s; trying the one before it", error)
                continue
            if checkpoint.optimizer is not None:
                self.newest = update
                self._validations = dict(checkpoint.progress["checkpoint_validations"])
                return checkpoint
        if numbered:
            raise UserError(
                f"--save-dir {self.folder}: none of its {len(numbered)} checkpoints can be gone on from; "
                "move them away to start anew"
            )
        return None

    def minutes_passed(self) -> bool:
        """Whether --save-minutes have passed since the last checkpoint."""
        return time.monotonic() - self._last_save >= self.config.save_minutes * 60

    def save(self, update: int, checkpoint: Checkpoint, is_best: bool, better: Callable[[float, float], bool]) -> None:
        """Write the checkpoint of an update, point `last` (and `best`) to it, and drop those no longer kept."""
        metric = checkpoint.progress["best_metric"]
        if metric in checkpoint.progress:
            self._validations[update] = checkpoint.progress[metric]
        checkpoint.progress["checkpoint_validations"] = sorted(self._validations.items())
        path = checkpoint_path(self.folder, update)
        save_checkpoint(path, checkpoint)
        link_checkpoint(path, LAST)
        if is_best:
            link_checkpoint(path, BEST)
        self.newest = update
        self._last_save = time.monotonic()
        self._prune(better)

    def _prune(self, better: Callable[[float, float], bool]) -> None:
        """Keep the newest N and the best N."""
        numbered = list_checkpoints(self.folder)
        ranked = sorted(self._validations.items(), key=lambda item: item[1], reverse=better(1.0, 0.0))
        keep = {update for update, _ in numbered[-self.config.keep_last :]}
        keep |= {update for update, _ in ranked[: self.config.keep_best]}
        for update, path in numbered:
            if update not in keep:
                path.unlink(missing_ok=True)
                self._validations.pop(update, None)

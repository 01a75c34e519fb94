"""The save folder of a run: numbered checkpoints, the links `last` and `best` to two of them, and pruning."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nmtkit.checkpoint import Checkpoint, load_checkpoint, read_progress, save_checkpoint
from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.model.parameters import check_finite
from nmtkit.storage.archive import as_user_errors
from nmtkit.storage.atomic import link_file, lock, remove_partial_files, staged_file
from nmtkit.storage.outputs import refuse_dataset
from nmtkit.storage.run_files import BEST, LAST, OPTIONS, UNUSABLE, checkpoint_path, is_run_file, list_checkpoints
from nmtkit.training.config import CheckpointConfig
from nmtkit.training.optim import check_optimizer

Better = Callable[[float, float], bool]  # whether the first of two validation values is better


class SaveDir:
    """Writes, finds and prunes the checkpoints of one run."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.folder = config.save_dir
        self.newest: int | None = None  # the update of the newest checkpoint
        self.validations: dict[int, float] = {}  # update -> value, for checkpoints with a comparable validation
        self._is_best = False  # whether the newest checkpoint is the best
        self._interim: set[int] = set()  # updates of checkpoints that --keep-last does not count
        self._unusable: list[Path] = []  # newer checkpoints that cannot be resumed
        self._last_save = time.monotonic()

    def check(self) -> None:
        """Raise UserError if the folder is a dataset or a file, or cannot be created or written. Creates nothing."""
        refuse_dataset(self.folder, f"--save-dir {self.folder}")
        existing = existing_part(self.folder)
        if not existing.is_dir():
            raise UserError(f"--save-dir {self.folder}: {existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UserError(f"--save-dir {self.folder}: {existing} is not writable")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock it against other runs. Remove it at the end if it is new and empty."""
        refuse_dataset(self.folder, f"--save-dir {self.folder}")
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"--save-dir {self.folder}: cannot be created ({error.strerror})") from error
        try:
            try:
                lock(handle, f"--save-dir {self.folder}")
            except BlockingIOError as error:
                raise UserError(f"--save-dir {self.folder}: another process is training in it") from error
            yield
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):  # not empty
                for path in missing:
                    path.rmdir()

    def load_newest(self) -> Checkpoint | None:
        """Load the newest checkpoint that a run can resume from; None without checkpoints. Warn about skipped ones.
        Raises UserError if a run can resume from none, or if a file cannot be read now."""
        found = self._found()
        if len(found) > 1 and found[-1][1].name == LAST:
            message = "%s is newer than %s: to resume from the older one, remove the newer one"
            logger.warning(message, self.folder / LAST, found[-2][1].name)
        for number, (update, path) in enumerate(reversed(found), 1):
            try:
                checkpoint = _load_resumable(path, update)
            except UserError as error:
                if isinstance(error.__cause__, OSError):
                    raise UserError(f"--save-dir {self.folder}: {error}: make it readable, or move it away") from error
                logger.warning("%s%s", error, "; trying the previous checkpoint" if number < len(found) else "")
                self._unusable.append(path)
                continue
            self.newest = checkpoint.progress["update"]
            self.validations = dict(checkpoint.progress["checkpoint_validations"])
            self._is_best = checkpoint.progress.get("is_best", False)
            self._interim = {update for update, path in found if _progress(path).get("is_interim")}
            return checkpoint
        if found:
            raise UserError(
                f"--save-dir {self.folder}: cannot resume from any of its checkpoints; "
                "move them away to start a new run"
            )
        return None

    def read_options(self) -> dict[str, Any] | None:
        """Read the run's options from the newest checkpoint with an intact header; None if there is none."""
        recorded = (_progress(path).get("options") for _, path in reversed(self._found()))
        return next(filter(None, recorded), None)

    def _found(self) -> list[tuple[int, Path]]:
        """List update and path of each numbered checkpoint, and of LAST if it is newer, oldest first. Raises UserError
        if there is only BEST, which the first validation would replace."""
        found, last = list_checkpoints(self.folder), self.folder / LAST
        if last.is_file():
            update = _progress(last).get("update", 0)
            if not found or update > found[-1][0]:
                found.append((update, last))
        elif not found and (self.folder / BEST).is_file():
            raise UserError(
                f"--save-dir {self.folder}: {BEST} would be replaced, as there is no checkpoint to resume from; rename "
                f"it to {LAST} to resume from it, or use it with --init-from and a different --save-dir"
            )
        return found

    def prepare(self, options: dict[str, Any]) -> None:
        """Write the options of the run, and clean up after a killed run. Checkpoints that a run cannot resume from are
        renamed, so that no command uses them as part of this run."""
        remove_partial_files(self.folder, is_run_file)  # keep files of other programs
        for path in self._unusable:
            renamed = path.with_name(path.name + UNUSABLE)
            path.replace(renamed)
            logger.warning("%s cannot be resumed: renamed to %s", path, renamed.name)
        if self.newest is not None:
            newest = checkpoint_path(self.folder, self.newest)
            if not newest.exists():  # resumed from LAST
                link_file(self.folder / LAST, newest)
            self._link(newest, self._is_best)
        with staged_file(self.folder / OPTIONS) as file:
            file.write(json.dumps(options, indent=2).encode() + b"\n")

    def minutes_passed(self) -> bool:
        """Whether --save-minutes have passed since the last attempt to save."""
        minutes = self.config.save_minutes
        return minutes > 0 and time.monotonic() - self._last_save >= minutes * 60

    def regular(self) -> list[int]:
        """List the updates of the checkpoints that --keep-last and nmt-average --last count, oldest first."""
        newest = -1 if self.newest is None else self.newest
        return [u for u, _ in list_checkpoints(self.folder) if u <= newest and u not in self._interim]

    def save(self, update: int, checkpoint: Checkpoint, better: Better) -> None:
        """Write the checkpoint of an update, link `last` (and `best`) to it, and prune old ones."""
        progress, validations, interim = checkpoint.progress, dict(self.validations), self._interim - {update}
        if (value := progress.get(progress["best_metric"])) is not None:
            validations[update] = value
        if progress.get("is_interim"):
            interim |= {update}
        keep = self._kept(update, validations, interim, better)
        validations, interim = {u: value for u, value in validations.items() if u in keep}, interim & keep
        progress["checkpoint_validations"] = sorted(validations.items())
        path = checkpoint_path(self.folder, update)
        self._last_save = time.monotonic()
        save_checkpoint(path, checkpoint)
        self.newest, self.validations, self._interim = update, validations, interim
        self._link(path, progress["is_best"])
        for old, path in list_checkpoints(self.folder):
            if old not in keep and old < update:  # newer ones are not from this run
                path.unlink(missing_ok=True)

    def _link(self, newest: Path, is_best: bool) -> None:
        link_file(newest, self.folder / LAST)
        if is_best:
            link_file(newest, self.folder / BEST)

    def _kept(self, newest: int, validations: dict[int, float], interim: set[int], better: Better) -> set[int]:
        """Return the updates whose checkpoints to keep: the newest, the last N that are not interim, and the best N."""
        updates = {newest} | {update for update, _ in list_checkpoints(self.folder) if update < newest}
        oldest_first = sorted(updates & validations.keys())  # of equal values, the earlier one is better
        best_first = sorted(oldest_first, key=validations.__getitem__, reverse=better(1.0, 0.0))
        last = sorted(updates - interim)[-self.config.keep_last :]
        return {newest, *last, *best_first[: self.config.keep_best]}


def _load_resumable(path: Path, update: int) -> Checkpoint:
    """Load a checkpoint. Raises UserError unless a run can resume from it after `update`."""
    checkpoint = load_checkpoint(path, merge=False)
    if "options" not in checkpoint.progress:
        raise UserError(f"{path} is an average or an import: use it with --init-from")
    if checkpoint.progress["update"] != update:
        raise UserError(f"{path} was saved after update {checkpoint.progress['update']}, not {update} as its name says")
    with as_user_errors(path):
        check_finite(checkpoint.weights)
        check_finite(checkpoint.ema or {})
        check_optimizer(checkpoint.optimizer or {}, checkpoint.weights)
    return checkpoint


def _progress(path: Path) -> dict[str, Any]:
    """Read the progress of a checkpoint; empty if the file is missing or damaged."""
    with contextlib.suppress(UserError):
        return read_progress(path)
    return {}


def existing_part(path: Path) -> Path:
    """Return the path itself if it exists, else its nearest existing parent."""
    return next(part for part in (path, *path.absolute().parents) if part.exists())

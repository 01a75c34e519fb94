"""The save folder of a run: numbered checkpoints, the links `last` and `best`, and pruning."""

import contextlib
import errno
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nmtkit.checkpoint import (
    Checkpoint,
    check_finite,
    link_checkpoint,
    load_training_checkpoint,
    read_model_config,
    read_progress,
    save_checkpoint,
)
from nmtkit.console.log import logger
from nmtkit.errors import RunError, UserError
from nmtkit.model.config import ModelConfig
from nmtkit.outputs import refuse_dataset
from nmtkit.storage.archive import as_user_errors
from nmtkit.storage.atomic import check_regular, check_symlinks, lock_or_warn, remove_partial_files, staged_file
from nmtkit.storage.run_files import (
    BEST,
    EARLIER,
    LAST,
    METRICS,
    OPTIONS,
    UNUSABLE,
    checkpoint_path,
    is_run_file,
    list_checkpoints,
)
from nmtkit.training.config import CheckpointConfig
from nmtkit.training.optim import check_optimizer
from nmtkit.training.record import check_options, check_record

_UNREAD = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE)

T = TypeVar("T")
Better = Callable[[float, float], bool]  # whether one value of a validation is better than another


class SaveDirMovedError(RunError):
    """The path no longer names the folder that this run locked."""


class SaveDir:
    """Writes, finds and prunes the checkpoints of one run."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.folder = config.save_dir
        self._opened: os.stat_result | None = None  # the folder while it is locked
        self.newest: int | None = None  # the update of the newest checkpoint
        self._validations: dict[int, float] = {}  # update -> value, of the checkpoints at a validation
        self._ranking = 0  # as in `RunState`
        self._interim: set[int] = set()  # the updates of checkpoints that --keep-last does not count
        self._unusable: list[Path] = []  # newer checkpoints that cannot be resumed
        self._last_save = time.monotonic()

    def check(self) -> None:
        """UserError if the folder is a dataset or a file, or could not be created or written. Creates nothing."""
        refuse_dataset(self.folder, f"--save-dir {self.folder}")
        check_symlinks(self.folder)
        existing = existing_part(self.folder)
        if not existing.is_dir():
            raise UserError(f"--save-dir {self.folder}: {existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UserError(f"--save-dir {self.folder}: {existing} is not writable")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock out other runs. A run that writes nothing leaves no new folder."""
        refuse_dataset(self.folder, f"--save-dir {self.folder}")
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            is_dangling = self.folder.is_symlink() and not self.folder.exists()
            reason = "a symlink to a missing folder" if is_dangling else error.strerror
            raise UserError(f"--save-dir {self.folder}: cannot be created ({reason})") from error
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                lock_or_warn(handle, f"--save-dir {self.folder}")
            except BlockingIOError as error:
                raise UserError(f"--save-dir {self.folder}: another process is training in it") from error
            self._opened = os.fstat(handle)
            self.check_place()
            yield
        finally:
            if self._opened is not None:
                with contextlib.suppress(OSError, SaveDirMovedError):  # not empty, or of another run
                    self.check_place()
                    for path in missing:
                        path.rmdir()
            self._opened = None
            os.close(handle)  # while it is open, no other folder can get its inode

    def check_place(self) -> None:
        """Raise SaveDirMovedError unless the path still names the locked folder.

        The lock is that of the folder, but files are written by path: another run may have the folder there now.
        A folder whose state is unknown, as after an I/O error, is accepted: the write itself reports the error.
        """
        if self._opened is None:
            return
        try:
            is_same = os.path.samestat(self._opened, self.folder.stat())
        except (FileNotFoundError, NotADirectoryError):
            found = "no longer exists"
        except OSError:
            return
        else:
            if is_same:
                return
            found = "is now another folder, in which nothing was written"
        raise SaveDirMovedError(
            f"--save-dir {self.folder} {found}: the folder of this run was moved or removed; "
            "move it back, then run the same command to resume"
        )

    def prepare(self, options: dict[str, Any], metric: str, better: Better) -> None:
        """Write the options of the run, and clean up after a killed one; `metric` and `better` rank its checkpoints.

        Checkpoints that cannot be resumed are renamed, so that no stage takes them for those of this run.
        """
        self.check_place()
        for name in (OPTIONS, METRICS):
            check_regular(self.folder / name)
        for name in (LAST, BEST):  # else the first save would fail
            if (self.folder / name).is_dir():
                raise UserError(f"{self.folder / name} is a folder: remove it, or choose another --save-dir")
        remove_partial_files(self.folder, is_run_file)  # no files of other programs
        for path in self._unusable:
            logger.warning("%s is renamed to %s", path, _set_aside(path, UNUSABLE))
        content = json.dumps(options, indent=2).encode() + b"\n"
        if self.newest is None:
            self._set_earlier_aside(content)
        else:
            newest = checkpoint_path(self.folder, self.newest)
            if not newest.exists():  # resumed from LAST
                link_checkpoint(self.folder / LAST, newest.name)
            link_checkpoint(newest, LAST)
            self._set_later_best_aside(self.newest)
            self._link_best(metric, better)
        with staged_file(self.folder / OPTIONS) as file:
            file.write(content)

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that a run can resume from, if any; others are skipped with a warning.

        A file LAST that is newer than every numbered checkpoint counts too. UserError if none can be resumed.
        """
        found = self._found()
        if len(found) > 1 and found[-1][1].name == LAST:
            previous = found[-2][1].name
            message = "%s is newer than %s: to resume from an older checkpoint, remove it too"
            logger.warning(message, self.folder / LAST, previous)
        checkpoint = self._first_resumable(found)
        if checkpoint is not None:
            progress = checkpoint.progress
            self.newest = progress["update"]
            self._validations = dict(progress["checkpoint_validations"])
            self._ranking = progress.get("ranking", 0)
            self._interim = {update for update, path in found if _is_interim(path)}
        return checkpoint

    def read_model_config(self) -> ModelConfig | None:
        """The options of the model in the newest checkpoint whose header is intact; None if there is none.

        Skips damaged checkpoints without a message. Raises UserError if the only one is a damaged LAST.
        """
        return self._from_newest_header(read_model_config)

    def read_options(self) -> dict[str, Any] | None:
        """The options in the newest checkpoint of the run whose header is intact, as by `read_model_config`."""
        return self._from_newest_header(_read_options)

    def _from_newest_header(self, read: Callable[[Path], T]) -> T | None:
        """The result of `read` for the newest checkpoint that it can read; None if there is none."""
        for _, path in reversed(self._found()):
            with contextlib.suppress(UserError):
                return read(path)
        return None

    def _first_resumable(self, found: list[tuple[int, Path]]) -> Checkpoint | None:
        """The newest of the checkpoints `found` that a run can resume from; None if nothing was found.

        Warns of those that are skipped. UserError if none can be resumed, or for one that cannot be read now, such as
        that of another user: it may be intact.
        """
        for update, path in reversed(found):
            try:
                return _load_resumable(path, update)
            except UserError as error:
                if _is_unread(error):
                    raise UserError(
                        f"--save-dir {self.folder}: {error}: make it readable, or move it away to resume without it"
                    ) from error
                if len(found) == 1:
                    raise self._unusable_alone(error) from error
                is_oldest = (update, path) == found[0]
                logger.warning("%s%s", error, "" if is_oldest else "; trying the previous checkpoint")
                self._unusable += [path] if path.is_file() else []
        if found:
            raise UserError(
                f"--save-dir {self.folder}: cannot resume from any of its {len(found)} checkpoints; "
                "move them away to start a new run"
            )
        return None

    def _unusable_alone(self, error: UserError) -> UserError:
        """The error for the only checkpoint, which cannot be used."""
        return UserError(f"--save-dir {self.folder}: {error}; move it away to start a new run")

    def _found(self) -> list[tuple[int, Path]]:
        """The update and path of each checkpoint, oldest first: the numbered ones, and LAST if it is newer.

        UserError if there is only BEST, or a damaged LAST.
        """
        numbered = list_checkpoints(self.folder)
        last, best = self.folder / LAST, self.folder / BEST
        if last.is_file():
            return numbered + self._last_if_newer(last, numbered)
        if best.is_file() and not numbered:
            raise UserError(
                f"--save-dir {self.folder}: {BEST} would be replaced, as there is no checkpoint to resume from; rename "
                f"it to {LAST} to resume from it, or use it with --init-from and another --save-dir"
            )
        return numbered

    def _last_if_newer(self, last: Path, numbered: list[tuple[int, Path]]) -> list[tuple[int, Path]]:
        try:
            update = read_progress(last).get("update")
        except UserError as error:
            if numbered:
                return []  # the newest of them replaces it
            raise self._unusable_alone(error) from error
        if not numbered:
            return [(update if isinstance(update, int) else 0, last)]
        newest, _ = numbered[-1]
        if not isinstance(update, int) or update <= newest:
            return []
        return [(update, last)]

    def minutes_passed(self) -> bool:
        """Whether --save-minutes have passed since the last attempt to save."""
        minutes = self.config.save_minutes
        return minutes > 0 and time.monotonic() - self._last_save >= minutes * 60

    def forget_validations(self) -> None:
        """Forget the ranking of the checkpoints so far: it is by another metric."""
        self._validations = {}

    def regular(self) -> list[int]:
        """The updates of the checkpoints that --keep-last and nmt-average --last count, oldest first."""
        newest = -1 if self.newest is None else self.newest
        return [u for u, _ in list_checkpoints(self.folder) if u <= newest and u not in self._interim]

    def save(self, update: int, checkpoint: Checkpoint, better: Better) -> None:
        """Write the checkpoint of an update, link `last` (and `best`) to it, and prune old ones."""
        progress, validations, interim = checkpoint.progress, dict(self._validations), self._interim - {update}
        metric = progress["best_metric"]
        if progress.get(metric) is not None:
            validations[update] = progress[metric]
        if progress.get("is_interim"):
            interim |= {update}
        keep = self._kept(update, validations, interim, better)
        validations, interim = {u: value for u, value in validations.items() if u in keep}, interim & keep
        progress["checkpoint_validations"] = sorted(validations.items())
        path = checkpoint_path(self.folder, update)
        self._last_save = time.monotonic()
        self.check_place()
        check_regular(path)
        save_checkpoint(path, checkpoint)
        self.newest, self._validations, self._interim = update, validations, interim
        self._ranking = progress.get("ranking", 0)
        self.check_place()
        link_checkpoint(path, LAST)
        if progress["is_best"]:
            link_checkpoint(path, BEST)
        else:
            self._link_best(metric, better)
        self._remove_all_but(keep)

    def _set_later_best_aside(self, newest: int) -> None:
        """Remove or rename a BEST that is damaged, or later as after a return to an older checkpoint.

        It is renamed if it is the only copy.
        """
        best = self.folder / BEST
        update = _update_of(best) if best.is_file() else None
        if update is None or update <= newest:
            return
        if best.stat().st_nlink > 1:
            best.unlink()
        else:
            message = "%s is damaged, or later than update %d, from which the run resumes: it is renamed to %s"
            logger.warning(message, best, newest, _set_aside(best, UNUSABLE))

    def _set_earlier_aside(self, options: bytes) -> None:
        """Rename metrics and options that belong to no checkpoint, unless the options are those of this run, `options`.

        The same run from the beginning makes the same metrics again.
        """
        recorded = self.folder / OPTIONS
        if recorded.exists() and recorded.read_bytes() == options:
            return
        for path in (self.folder / METRICS, recorded):
            if path.exists() and path.stat().st_size:
                logger.warning("%s belongs to no checkpoint: it is renamed to %s", path, _set_aside(path, EARLIER))

    def _link_best(self, metric: str, better: Better) -> None:
        """Link BEST to the best of the kept checkpoints where it is missing, worse, or of another ranking.

        BEST can be stale after a failed save, or a kill before it was linked.
        """
        kept = {u: value for u, value in self._validations.items() if checkpoint_path(self.folder, u).is_file()}
        if not kept:
            return
        best, path = _ranked(kept, better)[0], self.folder / BEST
        linked: dict[str, Any] = {}
        with contextlib.suppress(UserError):
            linked = read_progress(path)
        value = linked.get(metric)
        is_worse = isinstance(value, int | float) and better(kept[best], value)
        is_other = "update" in linked and linked.get("ranking", 0) != self._ranking
        if not path.is_file() or is_worse or is_other:
            link_checkpoint(checkpoint_path(self.folder, best), BEST)

    def _kept(self, newest: int, validations: dict[int, float], interim: set[int], better: Better) -> set[int]:
        """The updates whose checkpoints are kept: the newest, the last N that are not interim, and the best N."""
        updates = {newest} | {update for update, _ in list_checkpoints(self.folder) if update < newest}
        ranked = _ranked({update: value for update, value in validations.items() if update in updates}, better)
        last = sorted(updates - interim)[-self.config.keep_last :]
        return {newest, *last, *ranked[: self.config.keep_best]}

    def _remove_all_but(self, keep: set[int]) -> None:
        self.check_place()
        for update, path in list_checkpoints(self.folder):
            if update not in keep and update < max(keep):  # one beyond the newest is not of this run
                path.unlink(missing_ok=True)


def _ranked(validations: Mapping[int, float], better: Better) -> list[int]:
    """The updates of the best values first; of equal ones, the earlier."""
    return sorted(sorted(validations), key=validations.__getitem__, reverse=better(1.0, 0.0))


def _is_unread(error: UserError) -> bool:
    """Whether the system has not let this process read a file, which may be intact."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _UNREAD


def _load_resumable(path: Path, update: int) -> Checkpoint:
    """The checkpoint in `path`; UserError unless a run can resume from it as that of `update`."""
    checkpoint = load_training_checkpoint(path)
    _check_of_run(checkpoint.progress, path)
    with as_user_errors(path):
        check_finite(checkpoint.weights)
        check_finite(checkpoint.ema or {})
        check_optimizer(checkpoint.optimizer or {}, checkpoint.weights, update)
    check_record(checkpoint.progress, path)
    if checkpoint.progress["update"] != update:
        raise UserError(f"{path}: its content is of update {checkpoint.progress['update']}")
    return checkpoint


def _read_options(path: Path) -> dict[str, Any]:
    """The options of the run in a checkpoint; UserError for one that is not of a run."""
    progress = read_progress(path)
    _check_of_run(progress, path)
    options: dict[str, Any] = progress["options"]
    check_options(options, path)
    if not options.get("batches", {}).get("max_tokens"):
        raise UserError(f"{path}: its training state has no options.batches.max_tokens")
    return options


def _check_of_run(progress: Mapping[str, Any], path: Path) -> None:
    if "options" not in progress:
        raise UserError(f"{path} is an average or an import: only --init-from can begin with it")


def _is_interim(path: Path) -> bool:
    """Whether --keep-last does not count a checkpoint. A damaged one counts."""
    with contextlib.suppress(UserError):
        return bool(read_progress(path).get("is_interim"))
    return False


def _update_of(path: Path) -> float | None:
    """The update of a checkpoint: infinity for a damaged one, None for one that is not of a training."""
    try:
        update = read_progress(path).get("update")
    except UserError:
        return math.inf
    return update if isinstance(update, int) else None


def _set_aside(path: Path, suffix: str) -> str:
    """Rename a file, so that no stage takes it for one of this run; returns its new name."""
    renamed, numbers = path.with_name(path.name + suffix), itertools.count(2)
    while renamed.exists():
        renamed = path.with_name(f"{path.name}{suffix}-{next(numbers)}")
    path.rename(renamed)
    return renamed.name


def existing_part(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next(part for part in (path, *path.absolute().parents) if part.exists())

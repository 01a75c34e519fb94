"""Writes the checkpoints of a run, and tolerates a few failures in a row."""

from torch import Tensor

from nmtkit.console.log import logger, working
from nmtkit.errors import NmtkitError, RunError
from nmtkit.storage.run_files import list_checkpoints
from nmtkit.training.config import TrainingOptions
from nmtkit.training.learner import Learner
from nmtkit.training.metrics import MetricsWriter
from nmtkit.training.optim import optimizer_tensors, schedule_free_sums
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.state import RunState, Window, make_record
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import Validator

_MAX_FAILURES = 3  # failed checkpoints in a row


class Saver:
    """Saves a run in its save folder."""

    def __init__(
        self,
        data: TrainingData,
        options: TrainingOptions,
        learner: Learner,
        validator: Validator,
        save_dir: SaveDir,
        ranks: Ranks,
    ) -> None:
        self.data, self.options, self.ranks = data, options, ranks
        self.learner, self.validator, self.save_dir = learner, validator, save_dir
        self.saved: int | None = None  # update of the newest complete checkpoint; None to write it again
        self._failures = 0  # in a row

    def save(self, state: RunState, window: Window, metrics: MetricsWriter | None, last: bool = False) -> None:
        """Write a checkpoint, unless this update has one. Collective.

        If writing fails, logs a warning, and the next save tries again. Raises RunError if the `last` save or several
        in a row fail, or if a weight is not finite. `metrics` are synced first: a checkpoint is never ahead of them.
        """
        if self.saved == state.update:
            return
        self._check_weights(state)
        optimizer = optimizer_tensors(self.learner.optimizer, self.learner.model)
        failure = self.ranks.run_on_main(lambda: self._write(state, window, optimizer, metrics))
        if failure is None:
            self.saved, self._failures = state.update, 0
            return
        self._failures += 1
        if last or self._failures >= _MAX_FAILURES:
            has_earlier = list_checkpoints(self.save_dir.folder)
            left = "earlier checkpoints are intact" if has_earlier else "there is no earlier checkpoint"
            raise self.ranks.report_once(RunError(f"{failure}; {left}"))
        logger.warning("%s; the next save tries again", failure)

    def divergence(self, state: RunState) -> str:
        """Return the advice at the end of the error message of a diverged run."""
        if any(update < state.update for update, _ in list_checkpoints(self.save_dir.folder)):
            left = "earlier checkpoints are intact. Lower"
        else:
            left = "it has no earlier checkpoint. Use a different --save-dir, and lower"
        return f"the run has diverged; {left} --lr-scale or --lr, warm up longer, or set --clip-norm"

    def _check_weights(self, state: RunState) -> None:
        """Raise RunError if a weight is not finite, because the run has diverged. All ranks have the same weights."""
        for name, weight in self.learner.model.named_parameters():
            if not weight.isfinite().all():
                raise self.ranks.report_once(
                    RunError(f"{name} contains NaN or infinity after update {state.update}: {self.divergence(state)}")
                )

    def _write(
        self, state: RunState, window: Window, optimizer: dict[str, Tensor], metrics: MetricsWriter | None
    ) -> str | None:
        """Save in the main process; return the error message, None on success."""
        state.scaler = self.learner.scaler.state_dict()
        state.schedule_free = schedule_free_sums(self.learner.optimizer)
        record = make_record(state, window, self.validator.metric, self.data, self.options)
        try:
            if metrics is not None:
                metrics.sync()
            with working(f"writing checkpoint {state.update}"):
                self.save_dir.save(state.update, self.learner.checkpoint(record, optimizer), self.validator.better)
        except (NmtkitError, OSError) as error:
            return str(error)
        return None

"""Finished runs of the Table 2 recipe, and their curves at a given cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import curves
import numpy as np
import scores

from nmtkit.checkpoint import load_checkpoint, read_progress
from nmtkit.errors import UserError
from nmtkit.storage.run_files import LAST


class Validation(NamedTuple):
    """A validation, with the cost of the training until then."""

    update: int
    tflop: float  # 10^12 operations, by the model's own count
    minutes: float  # of processor time
    perplexity: float
    bleu: float


@dataclass(frozen=True)
class Run:
    """A finished run, which has one seed."""

    corpus: str
    model: str
    parameters: int
    bleu: float  # of the test set
    validations: Sequence[Validation]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run from its folder, CORPUS/MODEL/seed-SEED. Raises UserError if it is unfinished."""
        weights = load_checkpoint(folder / "averaged.pt").weights
        corpus, model, _ = folder.parts[-3:]
        parameters = sum(tensor.numel() for tensor in weights.values())
        bleu, validations = scores.read_bleu(folder).value, _validations(folder / "checkpoints")
        last = read_progress(scores.training_file(folder, LAST))["update"]
        if validations[-1].update != last:
            raise UserError(
                f"{folder}/checkpoints/metrics.jsonl ends with a validation after update {validations[-1].update}, the "
                f"training after update {last}: lines were lost, bring them back or remove {folder} to train again"
            )
        return cls(corpus, model, parameters, bleu, validations)

    @property
    def end(self) -> Validation:
        """The last validation."""
        return self.validations[-1]

    def at(self, axis: str, cost: float, value: str) -> float | None:
        """A value at a cost on an axis, both fields of `Validation`: linear between validations, None outside."""
        costs = [getattr(one, axis) for one in self.validations]
        if not costs[0] <= cost <= costs[-1]:
            return None
        return float(np.interp(cost, costs, [getattr(one, value) for one in self.validations]))


def _validations(save_dir: Path) -> list[Validation]:
    """The validations in the metrics of a run. Raises UserError if there are none, or the cost is not recorded."""
    metrics = curves.Run.read(str(save_dir)).metrics
    columns = [dict(metrics.get(key, ())) for key in ("tflop", "processor_minutes", "valid_ppl", "valid_bleu")]
    *_, perplexity, bleu = columns
    if infinite := [update for update in bleu if update not in perplexity]:
        raise UserError(
            f"{save_dir}: the training has diverged, since its perplexity after update {infinite[0]} is not finite: "
            "change its learning rate or warm-up, or leave the model out"
        )
    if not bleu or any(update not in column for column in columns for update in bleu):
        raise UserError(
            f"{save_dir}/metrics.jsonl has no cost at each validation: train with --valid-bleu, and with a --log-every "
            "that divides --validate-every"
        )
    return [Validation(update, *(column[update] for column in columns)) for update in bleu]

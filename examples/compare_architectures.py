"""Compares models at the end of their runs and at equal cost, as Markdown.

    python -m compare_architectures multi30k/transformer/seed-1 multi30k/recurrent/seed-1 > report.md

Each argument is the folder of a finished run, MODEL/seed-SEED, of one corpus.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import curves
import numpy as np
from report import read_bleu, read_speed, spread, table

AXES = ("tflop", "processor_minutes")
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the cost of the cheapest run, at which the curves are read


class Validation(NamedTuple):
    """A validation, with the cost of the training so far."""

    update: int
    tflop: float  # 10¹² operations, by the model's own count
    processor_minutes: float
    perplexity: float
    bleu: float


@dataclass(frozen=True)
class Run:
    """A finished run: BLEU and speed of its translation of the test set, and its validations."""

    bleu: float
    speed: float  # sentences per second
    validations: Sequence[Validation]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run from its folder. Exits with a message if it has diverged or recorded no cost."""
        metrics = curves.read_metrics(folder / "checkpoints/metrics.jsonl")
        perplexity, bleu = (metrics.get(name, {}) for name in ("valid_ppl", "valid_bleu"))
        if not bleu or not bleu.keys() <= perplexity.keys():
            sys.exit(f"{folder}: training has diverged, or its metrics are incomplete: remove it to train again")
        tflop, minutes = (curves.cost(metrics, axis, list(bleu)).tolist() for axis in AXES)
        columns = zip(bleu, tflop, minutes, (perplexity[update] for update in bleu), bleu.values(), strict=True)
        values = [Validation(*column) for column in columns]
        return cls(read_bleu(folder), read_speed(folder), values)

    def at(self, axis: str, cost: float, value: str) -> float | None:
        """A value at a cost on an axis, both fields of `Validation`: linear between validations, None outside."""
        costs = [getattr(one, axis) for one in self.validations]
        if not costs[0] <= cost <= costs[-1]:
            return None
        return float(np.interp(cost, costs, [getattr(one, value) for one in self.validations]))


Runs = dict[str, list[Run]]  # of each model


def ends(runs: Runs) -> str:
    """Cost and quality of each model at the end of its runs."""
    header = ("model", "seeds", "updates", "operations", "processor minutes", "validation perplexity")
    rows = []
    for model, several in runs.items():

        def over(value: Callable[[Validation], float], digits: int = 2, several: list[Run] = several) -> str:
            return spread([value(run.validations[-1]) for run in several], digits)

        operations = 1e12 * fmean(run.validations[-1].tflop for run in several)
        rows.append(
            [
                *(model, str(len(several)), f"{several[0].validations[-1].update:,}", f"{operations:.3g}"),
                *(
                    over(lambda end: end.processor_minutes, 1),
                    over(lambda end: end.perplexity),
                    over(lambda end: end.bleu),
                ),
                *(spread([run.bleu for run in several]), spread([run.speed for run in several], 0)),
            ]
        )
    return table((*header, "validation BLEU, greedy", "test BLEU, beam 4", "sentences per second (elapsed)"), rows)


def at_equal_cost(runs: Runs, axis: str) -> str:
    """Validation BLEU and perplexity of each model, at shares of the cost of the cheapest run."""
    cheapest = min(getattr(run.validations[-1], axis) for several in runs.values() for run in several)
    readings = [(value, share * cheapest) for value in ("bleu", "perplexity") for share in SHARES]
    rows = []
    for model, several in runs.items():
        values = [[run.at(axis, cost, value) for run in several] for value, cost in readings]
        rows.append(
            [model, *(spread([one for one in own if one is not None]) if None not in own else "" for own in values)]
        )
    names = {"bleu": "BLEU", "perplexity": "perplexity"}
    return table(
        [f"model, over {curves.AXES[axis]}", *(f"{names[value]} at {cost:.3g}" for value, cost in readings)], rows
    )


def main(folders: Sequence[Path]) -> None:
    runs: Runs = {}
    for folder in folders:
        runs.setdefault(folder.parent.name, []).append(Run.read(folder))
    print(ends(runs), *(at_equal_cost(runs, axis) for axis in AXES), sep="\n\n")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
